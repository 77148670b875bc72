// SPDX-License-Identifier: Apache-2.0
// Averages gradients over all ranks while backward() still runs. Buckets are fixed for ever, so every run sums in the
// same order and launches in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/torch/collective.hpp"

namespace troupe {

struct NamedParameter {
  std::string name;
  at::Tensor value;
};

struct ReducerOptions {
  std::size_t bucket_bytes = std::size_t{4} << 20;
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  /// A parameter that got no gradient counts as zero; otherwise that is an error that names it.
  bool find_unused_parameters = false;
};

class Reducer {
public:
  /// Collective. Hooks stay until destruction.
  Reducer(std::shared_ptr<Collective> collective, std::vector<NamedParameter> parameters, ReducerOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// While off, gradients accumulate on this rank alone.
  void set_sync(bool sync) { sync_ = sync; }
  bool sync() const { return sync_; }

private:
  struct Bucket;
  struct Hooks;
  void make_buckets();
  void begin_backward();
  void gradient_ready(std::size_t parameter);
  void put(std::size_t parameter);
  void start_ready_buckets();
  void finish_backward();
  [[noreturn]] void throw_unused() const;

  std::shared_ptr<Collective> collective_;
  std::vector<NamedParameter> parameters_;
  ReducerOptions options_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<std::size_t> bucket_of_;
  std::vector<at::Tensor> slots_;  // where each gradient lives
  std::unique_ptr<Hooks> hooks_;
  bool sync_ = true;

  // The current backward(). Its hooks run on one thread at a time.
  std::mutex mutex_;
  bool in_backward_ = false;
  std::vector<char> ready_;
  std::size_t next_bucket_ = 0;
};

}  // namespace troupe
