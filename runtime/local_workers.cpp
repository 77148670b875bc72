// SPDX-License-Identifier: Apache-2.0
#include "runtime/local_workers.hpp"

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <utility>

#include <troupe/error.hpp>

#include "actors/run_journal.hpp"
#include "checkpoint/keeper.hpp"
#include "runtime/base/log.hpp"
#include "runtime/session/session.hpp"

namespace troupe {
namespace {

/// User code binds its session to the thread; afterwards the thread is the driver's again.
class KeepBinding {
public:
  KeepBinding() : previous_(detail::Session::bind(nullptr)) { detail::Session::bind(previous_); }
  ~KeepBinding() { detail::Session::bind(std::move(previous_)); }
  KeepBinding(const KeepBinding&) = delete;
  KeepBinding& operator=(const KeepBinding&) = delete;

private:
  std::shared_ptr<detail::Session> previous_;
};

/// One attempt: reports become rounds at once, on the thread that reports.
class LocalAttempt {
public:
  LocalAttempt(std::weak_ptr<detail::Run> run, int attempt) : run_(std::move(run)), attempt_(attempt) {}

  /// `fail` ends the run.
  static std::shared_ptr<LocalAttempt> make(const std::shared_ptr<detail::Run>& run, int number,
                                            std::uint64_t generation,
                                            const std::function<void(const std::string&)>& fail) {
    auto attempt = std::make_shared<LocalAttempt>(run, number);
    // Weak: a thread that the function left behind may report when the attempt is over.
    attempt->channel_ =
        std::make_shared<detail::ReportChannel>(detail::ReportWindow{}, [weak = std::weak_ptr<LocalAttempt>(attempt)] {
          if (auto alive = weak.lock()) alive->forward();
        });
    attempt->session_ =
        std::make_shared<detail::Session>(detail::RankInfo{}, attempt->channel_, run->spec.detailed_metrics);
    auto keeper = run->spec.keeper;
    const auto client = std::make_shared<std::weak_ptr<detail::CheckpointClient>>();
    auto checkpoints = std::make_shared<detail::CheckpointClient>(
        0, 1, keeper->begin_attempt(generation),
        [keeper, fail, client, weak = std::weak_ptr<LocalAttempt>(attempt)](detail::SavedPart part) {
          for (auto& over : keeper->add(std::move(part))) {
            if (auto alive = weak.lock(); alive && over.result.source) alive->saved_ = true;
            if (auto alive = client->lock()) alive->answer(std::move(over.result));
            if (!over.fatal.empty()) fail(over.fatal);
          }
        });
    *client = checkpoints;
    attempt->session_->keep_checkpoints(std::move(checkpoints));
    return attempt;
  }

  const std::shared_ptr<detail::Session>& session() const { return session_; }
  void stop() { session_->stop(); }

  void consumed(std::uint32_t rounds) {
    std::lock_guard lock(mutex_);
    release(rounds);
  }

  /// How far it came.
  struct Progress {
    std::int64_t reported = 0;
    bool worked = false;
    bool is_new = false;
  };
  Progress progress() {
    std::lock_guard lock(mutex_);
    return {origin_ + reported_, worked_, progress_ || saved_};
  }

private:
  void forward() {
    // Under the lock from taking to handing on: reports of several threads stay in order.
    std::lock_guard lock(mutex_);
    auto burst = channel_->take();
    std::vector<detail::Round> rounds;
    std::size_t at = 0;
    for (auto size : burst.sizes) {
      rounds.push_back({static_cast<std::uint64_t>(attempt_),
                        attempt_,
                        burst.origin.reports + ++reported_,
                        {burst.bytes.substr(at, size)}});
      sizes_.push_back(size);
      at += size;
    }
    const auto run = run_.lock();
    if (!run) return release(rounds.size());
    const auto added = run->add_rounds(std::move(rounds), burst.origin.resumed);
    origin_ = burst.origin.reports;
    worked_ = true;
    progress_ |= added.is_new;
    release(added.dropped);
  }

