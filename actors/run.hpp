// SPDX-License-Identifier: Apache-2.0
// One run as the driver's threads share it: who carries it out puts rounds in and finishes it; one consumer (the
// callback thread or an iterator) takes rounds out.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <troupe/callback.hpp>
#include <troupe/fn.hpp>

#include "runtime/engine/run_machine.hpp"

namespace troupe::detail {

class CheckpointKeeper;
class RunJournal;

/// One report of every rank, in MessagePack.
struct Round {
  std::uint64_t generation = 0;
  int attempt = 1;
  std::int64_t number = 0;
  std::vector<std::string> reports;
};

/// The way back from a run to whoever carries it out. Called from any thread, never after the run has finished.
class RunControl {
public:
  virtual ~RunControl() = default;
  /// Rounds of that generation were consumed: their credit flows back to the workers.
  virtual void consumed(std::uint64_t generation, std::uint32_t rounds) = 0;
  virtual void stop(engine::StopReason reason, std::optional<engine::Failure> failure) = 0;
};

struct StopRequest {
  engine::StopReason reason;
  std::optional<engine::Failure> failure;
};

/// What a run ends with.
struct RunResult {
  engine::RunOutcome outcome;
  std::vector<Json> results;  ///< in rank order; null for ranks that did not return
};

/// One that ended before it could, or because it cannot go on.
RunResult failed_run(ErrorCode code, std::string text);
using engine::shut_down_text;

struct RunSpec {
  FunctionId function;
  std::string function_name;
  std::string config;  ///< MessagePack
  bool detailed_metrics = false;
  std::filesystem::path directory;
  std::shared_ptr<CheckpointKeeper> keeper;
  std::shared_ptr<RunJournal> journal;
  /// An iterator that is dropped waits this long for the end.
  std::chrono::milliseconds patience = std::chrono::seconds(30);
  /// False: its function runs on a thread of the program, and only its own return ends it.
  bool can_end_at_once = true;
  /// So long after Ctrl-C rounds that wait are still shown; a second one drops them.
  std::chrono::milliseconds shown_after_interrupt = std::chrono::seconds(5);
  /// Called by the consumer after the end, and once more if the end itself fails.
  std::function<void(const RunResult&)> on_end = [](const RunResult&) {};
};

/// Where a run stands; anybody may look, also after its end.
class RunView {
public:
  struct State {
    const char* name = "running";
    int attempt = 0;
    std::uint64_t generation = 0;
    engine::RestartCounts restarts;
  };
  void set(State state) {
    std::lock_guard lock(mutex_);
    state_ = state;
  }
  State state() const {
    std::lock_guard lock(mutex_);
    return state_;
  }
  std::atomic<std::int64_t> round{0};  ///< the last one that is complete

private:
  mutable std::mutex mutex_;
  State state_;
};

class Run {
public:
  explicit Run(RunSpec run_spec) : spec(std::move(run_spec)) {}

  const RunSpec spec;
  const pid_t made_in = ::getpid();
  const std::shared_ptr<RunView> view = std::make_shared<RunView>();

  // ---- for who carries it out
  void attach(std::shared_ptr<RunControl> control);
  /// The control takes stops from now on; gives the one that came before.
  std::optional<StopRequest> begin();
  /// Consecutive rounds of an attempt. One that `resumed` from a checkpoint comes again to rounds that the consumer has
  /// seen: those are dropped.
  struct Added {
    std::size_t dropped = 0;  ///< so many from the front
    bool is_new = false;      ///< no attempt has come so far before
  };
  Added add_rounds(std::vector<Round> rounds, bool resumed = false);
  /// Once. Drops the control, so that no actor handle outlives its system here.
  void finish(RunResult result);
  /// One that nobody carries out: begin() will give the stop that it was asked for.
  void finish_unless_begun(const RunResult& result);

  // ---- for the consumer
  /// This thread will take the rounds; so does one that has called next_round().
  void consume_here() { consumer_ = std::this_thread::get_id(); }
  /// The run may not end unless this thread takes its rounds.
  bool waits_for_this_thread() const { return consumer_ == std::this_thread::get_id() && !stop_asked_ && !finished(); }
  /// Waits for the next round; false when the run has finished and all rounds were taken, or there is no more time.
  bool next_round(std::vector<Json>& results, ResultInfo& info);
  /// Asks for the end. When it has finished: an interrupt counts until the consumer has concluded it, nothing else
  /// does.
  void stop(engine::StopReason reason, std::optional<engine::Failure> failure = std::nullopt);
  /// The consumer failed: so does the run, also one that had finished before.
  void fail(engine::Failure failure);
  bool finished() const;
  /// True when the run has finished and next_round() would give false.
  bool exhausted() const;
  /// Waits for the end, and tells on_end the first time. Rounds that were not taken are dropped.
  const RunResult& conclude();
  /// Nobody will take its rounds or its end: it is concluded when it finishes.
  void conclude_by_itself();
  /// Whoever was told of the end failed: so does a run that had ended well.
  void fail_at_end(engine::Failure failure);
  /// Waits for the end, but not for ever.
  bool wait_for(std::chrono::milliseconds patience);
  /// The signal that interrupted the run, for the exit code.
  std::atomic<int> signal{0};
  /// Whatever must live as long as the run is active.
  std::shared_ptr<void> while_active;

private:
  void note_interrupt();
  bool out_of_time() const;
  void give_credit();
  std::shared_ptr<RunControl> control() const;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<RunControl> control_;
  std::deque<Round> rounds_;
  std::int64_t shown_ = 0;     // the number of the last round that was added
  std::int64_t furthest_ = 0;  // the highest of all attempts
  std::optional<RunResult> result_;
  bool concluded_ = false;
  bool concludes_by_itself_ = false;
  bool begun_ = false;
  std::optional<StopRequest> early_stop_;
  std::optional<std::chrono::steady_clock::time_point> show_until_;  // after an interrupt
  bool interrupted_late_ = false;                                    // when it had finished
  std::optional<engine::Failure> consumer_failure_;

  std::atomic<std::thread::id> consumer_;
  std::atomic<bool> stop_asked_ = false;

  // The consumer's own.
  std::deque<Round> taken_;
  std::uint64_t credit_generation_ = 0;
  std::uint32_t credit_rounds_ = 0;
};

}  // namespace troupe::detail
