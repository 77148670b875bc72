// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/reducer.hpp"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/comm_hook.hpp"
#include "backends/torch/sparse_reduce.hpp"
#include "backends/torch/torch_compat.hpp"
#include "backends/torch/waiting.hpp"

namespace troupe {
namespace {

constexpr detail::Activity in_gradients{detail::WaitsFor::group, "the averaging of gradients"};

namespace autograd = ::torch::autograd;

constexpr const char* one_joined_model =
    "a worker without data takes part in the backward() of one model only: make one module of both, prepare and join "
    "that";

constexpr std::size_t no_bucket = static_cast<std::size_t>(-1);

/// What a backward() has seen of a parameter's gradient on one rank: bits.
enum State : std::uint8_t { ready = 1, nonfinite = 2 };

class GradientHook : public autograd::FunctionPostHook {
public:
  explicit GradientHook(std::function<void()> call) : call_(std::move(call)) {}
  autograd::variable_list operator()(const autograd::variable_list& outputs, const autograd::variable_list&) override {
    call_();
    return outputs;
  }

private:
  std::function<void()> call_;
};

bool all_finite(const at::Tensor& gradient) {
  const auto values = gradient.is_sparse() ? gradient._values() : gradient;
  // One pass that keeps nothing; only a sum that leaves its range needs the exact answer.
  return std::isfinite(values.sum().item<double>()) || values.isfinite().all().item<bool>();
}

/// A sparse one has no storage to ask for.
bool lives_in(const at::Tensor& slot, const at::Tensor& gradient) {
  return !gradient.is_sparse() && gradient.is_alias_of(slot);
}

/// Another model that shares the parameter may average it.
bool has_hook(const at::Tensor& parameter) {
  const auto accumulator = autograd::impl::try_get_grad_accumulator(parameter);
  return accumulator && !accumulator->post_hooks().empty();
}

}  // namespace

std::shared_ptr<JoinedModel> JoinedModel::of(detail::RankData& rank) {
  return rank.get_or_make<JoinedModel>("torch join");
}

struct Reducer::Bucket {
  std::vector<std::size_t> parameters;
  std::unique_ptr<ReduceBuffer> buffer;
  std::size_t missing = 0;
};

/// The accumulators of the parameters: a tensor holds only a weak reference to its own.
struct Reducer::Hooks {
  using Accumulator = decltype(autograd::impl::grad_accumulator(std::declval<at::Tensor>()));
  std::vector<std::pair<Accumulator, std::uintptr_t>> entries;
};

/// One backward() of this rank, with all models that it reaches: ranks come to these in different orders, so none may
/// wait for a model of the others before it has given them what it has of every model. Lives as long as the backward()
/// may still come to its end: one that fails on its way never calls back, but drops this.
struct Reducer::Pass {
  Pass(int backward, const Collective* group) : task(backward), collective(group) {}
  ~Pass() {
    for (const auto& reducer : reducers) {
      std::lock_guard lock(reducer->mutex_);
      if (!std::exchange(reducer->in_backward_, false)) continue;
      reducer->broken_ = true;
      reducer->drop_gradients();  // ranks that come later still write their averages there
    }
  }
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;
  void finish();

  const int task;
  const Collective* const collective;
  std::vector<std::shared_ptr<Reducer>> reducers;
  bool ending = false;
};

Reducer::Reducer(std::shared_ptr<Collective> collective, std::vector<NamedParameter> parameters,
                 std::vector<NamedParameter> frozen, std::vector<at::Tensor> buffers, ReducerOptions options)
    : collective_(std::move(collective)),
      parameters_(std::move(parameters)),
      frozen_(std::move(frozen)),
      buffers_(std::move(buffers)),
      options_(std::move(options)),
      bucket_of_(parameters_.size(), no_bucket),
      slots_(parameters_.size()),
      hooks_(std::make_unique<Hooks>()),
      states_(parameters_.size()) {
  make_buckets();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto accumulator = autograd::impl::grad_accumulator(parameters_[i].value);
    const auto key = accumulator->add_post_hook(std::make_unique<GradientHook>([this, i] { gradient_ready(i); }));
    hooks_->entries.emplace_back(std::move(accumulator), key);
  }
}