  /// Those in front were consumed, or need not be.
  void release(std::size_t rounds) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < rounds && !sizes_.empty(); ++i) {
      bytes += sizes_.front();
      sizes_.pop_front();
    }
    channel_->release(static_cast<std::uint32_t>(rounds), bytes);
  }

  const std::weak_ptr<detail::Run> run_;  // it owns the attempt; a thread may be in here when both are dropped
  const int attempt_;
  std::shared_ptr<detail::ReportChannel> channel_;
  std::shared_ptr<detail::Session> session_;
  std::mutex mutex_;
  std::deque<std::uint32_t> sizes_;
  std::int64_t origin_ = 0;
  std::int64_t reported_ = 0;
  bool worked_ = false;
  bool progress_ = false;
  std::atomic<bool> saved_{false};  // a checkpoint was committed
};

class LocalControl : public detail::RunControl {
public:
  explicit LocalControl(const engine::RetryLimits& limits) : machine_(limits) {}

  void consumed(std::uint64_t generation, std::uint32_t rounds) override {
    std::shared_ptr<LocalAttempt> attempt;
    {
      std::lock_guard lock(mutex_);
      if (static_cast<int>(generation) != machine_.attempt()) return;
      attempt = attempt_;
    }
    if (attempt) attempt->consumed(rounds);
  }

  void stop(engine::StopReason reason, std::optional<engine::Failure> failure) override {
    {
      std::lock_guard lock(mutex_);
      if (auto ended = machine_.stop(reason, std::move(failure)); !ended.empty()) ended_ = std::move(ended);
      stopping_ = true;
      if (attempt_) attempt_->stop();
    }
    changed_.notify_all();
  }

  /// Waits for the next attempt after a pause, or for the end that was asked for meanwhile.
  engine::RunActions wait_for_next() {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, machine_.deadline().value_or(engine::Clock::now()),
                        [this] { return machine_.finished(); });
    return machine_.finished() ? std::move(ended_) : machine_.tick(engine::Clock::now());
  }

  template <class Body>
  auto locked(Body&& body) {
    std::lock_guard lock(mutex_);
    return body(machine_);
  }

  void set_attempt(std::shared_ptr<LocalAttempt> attempt) {
    std::lock_guard lock(mutex_);
    attempt_ = std::move(attempt);
    if (attempt_ && stopping_) attempt_->stop();
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  engine::RunMachine machine_;
  engine::RunActions ended_;
  std::shared_ptr<LocalAttempt> attempt_;
  bool stopping_ = false;
};

}  // namespace

LocalWorkers::LocalWorkers(const UserSetup& setup, std::function<void(std::chrono::milliseconds)> shut_down)
    : shut_down_(std::move(shut_down)) {
  KeepBinding keep;
  const auto outcome = run_user_code([&] {
    code_->set_up(setup);
    if (!setup.backend.empty()) code_->form(1, setup.ranks, nullptr, nullptr);
    return std::string();
  });
  if (!outcome.failed && !outcome.stopped) return;
  code_->tear_down();  // what was formed before
  throw Error(outcome.code, "rank 0 could not be set up: " + outcome.payload, 0);
}

LocalWorkers::~LocalWorkers() { end(); }

void LocalWorkers::shutdown(std::chrono::milliseconds patience) {
  std::function<void(std::chrono::milliseconds)> shut_down;
  {
    std::lock_guard lock(shut_down_mutex_);
    shut_down = shut_down_;
  }
  if (shut_down) shut_down(patience);
}

void LocalWorkers::forget_trainer() {
  std::lock_guard lock(shut_down_mutex_);
  shut_down_ = nullptr;
}

void LocalWorkers::end() {
  KeepBinding keep;
  if (auto code = std::exchange(code_, nullptr)) code->tear_down();
}

void LocalWorkers::run(const std::shared_ptr<detail::Run>& run, const engine::RetryLimits& limits) {
  reserve();
  try {
    run_attempts(run, limits);
  } catch (const std::exception& error) {  // of the journal or the checkpoints: whoever waits for the run hears of it
    end_run(*run, detail::failed_run(ErrorCode::io, error.what()));
  }
}

