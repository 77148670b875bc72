// SPDX-License-Identifier: Apache-2.0
// The WorkerGroup actor: carries out what the GroupMachine decides, and moves reports, results and calls.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>

#include "actors/blob.hpp"
#include "actors/output_drain.hpp"
#include "actors/protocols.hpp"
#include "actors/rank_calls.hpp"
#include "actors/rank_setup.hpp"
#include "actors/round_flow.hpp"
#include "runtime/base/log.hpp"
#include "runtime/engine/group_machine.hpp"
#include "runtime/session/report_channel.hpp"

namespace troupe {
namespace {

using engine::Clock;
using engine::Failure;
using engine::FailureKind;
using local::GroupView;

/// Tokens of thread ranks; those of processes come from the Node and start at 1.
std::uint64_t next_thread_token() {
  static std::atomic<std::uint64_t> next{std::uint64_t{1} << 63};
  return next++;
}

std::uint64_t next_group_number() {
  static std::atomic<std::uint64_t> next{1};
  return next++;
}

Failure fatal(ErrorCode code, int rank, std::string text) {
  return {FailureKind::fatal, code, rank, std::move(text), {}};
}

class GroupState {
public:
  static inline const char* const name = "troupe.group";
  GroupState() = default;

  WorkerGroupActor::behavior_type run(WorkerGroupActor::pointer self, TrainerActor trainer,
                                      std::shared_ptr<const local::GroupSpec> spec, std::shared_ptr<GroupView> view,
                                      std::shared_ptr<local::CallQueue> calls) {
    self_ = self;
    trainer_ = std::move(trainer);
    spec_ = std::move(spec);
    view_ = std::move(view);
    calls_ = std::move(calls);
    number_ = next_group_number();
    const auto& settings = spec_->settings;
    in_processes_ = settings.placement == Placement::process;
    ranks_.resize(static_cast<std::size_t>(settings.world_size));
    machine_ = std::make_unique<engine::GroupMachine>(
        engine::GroupLimits{settings.world_size, settings.worker_start_deadline, settings.shutdown_deadline,
                            in_processes_, 3, !settings.backend.name.empty()});
    store_ = spawn_store(self->system());
    self->link_to(store_);
    compat::on_down(self, [this](const caf::down_msg& down) { someone_ended(down); });
    compat::on_exit(self, [this](const caf::exit_msg& exit) {
      if (exit.source == trainer_.address()) trainer_ended();  // linked workers are told of by the down handler
    });
    compat::on_exception(self, [](const char* text) { log_error("worker group failed: {}", text); });
    perform(machine_->start(Clock::now()));
    return {
        [this](const wire::Registration& registration, const caf::strong_actor_ptr& who) { enlist(registration, who); },
        [this](const wire::BlobPart& part) {
          if (auto* rank = find(part.token)) rank->inbox.add(part);
        },
        [this](const wire::SetupDone& done) { setup_done(done); },
        [this](const wire::FormDone& done) { form_done(done); },
        [this](const wire::Reports& reports) { add_reports(reports); },
        [this](const wire::CheckpointPart& part) { checkpoint_part(part); },
        [this](const wire::RankDone& done) { rank_done(done); },
        [this](const wire::Replies& replies) { answer(replies); },
        [this](const local::BeginAttempt& begin) { begin_attempt(begin); },
        [this](const local::StopAttempt& stop) { perform(machine_->stop_attempt(stop.at_once, Clock::now())); },
        [this](const local::LeaveGroup& leave) { perform(machine_->leave(leave.patience, Clock::now())); },
        [this](const local::Consumed& consumed) { give_credit(consumed); },
        [this](const local::SaveOver& over) { save_over(over); },
        [this](const local::ProcessNews& news) { process_news(news); },
        [this](const local::Drained& drained) { drain_.drained(drained.ticket); },
        [this](const local::ReapCheck& check) {
          if (find(check.token)) node::Node::instance().signal(check.token, SIGKILL);
        },
        [this](atom::wake) { send_calls(); },
        [this](atom::tick) {
          armed_.reset();
          check_rounds();
          perform(machine_->tick(Clock::now()));
        },
    };
  }

private:
  struct Rank {
    std::uint64_t token = 0;  // 0: no worker
    WorkerActor handle;
    BlobInbox inbox;
    Clock::time_point launched;
    int pid = -1;
    bool is_forked = false;  // the Node knows its process
    bool is_set_up = false;
    RankCalls calls;
  };

