// SPDX-License-Identifier: Apache-2.0
// Workers of the WorkerGroup come and go.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "actors/group_state.hpp"
#include "actors/rank_setup.hpp"

namespace troupe {
namespace {

/// Tokens of thread ranks; those of processes come from the Node and start at 1.
std::uint64_t next_thread_token() {
  static std::atomic<std::uint64_t> next{std::uint64_t{1} << 63};
  return next++;
}

/// The kernel takes a tenth of a second to free a gigabyte of a dead process.
constexpr std::chrono::seconds longest_death{60};

/// Of spares that could not be had.
constexpr std::chrono::seconds next_refill{10};
/// Of one that has become a worker: by then the others have gone on, as a rule.
constexpr std::chrono::seconds refill_after_use{1};

}  // namespace

GroupState::Rank* GroupState::find(std::uint64_t token) {
  for (auto& rank : ranks_)
    if (rank.token == token && token != 0) return &rank;
  return nullptr;
}

int GroupState::number_of(int index) const {
  const auto members = machine_->members();
  const auto member = std::find(members.begin(), members.end(), index);
  return member == members.end() ? no_rank : static_cast<int>(member - members.begin());
}

wire::Ranks GroupState::place_of(int index) const {
  const auto members = machine_->members();
  auto size = static_cast<int>(members.size());
  auto rank = number_of(index);
  if (rank == no_rank) {
    rank = size;
    for (int before = 0; before < index; ++before)
      if (ranks_[static_cast<std::size_t>(before)].token != 0 && !std::ranges::binary_search(members, before))
        rank += 1;
    size = rank + 1;
  }
  return {rank, rank, 0, size, size};
}

node::Token GroupState::make_process(int rank, const std::filesystem::path& log) {
  // A weak address: the Node must not keep the group alive.
  auto address = caf::actor_cast<caf::actor_addr>(self_);
  auto launched =
      node::Node::instance().launch({rank, number_, log, [address](node::Token token, const node::ProcessEvent& event) {
                                       if (auto group = caf::actor_cast<WorkerGroupActor>(address))
                                         compat::post(group, local::ProcessNews{token, event});
                                     }});
  compat::serve_descriptor(self_->system(), launched.stream, caf::actor_cast<caf::strong_actor_ptr>(self_));
  return launched.token;
}

void GroupState::promote(Spare spare, int index) {
  auto& rank = rank_at(index);
  rank.token = spare.token;
  rank.handle = std::move(spare.handle);
  rank.pid = spare.pid;
  rank.is_forked = true;
  node::Node::instance().set_rank(rank.token, number_of(index));
  node::Node::instance().set_log_file(rank.token, log_file(index));
  machine_->promoted(index);
  watch_->joined(index, Clock::now());
  send_setup(rank, index);
  const auto soon = Clock::now() + refill_after_use;
  refill_at_ = refill_at_ ? std::min<Clock::time_point>(*refill_at_, soon) : soon;
}

void GroupState::spare_gone(node::Token token) {
  spares_->remove(token);
  if (stuck_ranks_)
    end_if_all_gone();
  else
    refill_spares();
}

void GroupState::refill_spares() {
  if (machine_->leaving()) return;
  const auto patience = spec_->settings.worker_start_deadline;
  while (const auto* slow = spares_->slowest()) {
    if (Clock::now() < slow->launched + patience) break;
    log_warning("a spare worker has not connected within {} ms (worker_start_deadline), and is ended",
                patience.count());
    await_end_of(slow->token);
    spares_->remove(slow->token);
  }
  for (int count = spares_->wanted(Clock::now()); count > 0; --count) try {
      spares_->add(make_process(no_rank, {}), Clock::now());
    } catch (const std::exception& error) {
      log_warning("no spare worker could be started: {}", error.what());
    }
  refill_at_ = spares_->is_short() ? std::optional(Clock::now() + next_refill) : std::nullopt;
  if (const auto* slow = spares_->slowest(); slow && !refill_at_) refill_at_ = slow->launched + patience;
  arm_timer();
}

void GroupState::launch_thread(int rank) {
  rank_at(rank).token = next_thread_token();
  // Linked: a thread rank goes with its group, whatever ends it.
  self_->link_to(spawn_worker(self_->system(), WorkerGroupActor(self_), rank_at(rank).token, -1));
}

void GroupState::number_ranks() {
  const auto members = machine_->members();
  view_->set_members(members);
  for (int index : members) {
    auto& rank = rank_at(index);
    rank.world_rank = place_of(index).world_rank;
    if (!in_processes_ || rank.token == 0) continue;
    node::Node::instance().set_rank(rank.token, rank.world_rank);
    node::Node::instance().set_log_file(rank.token, log_file(index));
  }
}

std::filesystem::path GroupState::log_file(int index) const {
  const auto& folder = run_ ? run_->spec.directory / "logs" : spec_->log_folder;
  return folder / fmt::format("rank_{}.log", place_of(index).world_rank);
}

void GroupState::enlist(const wire::Registration& registration, const caf::strong_actor_ptr& who) {
  const bool same = registration.version == wire::protocol_version && registration.build == detail::build_id();
  if (auto* spare = spares_->find(registration.token); spare && who) {
    if (!same) return node::Node::instance().signal(spare->token, SIGKILL);
    spare->handle = caf::actor_cast<WorkerActor>(who);
    spare->pid = registration.pid;
    compat::watch(self_, spare->handle);
    return;
  }
  auto* rank = find(registration.token);
  if (!rank || !who) return;
  const int index = index_of(rank);
  if (!same) {
    perform(machine_->setup_failed(
        fatal(
            ErrorCode::refused, index,
            fmt::format("rank {} was refused: it runs {} of build {}, the driver {} of build {}. Both must be the same "
                        "program; was the binary replaced while it ran?",
                        rank->world_rank, registration.version, registration.build, wire::protocol_version,
                        detail::build_id())),
        Clock::now()));
    return;
  }
  rank->handle = caf::actor_cast<WorkerActor>(who);
  rank->pid = registration.pid;
  compat::watch(self_, rank->handle);
  if (const auto told = machine_->registered(index); !told.empty()) return perform(told);  // to leave
  watch_->joined(index, Clock::now());
  if (machine_->leaving()) return compat::tell(self_, rank->handle, atom::leave_v);
  // The Node cannot place the output of a process that it has not heard of, so no user code runs before.
  if (!in_processes_ || rank->is_forked) send_setup(*rank, index);
}

void GroupState::forked(Rank& rank) {
  rank.is_forked = true;
  if (rank.handle && !machine_->leaving()) send_setup(rank, index_of(&rank));
}

void GroupState::send_setup(Rank& rank, int index) {
  auto setup = rank_setup(*spec_, place_of(index));
  setup.object_arguments = send_blob(self_, rank.handle, rank.token, spec_->object_arguments);
  compat::tell(self_, rank.handle, std::move(setup), caf::actor_cast<caf::strong_actor_ptr>(store_));
}

void GroupState::setup_done(const wire::SetupDone& done) {
  auto* rank = find(done.token);
  if (!rank) return;
  const int index = index_of(rank);
  if (done.failed != 0) {
    perform(machine_->setup_failed(fatal(static_cast<ErrorCode>(done.code), index,
                                         fmt::format("rank {} could not be set up: {}", rank->world_rank, done.error)),
                                   Clock::now()));
    return;
  }
  const std::chrono::duration<double, std::milli> took = Clock::now() - rank->launched;
  view_->set(index, {rank->pid, "ready", took.count()});
  perform(machine_->ready(index, Clock::now()));
  rank->is_set_up = true;
  rank->calls.send(self_, rank->handle, rank->token);
}

void GroupState::form_done(const wire::FormDone& done) {
  auto* rank = find(done.token);
  if (!rank) return;
  const int index = index_of(rank);
  view_->set_state(index, "ready");
  perform(machine_->came_back(index, /*from_function=*/false));
  if (done.failed == 0) return perform(machine_->formed(index, done.epoch, Clock::now()));
  perform(
      machine_->form_failed(index, done.epoch,
                            fatal(static_cast<ErrorCode>(done.code), index,
                                  fmt::format("rank {} could not form its group: {}", rank->world_rank, done.error)),
                            Clock::now()));
}

void GroupState::someone_ended(const caf::down_msg& down) {
  for (auto& rank : ranks_) {
    if (!rank.handle || rank.handle.address() != down.source) continue;
    rank.handle = nullptr;
    const int index = index_of(&rank);
    if (!in_processes_) return lost(index, "ended: " + compat::render(self_->system(), down.reason), {});
    // The cause follows from the Node, often a moment later.
    return going(rank, std::chrono::seconds(1));
  }
  for (const auto& spare : spares_->all())
    if (spare.handle && spare.handle.address() == down.source) return end_spare(spare.token);
}

void GroupState::going(Rank& rank, Clock::duration patience) {
  perform(machine_->disconnected(index_of(&rank), Clock::now()));
  if (!machine_->leaving()) compat::remind(self_, patience, local::ReapCheck{rank.token});
}

void GroupState::process_news(const local::ProcessNews& news) {
  using Kind = node::ProcessEvent::Kind;
  if (auto* spare = spares_->find(news.token)) {
    if (news.event.kind == Kind::forked) spare->is_forked = true;
    if (news.event.kind == Kind::stopped || news.event.kind == Kind::dying) return end_spare(news.token);
    if (news.event.is_end()) spare_gone(news.token);
    return;
  }
  auto* rank = find(news.token);
  if (!rank) {
    if (!news.event.is_end() || dying_.erase(news.token) == 0) return;
    drain_.add_dead(news.token);
    return end_if_all_gone();
  }
  const int index = index_of(rank);
  if (news.event.kind == Kind::forked) return forked(*rank);
  if (news.event.kind == Kind::dying) {
    // A large process takes long to go, and its successor need not wait for that, unless it needs the same GPU.
    const bool can_be_replaced = !news.event.text.empty() && !machine_->leaving() && !spec_->settings.use_gpu;
    if (!can_be_replaced) return going(*rank, longest_death);
    await_end_of(news.token);
  }
  if (news.event.kind == Kind::dying || news.event.is_end())
    return lost(index, news.event.text, node::Node::instance().last_lines(news.token));
  if (news.event.kind == Kind::stopped) watch_->stopped(index, news.event.text, Clock::now());
  if (news.event.kind == Kind::continued) watch_->continued(index, Clock::now());
  perform(machine_->frozen(index, news.event.kind == Kind::stopped));
  check_watch();
}

void GroupState::end_spare(node::Token token) {
  await_end_of(token);
  spare_gone(token);
}

/// Of one that is replaced already.
void GroupState::await_end_of(node::Token token) {
  dying_.insert(token);
  node::Node::instance().signal(token, SIGKILL);  // also if only its first thread is dead
}

void GroupState::answered(const wire::Pong& pong) {
  auto* rank = find(pong.token);
  if (!rank) return;
  const int index = index_of(rank);
  watch_->answered(index, Clock::now());
  if (!run_ || pong.generation != generation_) return;
  has_made(*rank, pong.step);
  watch_->stands(
      index, {pong.progress, pong.rounds, pong.compute_us, static_cast<engine::WaitsFor>(pong.waits_for), pong.doing},
      Clock::now());
  view_->set_slowdown(index, watch_->slowdown(index));
}

void GroupState::check_watch() {
  const auto step = watch_->tick(Clock::now());
  if (machine_->leaving()) return;
  for (int rank : step.pings) compat::tell(self_, rank_at(rank).handle, atom::ping_v);
  if (!step.pings.empty())  // their answers keep connections alive in a system with heartbeats
    for (const auto& spare : spares_->all()) compat::tell(self_, spare.handle, atom::ping_v);
  for (const auto& warning : step.warnings) log_warning("{}", warning);
  for (const auto& slow : step.slow) log_warning("{}", slow.text);
  for (const auto& one : step.lost) {
    rank_at(one.rank).given_up = one.cause;
    perform(machine_->give_up(one.rank, one.cause, Clock::now()));
  }
  for (const auto& one : step.replaced) {
    rank_at(one.rank).given_up = one.cause;
    preempt(one.rank, engine::Duration::zero());
  }
  arm_timer();
}

void GroupState::lost(int index, const std::string& what_was_seen, std::vector<std::string> log_lines) {
  auto& rank = rank_at(index);
  const auto cause = rank.given_up.empty() ? what_was_seen : rank.given_up;
  watch_->left(index, Clock::now());
  if (!machine_->leaving()) log_info("rank {} (pid {}) is lost: {}", rank.world_rank, rank.pid, cause);
  rank.calls.fail_all(rank.world_rank, cause);
  rank.is_set_up = false;
  if (rank.joined && run_ && !regrouping_ && !is_member(index))  // it was told to leave, and the others have gone on
    compat::tell(self_, checkpoints_, local::PartsLost{generation_, rank.world_rank, 0, saves_then_});
  else if (rank.joined)
    lost_ranks_.push_back(rank.world_rank);
  drain_.add_dead(rank.token);
  rank.token = 0;
  view_->set(index, {-1, "lost", 0});
  perform(machine_->lost(index, cause, std::move(log_lines), Clock::now()));
  give_up_awaited_parts();
  check_calls();
}

}  // namespace troupe
