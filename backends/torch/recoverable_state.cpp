// SPDX-License-Identifier: Apache-2.0
#include <string_view>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/train.hpp>

#include "backends/torch/recoverable_impl.hpp"
#include "runtime/base/log.hpp"

namespace troupe::train {

void Recoverable::Impl::add(const std::string& name, const PartPtr& part) {
  check_new(name, part);
  parts_.emplace_back(name, part);
}

void Recoverable::Impl::add_own(const std::string& name, const PartPtr& part) {
  check_new(name, part);
  own_.emplace_back(name, part);
}

std::int64_t Recoverable::Impl::epoch() const {
  for (const auto& [name, part] : parts_)
    if (const auto epoch = part->epoch()) return *epoch;
  throw Error(ErrorCode::invalid_state, "Recoverable::epochs() counts the epochs of a loader: give it .loader");
}

Checkpoint Recoverable::Impl::checkpoint() {
  if (took_over_) restore();
  auto state = states_of(parts_);
  // Behind a run() the step is done.
  state.set("step", here_.step + (here_.run > 0 ? 1 : 0));
  auto all = replicas_ ? replicas_->kept() : std::vector<OwnState>();
  if (all.empty()) all.resize(1);
  all[all.size() == 1 ? 0 : static_cast<std::size_t>(replica_)] = own_state();
  put_own(state, all);
  return state;
}

void Recoverable::Impl::load(const Checkpoint& state) {
  if (is_passing()) return;  // the others had done that before they handed over what this rank has
  if (session_) throw Error(ErrorCode::invalid_state, "Recoverable::load() comes before the loop");
  const auto step = state.at<std::int64_t>("step");
  if (step < 0) throw Error(ErrorCode::invalid_argument, fmt::format("\"step\" is {} in the checkpoint", step));
  load_states(parts_, state);
  const auto rank = static_cast<std::size_t>(world_rank());
  const auto workers = static_cast<std::size_t>(world_size());
  if (const auto& random = state["rng"]; random.size() == workers) set_random_state(random.at(rank).as<at::Tensor>());
  if (!own_.empty()) {
    if (const auto& own = state["own"]; own.size() == workers)
      load_states(own_, own.at(rank).as<Checkpoint>());
    else if (rank == 0)
      log_warning(
          "the checkpoint has the own values of {} workers, and there are {} now: they stay as the function made "
          "them",
          own.size(), workers);
  }
  for (const auto& [name, part] : parts_) part->rejoined(batch_);
  at_ = here_ = {here_.loop, step, 0};
}

void Recoverable::Impl::check_new(const std::string& name, const PartPtr& part) const {
  if (session_) throw Error(ErrorCode::invalid_state, "Recoverable::add() comes before the loop");
  if (!part) throw Error(ErrorCode::invalid_argument, fmt::format("Recoverable was given nothing under \"{}\"", name));
  for (const std::string_view taken : {"step", "rng", "own"})
    if (name == taken)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("Recoverable keeps \"{}\" itself; choose another name", name));
  for (const auto* parts : {&parts_, &own_})
    for (const auto& [key, value] : *parts)
      if (key == name) throw Error(ErrorCode::invalid_argument, fmt::format("Recoverable has \"{}\" already", name));
}

Checkpoint Recoverable::Impl::states_of(const Parts& parts) {
  std::vector<CheckpointEntry> entries;
  for (const auto& [name, part] : parts) entries.emplace_back(name, part->state());
  return CheckpointItem::of_entries(std::move(entries)).as<Checkpoint>();
}

void Recoverable::Impl::load_states(const Parts& parts, const Checkpoint& state) {
  for (const auto& [name, part] : parts) part->load(state[name]);
}

OwnState Recoverable::Impl::own_state() const {
  return {own_random(), own_.empty() ? std::string() : ::troupe::detail::encode(states_of(own_))};
}

void Recoverable::Impl::put_own(Checkpoint& state, const std::vector<OwnState>& all) const {
  std::vector<at::Tensor> random;
  std::vector<Checkpoint> own;
  for (const auto& one : all) {
    if (one.random.defined()) random.push_back(one.random);
    if (!own_.empty()) own.push_back(::troupe::detail::decode(one.values));
  }
  state.set("rng", random);
  if (!own_.empty()) state.set("own", own);
}

const std::string* Recoverable::Impl::find_part(const std::function<bool(const Part&)>& is_like_this) const {
  for (const auto& [name, part] : parts_)
    if (is_like_this(*part)) return &name;
  return nullptr;
}

}  // namespace troupe::train