  int index_of(const Rank* rank) const { return static_cast<int>(rank - ranks_.data()); }
  Rank& rank_at(int rank) { return ranks_.at(static_cast<std::size_t>(rank)); }
  Rank* find(std::uint64_t token) {
    for (auto& rank : ranks_)
      if (rank.token == token && token != 0) return &rank;
    return nullptr;
  }

  // ---- actions ------------------------------------------------------------------------------------------------------

  void perform(const engine::GroupActions& actions) {
    for (const auto& action : actions) std::visit([this](const auto& one) { act(one); }, action);
    arm_timer();
  }

  void act(const engine::LaunchWorker& action) {
    auto& rank = rank_at(action.rank);
    rank = Rank{};
    rank.launched = Clock::now();
    view_->set(action.rank, {});
    try {
      if (in_processes_)
        launch_process(action.rank);
      else
        launch_thread(action.rank);
    } catch (const std::exception& error) {
      perform(
          machine_->launch_failed(fatal(ErrorCode::start_failed, action.rank,
                                        fmt::format("rank {} could not be started: {}", action.rank, error.what()))));
    }
  }

  void launch_process(int rank) {
    // A weak address: the Node must not keep the group alive.
    auto address = caf::actor_cast<caf::actor_addr>(self_);
    auto launched = node::Node::instance().launch(
        {rank, number_, log_file(rank), [address](node::Token token, const node::ProcessEvent& event) {
           if (auto group = caf::actor_cast<WorkerGroupActor>(address))
             compat::post(group, local::ProcessNews{token, event});
         }});
    rank_at(rank).token = launched.token;
    compat::serve_descriptor(self_->system(), launched.stream, caf::actor_cast<caf::strong_actor_ptr>(self_));
  }

  void launch_thread(int rank) {
    rank_at(rank).token = next_thread_token();
    // Linked: a thread rank goes with its group, whatever ends it.
    self_->link_to(spawn_worker(self_->system(), WorkerGroupActor(self_), rank_at(rank).token, -1));
  }

  void act(const engine::KillWorker& action) {
    if (in_processes_) node::Node::instance().signal(rank_at(action.rank).token, action.politely ? SIGTERM : SIGKILL);
  }

  void act(const engine::SendForm& action) {
    if (auto& rank = rank_at(action.rank); rank.handle) compat::tell(self_, rank.handle, wire::Form{action.epoch});
    view_->set_state(action.rank, "forming");
  }

  void act(const engine::SendRun& action) {
    auto& rank = rank_at(action.rank);
    const auto& run = run_->spec;
    wire::RunRequest request;
    request.generation = generation_;
    request.function = run.function;
    request.config = send_blob(self_, rank.handle, rank.token, run.config);
    request.detailed_metrics = run.detailed_metrics;
    request.window_reports = window_.reports;
    request.window_bytes = window_.bytes;
    request.first_checkpoint = checkpoint_setup_.first_id;
    request.checkpoint_folder = checkpoint_setup_.folder;
    request.start = send_place(rank, checkpoint_setup_.start);
    compat::tell(self_, rank.handle, std::move(request));
    view_->set_running(action.rank);
  }

  void act(const engine::SendHalt& action) {
    if (auto& rank = rank_at(action.rank); rank.handle) compat::tell(self_, rank.handle, wire::Halt{generation_});
  }

  void act(const engine::SendLeave& action) {
    if (auto& rank = rank_at(action.rank); rank.handle) compat::tell(self_, rank.handle, atom::leave_v);
  }

  void act(const engine::GroupStarted&) { compat::tell(self_, trainer_, local::GroupUp{}); }
  void act(const engine::StartFailed& action) { compat::tell(self_, trainer_, local::GroupUp{action.failure}); }

  void act(const engine::AttemptEnded& action) {
    // What the ranks printed is on the screen before anybody hears of the end.
    after_output([this, over = local::AttemptOver{generation_, action.failure, std::move(results_)}]() mutable {
      if (over.failure && over.failure->kind == FailureKind::user_error && in_processes_)
        over.failure->log_lines = node::Node::instance().last_lines(rank_at(over.failure->rank).token);
      compat::tell(self_, trainer_, std::move(over));
    });
    results_.clear();
    run_.reset();
    rounds_.reset();
    checkpoints_ = nullptr;
  }