Reducer::~Reducer() {
  for (auto& [accumulator, key] : hooks_->entries) accumulator->del_post_hook(key);
}

/// Gradients become ready from the last layer to the first, and so are the buckets filled.
void Reducer::make_buckets() {
  number_ = collective_->begin_buffers();
  std::size_t bytes = 0;
  for (std::size_t i = parameters_.size(); i-- > 0;) {
    const auto& value = parameters_[i].value;
    if (parameters_[i].sparse) continue;
    const auto limit = buckets_.size() <= 1 ? options_.first_bucket_bytes : options_.bucket_bytes;
    const bool fits = !buckets_.empty() && bytes + value.nbytes() <= limit &&
                      parameters_[buckets_.back()->parameters.front()].value.scalar_type() == value.scalar_type();
    if (!fits) {
      buckets_.push_back(std::make_unique<Bucket>());
      bytes = 0;
    }
    bytes += value.nbytes();
    bucket_of_[i] = buckets_.size() - 1;
    buckets_.back()->parameters.push_back(i);
  }
  for (std::size_t index = 0; index < buckets_.size(); ++index) {
    auto& bucket = *buckets_[index];
    train::torch::GradientBucket description{{}, index, {}};
    std::int64_t elements = 0;
    for (auto i : bucket.parameters) {
      elements += parameters_[i].value.numel();
      description.parameters.push_back(parameters_[i].name);
    }
    bucket.buffer =
        make_gradient_buffer(*collective_, options_.comm_hook, elements,
                             parameters_[bucket.parameters.front()].value.options(), std::move(description));
    const auto flat = bucket.buffer->tensor();
    std::int64_t offset = 0;
    for (auto i : bucket.parameters) {
      const auto& value = parameters_[i].value;
      // Shares storage but is no view, so that an optimizer's zero_grad() may detach it.
      slots_[i] = at::empty({0}, flat.options());
      if (value.is_non_overlapping_and_dense())
        slots_[i].set_(flat.storage(), offset, value.sizes(), value.strides());
      else
        slots_[i].set_(flat.storage(), offset, value.sizes(), {});
      offset += value.numel();
    }
  }
}

void Reducer::begin_join(bool divide_by_initial_world_size) {
  const Reducer* nobody = nullptr;
  if (!options_.joined->reducer.compare_exchange_strong(nobody, this))
    throw Error(ErrorCode::invalid_state, fmt::format("join() was called inside join(), but {}", one_joined_model),
                collective_->rank());
  divide_by_initial_world_size_ = divide_by_initial_world_size;
  root_ = 0;
}

void Reducer::begin_backward(bool has_data) {
  if (broken_)
    throw Error(ErrorCode::invalid_state,
                "an earlier backward() of this model failed on its way, and the other workers wait for its gradients: "
                "let the error end the train function, or call prepare_model() again on every worker",
                collective_->rank());
  const auto* joined = options_.joined->reducer.load();
  if (joined && joined != this)
    throw Error(ErrorCode::invalid_state,
                fmt::format("a prepared model is trained inside the join() of another one, but {}", one_joined_model),
                collective_->rank());
  next_bucket_ = 0;
  std::fill(states_.begin(), states_.end(), std::uint8_t{0});
  for (auto& bucket : buckets_) bucket->missing = bucket->parameters.size();
  active_ranks_ = collective_->size();
  if (!joined) {
    root_ = 0;
    return;
  }
  const auto& place = parameters_.front().value;
  const auto flags = collective_->all_gather(at::full({1}, has_data ? 1 : 0, place.options().dtype(at::kByte)));
  active_ranks_ = 0;
  for (std::size_t rank = flags.size(); rank-- > 0;)
    if (flags[rank].item<int>() != 0) {
      active_ranks_ += 1;
      root_ = static_cast<int>(rank);
    }
}

