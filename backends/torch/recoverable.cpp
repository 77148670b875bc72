// SPDX-License-Identifier: Apache-2.0
// Parameters change in optimizer.step() alone, after the last exchange of a step, so ranks that are left when one is
// lost stand before the same step or one apart: the newest state wins, and nobody needs a copy of the parameters.
#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <troupe/torch_recoverable.hpp>

#include <algorithm>
#include <compare>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/torch_collectives.hpp>
#include <troupe/train.hpp>

#include "backends/torch/mix.hpp"
#include "backends/torch/prepared_models.hpp"
#include "backends/torch/rank_replicas.hpp"
#include "backends/torch/recoverable_parts.hpp"
#include "backends/torch/state_transfer.hpp"
#include "backends/torch/torch_group.hpp"
#include "checkpoint/crc32c.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/timed_out.hpp"
#include "runtime/session/session.hpp"

namespace troupe::train {
namespace {

using ::troupe::detail::GroupEnd;

/// A place in the function: a loop (the first is 1), a step, and how many run()s of it are done.
struct Position {
  std::int64_t loop = 0;
  std::int64_t step = 0;
  std::int64_t run = 0;
  auto operator<=>(const Position&) const = default;
};

/// Going on in place is not possible; the function is started again.
class CannotGoOn : public GroupLost {
public:
  using GroupLost::GroupLost;
};

[[noreturn]] void give_up(const std::string& why) {
  const auto text = "the run cannot go on in place: " + why;
  log_error("{}", text);
  throw CannotGoOn(text);
}

/// What a rank tells the others after the group was formed anew.
struct Standing {
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

}  // namespace

class Recoverable::Impl {
public:
  explicit Impl(ElasticBatch batch) : batch_(batch) {}

  void add(const std::string& name, const train::torch::detail::RecoverablePartPtr& part) {
    check_new(name, part);
    parts_.emplace_back(name, part);
  }

  void add_own(const std::string& name, const train::torch::detail::RecoverablePartPtr& part) {
    check_new(name, part);
    own_.emplace_back(name, part);
  }

  std::int64_t step() const { return here_.step; }

  std::int64_t epoch() const {
    for (const auto& [name, part] : parts_)
      if (const auto epoch = part->epoch()) return *epoch;
    throw Error(ErrorCode::invalid_state, "Recoverable::epochs() counts the epochs of a loader: give it .loader");
  }

  // ---- as a dictionary

