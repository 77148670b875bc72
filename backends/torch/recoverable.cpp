// SPDX-License-Identifier: Apache-2.0
#include <troupe/torch_recoverable.hpp>

#include <utility>

#include <troupe/train.hpp>

#include "backends/torch/recoverable_impl.hpp"

namespace troupe::train {

Recoverable::Recoverable(const RecoverableOptions& options) : impl_(std::make_unique<Impl>(options.batch)) {
  const auto add_if_given = [this](const char* name, const auto& given) {
    if (given.part()) impl_->add(name, given.part());
  };
  add_if_given("model", options.model);
  add_if_given("optimizer", options.optimizer);
  add_if_given("scheduler", options.scheduler);
  add_if_given("scaler", options.scaler);
  add_if_given("loader", options.loader);
  for (const auto& value : options.values) add(value);
  for (const auto& value : options.own_values) add_own(value);
}

Recoverable::~Recoverable() { impl_->abandon(); }

Recoverable& Recoverable::add(const std::string& name, const RecoverableModel& model) {
  impl_->add(name, model.part());
  return *this;
}
Recoverable& Recoverable::add(const std::string& name, const RecoverableOptimizer& optimizer) {
  impl_->add(name, optimizer.part());
  return *this;
}
Recoverable& Recoverable::add(const std::string& name, const RecoverableState& state) {
  impl_->add(name, state.part());
  return *this;
}
Recoverable& Recoverable::add(const std::string& name, const RecoverableLoader& loader) {
  impl_->add(name, loader.part());
  return *this;
}
Recoverable& Recoverable::add(const RecoverableValue& value) {
  impl_->add(value.name(), value.part());
  return *this;
}

Recoverable& Recoverable::add_own(const RecoverableValue& value) {
  impl_->add_own(value.name(), value.part());
  return *this;
}

RecoverableSteps Recoverable::steps(std::int64_t count) {
  return RecoverableSteps(*this, [this, count] { return impl_->step() < count; });
}
RecoverableSteps Recoverable::epochs(std::int64_t count) {
  return RecoverableSteps(*this, [this, count] { return impl_->epoch() < count; });
}

std::int64_t Recoverable::step() const { return impl_->step(); }
Checkpoint Recoverable::checkpoint() const { return impl_->checkpoint(); }
void Recoverable::load(const Checkpoint& checkpoint) { impl_->load(checkpoint); }
bool Recoverable::resume() {
  const auto checkpoint = load_checkpoint();
  if (checkpoint) load(*checkpoint);
  return checkpoint.has_value();
}

void Recoverable::start() { impl_->start(/*by_hand=*/true); }
void Recoverable::commit() { impl_->commit(); }
void Recoverable::recover() {
  impl_->recover();
  impl_->settle();
}
void Recoverable::finish() { impl_->finish(); }

void RecoverableStep::run(const std::function<void()>& body) const { recoverable_.impl_->run(body); }

RecoverableSteps::RecoverableSteps(Recoverable& recoverable, std::function<bool()> more)
    : recoverable_(recoverable), more_(std::move(more)) {
  recoverable_.impl_->start(/*by_hand=*/false);
}

RecoverableSteps::~RecoverableSteps() { recoverable_.impl_->leave(); }

/// At the beginning of each step: is there one?
void RecoverableSteps::look() {
  ended_ = recoverable_.impl_->is_passing() || !more_();
  if (ended_) recoverable_.finish();
}

RecoverableSteps::Iterator RecoverableSteps::begin() {
  look();
  return Iterator(this);
}

RecoverableStep RecoverableSteps::Iterator::operator*() const {
  return RecoverableStep(steps_->recoverable_, steps_->recoverable_.step());
}

RecoverableSteps::Iterator& RecoverableSteps::Iterator::operator++() {
  steps_->recoverable_.impl_->advance();
  steps_->look();
  return *this;
}

}  // namespace troupe::train
