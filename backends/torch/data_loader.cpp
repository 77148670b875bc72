// SPDX-License-Identifier: Apache-2.0
// The loop's thread plans batches with the sampler, ahead of the loop by what the threads may have in the making; they
// are handed out in the order they were planned, so the number of threads changes nothing but speed.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <troupe/torch_data.hpp>

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/torch_collectives.hpp>
#include <troupe/torch_model.hpp>
#include <troupe/torch_sampler.hpp>
#include <troupe/train.hpp>

#include "backends/torch/torch_group.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/make_thread.hpp"
#include "runtime/session/session.hpp"

namespace troupe::train::torch {
namespace detail {
namespace {

/// A batch that is planned, in the making, or made.
struct Planned {
  std::vector<std::size_t> indices;
  std::size_t number = 0;  ///< in its epoch, from 0
  std::size_t cursor = 0;  ///< of the sampler behind it
  std::size_t padded = 0;
  bool made = false;
  std::shared_ptr<void> batch;
  std::exception_ptr error;
};

void make(Planned& planned, const MakeBatch& make_batch) noexcept {
  try {
    planned.batch = make_batch(planned.indices);
  } catch (...) {
    planned.error = std::current_exception();
  }
}

/// This thread computes without helpers: a loader has its own number of threads, and a team of OpenMP for each of them
/// would take the cores from the training. Not with at::set_num_threads(), which is for the threads to come as well.
void compute_without_helpers() {
  at::get_num_threads();  // what libtorch sets when a thread first asks is set now
  for (const char* setter : {"omp_set_num_threads", "MKL_Set_Num_Threads_Local"})
    if (void* found = ::dlsym(RTLD_DEFAULT, setter)) reinterpret_cast<void (*)(int)>(found)(1);
}

/// Workers whose settings differ would run different numbers of steps, and wait for each other for ever.
void require_same_settings(std::size_t size, const DataLoaderOptions& options) {
  // A rank that joins a live run finds the others in their loops.
  if (const auto session = troupe::detail::Session::current(); session && session->joining()) return;
  const auto group = TorchGroup::find();
  if (!group || group->size() == 1) return;
  const auto settings = all_gather_json({{"samples", size},
                                         {"batch_size", options.batch_size},
                                         {"shuffle", options.shuffle},
                                         {"drop_last", options.drop_last},
                                         {"seed", options.seed}});
  for (std::size_t rank = 1; rank < settings.size(); ++rank)
    if (settings[rank] != settings[0])
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the data loaders of rank 0 and rank {} differ: {} and {}. All ranks give the whole data "
                              "set and equal options; each reads its share of it",
                              rank, settings[0].dump(), settings[rank].dump()),
                  group->rank());
}

/// Of all workers together. A batch holds no more than all samples, however many were asked for.
std::int64_t times_workers(std::size_t samples, std::int64_t batch_size) {
  return std::min(batch_size, std::max<std::int64_t>(1, static_cast<std::int64_t>(samples))) * world_size();
}

}  // namespace

class LoaderCore::Impl {
public:
  Impl(std::size_t size, const DataLoaderOptions& options, std::vector<MakeBatch> make_batch)
      : options_(options),
        global_batch_(times_workers(size, options.batch_size)),
        step_(global_batch_),
        sampler_(size, {.shuffle = options.shuffle, .drop_last = options.drop_last, .seed = options.seed}),
        context_(context()),
        make_batch_(std::move(make_batch)) {
    require_same_settings(size, options_);
    require_a_batch();
  }

  ~Impl() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      to_make_.clear();
    }
    something_to_make_.notify_all();
    for (auto& thread : threads_) thread.join();  // a thread ends with the batch it is making
  }

  std::size_t batches() const { return sampler_.batches(static_cast<std::size_t>(options_.batch_size)); }
  std::int64_t epoch() const { return ended_ ? sampler_.epoch() + 1 : sampler_.epoch(); }
  std::size_t cursor() const { return cursor_; }
  std::size_t padded() const { return padded_; }
  Json state() const { return sampler_.state_at(epoch(), cursor_); }

  void set_epoch(std::int64_t epoch) {
    sampler_.set_epoch(epoch);
    take_position();
  }
  void load_state(const Json& state) {
    sampler_.load_state(state);
    take_position();
  }

  std::int64_t global_batch() const { return global_batch_; }

  void go_on_at(const Json& state) {
    load_state(state);
    goes_on_ = true;
  }

  void reshard(std::optional<std::int64_t> global_batch) {
    const auto where = state();
    sampler_.reshard(world_size(), world_rank());
    if (global_batch) share(*global_batch);
    step_ = times_workers(sampler_.size(), options_.batch_size);
    if (!global_batch) global_batch_ = step_;
    load_state(where);
    require_a_batch();
    // What the new number of workers cannot share out any more is left out, as it is at the end of every epoch.
    if (options_.drop_last && (sampler_.size() - cursor_) / static_cast<std::size_t>(world_size()) <
                                  static_cast<std::size_t>(options_.batch_size))
      set_epoch(epoch() + 1);
    goes_on_ = true;
  }

  void begin_epoch() {
    sampler_.reset();
    take_position();
    begun_ = true;
    if (options_.workers > 0 && threads_.empty()) start_threads();
    plan_ahead();
  }

  std::shared_ptr<void> next_of_any_epoch() {
    if (!begun_) begin_epoch();
    if (auto batch = next()) return batch;
    begin_epoch();
    return next();
  }

  std::shared_ptr<void> next() {
    if (goes_on_) begin_epoch();
    if (planned_.empty()) {
      padded_ = 0;
      if (!begun_) return nullptr;  // the position was moved inside the loop, and is where the next one begins
      cursor_ = 0;
      ended_ = true;
      return nullptr;
    }
    const auto planned = planned_.front();
    planned_.pop_front();
    if (threads_.empty()) {
      make(*planned, make_batch_.front());
    } else {
      std::unique_lock lock(mutex_);
      something_made_.wait(lock, [&] { return planned->made; });
    }
    plan_ahead();
    cursor_ = planned->cursor;
    padded_ = planned->padded;
    if (planned->error) rethrow(*planned);  // the next call gives the batch behind it: workers stay in step
    return std::move(planned->batch);
  }

