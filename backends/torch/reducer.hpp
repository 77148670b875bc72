// SPDX-License-Identifier: Apache-2.0
// Averages gradients over all ranks while backward() still runs. Buckets are fixed for ever, so every run sums in the
// same order and launches in the same order.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <troupe/torch_model.hpp>

#include "backends/torch/collective.hpp"
#include "backends/torch/flat_broadcast.hpp"
#include "backends/torch/rank_replicas.hpp"

namespace troupe {

struct NamedParameter {
  std::string name;
  at::Tensor value;
  /// Its gradients are sparse, and stay so: they are in no bucket.
  bool sparse = false;
};

class Reducer;

/// Which of a rank's models is in a join(). One at a time: a rank without data takes part in the backward() of one.
struct JoinedModel {
  /// That of a rank; made at the first use.
  static std::shared_ptr<JoinedModel> of(detail::RankData& rank);

  std::atomic<const Reducer*> reducer{nullptr};
};

struct ReducerOptions {
  std::size_t bucket_bytes = std::size_t{4} << 20;
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  bool find_unused_parameters = false;
  bool check_gradients = false;
  train::torch::CommHook comm_hook = {};
  /// What every rank has of its own, which travels with the gradients where a live recovery may need them.
  std::shared_ptr<RankReplicas> replicas = nullptr;
  std::shared_ptr<JoinedModel> joined = std::make_shared<JoinedModel>();
};

class Reducer : public std::enable_shared_from_this<Reducer> {
public:
  /// Collective. Hooks stay until destruction. `frozen`: parameters that are not averaged, and must not be trained.
  /// `buffers`: given from one rank to all at the end of each backward().
  Reducer(std::shared_ptr<Collective> collective, std::vector<NamedParameter> parameters,
          std::vector<NamedParameter> frozen, std::vector<at::Tensor> buffers, ReducerOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Between the two, gradients accumulate on this rank alone. May be nested.
  void stop_sync() { unsynced_ += 1; }
  void resume_sync() { unsynced_ -= 1; }

  /// Between the two, every backward() begins with a count of the ranks that still have data. Throws while a model of
  /// this rank is in a join() already.
  void begin_join(bool divide_by_initial_world_size);
  void end_join() { options_.joined->reducer = nullptr; }
  bool is_joined() const { return options_.joined->reducer == this; }
  /// What became of a backward() that a rank without data took part in.
  enum class Shadow {
    averaged,  ///< the gradients are the average of the others'
    left_out,  ///< check_gradients found some that are not finite: nobody takes a step
    over,      ///< there was none any more, no rank has data
  };
  /// Takes part in one backward() of the others, with zeros.
  Shadow shadow_backward();
  /// A rank that made the last step of a join.
  int last_active_rank() const { return root_; }

  Collective& collective() const { return *collective_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

private:
  struct Bucket;
  struct Hooks;
  struct Pass;
  void make_buckets();
  void begin_backward(bool has_data);
  void gradient_ready(std::size_t parameter);
  void join_pass();
  void put(std::size_t parameter);
  void put_missing(bool allowed);
  void start_ready_buckets();
  void start_all_buckets();
  static void average(const std::vector<std::shared_ptr<Reducer>>& reducers);
  void exchange_states();
  std::vector<at::Tensor> gather_states();
  void contribute();
  void finish_buckets();
  void check_averages();
  void drop_gradients();
  void check_frozen() const;
  [[noreturn]] void throw_unused(const std::vector<std::size_t>& missing) const;
  [[noreturn]] static void throw_nonfinite(const std::vector<std::string>& places);

  std::shared_ptr<Collective> collective_;
  std::uint64_t number_ = 0;  // counts up in the order of preparation, alike on all ranks
  std::vector<NamedParameter> parameters_;
  const std::vector<NamedParameter> frozen_;
  FlatBroadcast buffers_;
  const ReducerOptions options_;
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::vector<std::size_t> bucket_of_;
  std::vector<at::Tensor> slots_;  // where each gradient lives
  std::unique_ptr<Hooks> hooks_;
  std::atomic<int> unsynced_{0};

  bool divide_by_initial_world_size_ = true;
  int root_ = 0;          // whose buffers count: the lowest rank that has data
  int active_ranks_ = 0;  // that have data

  // The current backward(). Its hooks run on one thread at a time.
  std::mutex mutex_;
  bool in_backward_ = false;
  bool broken_ = false;
  std::vector<std::uint8_t> states_;    // of the gradients, see State
  std::vector<std::string> nonfinite_;  // gradients of all ranks
  std::size_t next_bucket_ = 0;
};

}  // namespace troupe
