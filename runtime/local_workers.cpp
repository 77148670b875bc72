// SPDX-License-Identifier: Apache-2.0
#include "runtime/local_workers.hpp"

#include <condition_variable>
#include <deque>
#include <functional>
#include <utility>

#include <troupe/error.hpp>

#include "checkpoint/keeper.hpp"
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
  LocalAttempt(detail::Run& run, int attempt) : run_(run), attempt_(attempt) {}

  /// `fail` ends the run.
  static std::shared_ptr<LocalAttempt> make(detail::Run& run, int number,
                                            const std::function<void(const std::string&)>& fail) {
    auto attempt = std::make_shared<LocalAttempt>(run, number);
    // Weak: a thread that the function left behind may report when the attempt is over.
    attempt->channel_ =
        std::make_shared<detail::ReportChannel>(detail::ReportWindow{}, [weak = std::weak_ptr<LocalAttempt>(attempt)] {
          if (auto alive = weak.lock()) alive->forward();
        });
    attempt->session_ =
        std::make_shared<detail::Session>(detail::RankInfo{}, attempt->channel_, run.spec.detailed_metrics);
    auto keeper = run.spec.keeper;
    const auto client = std::make_shared<std::weak_ptr<detail::CheckpointClient>>();
    auto checkpoints =
        std::make_shared<detail::CheckpointClient>(0, 1, keeper->begin_attempt(static_cast<std::uint64_t>(number)),
                                                   [keeper, fail, client](detail::SavedPart part) {
                                                     for (auto& over : keeper->add(std::move(part))) {
                                                       if (auto alive = client->lock())
                                                         alive->answer(std::move(over.result));
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
    std::size_t bytes = 0;
    {
      std::lock_guard lock(mutex_);
      for (std::uint32_t i = 0; i < rounds && !sizes_.empty(); ++i) {
        bytes += sizes_.front();
        sizes_.pop_front();
      }
    }
    channel_->release(rounds, bytes);
  }

private:
  void forward() {
    // Under the lock from taking to handing on: reports of several threads stay in order.
    std::lock_guard lock(mutex_);
    auto burst = channel_->take();
    std::vector<detail::Round> rounds;
    std::size_t at = 0;
    for (auto size : burst.sizes) {
      rounds.push_back({static_cast<std::uint64_t>(attempt_), attempt_, ++round_, {burst.bytes.substr(at, size)}});
      sizes_.push_back(size);
      at += size;
    }
    run_.add_rounds(std::move(rounds));
  }

  detail::Run& run_;
  const int attempt_;
  std::shared_ptr<detail::ReportChannel> channel_;
  std::shared_ptr<detail::Session> session_;
  std::mutex mutex_;
  std::deque<std::uint32_t> sizes_;
  std::int64_t round_ = 0;
};

class LocalControl : public detail::RunControl {
public:
  explicit LocalControl(const engine::RetryLimits& limits) : machine_(limits) {}

  void consumed(std::uint64_t generation, std::uint32_t rounds) override {
    std::shared_ptr<LocalAttempt> attempt;
    {
      std::lock_guard lock(mutex_);
      machine_.progress();
      if (static_cast<int>(generation) != machine_.attempt()) return;
      attempt = attempt_;
    }
    if (attempt) attempt->consumed(rounds);
  }

  void stop(engine::StopReason reason, std::optional<engine::Failure> failure) override {
    {
      std::lock_guard lock(mutex_);
      ended_ = machine_.stop(reason, std::move(failure));
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

LocalWorkers::LocalWorkers(const UserSetup& setup) {
  KeepBinding keep;
  const auto outcome = run_user_code([&] {
    code_->set_up(setup);
    if (!setup.backend.empty()) code_->form(1, nullptr, nullptr);
    return std::string();
  });
  if (outcome.failed || outcome.stopped) throw Error(outcome.code, "rank 0 could not be set up: " + outcome.payload, 0);
}

LocalWorkers::~LocalWorkers() { shutdown({}); }

void LocalWorkers::shutdown(std::chrono::milliseconds) {
  KeepBinding keep;
  if (auto code = std::exchange(code_, nullptr)) code->tear_down();
}

void LocalWorkers::run(const std::shared_ptr<detail::Run>& run, const engine::RetryLimits& limits) {
  KeepBinding keep;
  auto control = std::make_shared<LocalControl>(limits);
  run->attach(control);
  auto actions = control->locked([](engine::RunMachine& machine) { return machine.begin(); });
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
        return run->finish({std::move(outcome), {std::move(result)}});
      }
    const auto number = control->locked([](engine::RunMachine& machine) { return machine.attempt(); });
    auto attempt = LocalAttempt::make(*run, number, [control](const std::string& text) {
      control->stop(engine::StopReason::failure,
                    engine::Failure{engine::FailureKind::fatal, ErrorCode::invalid_option, -1, text, {}});
    });
    control->set_attempt(attempt);
    last_ = run_user_code([&] { return code_->run(attempt->session(), run->spec.function, run->spec.config); });
    control->set_attempt(nullptr);
    std::optional<engine::Failure> failure;
    if (last_.failed) failure = engine::Failure{engine::FailureKind::user_error, last_.code, 0, last_.payload, {}};
    const auto ended = [&](engine::RunMachine& machine) {
      return machine.attempt_ended(failure, engine::Clock::now());
    };
    actions = control->locked(ended);
    while (actions.empty()) actions = control->wait_for_next();
  }
}

void LocalWorkers::call(int, detail::FunctionId function, std::string arguments, detail::CallDone done) {
  KeepBinding keep;
  if (!code_) {
    done({}, std::make_exception_ptr(Error(ErrorCode::invalid_state, "the trainer was shut down")));
    return;
  }
  auto outcome = run_user_code([&] { return code_->call(function, arguments); });
  if (outcome.failed)
    done({}, std::make_exception_ptr(Error(outcome.code, "rank 0: " + outcome.payload, 0)));
  else
    done(std::move(outcome.payload), nullptr);
}

}  // namespace troupe