void Reducer::gradient_ready(std::size_t parameter) {
  if (unsynced_ > 0) return;
  std::lock_guard lock(mutex_);
  if (!in_backward_) {
    begin_backward(true);
    in_backward_ = true;
    join_pass();
  }
  if (std::exchange(states_[parameter], ready) != 0)
    throw Error(ErrorCode::invalid_state,
                fmt::format("parameter {} got its gradient twice in one backward(): is it used in a checkpointed or "
                            "re-entrant part?",
                            parameters_[parameter].name));
  put(parameter);
  if (bucket_of_[parameter] == no_bucket) return;
  buckets_[bucket_of_[parameter]]->missing -= 1;
  start_ready_buckets();
}

void Reducer::join_pass() {
  // A backward() computes the gradients of a device on one thread.
  thread_local std::weak_ptr<Pass> current;
  const int task = torch_compat::current_backward();
  auto pass = current.lock();
  if (!pass || pass->ending || pass->task != task || pass->collective != collective_.get()) {
    pass = std::make_shared<Pass>(task, collective_.get());
    // Runs at the end of this backward(), which throws what it throws.
    autograd::Engine::get_default_engine().queue_callback([pass] { pass->finish(); });
    current = pass;
  }
  pass->reducers.push_back(shared_from_this());
}

/// Gives a gradient to its bucket, where it lives from the end of this backward() on.
void Reducer::put(std::size_t parameter) {
  at::NoGradGuard no_grad;
  auto& gradient = parameters_[parameter].value.mutable_grad();
  auto& slot = slots_[parameter];
  if (!gradient.defined()) {
    if (slot.defined()) slot.zero_();
    return;
  }
  if (gradient.requires_grad())
    throw Error(ErrorCode::invalid_state,
                fmt::format("backward(create_graph = true) on a prepared model: the average over all workers has no "
                            "graph, so {}'s gradient cannot have one. Use torch::autograd::grad() for second "
                            "derivatives and backward() for the result",
                            parameters_[parameter].name),
                collective_->rank());
  if (options_.check_gradients && !all_finite(gradient)) states_[parameter] |= nonfinite;
  if (!slot.defined() || lives_in(slot, gradient)) return;
  buckets_[bucket_of_[parameter]]->buffer->put(slot, gradient.is_sparse() ? gradient.to_dense() : gradient);
  gradient = slot;
}

/// In the fixed order, so that all ranks start the same one.
void Reducer::start_ready_buckets() {
  const auto started = next_bucket_;
  const double scale = 1.0 / (divide_by_initial_world_size_ ? collective_->size() : active_ranks_);
  for (; next_bucket_ < buckets_.size() && buckets_[next_bucket_]->missing == 0; ++next_bucket_)
    buckets_[next_bucket_]->buffer->start(scale);
  // Behind it: others wait for what was started just now, too.
  for (std::size_t i = 0; i < started; ++i) buckets_[i]->buffer->poke();
}

void Reducer::start_all_buckets() {
  at::NoGradGuard no_grad;
  for (auto& bucket : buckets_) bucket->missing = 0;
  start_ready_buckets();
}

/// What is wrong with this rank's own gradients is said before it waits for others.
void Reducer::Pass::finish() {
  ending = true;
  std::sort(reducers.begin(), reducers.end(),
            [](const auto& left, const auto& right) { return left->number_ < right->number_; });
  std::vector<std::unique_lock<std::mutex>> locks;
  for (const auto& reducer : reducers) {
    locks.emplace_back(reducer->mutex_);
    reducer->check_frozen();
    reducer->put_missing(reducer->options_.find_unused_parameters);
    reducer->start_all_buckets();
  }
  average(reducers);
  std::vector<std::string> nonfinite;
  for (const auto& reducer : reducers) {
    reducer->in_backward_ = false;
    nonfinite.insert(nonfinite.end(), reducer->nonfinite_.begin(), reducer->nonfinite_.end());
  }
  if (!nonfinite.empty()) throw_nonfinite(nonfinite);
}

