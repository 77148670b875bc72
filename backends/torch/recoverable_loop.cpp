// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/prepared_models.hpp"
#include "backends/torch/recoverable_impl.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/timed_out.hpp"

namespace troupe::train {
namespace {

/// Operations of process_group() fail with c10d's own exceptions.
bool means_lost_peers(const std::exception& error) {
  const auto group = TorchGroup::find();
  return dynamic_cast<const Error*>(&error) == nullptr && !::troupe::detail::says_timed_out(error) && group &&
         group->has_lost_peers();
}

}  // namespace

void Recoverable::Impl::start(bool by_hand) {
  if (session_ && !is_passing()) throw Error(ErrorCode::invalid_state, "this Recoverable is in its loop already");
  here_.loop += 1;
  by_hand_ = by_hand;
  if (!session_) enter();
  here_ = {here_.loop, at_.step, 0};
  // Alone with what lies before a later loop, as with what lies before the first one.
  if (newcomer_) session_->set_joining(is_passing());
  if (by_hand) settle();
}

void Recoverable::Impl::leave() noexcept {
  if (!is_passing()) abandon();
}

void Recoverable::Impl::abandon() noexcept {
  if (!session_) return;
  session_->set_live(false);
  replicas_->disable();
  session_.reset();
  kept_ = false;
}

void Recoverable::Impl::finish() {
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

void Recoverable::Impl::run(const std::function<void()>& body) {
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

void Recoverable::Impl::advance() {
  here_ = {here_.loop, here_.step + 1, 0};
  at_ = std::max(at_, here_);
}

void Recoverable::Impl::commit() {
  require_started("commit()");
  end_run();
  advance();
  begin_run();
}

void Recoverable::Impl::settle() {
  if (is_passing())
    cannot_go_on(fmt::format(
        "the others are in loop {} of the function, and loop {} before it is one that calls start(), which cannot be "
        "left out: write it with steps()",
        at_.loop, here_.loop));
  here_ = at_;
  arrive();
}

void Recoverable::Impl::enter() {
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
  if (group && group->size() > 1 && group->rank() == 0 && PreparedModels::instance().has_own_buffers(session_->data()))
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

void Recoverable::Impl::require_started(const char* caller) const {
  if (!session_)
    throw Error(ErrorCode::invalid_state,
                fmt::format("Recoverable: {} belongs into its loop: steps(), epochs() or start()", caller));
}

void Recoverable::Impl::arrive() {
  if (!std::exchange(took_over_, false)) return;
  // restore() does not bring parameters back: they would be changed twice here, and once at the others.
  if (const auto* changed = find_part([](const auto& part) { return part.touched(); }))
    cannot_go_on(fmt::format(
        "rank {} has changed \"{}\" outside run() on its way to step {}, as the others had done before: change it in "
        "run()",
        session_->ranks().world_rank, *changed, at_.step));
  restore();
  newcomer_ = false;
  session_->caught_up();
}

void Recoverable::Impl::begin_run() {
  arrive();
  keep();
}

void Recoverable::Impl::end_run() {
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

void Recoverable::Impl::keep() {
  counters_ = session_->counters();
  // Alone there is nobody to lose, but a step may be made again.
  if (const auto group = TorchGroup::find(); (!group || group->size() == 1) && !session_->retries_user_errors()) return;
  for (const auto* parts : {&parts_, &own_})
    for (const auto& [name, part] : *parts) part->keep();
  random_ = own_random();
  kept_ = true;
}

void Recoverable::Impl::restore() {
  for (const auto* parts : {&parts_, &own_})
    for (const auto& [name, part] : *parts) part->restore();
  if (random_.defined()) set_random_state(random_);
}

}  // namespace troupe::train
