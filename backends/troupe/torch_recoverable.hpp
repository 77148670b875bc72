// SPDX-License-Identifier: Apache-2.0
// Training that survives the loss of workers in the middle of a step. What is named here stays in memory: the workers
// that are left go on where they stand, a new one gets the state from them, and the result has the same bits.
//
//   train::Recoverable state({.model = model, .optimizer = optimizer, .loader = loader});
//   for (auto step : state.steps(1000)) {
//     step.run([&] {
//       auto& [x, y] = loader.next();
//       optimizer.zero_grad();
//       torch::mse_loss(model->forward(x), y).backward();
//       optimizer.step();
//     });
//     train::report({{"step", step.number()}});
//   }
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <troupe/checkpoint.hpp>
#include <troupe/json.hpp>
#include <troupe/torch_amp.hpp>
#include <troupe/torch_checkpoint.hpp>
#include <troupe/torch_data.hpp>
#include <troupe/torch_model.hpp>

namespace troupe::train {

namespace torch {
class DistributedSampler;
}

namespace torch::detail {

class RecoverablePart;
using RecoverablePartPtr = std::shared_ptr<RecoverablePart>;

RecoverablePartPtr recoverable_model(std::shared_ptr<::torch::nn::Module> module);
RecoverablePartPtr recoverable_optimizer(::torch::optim::Optimizer& optimizer);
RecoverablePartPtr recoverable_loader(LoaderCore& loader);
RecoverablePartPtr recoverable_sampler(DistributedSampler& sampler);
RecoverablePartPtr recoverable_tensor(at::Tensor& tensor);
/// Anything whose state is JSON.
RecoverablePartPtr recoverable_json(std::function<Json()> get, std::function<void(const Json&)> set);

template <class T>
concept HasJsonState = requires(T& thing, const Json& state) {
  { thing.state() } -> std::convertible_to<Json>;
  thing.load_state(state);
};

/// Which samples it gives depends on the number of workers.
template <class T>
concept IsSampler = std::derived_from<T, DistributedSampler>;

}  // namespace torch::detail

// What the fields of RecoverableOptions take, and Recoverable::add(). All refer to things that must live as long as the
// Recoverable.

/// A module holder, a Sequential or a shared_ptr to a module.
class RecoverableModel {
public:
  RecoverableModel() = default;
  template <train::torch::ModelHandle Model>
  RecoverableModel(const Model& model)
      : part_(train::torch::detail::recoverable_model(train::torch::detail::module_of(model))) {}
  const train::torch::detail::RecoverablePartPtr& part() const { return part_; }

private:
  train::torch::detail::RecoverablePartPtr part_;
};

/// SGD, Adam, AdamW, RMSprop or Adagrad, prepared or not.
class RecoverableOptimizer {
public:
  RecoverableOptimizer() = default;
  RecoverableOptimizer(::torch::optim::Optimizer& optimizer)
      : part_(train::torch::detail::recoverable_optimizer(optimizer)) {}
  template <class Optimizer>
  RecoverableOptimizer(train::torch::PreparedOptimizer<Optimizer>& optimizer)
      : part_(train::torch::detail::recoverable_optimizer(*optimizer)) {}
  const train::torch::detail::RecoverablePartPtr& part() const { return part_; }

private:
  train::torch::detail::RecoverablePartPtr part_;
};

/// What prepare_data_loader() gave.
class RecoverableLoader {
public:
  RecoverableLoader() = default;
  template <class Batch>
  RecoverableLoader(train::torch::DataLoader<Batch>& loader)
      : part_(train::torch::detail::recoverable_loader(loader.core())) {}
  const train::torch::detail::RecoverablePartPtr& part() const { return part_; }

private:
  train::torch::detail::RecoverablePartPtr part_;
};

/// Anything with `Json state()` and `load_state(const Json&)`: troupe's schedulers and scaler, types of your own. The
/// state must be the same on all workers. A DistributedSampler is dealt anew when the number of workers changes.
class RecoverableState {
public:
  RecoverableState() = default;
  template <train::torch::detail::IsSampler Sampler>
  RecoverableState(Sampler& sampler) : part_(train::torch::detail::recoverable_sampler(sampler)) {}
  template <train::torch::detail::HasJsonState Thing>
    requires(!train::torch::detail::IsSampler<Thing>)
  RecoverableState(Thing& thing)
      : part_(train::torch::detail::recoverable_json([&thing]() -> Json { return thing.state(); },
                                                     [&thing](const Json& state) { thing.load_state(state); })) {}
  const train::torch::detail::RecoverablePartPtr& part() const { return part_; }

private:
  train::torch::detail::RecoverablePartPtr part_;
};

/// A variable by its name: {"best_loss", best_loss}. A tensor, or what JSON can hold.
class RecoverableValue {
public:
  template <class T>
  RecoverableValue(std::string name, T& variable)
      : name_(std::move(name)),
        part_(train::torch::detail::recoverable_json([&variable]() -> Json { return variable; },
                                                     [&variable](const Json& value) { variable = value.get<T>(); })) {}
  RecoverableValue(std::string name, at::Tensor& variable)
      : name_(std::move(name)), part_(train::torch::detail::recoverable_tensor(variable)) {}
  const std::string& name() const { return name_; }
  const train::torch::detail::RecoverablePartPtr& part() const { return part_; }

private:
  std::string name_;
  train::torch::detail::RecoverablePartPtr part_;
};

/// What becomes of the batches when the number of workers changes.
enum class ElasticBatch {
  keep_per_worker,  ///< each worker's stays, all together take more or fewer samples a step
  keep_global,      ///< each worker's changes, all together take as many samples a step as before
};

struct RecoverableOptions {
  RecoverableModel model = {};
  RecoverableOptimizer optimizer = {};
  RecoverableState scheduler = {};
  RecoverableState scaler = {};
  RecoverableLoader loader = {};
  /// The same on all workers.
  std::vector<RecoverableValue> values = {};
  ElasticBatch batch = ElasticBatch::keep_per_worker;
  /// Each worker has its own. They travel to all others with the gradients of each backward(), so that who replaces a
  /// lost worker has them: for small things, and changed in run() before the end of backward().
  std::vector<RecoverableValue> own_values = {};
};

class Recoverable;

/// One pass through the body of the loop.
class RecoverableStep {
public:
  explicit RecoverableStep(Recoverable& recoverable, std::int64_t number)
      : recoverable_(recoverable), number_(number) {}
  /// From 0.
  std::int64_t number() const { return number_; }
  /// Runs `body`; runs it again, from the same state, when a worker was lost before all had the gradients. If others
  /// have finished it by then, their state is taken over instead. May be called several times in a step (training, then
  /// evaluation, say): each is done exactly once.
  void run(const std::function<void()>& body) const;

private:
  Recoverable& recoverable_;
  std::int64_t number_;
};

/// What `for (auto step : ...)` runs over.
class RecoverableSteps {
public:
  class Iterator {
  public:
    using iterator_category = std::input_iterator_tag;
    using value_type = RecoverableStep;
    using difference_type = std::ptrdiff_t;
    using pointer = const RecoverableStep*;
    using reference = RecoverableStep;