private:
  void require_a_batch() const {
    if (batches() == 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("drop_last leaves nothing: {} samples do not fill one batch of {} on each of {} workers",
                              sampler_.size(), options_.batch_size, world_size()),
                  world_rank());
  }

  /// The loop stands where the sampler stands; what was planned before is void.
  void take_position() {
    drop_plans();
    begun_ = false;
    goes_on_ = false;
    ended_ = false;
    cursor_ = sampler_.cursor();
    padded_ = 0;
  }

  void drop_plans() {
    std::lock_guard lock(mutex_);
    to_make_.clear();
    planned_.clear();
  }

  void share(std::int64_t global_batch) {
    const auto workers = static_cast<std::int64_t>(world_size());
    global_batch_ = global_batch;
    options_.batch_size = std::max<std::int64_t>(1, global_batch_ / workers);
    if (options_.batch_size * workers != global_batch_)
      log_warning("a global batch of {} cannot be shared by {} workers: it is {} from now on", global_batch_, workers,
                  options_.batch_size * workers);
  }

  void plan_ahead() {
    const auto ahead = threads_.empty() ? 1 : threads_.size() * static_cast<std::size_t>(options_.prefetch);
    while (planned_.size() < ahead) {
      const auto number = sampler_.cursor() / static_cast<std::size_t>(step_);
      auto indices = sampler_.next(static_cast<std::size_t>(options_.batch_size));
      if (!indices) return;
      auto planned = std::make_shared<Planned>();
      planned->indices = std::move(*indices);
      planned->number = number;
      planned->cursor = sampler_.cursor();
      planned->padded = sampler_.padded();
      planned_.push_back(planned);
      if (threads_.empty()) continue;
      {
        std::lock_guard lock(mutex_);
        to_make_.push_back(std::move(planned));
      }
      something_to_make_.notify_one();
    }
  }

  void start_threads() {
    for (const auto& make_batch : make_batch_)
      threads_.push_back(troupe::detail::make_thread("of a data loader", [this, &make_batch] {
        ContextGuard guard(context_);  // data sets may ask for their rank
        compute_without_helpers();
        make_batches(make_batch);
      }));
  }

  void make_batches(const MakeBatch& make_batch) {
    std::unique_lock lock(mutex_);
    for (;;) {
      something_to_make_.wait(lock, [&] { return stop_ || !to_make_.empty(); });
      if (stop_) return;
      auto planned = std::move(to_make_.front());
      to_make_.pop_front();
      lock.unlock();
      make(*planned, make_batch);
      lock.lock();
      planned->made = true;
      something_made_.notify_one();
    }
  }

  [[noreturn]] void rethrow(const Planned& planned) const {
    std::string why = "something that is no std::exception";
    try {
      std::rethrow_exception(planned.error);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::stopped || error.code() == ErrorCode::group_lost) throw;
      why = error.what();
    } catch (const std::exception& error) {
      why = error.what();
    } catch (...) {
    }
    const auto shown = std::min<std::size_t>(planned.indices.size(), 8);
    throw Error(
        ErrorCode::user_code,
        fmt::format("the data set threw at batch {} of epoch {} (samples {}{}): {}", planned.number, sampler_.epoch(),
                    fmt::join(planned.indices.begin(), planned.indices.begin() + std::ptrdiff_t(shown), ", "),
                    shown < planned.indices.size() ? ", ..." : "", why),
        world_rank());
  }

  DataLoaderOptions options_;
  std::int64_t global_batch_;
  std::int64_t step_;           ///< the part of it that the present workers share out equally
  DistributedSampler sampler_;  ///< ahead of the loop by what is in planned_
  const Context context_;
  const std::vector<MakeBatch> make_batch_;

  // Where the loop stands.
  std::size_t cursor_ = 0;
  std::size_t padded_ = 0;
  bool ended_ = false;
  bool begun_ = false;    ///< an epoch, and the position was not moved since
  bool goes_on_ = false;  ///< a loop that runs stays in it, though the position was moved
  /// In the order of the loop.
  std::deque<std::shared_ptr<Planned>> planned_;

  std::vector<std::thread> threads_;
  std::mutex mutex_;  ///< guards what follows, and `made` of all that is planned
  std::deque<std::shared_ptr<Planned>> to_make_;
  bool stop_ = false;
  std::condition_variable something_to_make_;
  std::condition_variable something_made_;
};

