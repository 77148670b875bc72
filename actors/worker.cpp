// SPDX-License-Identifier: Apache-2.0
// The Worker actor: hands work to the rank's user thread and carries away what comes out of it.
#include <unistd.h>

#include <deque>
#include <utility>

#include "actors/blob.hpp"
#include "actors/descriptor_exchange.hpp"
#include "actors/protocols.hpp"
#include "actors/rejoin.hpp"
#include "actors/termination_signal.hpp"
#include "actors/user_code.hpp"
#include "actors/user_thread.hpp"
#include "actors/worker_store.hpp"
#include "runtime/base/log.hpp"

namespace troupe {
namespace {

/// Lets other threads wake the actor until it closes: a thread rank that never ends may outlive the actor system.
class WakeGate {
public:
  void open(WorkerActor worker) {
    std::lock_guard lock(mutex_);
    worker_ = std::move(worker);
  }
  void close() {
    std::lock_guard lock(mutex_);
    worker_ = nullptr;
  }
  void wake() {
    std::lock_guard lock(mutex_);
    if (worker_) compat::post(worker_, atom::wake_v);
  }

private:
  std::mutex mutex_;
  WorkerActor worker_;
};

detail::RankInfo info_of(const wire::Ranks& ranks) {
  return {ranks.world_rank, ranks.local_rank, ranks.node_rank, ranks.world_size, ranks.local_world_size};
}

class WorkerState {
public:
  static inline const char* const name = "troupe.worker";
  WorkerState() = default;
  ~WorkerState() {
    if (session_) session_->stop();
    if (gate_) gate_->close();
  }

  WorkerActor::behavior_type run(WorkerActor::pointer self, WorkerGroupActor group, std::uint64_t token,
                                 int descriptors) {
    self_ = self;
    group_ = std::move(group);
    token_ = token;
    own_process_ = descriptors >= 0;
    gate_->open(WorkerActor(self));
    outbox_ = std::make_shared<Outbox>([gate = gate_] { gate->wake(); });
    code_ = std::make_shared<UserCode>();
    store_ = std::make_shared<WorkerStore>(token, [gate = gate_] { gate->wake(); });
    if (own_process_) descriptors_ = std::make_shared<ProcessDescriptors>(descriptors);
    compat::watch(self, group_);
    compat::on_down(self, [this](const caf::down_msg&) { group_lost(); });
    compat::on_exception(self, [own_process = own_process_](const char* text) {
      log_error("worker failed: {}", text);
      if (own_process) ::_exit(70);
    });
    compat::tell(self, group_,
                 wire::Registration{token, wire::protocol_version, detail::build_id(), static_cast<int>(::getpid())},
                 caf::actor_cast<caf::strong_actor_ptr>(self));
    return {
        [this](const wire::BlobPart& part) { inbox_.add(part); },
        [this](const wire::Setup& setup, const caf::strong_actor_ptr& store) {
          store_actor_ = caf::actor_cast<StoreActor>(store);
          set_up(setup);
        },
        [this](const wire::Form& form) { begin_form(form); },
        [this](const wire::StoreAnswer& answer) { store_->answer(answer); },
        [this](const wire::RunRequest& request) { begin_run(request); },
        [this](const wire::Credit& credit) {
          if (channel_ && credit.generation == generation_) channel_->release(credit.reports, credit.bytes);
        },
        [this](const wire::CheckpointAnswer& answer) { checkpoint_over(answer); },
        [this](const wire::Halt& halt) {
          if (session_ && halt.generation == generation_) session_->stop();
          leave_collectives();
        },
        [this](atom::abort) {
          if (session_) session_->want_rejoin();
          leave_collectives();
        },
        [this](const wire::Live& live) {
          if (rejoining_ && live.generation == generation_) rejoining_->live_is_known(live.live != 0);
        },
        [this](const wire::Resume& resume) {
          if (!rejoining_ || resume.generation != generation_) return;
          session_->want_rejoin(false);  // here, not where it is waited for: an abort may follow at once
          session_->forget_preemption();
          rejoining_->resume(info_of(resume.ranks));
        },
        [this](const wire::PreemptionNotice& notice) {
          if (session_ && notice.generation == generation_)
            session_->notify_preemption(
                {notice.rank, std::chrono::steady_clock::now() + std::chrono::milliseconds(notice.within_ms)});
        },
        [this](atom::term) { compat::tell(self_, group_, wire::Preempted{token_}); },
        [this](const wire::Calls& calls) { begin_calls(calls); },
        [this](atom::leave) { leave(); },
        [this](atom::ping) { answer_ping(); },
        [this](atom::wake) { send_what_is_there(); },
    };
  }

private:
  /// No driver, no training: whatever this rank does can have no effect any more.
  void group_lost() {
    if (own_process_) ::_exit(70);
    if (session_) session_->stop();
    leave_collectives();
    gate_->close();
    self_->quit();
  }