void LocalWorkers::end_run(detail::Run& run, detail::RunResult result) {
  running_ = false;  // before anybody hears of the end, and calls
  run.finish(std::move(result));
}

void LocalWorkers::run_attempts(const std::shared_ptr<detail::Run>& run, const engine::RetryLimits& limits) {
  KeepBinding keep;
  auto control = std::make_shared<LocalControl>(limits);
  run->attach(control);
  auto& journal = *run->spec.journal;
  const auto& before = journal.history();
  const auto show = [&](std::uint64_t generation) {
    run->view->set(control->locked([&](engine::RunMachine& machine) {
      return detail::RunView::State{"running", machine.attempt(), generation, machine.restarts()};
    }));
  };
  auto actions = control->locked([&](engine::RunMachine& machine) {
    machine.go_on_after(before.attempts, before.decisions, before.before_progress);
    return machine.begin(engine::Clock::now());
  });
  last_ = {};
  last_.stopped = true;
  if (auto early = run->begin()) {
    control->stop(early->reason, std::move(early->failure));
    actions = control->locked(
        [](engine::RunMachine& machine) { return machine.attempt_ended(std::nullopt, engine::Clock::now()); });
  }
  for (;;) {
    if (!actions.empty())
      if (auto* finish = std::get_if<engine::FinishRun>(&actions.front())) {
        run->spec.keeper->close();
        auto outcome = std::move(finish->outcome);
        Json result;
        if (!last_.failed && !last_.stopped) result = detail::unpack(last_.payload);
        return end_run(*run, {std::move(outcome), {std::move(result)}});
      }
    const auto number = control->locked([](engine::RunMachine& machine) { return machine.attempt(); });
    const auto generation = journal.next_generation();
    journal.attempt_begins(generation, number);
    show(generation);
    auto attempt = LocalAttempt::make(run, number, generation, [control](const std::string& text) {
      control->stop(engine::StopReason::failure,
                    engine::Failure{engine::FailureKind::fatal, ErrorCode::invalid_option, -1, text, {}});
    });
    control->set_attempt(attempt);
    last_ = run_user_code([&] { return code_->run(attempt->session(), run->spec.function, run->spec.config); });
    // What it threw before the stop stays its end, also if the stop came while its saves were written.
    const bool was_stopped = attempt->session()->stopped_inside();
    control->set_attempt(nullptr);
    std::optional<engine::Failure> failure;
    const auto progress = attempt->progress();
    if (last_.failed && !was_stopped)
      failure = engine::Failure{engine::FailureKind::user_error, last_.code, 0, last_.payload, {}, progress.reported};
    const auto ended = [&](engine::RunMachine& machine) {
      if (progress.worked) machine.worked();
      if (progress.is_new) machine.progress();
      const auto decided = machine.decisions().size();
      auto next = machine.attempt_ended(failure, engine::Clock::now());
      if (machine.decisions().size() > decided) {
        log_warning("{}", to_string(machine.decisions().back()));
        journal.decided(generation, machine.decisions().back());
      }
      return next;
    };
    actions = control->locked(ended);
    while (actions.empty()) actions = control->wait_for_next();
  }
}

void LocalWorkers::call(int, detail::FunctionId function, std::string arguments, detail::CallDone done) {
  KeepBinding keep;
  const char* refusal = !code_     ? "the trainer was shut down"
                        : running_ ? "a run is active, and local mode has one worker for runs and calls: call when it "
                                     "has ended, or use num_workers = 1"
                                   : nullptr;
  if (refusal) return done({}, std::make_exception_ptr(Error(ErrorCode::invalid_state, refusal)));
  auto outcome = run_user_code([&] { return code_->call(function, arguments); });
  if (outcome.failed)
    done({}, std::make_exception_ptr(Error(outcome.code, "rank 0: " + outcome.payload, 0)));
  else
    done(std::move(outcome.payload), nullptr);
}

}  // namespace troupe
