// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/torch_collectives.hpp>

#include "backends/torch/mix.hpp"
#include "backends/torch/prepared_models.hpp"
#include "backends/torch/recoverable_impl.hpp"
#include "backends/torch/reducer.hpp"
#include "backends/torch/state_transfer.hpp"
#include "checkpoint/crc32c.hpp"
#include "runtime/base/log.hpp"

namespace troupe::train {

using ::troupe::detail::GroupEnd;

namespace {

class CannotGoOn : public GroupLost {
public:
  using GroupLost::GroupLost;
};

}  // namespace

void cannot_go_on(const std::string& why) {
  const auto text = "the run cannot go on in place: " + why;
  log_error("{}", text);
  throw CannotGoOn(text);
}

struct Recoverable::Impl::Standing {
  bool has_state = false;
  Position position;
  std::uint32_t digest = 0;
  std::uint32_t models = 0;
  int replica = -1;

  Json to_json() const { return {has_state, position.loop, position.step, position.run, digest, models, replica}; }
  static Standing from_json(const Json& json) {
    return {json.at(0).get<bool>(),
            {json.at(1).get<std::int64_t>(), json.at(2).get<std::int64_t>(), json.at(3).get<std::int64_t>()},
            json.at(4).get<std::uint32_t>(),
            json.at(5).get<std::uint32_t>(),
            json.at(6).get<int>()};
  }
};

void Recoverable::Impl::recover(GroupEnd end) {
  require_started("recover()");
  for (;;) {
    leave_step();
    session_->rejoin(end);
    try {
      meet_others();
      return;
    } catch (const CannotGoOn&) {
      throw;
    } catch (const GroupLost& error) {
      end = {error.what()};
    }
  }
}

void Recoverable::Impl::leave_step() {
  // Before the end of a prepared model's backward() nobody has made a step with its gradients. Of gradients that
  // are averaged by hand nothing is known.
  std::set<const at::TensorImpl*> not_stepped;
  if (replicas_->enabled() && !replicas_->has_exchanged())
    not_stepped = PreparedModels::instance().averaged_parameters(session_->data());
  replicas_->forget();
  // Between two steps the state is whole, also after one that was taken over. By hand, what was reported since
  // commit() was meant to be behind it.
  const bool between_steps = !kept_ || (took_over_ && !newcomer_);
  if (has_state_ && (by_hand_ || between_steps)) counters_ = session_->counters();
  if (has_state_ && kept_) {
    const auto* changed = find_part([&](const auto& part) { return part.touched() || part.is_blind(not_stepped); });
    if (!changed) {
      restore();
    } else {
      log_warning(
          "rank {} lost its group in or behind the optimizer's step {}, where \"{}\" has changed already (or "
          "cannot be seen to): it needs another worker's state. Let nothing in run() wait for other workers behind "
          "optimizer.step(): put it before, or into a run() of its own",
          session_->ranks().world_rank, at_.step, *changed);
      has_state_ = false;
    }
  }
  kept_ = false;
  PreparedModels::instance().detach(session_->data());
}

Recoverable::Impl::Standing Recoverable::Impl::standing() const {
  Standing mine;
  mine.has_state = has_state_;
  mine.position = at_;
  mine.replica = replica_;
  for (const auto& [name, part] : parts_) {
    if (has_state_) mine.digest = part->digest(mine.digest);
    mine.models = ::troupe::detail::crc32c(name.data(), name.size(), mine.models);
  }
  for (const auto& [name, part] : own_) mine.models = ::troupe::detail::crc32c(name.data(), name.size(), mine.models);
  for (const auto& text : PreparedModels::instance().descriptions(session_->data()))
    mine.models = ::troupe::detail::crc32c(text.data(), text.size(), mine.models);
  return mine;
}

void Recoverable::Impl::meet_others() {
  if (JoinedModel::of(session_->data())->reducer)
    cannot_go_on(
        "its loop is inside a join(), which goes with the group that it began in. Only loops that make equally many "
        "steps on all workers, without join(), go on in place");
  const auto group = TorchGroup::current("Recoverable");
  const bool alone = group->size() == 1;
  const auto mine = standing();
  std::vector<Standing> all;
  if (alone)
    all.push_back(mine);
  else
    for (const auto& one : train::torch::all_gather_json(mine.to_json())) all.push_back(Standing::from_json(one));
  const auto source = newest(all);
  const auto target = all[source].position;
  if (target < here_)
    cannot_go_on(fmt::format("rank {} is past step {}, the newest one that a worker holds the state of", group->rank(),
                             target.step));
  PreparedModels::instance().attach(session_->data(), alone ? nullptr : group->collective());
  const auto lacks = [&](const Standing& one) { return !one.has_state || one.position != target; };
  if (std::any_of(all.begin(), all.end(), lacks)) {
    const bool wanted = lacks(mine);
    if (wanted) has_state_ = false;  // until all of it is here
    const auto root = static_cast<int>(source);
    const bool gives = group->rank() == root;
    const auto given = broadcast_state(*group->collective(), root, gives ? hand_over() : to_replace(), wanted);
    if (given) {
      at_ = target;
      take_over(*given, *group, all);
    }
  }
  for (const auto& [name, part] : parts_) part->rejoined(batch_);
  look_at(group);
  exchange_own(group);
  has_state_ = true;
  keep();
  if (group->rank() == 0)
    log_info("{} workers go on at step {}, with the state of rank {}", group->size(), at_.step, source);
}

std::size_t Recoverable::Impl::newest(const std::vector<Standing>& all) {
  const Standing* found = nullptr;
  for (const auto& one : all) {
    if (one.models != all.front().models)
      cannot_go_on("its workers have prepared different models, or named different things to their Recoverables");
    if (one.has_state && (!found || found->position < one.position)) found = &one;
  }
  if (!found) cannot_go_on("no worker that is left holds the state of a step");
  for (const auto& one : all)
    if (one.has_state && one.position == found->position && one.digest != found->digest)
      cannot_go_on(
          fmt::format("the parameters of ranks {} and {} differ at step {}; were they the same after "
                      "prepare_model()?",
                      found - all.data(), &one - all.data(), one.position.step));
  return static_cast<std::size_t>(found - all.data());
}

Checkpoint Recoverable::Impl::hand_over() const {
  auto state = to_replace();
  state.set("reports", counters_.reports);
  state.set("saves", counters_.saves);
  put_own(state, replicas_->kept());
  return state;
}

Checkpoint Recoverable::Impl::to_replace() const {
  Checkpoint state;
  state.set("parts", CheckpointItem::of_dictionary(states_of(parts_)));
  return state;
}

void Recoverable::Impl::take_over(const Checkpoint& state, const TorchGroup& group, const std::vector<Standing>& all) {
  load_states(parts_, state.at<Checkpoint>("parts"));
  if (newcomer_) session_->adopt({state.at<std::int64_t>("reports"), state.at<std::uint64_t>("saves")});
  took_over_ = true;
  // What the rank had that this one was, or replaces.
  int replaced = replica_;
  if (replaced < 0) {
    replaced = group.rank();
    for (const auto& one : all)
      if (one.replica == replaced) replaced = -1;  // it is still there, under another number
  }
  const auto place = static_cast<std::size_t>(replaced);
  const auto is_known = [&](const CheckpointItem& known) { return replaced >= 0 && place < known.size(); };
  if (!own_.empty())
    if (const auto& own = state["own"]; is_known(own)) load_states(own_, own.at(place).as<Checkpoint>());
  const auto& random = state["rng"];
  if (random.size() == 0) return;  // nobody has drawn any since the loop began
  if (is_known(random))
    set_random_state(random.at(place).as<at::Tensor>());
  else
    at::manual_seed(mix(mix(static_cast<std::uint64_t>(at_.step)) + static_cast<std::uint64_t>(group.rank())));
}

void Recoverable::Impl::look_at(const std::shared_ptr<TorchGroup>& group) {
  shares_generator_ = group && group->size() > 1 && !group->own_process();
}

void Recoverable::Impl::exchange_own(const std::shared_ptr<TorchGroup>& group) {
  if (!group || group->size() == 1) {
    replicas_->disable();
    replicas_->set_kept({own_state()});
    replica_ = 0;
    return;
  }
  // Ranks that share a process are lost together: there only checkpoints have a use for values.
  if (shares_generator_ && own_.empty()) {
    replicas_->disable();
    return;
  }
  replicas_->enable([this] { return own_state(); });
  replicas_->exchange(*group->collective());
  replicas_->keep();
  replica_ = group->rank();
}

}  // namespace troupe::train