  void set_up(const wire::Setup& message) {
    UserSetup setup{info_of(message.ranks),
                    message.threads,
                    own_process_,
                    message.environment,
                    message.working_directory,
                    message.backend,
                    message.backend_options,
                    message.hook,
                    message.object,
                    inbox_.take(message.object_arguments)};
    thread_.post([setup = std::move(setup), code = code_, outbox = outbox_] {
      auto outcome = run_user_code([&] { return code->set_up(setup), std::string(); });
      outbox->put([&](Outbox::Contents& contents) { contents.setup = std::move(outcome); });
    });
  }

  /// Whatever waits for other ranks waits in vain.
  void leave_collectives() {
    store_->abort();
    code_->abort();
  }

  void begin_form(const wire::Form& form) {
    store_->reset();
    if (!own_process_) descriptors_ = ThreadDescriptors::of(group_.id(), form.ranks.world_rank);
    // A function that goes on in place forms the group while it waits.
    thread_.post(
        [epoch = form.epoch, ranks = info_of(form.ranks), code = code_, store = store_, descriptors = descriptors_,
         outbox = outbox_] {
          auto outcome = run_user_code([&] { return code->form(epoch, ranks, store, descriptors), std::string(); });
          outbox->put([&](Outbox::Contents& contents) { contents.form = Outbox::Form{epoch, std::move(outcome)}; });
        },
        UserThread::When::even_inside);
  }

  void begin_run(const wire::RunRequest& request) {
    generation_ = request.generation;
    channel_ = std::make_shared<detail::ReportChannel>(
        detail::ReportWindow{request.window_reports, request.window_bytes}, [gate = gate_] { gate->wake(); });
    const auto ranks = info_of(request.ranks);
    session_ = std::make_shared<detail::Session>(ranks, channel_, request.detailed_metrics != 0);
    rejoining_ = std::make_shared<WorkerRejoining>(generation_, outbox_, thread_.server());
    session_->allow_rejoin(rejoining_, request.joining != 0, request.retry_user_errors != 0);
    session_->keep_checkpoints(
        std::make_shared<detail::CheckpointClient>(
            ranks.world_rank, ranks.world_size,
            detail::CheckpointSetup{request.generation, request.first_checkpoint, request.checkpoint_folder,
                                    take_source(request.start), request.result_folder},
            [outbox = outbox_](detail::SavedPart part) {
              outbox->put([&](Outbox::Contents& contents) { contents.parts.push_back(std::move(part)); });
            },
            [outbox = outbox_, generation = generation_](std::uint64_t save) {
              outbox->put([&](Outbox::Contents& contents) { contents.awaits = Outbox::Awaits{generation, save}; });
            }),
        [outbox = outbox_, generation = generation_] {
          outbox->put([&](Outbox::Contents& contents) { contents.saving = generation; });
        });
    thread_.post([function = request.function, config = inbox_.take(request.config), generation = request.generation,
                  session = session_, code = code_, outbox = outbox_] {
      auto outcome = run_user_code([&] { return code->run(session, function, config); });
      outbox->put([&](Outbox::Contents& contents) {
        contents.end = Outbox::End{generation, std::move(outcome), session->saw_preemption()};
      });
    });
  }