  void act(const engine::GroupGone& action) {
    for (auto& rank : ranks_) rank.calls.fail_all(index_of(&rank), "the trainer was shut down");
    after_output([this, stuck = action.stuck_ranks] {
      compat::tell(self_, trainer_, local::GroupOver{stuck});
      self_->unlink_from(store_);
      compat::end(store_);
      self_->quit();
    });
  }

  // ---- workers come and go

  std::filesystem::path log_file(int rank) const {
    const auto& folder = run_ ? run_->spec.directory / "logs" : spec_->log_folder;
    return folder / fmt::format("rank_{}.log", rank);
  }

  void enlist(const wire::Registration& registration, const caf::strong_actor_ptr& who) {
    auto* rank = find(registration.token);
    if (!rank || !who) return;
    const int index = index_of(rank);
    if (registration.version != wire::protocol_version || registration.build != detail::build_id()) {
      perform(machine_->setup_failed(fatal(
          ErrorCode::refused, index,
          fmt::format("rank {} was refused: it runs {} of build {}, the driver {} of build {}. Both must be the same "
                      "program; was the binary replaced while it ran?",
                      index, registration.version, registration.build, wire::protocol_version, detail::build_id()))));
      return;
    }
    rank->handle = caf::actor_cast<WorkerActor>(who);
    rank->pid = registration.pid;
    compat::watch(self_, rank->handle);
    machine_->registered(index);
    if (machine_->leaving()) return compat::tell(self_, rank->handle, atom::leave_v);
    // The Node cannot place the output of a process that it has not heard of, so no user code runs before.
    if (!in_processes_ || rank->is_forked) send_setup(*rank, index);
  }

  void forked(Rank& rank) {
    rank.is_forked = true;
    if (rank.handle && !machine_->leaving()) send_setup(rank, index_of(&rank));
  }

  void send_setup(Rank& rank, int index) {
    auto setup = rank_setup(*spec_, index);
    setup.object_arguments = send_blob(self_, rank.handle, rank.token, spec_->object_arguments);
    compat::tell(self_, rank.handle, std::move(setup), caf::actor_cast<caf::strong_actor_ptr>(store_));
  }

  void setup_done(const wire::SetupDone& done) {
    auto* rank = find(done.token);
    if (!rank) return;
    const int index = index_of(rank);
    if (done.failed != 0) {
      perform(machine_->setup_failed(fatal(static_cast<ErrorCode>(done.code), index,
                                           fmt::format("rank {} could not be set up: {}", index, done.error))));
      return;
    }
    const std::chrono::duration<double, std::milli> took = Clock::now() - rank->launched;
    view_->set(index, {rank->pid, "ready", took.count()});
    perform(machine_->ready(index, Clock::now()));
    rank->is_set_up = true;
    rank->calls.send(self_, rank->handle, rank->token);
  }

  void form_done(const wire::FormDone& done) {
    auto* rank = find(done.token);
    if (!rank) return;
    const int index = index_of(rank);
    view_->set_state(index, "ready");
    machine_->came_back(index);
    if (done.failed == 0) return perform(machine_->formed(index, done.epoch, Clock::now()));
    perform(machine_->form_failed(index, done.epoch,
                                  fatal(static_cast<ErrorCode>(done.code), index,
                                        fmt::format("rank {} could not form its group: {}", index, done.error)),
                                  Clock::now()));
  }

  /// Nobody is left to report to: end the workers, and then this actor.
  void trainer_ended() { perform(machine_->leave(spec_->settings.shutdown_deadline, Clock::now())); }

  void someone_ended(const caf::down_msg& down) {
    for (auto& rank : ranks_) {
      if (!rank.handle || rank.handle.address() != down.source) continue;
      rank.handle = nullptr;
      const int index = index_of(&rank);
      if (!in_processes_) return lost(index, "ended: " + compat::render(self_->system(), down.reason), {});
      // The cause follows from the Node, often a moment later.
      perform(machine_->disconnected(index, Clock::now()));
      if (!machine_->leaving()) compat::remind(self_, std::chrono::seconds(1), local::ReapCheck{rank.token});
      return;
    }
  }