std::size_t LoaderCore::makers(const DataLoaderOptions& options, bool copyable) {
  const auto refuse = [](const std::string& text) { throw Error(ErrorCode::invalid_option, text); };
  if (options.batch_size < 1)
    refuse(fmt::format("DataLoaderOptions.batch_size = {} is refused: at least 1 sample a worker", options.batch_size));
  if (options.workers < 0 || options.workers > 1024)
    refuse(fmt::format("DataLoaderOptions.workers = {} is refused: 0 to 1024 threads", options.workers));
  if (options.prefetch < 1 || options.prefetch > 1024)
    refuse(fmt::format("DataLoaderOptions.prefetch = {} is refused: 1 to 1024 batches", options.prefetch));
  if (options.workers > 1 && !copyable)
    refuse(
        fmt::format("DataLoaderOptions.workers = {} is refused: each thread needs a copy of the data set, and its "
                    "type cannot be copied: use 0 or 1",
                    options.workers));
  return static_cast<std::size_t>(std::max(1, options.workers));
}

LoaderCore::LoaderCore(std::size_t size, const DataLoaderOptions& options, std::vector<MakeBatch> make_batch)
    : impl_(std::make_unique<Impl>(size, options, std::move(make_batch))) {}
LoaderCore::~LoaderCore() = default;

void LoaderCore::begin_epoch() { impl_->begin_epoch(); }
std::shared_ptr<void> LoaderCore::next() { return impl_->next(); }
std::shared_ptr<void> LoaderCore::next_of_any_epoch() { return impl_->next_of_any_epoch(); }
std::size_t LoaderCore::size() const { return impl_->batches(); }
std::int64_t LoaderCore::epoch() const { return impl_->epoch(); }
std::size_t LoaderCore::cursor() const { return impl_->cursor(); }
std::size_t LoaderCore::padded() const { return impl_->padded(); }
void LoaderCore::set_epoch(std::int64_t epoch) { impl_->set_epoch(epoch); }
Json LoaderCore::state() const { return impl_->state(); }
void LoaderCore::load_state(const Json& state) { impl_->load_state(state); }
std::int64_t LoaderCore::global_batch() const { return impl_->global_batch(); }
void LoaderCore::go_on_at(const Json& state) { impl_->go_on_at(state); }
void LoaderCore::reshard(std::optional<std::int64_t> global_batch) { impl_->reshard(global_batch); }

c10::Device loader_device() { return get_device(); }

}  // namespace detail

DataLoader<> prepare_data_loader(TensorPair tensors, const DataLoaderOptions& options) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorCode::invalid_argument, "prepare_data_loader({x, y}): " + text);
  };
  if (!tensors.data.defined() || !tensors.target.defined()) refuse("a tensor is undefined; both are needed");
  if (tensors.data.dim() == 0 || tensors.target.dim() == 0)
    refuse("a tensor is a single number; the first dimension counts the samples");
  if (tensors.data.size(0) != tensors.target.size(0))
    refuse(fmt::format("x has {} samples, y has {}: the first dimensions must be equal", tensors.data.size(0),
                       tensors.target.size(0)));
  const auto size = static_cast<std::size_t>(tensors.data.size(0));
  const detail::MakeBatch make_batch = [tensors](const std::vector<std::size_t>& indices) {
    static_assert(sizeof(std::size_t) == sizeof(std::int64_t));
    const auto rows =
        at::from_blob(const_cast<std::size_t*>(indices.data()), {static_cast<std::int64_t>(indices.size())}, at::kLong);
    const auto cut = [&](const at::Tensor& tensor) {
      return detail::to_device(tensor.index_select(0, rows.to(tensor.device())), get_device());
    };
    return std::make_shared<::torch::data::Example<>>(cut(tensors.data), cut(tensors.target));
  };
  std::vector<detail::MakeBatch> makers(detail::LoaderCore::makers(options, true), make_batch);
  return DataLoader<>(std::make_unique<detail::LoaderCore>(size, options, std::move(makers)));
}

}  // namespace troupe::train::torch