  Checkpoint checkpoint() {
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

  void load(const Checkpoint& state) {
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

  // ---- the loop

  void start(bool by_hand) {
    if (session_ && !is_passing()) throw Error(ErrorCode::invalid_state, "this Recoverable is in its loop already");
    here_.loop += 1;
    by_hand_ = by_hand;
    if (!session_) enter();
    here_ = {here_.loop, at_.step, 0};
    // Alone with what lies before a later loop, as with what lies before the first one.
    if (newcomer_) session_->set_joining(is_passing());
    if (by_hand) settle();
  }

  /// The others, whose state this rank has taken over, are in a later loop: up to there it has no steps to make.
  bool is_passing() const { return session_ && here_.loop < at_.loop; }

  /// The loop is behind, maybe not through its end.
  void leave() noexcept {
    if (!is_passing()) abandon();
  }

  void abandon() noexcept {
    if (!session_) return;
    session_->set_live(false);
    replicas_->disable();
    session_.reset();
    kept_ = false;
  }

  void finish() {
    while (session_ && !is_passing()) {
      if (session_->rejoin_wanted()) {
        recover();
        continue;
      }
      try {
        // Who is through waits for the others: if one is lost now, they still get the last step from here.
        if (const auto group = TorchGroup::find(); group && group->size() > 1) group->collective()->barrier();
      } catch (const GroupLost& error) {
        recover({error.what()});
        continue;
      }
      arrive();
      abandon();
    }
  }

  void run(const std::function<void()>& body) {
    require_started("run()");
    while (here_ == at_) {
      if (session_->rejoin_wanted()) {
        recover();
        continue;
      }
      begin_run();
      try {
        body();
      } catch (const Stopped&) {
        throw;
      } catch (const GroupLost& error) {
        recover({error.what()});
        continue;
      } catch (const std::exception& error) {
        const bool lost = means_lost_peers(error);
        if (!lost && !session_->retries_user_errors()) throw;
        recover({error.what(), /*user_error=*/!lost});
        continue;
      }
      end_run();
      at_.run += 1;
    }
    here_.run += 1;
  }

  void advance() {
    here_ = {here_.loop, here_.step + 1, 0};
    at_ = std::max(at_, here_);
  }

  /// A step of a loop without run() has ended.
  void commit() {
    require_started("commit()");
    end_run();
    advance();
    begin_run();
  }

  void recover(GroupEnd end = {}) {
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

  /// Of a loop without run(): it is where all stand now.
  void settle() {
    if (is_passing())
      give_up(fmt::format(
          "the others are in loop {} of the function, and loop {} before it is one that calls start(), which cannot be "
          "left out: write it with steps()",
          at_.loop, here_.loop));
    here_ = at_;
    arrive();
  }

private:
  void enter() {
    session_ = ::troupe::detail::Session::require("Recoverable");
    replicas_ = RankReplicas::of(session_->data());
    replicas_->set_kept({});  // of an earlier loop
    // Behind a run() the step is done, also where a loop was left.
    at_ = {here_.loop, at_.step + (at_.run > 0 ? 1 : 0), 0};
    session_->set_live(true);
    if (session_->joining()) {
      has_state_ = false;
      newcomer_ = true;
      recover();
      return;
    }
    const auto group = TorchGroup::find();
    look_at(group);
    if (group && group->size() > 1 && group->rank() == 0 &&
        PreparedModels::instance().has_own_buffers(session_->data()))
      log_warning(
          "a prepared model has buffers, and broadcast_buffers = false: they differ between workers, and should one be "
          "lost, its successor gets those of another. The result is then not that of a run without losses");
    try {
      exchange_own(group);
      keep();
    } catch (const GroupLost& error) {
      recover({error.what()});
    }
  }

  /// Operations of process_group() fail with c10d's own exceptions.
  static bool means_lost_peers(const std::exception& error) {
    const auto group = TorchGroup::find();
    return dynamic_cast<const Error*>(&error) == nullptr && !::troupe::detail::says_timed_out(error) && group &&
           group->has_lost_peers();
  }

  using Parts = std::vector<std::pair<std::string, train::torch::detail::RecoverablePartPtr>>;

  void check_new(const std::string& name, const train::torch::detail::RecoverablePartPtr& part) const {
    if (session_) throw Error(ErrorCode::invalid_state, "Recoverable::add() comes before the loop");
    if (!part)
      throw Error(ErrorCode::invalid_argument, fmt::format("Recoverable was given nothing under \"{}\"", name));
    for (const std::string_view taken : {"step", "rng", "own"})
      if (name == taken)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("Recoverable keeps \"{}\" itself; choose another name", name));
    for (const auto* parts : {&parts_, &own_})
      for (const auto& [key, value] : *parts)
        if (key == name) throw Error(ErrorCode::invalid_argument, fmt::format("Recoverable has \"{}\" already", name));
  }

  static Checkpoint states_of(const Parts& parts) {
    std::vector<CheckpointEntry> entries;
    for (const auto& [name, part] : parts) entries.emplace_back(name, part->state());
    return CheckpointItem::of_entries(std::move(entries)).as<Checkpoint>();
  }

  static void load_states(const Parts& parts, const Checkpoint& state) {
    for (const auto& [name, part] : parts) part->load(state[name]);
  }

  at::Tensor own_random() const { return shares_generator_ ? at::Tensor() : random_state(); }

  OwnState own_state() const {
    return {own_random(), own_.empty() ? std::string() : ::troupe::detail::encode(states_of(own_))};
  }

  /// What each rank has of its own, by rank: "rng" and "own".
  void put_own(Checkpoint& state, const std::vector<OwnState>& all) const {
    std::vector<at::Tensor> random;
    std::vector<Checkpoint> own;
    for (const auto& one : all) {
      if (one.random.defined()) random.push_back(one.random);
      if (!own_.empty()) own.push_back(::troupe::detail::decode(one.values));
    }
    state.set("rng", random);
    if (!own_.empty()) state.set("own", own);
  }

  void require_started(const char* caller) const {
    if (!session_)
      throw Error(ErrorCode::invalid_state,
                  fmt::format("Recoverable: {} belongs into its loop: steps(), epochs() or start()", caller));
  }

  /// The loop has come to where the state stands that was taken over. What the function did on its way here, others had
  /// done before they handed it over.
  void arrive() {
    if (!std::exchange(took_over_, false)) return;
    // restore() does not bring parameters back: they would be changed twice here, and once at the others.
    if (const auto* changed = find_part([](const auto& part) { return part.touched(); }))
      give_up(fmt::format(
          "rank {} has changed \"{}\" outside run() on its way to step {}, as the others had done before: change it in "
          "run()",
          session_->ranks().world_rank, *changed, at_.step));
    restore();
    newcomer_ = false;
    session_->caught_up();
  }

  void begin_run() {
    arrive();
    keep();
  }

  void end_run() {
    kept_ = false;
    replicas_->keep();
    session_->step_committed(here_.step);
    if (warned_ || !replicas_->enabled()) return;
    const auto& known = replicas_->kept()[static_cast<std::size_t>(replica_)];
    const auto mine = own_state();
    const bool random_differ = mine.random.defined() && !mine.random.equal(known.random);
    if (!random_differ && mine.values == known.values) return;
    warned_ = true;
    log_warning(
        "rank {} {} that the other workers do not learn of: should it be lost, its successor has others. {} in run(), "
        "before the backward() of a prepared model ends",
        replica_, random_differ ? "draws random numbers" : "makes changes to its own values",
        random_differ ? "Draw them" : "Make them");
  }

  void keep() {
    counters_ = session_->counters();
    // Alone there is nobody to lose, but a step may be made again.
    if (const auto group = TorchGroup::find(); (!group || group->size() == 1) && !session_->retries_user_errors())
      return;
    for (const auto* parts : {&parts_, &own_})
      for (const auto& [name, part] : *parts) part->keep();
    random_ = own_random();
    kept_ = true;
  }

  void restore() {
    for (const auto* parts : {&parts_, &own_})
      for (const auto& [name, part] : *parts) part->restore();
    if (random_.defined()) set_random_state(random_);
  }

  /// The name of the first that is like this; null: none is.
  template <class Predicate>
  const std::string* find_part(Predicate&& is_like_this) const {
    for (const auto& [name, part] : parts_)
      if (is_like_this(*part)) return &name;
    return nullptr;
  }

  /// Back to the beginning of the step that did not end, if that is possible.
  void leave_step() {
    // Before the end of a prepared model's backward() nobody has made a step with its gradients. Of gradients that are
    // averaged by hand nothing is known.
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
            "rank {} lost its group in or behind the optimizer's step {}, where \"{}\" has changed already (or cannot "
            "be "
            "seen to): it needs another worker's state. Let nothing in run() wait for other workers behind "
            "optimizer.step(): put it before, or into a run() of its own",
            session_->ranks().world_rank, at_.step, *changed);
        has_state_ = false;
      }
    }
    kept_ = false;
    PreparedModels::instance().detach(session_->data());
  }