  detail::CheckpointSource take_source(const wire::CheckpointPlace& place) {
    return {place.id, place.iteration, inbox_.take(place.bytes), place.folder, place.files};
  }

  void checkpoint_over(const wire::CheckpointAnswer& answer) {
    auto source = take_source(answer.place);
    if (session_ && answer.generation == generation_)
      session_->checkpoints("CheckpointAnswer")
          .answer({answer.generation, answer.number, std::move(source), answer.error});
  }

  void begin_calls(const wire::Calls& calls) {
    for (const auto& call : calls.calls)
      thread_.post([id = call.id, function = call.function, arguments = inbox_.take(call.arguments), code = code_,
                    outbox = outbox_] {
        auto outcome = run_user_code([&] { return code->call(function, arguments); });
        outbox->put([&](Outbox::Contents& contents) { contents.replies.push_back({id, std::move(outcome)}); });
      });
  }

  void answer_ping() {
    wire::Pong pong;
    pong.token = token_;
    if (session_) {
      const auto& progress = session_->progress();
      const auto* doing = progress.doing();
      pong.generation = generation_;
      pong.progress = progress.count();
      pong.rounds = session_->counters().reports;
      pong.step = session_->last_step();
      pong.compute_us = std::chrono::duration_cast<std::chrono::microseconds>(session_->computed()).count();
      if (doing) {
        pong.waits_for = static_cast<std::uint8_t>(doing->waits_for);
        pong.doing = doing->name;
      }
    }
    compat::tell(self_, group_, std::move(pong));
  }

  void leave() {
    if (own_process_) TerminationSignal::restore();  // the driver's own SIGTERM comes when its patience ends
    if (session_) session_->stop();
    leave_collectives();
    thread_.post([code = code_, outbox = outbox_] {
      code->tear_down();
      outbox->put([](Outbox::Contents& contents) { contents.left = true; });
    });
  }

  void send_what_is_there() {
    // The box before the channel: when it tells the end of a run, all its reports are in the channel.
    auto contents = outbox_->take();
    if (channel_) send_reports(channel_->take());
    if (contents.setup)
      compat::tell(self_, group_,
                   wire::SetupDone{token_, contents.setup->failed || contents.setup->stopped,
                                   static_cast<std::uint8_t>(contents.setup->code), contents.setup->payload});
    if (contents.form)
      compat::tell(
          self_, group_,
          wire::FormDone{token_, contents.form->epoch, contents.form->outcome.failed || contents.form->outcome.stopped,
                         static_cast<std::uint8_t>(contents.form->outcome.code), contents.form->outcome.payload});
    // Before what lets other ranks go on: if one dies then, the group knows what this one has done.
    if (contents.live) compat::tell(self_, group_, wire::Live{token_, contents.live->generation, contents.live->live});
    if (contents.progress)
      compat::tell(self_, group_, wire::Progress{token_, contents.progress->generation, contents.progress->step});
    for (auto& request : store_->take_requests()) compat::tell(self_, store_actor_, std::move(request));
    send_replies(std::move(contents.replies));
    for (auto& part : contents.parts) send_part(std::move(part));
    if (contents.awaits)
      compat::tell(self_, group_, wire::AwaitsSave{token_, contents.awaits->generation, contents.awaits->save});
    if (contents.held)
      compat::tell(self_, group_,
                   wire::Held{token_, contents.held->generation, contents.held->saves, contents.held->end.text,
                              contents.held->end.user_error, session_ ? session_->last_step() : -1});
    if (contents.saving) compat::tell(self_, group_, wire::Saving{token_, *contents.saving});
    if (contents.end) send_end(std::move(*contents.end));
    if (contents.left) {
      gate_->close();
      self_->quit();
    }
  }