  void process_news(const local::ProcessNews& news) {
    auto* rank = find(news.token);
    if (!rank) return;
    using Kind = node::ProcessEvent::Kind;
    const int index = index_of(rank);
    if (news.event.kind == Kind::forked) return forked(*rank);
    if (news.event.is_end()) return lost(index, news.event.text, node::Node::instance().last_lines(news.token));
    if (news.event.kind == Kind::stopped || news.event.kind == Kind::continued)
      perform(machine_->frozen(index, news.event.kind == Kind::stopped));
  }

  void lost(int index, const std::string& cause, std::vector<std::string> log_lines) {
    auto& rank = rank_at(index);
    if (!machine_->leaving()) log_info("rank {} (pid {}) is lost: {}", index, rank.pid, cause);
    rank.calls.fail_all(index, cause);
    rank.is_set_up = false;
    drain_.add_dead(rank.token);
    rank.token = 0;
    view_->set(index, {-1, "lost", 0});
    perform(machine_->lost(index, cause, std::move(log_lines), Clock::now()));
  }

  // ---- a run

  void begin_attempt(const local::BeginAttempt& begin) {
    run_ = begin.run;
    generation_ = begin.generation;
    checkpoint_setup_ = begin.checkpoint_setup;
    checkpoints_ = caf::actor_cast<CheckpointsActor>(begin.checkpoints);
    const auto& settings = spec_->settings;
    results_.assign(ranks_.size(), Json());
    rounds_.emplace(
        run_, begin.attempt, generation_,
        engine::RoundAligner::Limits{settings.world_size, window_.reports, window_.bytes, settings.report_deadline});
    for (auto& rank : ranks_) {
      if (!in_processes_ || rank.token == 0) continue;
      node::Node::instance().set_log_file(rank.token, log_file(index_of(&rank)));
      // Not those of a worker that is being set up: they belong to this attempt.
      if (rank.is_set_up) node::Node::instance().forget_last_lines(rank.token);
    }
    perform(machine_->begin_attempt(Clock::now()));
  }

  void add_reports(const wire::Reports& reports) {
    auto* rank = find(reports.token);
    if (!rank) return;
    const auto bytes = rank->inbox.take(reports.bytes);
    if (!rounds_ || reports.generation != generation_) return;
    if (rounds_->add(index_of(rank), bytes, reports.sizes, Clock::now()))
      compat::tell(self_, trainer_, local::RoundsDone{generation_});
    check_rounds();
  }

  void check_rounds() {
    if (!rounds_) return;
    if (auto failure = rounds_->check(Clock::now()))
      perform(machine_->fail_attempt(std::move(*failure), Clock::now()));
    else
      arm_timer();
  }

  void give_credit(const local::Consumed& consumed) {
    if (!rounds_ || consumed.generation != generation_) return;
    const auto credits = rounds_->consumed(consumed.rounds);
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      if (ranks_[i].handle) compat::tell(self_, ranks_[i].handle, credits[i]);
  }

  // ---- checkpoints

  wire::CheckpointPlace send_place(const Rank& rank, const detail::CheckpointSource& source) {
    return {source.id, source.iteration, send_blob(self_, rank.handle, rank.token, source.bytes), source.folder,
            source.files};
  }

  void checkpoint_part(const wire::CheckpointPart& message) {
    auto* rank = find(message.token);
    if (!rank) return;
    auto part = std::make_shared<detail::SavedPart>();
    part->metrics = detail::unpack(rank->inbox.take(message.metrics));
    part->bytes = rank->inbox.take(message.bytes);
    detail::written_from_json(detail::unpack(rank->inbox.take(message.written)), *part);
    if (!run_ || message.generation != generation_) return;
    part->generation = message.generation;
    part->number = message.number;
    part->rank = index_of(rank);
    part->parts = message.parts;
    part->iteration = message.iteration;
    part->memory = message.memory;
    part->error = message.error;
    compat::tell(self_, checkpoints_, local::PartSaved{std::move(part)});
  }

  void save_over(const local::SaveOver& over) {
    if (!run_ || over.result.generation != generation_) return;
    for (auto& rank : ranks_)
      if (rank.handle)
        compat::tell(self_, rank.handle,
                     wire::CheckpointAnswer{over.result.generation, over.result.number,
                                            send_place(rank, over.result.source), over.result.error});
    if (over.failure) perform(machine_->fail_attempt(*over.failure, Clock::now()));
  }