  Standing standing() const {
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

  /// All ranks are in the new group: to the newest state that one of them has.
  void meet_others() {
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
      give_up(fmt::format("rank {} is past step {}, the newest one that a worker holds the state of", group->rank(),
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

  /// The lowest rank that has the newest state.
  static std::size_t newest(const std::vector<Standing>& all) {
    const Standing* found = nullptr;
    for (const auto& one : all) {
      if (one.models != all.front().models)
        give_up("its workers have prepared different models, or named different things to their Recoverables");
      if (one.has_state && (!found || found->position < one.position)) found = &one;
    }
    if (!found) give_up("no worker that is left holds the state of a step");
    for (const auto& one : all)
      if (one.has_state && one.position == found->position && one.digest != found->digest)
        give_up(
            fmt::format("the parameters of ranks {} and {} differ at step {}; were they the same after "
                        "prepare_model()?",
                        found - all.data(), &one - all.data(), one.position.step));
    return static_cast<std::size_t>(found - all.data());
  }

  Checkpoint hand_over() const {
    auto state = to_replace();
    state.set("reports", counters_.reports);
    state.set("saves", counters_.saves);
    put_own(state, replicas_->kept());
    return state;
  }

  /// What hand_over() of another rank will replace.
  Checkpoint to_replace() const {
    Checkpoint state;
    state.set("parts", CheckpointItem::of_dictionary(states_of(parts_)));
    return state;
  }

  void take_over(const Checkpoint& state, const TorchGroup& group, const std::vector<Standing>& all) {
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

  void look_at(const std::shared_ptr<TorchGroup>& group) {
    shares_generator_ = group && group->size() > 1 && !group->own_process();
  }

  /// A new group begins: what each rank has of its own is at all others when this returns.
  void exchange_own(const std::shared_ptr<TorchGroup>& group) {
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

  const ElasticBatch batch_;
  Parts parts_;                                         // the same on all ranks
  Parts own_;                                           // each rank has its own
  std::shared_ptr<::troupe::detail::Session> session_;  // while in the loop
  std::shared_ptr<RankReplicas> replicas_;

  Position here_;  // where the loop stands, up to at_: what lies between is done already
  Position at_;    // where the state stands
  bool has_state_ = true;
  bool newcomer_ = false;   // has joined a run in progress, and made no step of its own yet
  bool took_over_ = false;  // another rank's state, and the loop has not come to at_ yet
  bool by_hand_ = false;    // a loop without run()
  bool warned_ = false;
  bool shares_generator_ = false;  // with other ranks

  // Of the beginning of the present run().
  bool kept_ = false;
  at::Tensor random_;
  ::troupe::detail::Counters counters_;

  int replica_ = -1;  // this rank's number when what ranks have of their own was exchanged last
};

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