  void send_reports(detail::ReportBurst burst) {
    std::size_t begin = 0;
    std::size_t at = 0;
    const wire::Reports none{
        token_, generation_, {}, {}, burst.origin.reports, burst.origin.resumed, session_->last_step()};
    auto message = none;
    const auto flush = [&] {
      if (message.sizes.empty()) return;
      message.bytes = send_blob(self_, group_, token_, burst.bytes.substr(begin, at - begin));
      compat::tell(self_, group_, std::exchange(message, none));
      begin = at;
    };
    for (auto size : burst.sizes) {
      if (at - begin + size > wire::max_message_bytes / 2) flush();
      message.sizes.push_back(size);
      at += size;
    }
    flush();
  }

  void send_replies(std::vector<Outbox::Reply> replies) {
    wire::Replies message{token_, {}};
    std::size_t bytes = 0;
    for (auto& reply : replies) {
      if (bytes + reply.outcome.payload.size() > wire::max_message_bytes / 2 && !message.replies.empty()) {
        compat::tell(self_, group_, std::exchange(message, {token_, {}}));
        bytes = 0;
      }
      const bool failed = reply.outcome.failed || reply.outcome.stopped;
      auto blob = send_blob(self_, group_, token_, std::move(reply.outcome.payload));
      bytes += blob.bytes.size() + 64;
      message.replies.push_back({reply.id, failed, static_cast<std::uint8_t>(reply.outcome.code), std::move(blob)});
    }
    if (!message.replies.empty()) compat::tell(self_, group_, std::move(message));
  }

  void send_part(detail::SavedPart part) {
    const auto blob = [this](std::string bytes) {
      return send_blob(self_, group_, token_, std::move(bytes), shared_blob_bytes);
    };
    compat::tell(
        self_, group_,
        wire::CheckpointPart{token_, part.generation, part.number, part.parts, part.iteration,
                             blob(detail::pack(part.metrics)), blob(std::move(part.bytes)), std::move(part.memory),
                             blob(detail::pack(detail::written_to_json(part))), std::move(part.error), part.rank});
  }

  void send_end(Outbox::End end) {
    const auto how = end.outcome.stopped  ? engine::RankEnd::stopped
                     : end.outcome.failed ? engine::RankEnd::threw
                                          : engine::RankEnd::returned;
    auto payload = send_blob(self_, group_, token_, std::move(end.outcome.payload));
    compat::tell(self_, group_,
                 wire::RankDone{token_, end.generation, static_cast<std::uint8_t>(how),
                                static_cast<std::uint8_t>(end.outcome.code), std::move(payload), end.saw_notice});
    session_.reset();
    rejoining_.reset();
    channel_.reset();
  }

  WorkerActor::pointer self_ = nullptr;
  WorkerGroupActor group_;
  std::uint64_t token_ = 0;
  bool own_process_ = false;
  BlobInbox inbox_;
  std::shared_ptr<WakeGate> gate_ = std::make_shared<WakeGate>();
  std::shared_ptr<Outbox> outbox_;
  std::shared_ptr<UserCode> code_;
  StoreActor store_actor_;
  std::shared_ptr<WorkerStore> store_;
  std::shared_ptr<DescriptorExchange> descriptors_;
  UserThread thread_;

  // The current run.
  std::uint64_t generation_ = 0;
  std::shared_ptr<detail::ReportChannel> channel_;
  std::shared_ptr<detail::Session> session_;
  std::shared_ptr<WorkerRejoining> rejoining_;
};

}  // namespace

WorkerActor spawn_worker(caf::actor_system& system, WorkerGroupActor group, std::uint64_t token, int descriptors) {
  return compat::spawn_beside_io<WorkerActor, WorkerState>(system, std::move(group), token, descriptors);
}

}  // namespace troupe