/// Parameters without a gradient in this backward() count as zero, if that is allowed.
void Reducer::put_missing(bool allowed) {
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (states_[i] & ready) continue;
    auto& gradient = parameters_[i].value.mutable_grad();
    if (!parameters_[i].value.requires_grad()) {
      // Frozen since prepare_model(): its gradient of old is none of ours any more.
      if (gradient.defined() && slots_[i].defined() && lives_in(slots_[i], gradient)) gradient = gradient.clone();
      if (slots_[i].defined()) slots_[i].zero_();
    } else if (!allowed) {
      missing.push_back(i);
    } else {
      // One of an earlier backward(), accumulated on this rank alone perhaps, is averaged all the same.
      if (gradient.defined()) states_[i] |= ready;
      put(i);
    }
  }
  if (!missing.empty()) throw_unused(missing);
}

/// Everything after the last gradient: the same operations in the same order on every rank.
void Reducer::average(const std::vector<std::shared_ptr<Reducer>>& reducers) {
  at::NoGradGuard no_grad;
  {
    const Waiting waiting(in_gradients);
    for (const auto& reducer : reducers) reducer->exchange_states();
  }
  // First what others wait for, then what they do.
  for (const auto& reducer : reducers) reducer->contribute();
  const Waiting waiting(in_gradients);
  for (const auto& reducer : reducers) reducer->finish_buckets();
}

void Reducer::contribute() {
  std::optional<Waiting> waiting;
  // A rank is busy in the user's own function, whose operations say by themselves that they wait.
  if (!options_.comm_hook.function()) waiting.emplace(in_gradients);
  for (auto& bucket : buckets_) bucket->buffer->contribute();
}

void Reducer::finish_buckets() {
  for (auto& bucket : buckets_) bucket->buffer->finish();
  check_averages();
  std::vector<at::Tensor*> sparse_gradients;
  std::vector<at::Tensor> sparse_parameters;
  for (auto& parameter : parameters_)
    if (parameter.sparse) {
      sparse_gradients.push_back(&parameter.value.mutable_grad());
      sparse_parameters.push_back(parameter.value.detach());
    }
  reduce_sparse(*collective_, sparse_gradients, sparse_parameters,
                1.0 / (divide_by_initial_world_size_ ? collective_->size() : active_ranks_));
  buffers_.run(*collective_, root_);
  if (options_.replicas) options_.replicas->exchange(*collective_);
}

/// A shorter type may have made numbers infinite that no rank saw as such.
void Reducer::check_averages() {
  const bool is_hooked = options_.comm_hook.function() || options_.comm_hook.built_in() != train::torch::CommHook::none;
  if (!options_.check_gradients || !is_hooked || !nonfinite_.empty()) return;
  for (auto& bucket : buckets_)
    for (auto i : bucket->parameters)
      if (!all_finite(slots_[i])) nonfinite_.push_back(fmt::format("{} behind the comm_hook", parameters_[i].name));
}

/// What other ranks saw: gradients that only they have, and those that are not finite.
void Reducer::exchange_states() {
  nonfinite_.clear();
  if (!options_.find_unused_parameters && !options_.check_gradients) return;
  const auto states = gather_states();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    std::uint8_t anywhere = 0;
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      const auto state = states[rank].data_ptr<std::uint8_t>()[i];
      anywhere |= state;
      if (state & nonfinite) nonfinite_.push_back(fmt::format("{} on rank {}", parameters_[i].name, rank));
    }
    // A parameter that no rank used keeps no gradient, so that weight decay leaves it alone; one that others used gets
    // theirs.
    if (!(states_[i] & ready) && (anywhere & ready) && slots_[i].defined() && parameters_[i].value.requires_grad())
      parameters_[i].value.mutable_grad() = slots_[i];
  }
}