  void rank_done(const wire::RankDone& done) {
    auto* rank = find(done.token);
    if (!rank) return;
    auto payload = rank->inbox.take(done.payload);
    const int index = index_of(rank);
    machine_->came_back(index);
    if (!run_ || done.generation != generation_) return;
    const auto end = static_cast<engine::RankEnd>(done.end);
    std::optional<Failure> failure;
    if (end == engine::RankEnd::threw)
      failure = Failure{FailureKind::user_error, static_cast<ErrorCode>(done.code), index, std::move(payload), {}};
    else if (end == engine::RankEnd::returned) {
      results_.at(static_cast<std::size_t>(index)) = detail::unpack(payload);
      rounds_->finish(index);
      check_rounds();
    }
    view_->set_state(index, "ready");
    perform(machine_->done(index, end, std::move(failure), Clock::now()));
  }

  // ---- calls

  void send_calls() {
    for (auto& call : calls_->take()) {
      auto& rank = rank_at(call.rank);
      const bool absent = rank.token == 0;
      rank.calls.add(std::move(call));
      if (absent) rank.calls.fail_all(index_of(&rank), "it is lost and was not replaced");
    }
    for (auto& rank : ranks_)
      if (rank.is_set_up) rank.calls.send(self_, rank.handle, rank.token);
  }

  void answer(const wire::Replies& replies) {
    auto* rank = find(replies.token);
    if (!rank) return;
    for (const auto& reply : replies.replies)
      rank->calls.answer(index_of(rank), reply, rank->inbox.take(reply.payload));
  }

  // ---- output and time

  /// Calls `then` once all output so far was printed.
  void after_output(std::function<void()> then) {
    if (!in_processes_) return then();
    std::vector<node::Token> living;
    for (const auto& rank : ranks_)
      if (rank.token != 0) living.push_back(rank.token);
    drain_.wait(caf::actor_cast<caf::actor_addr>(self_), living, std::move(then));
  }

  void arm_timer() {
    auto next = machine_->deadline();
    if (rounds_) {
      const auto stall = rounds_->deadline();
      if (stall && (!next || *stall < *next)) next = stall;
    }
    if (!next || (armed_ && *armed_ <= *next)) return;
    armed_ = next;
    compat::remind(self_, std::max<Clock::duration>(*next - Clock::now(), Clock::duration::zero()), atom::tick_v);
  }

  WorkerGroupActor::pointer self_ = nullptr;
  TrainerActor trainer_;
  std::shared_ptr<const local::GroupSpec> spec_;
  std::shared_ptr<GroupView> view_;
  std::shared_ptr<local::CallQueue> calls_;
  StoreActor store_;
  std::uint64_t number_ = 0;
  bool in_processes_ = true;
  std::vector<Rank> ranks_;
  std::unique_ptr<engine::GroupMachine> machine_;
  const detail::ReportWindow window_{};

  // The current attempt.
  std::shared_ptr<detail::Run> run_;
  std::uint64_t generation_ = 0;
  detail::CheckpointSetup checkpoint_setup_;
  CheckpointsActor checkpoints_;
  std::optional<RoundFlow> rounds_;
  std::vector<Json> results_;

  OutputDrain drain_;
  std::optional<Clock::time_point> armed_;
};

WorkerGroupActor::behavior_type worker_group(WorkerGroupActor::stateful_pointer<GroupState> self, TrainerActor trainer,
                                             std::shared_ptr<const local::GroupSpec> spec,
                                             std::shared_ptr<GroupView> view, std::shared_ptr<local::CallQueue> calls) {
  return compat::state_of(self).run(self, std::move(trainer), std::move(spec), std::move(view), std::move(calls));
}

}  // namespace

WorkerGroupActor spawn_worker_group(caf::actor_system& system, TrainerActor trainer,
                                    std::shared_ptr<const local::GroupSpec> spec, std::shared_ptr<GroupView> view,
                                    std::shared_ptr<local::CallQueue> calls) {
  return system.spawn(worker_group, std::move(trainer), std::move(spec), std::move(view), std::move(calls));
}

}  // namespace troupe