    explicit Iterator(RecoverableSteps* steps) : steps_(steps) {}
    RecoverableStep operator*() const;
    Iterator& operator++();
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) { return it.ended(); }

  private:
    bool ended() const { return steps_->ended_; }

    RecoverableSteps* steps_;
  };

  RecoverableSteps(Recoverable& recoverable, std::function<bool()> more);
  ~RecoverableSteps();
  RecoverableSteps(const RecoverableSteps&) = delete;
  RecoverableSteps& operator=(const RecoverableSteps&) = delete;

  Iterator begin();
  std::default_sentinel_t end() const { return {}; }

private:
  void look();

  Recoverable& recoverable_;
  std::function<bool()> more_;
  bool ended_ = false;
};

/// The state of a training, the same on all workers but for their random numbers, which it keeps too, and own values.
/// One a function.
class Recoverable {
public:
  explicit Recoverable(const RecoverableOptions& options = {});
  ~Recoverable();
  Recoverable(const Recoverable&) = delete;
  Recoverable& operator=(const Recoverable&) = delete;

  /// More of them, under names of their own. Before the loop.
  Recoverable& add(const std::string& name, const RecoverableModel& model);
  Recoverable& add(const std::string& name, const RecoverableOptimizer& optimizer);
  Recoverable& add(const std::string& name, const RecoverableState& state);
  Recoverable& add(const std::string& name, const RecoverableLoader& loader);
  Recoverable& add(const RecoverableValue& value);
  /// One of RecoverableOptions::own_values.
  Recoverable& add_own(const RecoverableValue& value);

  /// The loop: all steps up to number `count` - 1, from the present one. Leaving it early, all workers leave it.
  RecoverableSteps steps(std::int64_t count);
  /// The loop: until the loader is through with that many epochs.
  RecoverableSteps epochs(std::int64_t count);

  /// Steps that are done: the number of the present one.
  std::int64_t step() const;

  /// Everything, with what tells steps() where to go on: save_checkpoint(state.checkpoint()). Called at the end of a
  /// step, behind its run(). Shares the model's memory, as state_dict().
  Checkpoint checkpoint() const;
  /// Takes such a checkpoint over. Also of a run with another number of workers; own values and random numbers then
  /// stay as they are. Before the loop.
  void load(const Checkpoint& checkpoint);
  /// load() of train::load_checkpoint(), if there is one: true then.
  bool resume();

  // For a loop without steps(); `start(); while (...) try { ...; commit(); } catch (const GroupLost&) { recover(); }`
  // and finish(). Reports and checkpoints come right behind commit(). More or fewer workers wait for finish().

  /// From now on workers may be lost; one that replaces a lost worker takes the others' state over here.
  void start();
  /// A step has ended.
  void commit();
  /// A worker was lost: waits for the others, and brings all to the newest step that one of them has. step() says
  /// which. Throws GroupLost when that is not possible: let it pass, the function is started again.
  void recover();
  /// Waits for all workers to be here; then a lost worker has the function started again.
  void finish();

private:
  friend RecoverableStep;
  friend RecoverableSteps;
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::train
