// SPDX-License-Identifier: Apache-2.0
// Data loaders: every worker gets its share of each batch, on its device. `for (auto& [x, y] : loader)` is one epoch.
#pragma once

#include <torch/data/example.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <troupe/json.hpp>
#include <troupe/torch_data_batches.hpp>

namespace troupe::train::torch {

struct DataLoaderOptions {
  /// Samples a batch on each worker; all together take world_size times as many.
  std::int64_t batch_size = 1;
  bool shuffle = false;
  /// The end of an epoch that does not fill a batch on every worker: false pads it (see padded()), true leaves it out.
  bool drop_last = false;
  /// Threads that make batches ahead; 0: the loop makes them.
  int workers = 0;
  /// Of the order; that of an epoch is a function of seed and epoch alone.
  std::uint64_t seed = 0;
  /// Batches that each thread makes ahead of the loop.
  int prefetch = 2;
};

namespace detail {

/// Makes the batch with these samples.
using MakeBatch = std::function<std::shared_ptr<void>(const std::vector<std::size_t>& indices)>;

/// What a DataLoader does whatever its batches are.
class LoaderCore {
public:
  /// `make_batch` holds one function a thread, or one that the loop calls. Collective: workers compare their settings.
  LoaderCore(std::size_t size, const DataLoaderOptions& options, std::vector<MakeBatch> make_batch);
  ~LoaderCore();

  void begin_epoch();
  /// The next batch; null at the end of the epoch.
  std::shared_ptr<void> next();
  /// The next batch; after the last of an epoch, the first of the next.
  std::shared_ptr<void> next_of_any_epoch();

  std::size_t size() const;
  std::int64_t epoch() const;
  std::size_t cursor() const;
  std::size_t padded() const;
  void set_epoch(std::int64_t epoch);
  Json state() const;
  void load_state(const Json& state);

  /// Samples that all workers together take with each batch.
  std::int64_t global_batch() const;
  /// load_state() in the middle of a loop, which then goes on there.
  void go_on_at(const Json& state);
  /// The group was formed anew: goes on with the present ranks, in the middle of a loop too. Batches keep their size on
  /// each worker, or become such that all together take about `global_batch` samples.
  void reshard(std::optional<std::int64_t> global_batch);

  /// Throws for options that no loader can have. Gives the number of functions the constructor wants.
  static std::size_t makers(const DataLoaderOptions& options, bool copyable);

private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace detail

/// An epoch a loop: the n-th loop over it is epoch n, from 0. Used by one thread.
template <class Batch = ::torch::data::Example<>>
class DataLoader {
public:
  class Iterator {
  public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;
    using pointer = Batch*;
    using reference = Batch&;

    Batch& operator*() const { return *batch_; }
    Batch* operator->() const { return batch_.get(); }
    Iterator& operator++() {
      batch_.reset();  // before the next one is made: two batches need not be in memory
      batch_ = std::static_pointer_cast<Batch>(core_->next());
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) { return it.batch_ == nullptr; }

  private:
    friend DataLoader;
    explicit Iterator(detail::LoaderCore* core) : core_(core) { ++*this; }

    detail::LoaderCore* core_;
    std::shared_ptr<Batch> batch_;
  };

  explicit DataLoader(std::unique_ptr<detail::LoaderCore> core) : core_(std::move(core)) {}

  /// The next batch, for loops that count steps: begins the first epoch, and each further one behind the last batch of
  /// the one before. Valid until the next call.
  Batch& next() {
    batch_.reset();
    batch_ = std::static_pointer_cast<Batch>(core_->next_of_any_epoch());
    return *batch_;
  }

  /// Begins the next epoch, or goes on where load_state() says.
  Iterator begin() {
    core_->begin_epoch();
    return Iterator(core_.get());
  }
  std::default_sentinel_t end() const { return {}; }

  /// Batches a whole epoch has on each worker.
  std::size_t size() const { return core_->size(); }
  /// The epoch of the loop that runs, or else of the next one (after a break: still the one that was left).
  std::int64_t epoch() const { return core_->epoch(); }
  /// Samples of the epoch that all workers together have taken, the present batch included.
  std::size_t cursor() const { return core_->cursor(); }
  /// How many samples at the end of the present batch only fill it up: 0, or 1 in the last batch of an epoch.
  std::size_t padded() const { return core_->padded(); }
  /// The next loop is this epoch.
  void set_epoch(std::int64_t epoch) { core_->set_epoch(epoch); }

  /// Where the loop stands: behind the present batch. The same on all workers; keep it with the model.
  Json state() const { return core_->state(); }
  /// The next loop goes on there, also with another number of workers or another batch size. Throws invalid_argument
  /// for a state of another data set or seed.
  void load_state(const Json& state) { core_->load_state(state); }

  detail::LoaderCore& core() const { return *core_; }

private:
  std::unique_ptr<detail::LoaderCore> core_;
  std::shared_ptr<Batch> batch_;  // of next()
};

/// Tensors in memory whose first dimension counts the samples: prepare_data_loader({x, y}, ...).
struct TensorPair {
  at::Tensor data;
  at::Tensor target;
};

/// A loader over tensors in memory: a batch is cut out at once, not sample by sample. Collective.
DataLoader<> prepare_data_loader(TensorPair tensors, const DataLoaderOptions& options = {});

/// A loader over a torch data set: anything with size() and get_batch(indices) or get(index). Batches that are vectors
/// of examples are stacked, what a `.map(...)` made of them stays as it is. Collective.
///
/// With `workers` above 0 each thread has a copy of the data set, so one that is copied need not be safe to use from
/// several threads; what its copies share must be.
template <class Dataset>
  requires detail::BatchSource<std::decay_t<Dataset>>
auto prepare_data_loader(Dataset&& dataset, const DataLoaderOptions& options = {}) {
  using Data = std::decay_t<Dataset>;
  using Batch = decltype(detail::make_batch(std::declval<Data&>(), {}, c10::Device(c10::kCPU)));
  const auto size = detail::size_of(dataset);
  const auto count = detail::LoaderCore::makers(options, std::copy_constructible<Data>);
  std::vector<detail::MakeBatch> makers;
  const auto add = [&](std::shared_ptr<Data> data) {
    makers.push_back([data = std::move(data)](const std::vector<std::size_t>& indices) -> std::shared_ptr<void> {
      return std::make_shared<Batch>(detail::make_batch(*data, indices, detail::loader_device()));
    });
  };
  if constexpr (std::copy_constructible<Data>)
    while (makers.size() + 1 < count) add(std::make_shared<Data>(dataset));
  add(std::make_shared<Data>(std::forward<Dataset>(dataset)));
  return DataLoader<Batch>(std::make_unique<detail::LoaderCore>(size, options, std::move(makers)));
}

}  // namespace troupe::train::torch