/// Of every rank. It comes before any wait for a bucket, so that ranks which trained other models are told, where they
/// would wait for each other's.
std::vector<at::Tensor> Reducer::gather_states() {
  const auto count = static_cast<std::int64_t>(states_.size());
  auto mine = at::empty({count + static_cast<std::int64_t>(sizeof number_)}, at::kByte);
  auto* bytes = mine.data_ptr<std::uint8_t>();
  std::copy(states_.begin(), states_.end(), bytes);
  std::memcpy(bytes + count, &number_, sizeof number_);
  std::vector<at::Tensor> all;
  std::string differs;
  try {
    all = collective_->all_gather_values(mine);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    differs = error.what();
  }
  for (std::size_t rank = 0; rank < all.size() && differs.empty(); ++rank)
    if (std::memcmp(all[rank].data_ptr<std::uint8_t>() + count, &number_, sizeof number_) != 0)
      differs = fmt::format("rank {} trains another", rank);
  if (differs.empty()) return all;
  throw Error(ErrorCode::invalid_state,
              fmt::format("backward() reached other prepared models on this rank than elsewhere ({}). With "
                          "find_unused_parameters, too, each loss must use a parameter at least of every model that it "
                          "uses on any rank: add (output * 0).sum() of a model that a batch has nothing for",
                          differs),
              collective_->rank());
}

Reducer::Shadow Reducer::shadow_backward() {
  std::lock_guard lock(mutex_);
  begin_backward(false);
  if (active_ranks_ == 0) return Shadow::over;
  at::NoGradGuard no_grad;
  // This rank has none: those of its own last step would be taken for the others'.
  drop_gradients();
  put_missing(true);
  start_all_buckets();
  average({shared_from_this()});
  if (!nonfinite_.empty()) {
    drop_gradients();
    return Shadow::left_out;
  }
  if (!options_.find_unused_parameters)
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (slots_[i].defined() && parameters_[i].value.requires_grad()) parameters_[i].value.mutable_grad() = slots_[i];
  return Shadow::averaged;
}

void Reducer::drop_gradients() {
  for (auto& [name, value, sparse] : parameters_)
    if (value.requires_grad()) value.mutable_grad() = at::Tensor();
}

/// Gradients of parameters that were unfrozen since prepare_model() would differ between the ranks, for good.
void Reducer::check_frozen() const {
  std::vector<std::string> names;
  for (const auto& [name, value, sparse] : frozen_)
    if (value.requires_grad() && value.grad().defined() && !has_hook(value)) names.push_back(name);
  if (names.empty()) return;
  throw Error(
      ErrorCode::invalid_state,
      fmt::format("these parameters were frozen (requires_grad = false) when prepare_model() was called, and are "
                  "trained now without being averaged: {}. Call prepare_model() again on every worker after "
                  "unfreezing parameters",
                  fmt::join(names, ", ")),
      collective_->rank());
}

void Reducer::throw_unused(const std::vector<std::size_t>& missing) const {
  std::vector<std::string> names;
  for (auto i : missing) names.push_back(parameters_[i].name);
  throw Error(ErrorCode::invalid_state,
              fmt::format("these parameters got no gradient in backward(): {}. Every rank must use all of them, or "
                          "prepare_model() gets find_unused_parameters = true",
                          fmt::join(names, ", ")),
              collective_->rank());
}

void Reducer::throw_nonfinite(const std::vector<std::string>& places) {
  throw Error(ErrorCode::invalid_state,
              fmt::format("gradients are infinite or not a number: {}. A learning rate that is too high or a bad batch "
                          "does that; zero the gradients on every worker before going on",
                          fmt::join(places, ", ")));
}

}  // namespace troupe
