// SPDX-License-Identifier: Apache-2.0
// One rank as its user code sees it: who it is, whether it should stop, where its reports go.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <troupe/json.hpp>
#include <troupe/train.hpp>

#include "runtime/session/checkpoint_client.hpp"
#include "runtime/session/progress.hpp"
#include "runtime/session/report_channel.hpp"

namespace troupe::detail {

struct RankInfo {
  int world_rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
};

/// How much a rank has reported and saved in its attempt.
struct Counters {
  std::int64_t reports = 0;
  std::uint64_t saves = 0;
};

/// Why a rank waits for a new group.
struct GroupEnd {
  std::string text;         ///< what the lost group said, or the user's exception
  bool user_error = false;  ///< its own code threw, and asks to make the step again
};

/// How a rank goes on in its function when the group was lost; the actors implement it.
class Rejoining {
public:
  virtual ~Rejoining() = default;
  /// The function can go on in place from now on, or no longer. Throws Stopped once stopped.
  virtual void set_live(bool live) = 0;
  /// Waits until the group is formed anew, and gives this rank's place in it. Throws Stopped once stopped.
  virtual RankInfo rejoin(const Counters& counters, const GroupEnd& end) = 0;
  /// A step was committed since.
  virtual void progressed(std::int64_t step) = 0;
  virtual void stop() = 0;
};

/// No report may be larger; the call throws.
inline constexpr std::size_t max_payload_bytes = std::size_t{16} << 20;

/// What backends keep for a rank, from one run to the next: a group, say.
class RankData {
public:
  void set(const std::string& name, std::shared_ptr<void> value) {
    std::lock_guard lock(mutex_);
    values_[name] = std::move(value);
  }
  template <class T>
  std::shared_ptr<T> get(const std::string& name) const {
    std::lock_guard lock(mutex_);
    const auto found = values_.find(name);
    return found == values_.end() ? nullptr : std::static_pointer_cast<T>(found->second);
  }
  /// Makes it at the first use.
  template <class T>
  std::shared_ptr<T> get_or_make(const std::string& name) {
    std::lock_guard lock(mutex_);
    auto& value = values_[name];
    if (!value) value = std::make_shared<T>();
    return std::static_pointer_cast<T>(value);
  }

private:
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<void>> values_;
};

class Session {
public:
  /// A rank outside a run: ranks are known, report() is refused.
  explicit Session(RankInfo ranks) : ranks_(ranks) {}
  /// The data that this rank's sessions have in common.
  RankData& data() const { return *data_; }
  void share_data(const Session& other) { data_ = other.data_; }
  /// A rank in a run. `detailed_metrics` adds date, host, address, pid and total time to every report.
  Session(RankInfo ranks, std::shared_ptr<ReportChannel> channel, bool detailed_metrics);

  /// May change when a group is formed anew in the middle of a run: see rejoin().
  RankInfo ranks() const;
  void set_ranks(const RankInfo& ranks);
  bool should_stop() const { return stop_.load(std::memory_order_acquire); }
  void wait_for_stop();
  bool wait_for_stop(std::chrono::milliseconds timeout);
  /// Makes should_stop() true and every report() throw Stopped.
  void stop();
  void report(const Json& metrics);

  /// A worker will be taken away.
  void notify_preemption(train::PreemptionNotice notice);
  /// The function goes on in place; those who are still to be taken away are told of again.
  void forget_preemption();
  std::optional<train::PreemptionNotice> preemption_notice();
  /// User code has been told.
  bool saw_preemption() const { return saw_preemption_; }

  /// The attempt's checkpoints go through this; set before the function runs. `on_saving`: the function was left, and
  /// its saves may still take a while.
  void keep_checkpoints(std::shared_ptr<CheckpointClient> client, std::function<void()> on_saving = {}) {
    checkpoints_ = std::move(client);
    on_saving_ = std::move(on_saving);
  }
  /// Throws invalid_state outside a run; `caller` is named then.
  CheckpointClient& checkpoints(const char* caller) const;
  void save_checkpoint(const Checkpoint& state, bool sharded, const Json& metrics);
  std::optional<Checkpoint> load_checkpoint();
  /// The function returns a checkpoint: what travels in its place. The driver opens that before the next run.
  Json give_back(const Checkpoint& result);
  void drop_returned() { data_->set(returned_key, nullptr); }
  /// The function begins: time that the rank was busy with something else before is none of its first round.
  void begin() { last_report_ = Clock::now(); }
  /// The function has ended: what it saved is on its way when this returns.
  void finish() noexcept;
  /// The stop came before that.
  bool stopped_inside() const { return stopped_inside_; }

  // ---- going on in place when other ranks were lost

  /// Set before the function runs. `joining`: the others are in the middle of the run already.
  void allow_rejoin(std::shared_ptr<Rejoining> rejoining, bool joining, bool retries_user_errors = false);
  /// Whether a step that threw may be made again (option retry_user_errors).
  bool retries_user_errors() const { return retries_user_errors_; }
  /// This rank, started into a run in progress, is where the others are. What it reported and saved before, they had
  /// reported and saved too, so it was dropped.
  void caught_up() { catching_up_.store(false, std::memory_order_release); }
  /// True until this rank, started into a run in progress, has joined the others: there is no group yet.
  bool joining() const { return joining_.load(std::memory_order_acquire); }
  /// It has joined them, and must pass over what they have behind them before it can work with the group.
  void set_joining(bool joining) { joining_.store(joining, std::memory_order_release); }
  /// While live, the loss of another rank does not stop this one: its collectives throw GroupLost, and it is expected
  /// in rejoin().
  void set_live(bool live);
  /// The others wait in rejoin(), or will.
  bool rejoin_wanted() const { return rejoin_wanted_.load(std::memory_order_acquire); }
  void want_rejoin(bool wanted = true) { rejoin_wanted_.store(wanted, std::memory_order_release); }
  /// A step of a live function was made: tells that there is progress. Costs next to nothing.
  void step_committed(std::int64_t step);
  /// The last one that was committed in this attempt; -1: none.
  std::int64_t last_step() const { return last_step_.load(std::memory_order_relaxed); }
  /// Waits for all ranks to come here, and forms the group with them; ranks() may be new then. Throws Stopped when the
  /// run is being stopped or the others cannot go on, GroupLost where there is nobody to rejoin (local mode).
  void rejoin(const GroupEnd& end = {});
  Counters counters() const;
  /// Counts on from there: what a rank that has joined takes over from the others.
  void adopt(Counters counters);

  /// Where this rank stands, for those who watch it.
  Progress& progress() { return progress_; }
  /// Time of all rounds so far, without the waiting for other ranks and for the driver.
  std::chrono::nanoseconds computed() const { return std::chrono::nanoseconds(computed_ns_.load()); }

  /// The session of the calling thread, else the one of the process, else null.
  static std::shared_ptr<Session> current();
  /// The same, but throws not_in_worker naming `caller` instead of giving null.
  static std::shared_ptr<Session> require(const char* caller);
  /// Binds a session to the calling thread; gives the previous one.
  static std::shared_ptr<Session> bind(std::shared_ptr<Session> session);
  /// In a worker process every thread belongs to the one rank.
  static void bind_process(std::shared_ptr<Session> session);

private:
  using Clock = std::chrono::steady_clock;
  static constexpr const char* returned_key = "troupe.returned";
  [[noreturn]] void refuse_outside_run(const char* caller) const;
  void append_report(std::string& out, const Json& metrics, std::string_view packed);

  mutable std::mutex ranks_mutex_;
  RankInfo ranks_;
  std::shared_ptr<Rejoining> rejoining_;
  std::atomic<bool> joining_{false};
  std::atomic<bool> catching_up_{false};
  std::atomic<bool> rejoin_wanted_{false};
  bool retries_user_errors_ = false;
  std::atomic<std::int64_t> last_step_{-1};
  std::atomic<bool> tell_progress_{true};
  std::shared_ptr<RankData> data_ = std::make_shared<RankData>();
  const std::shared_ptr<ReportChannel> channel_;
  std::shared_ptr<CheckpointClient> checkpoints_;
  std::function<void()> on_saving_;
  const bool detailed_metrics_ = false;
  std::atomic<bool> stop_{false};  // written under the mutex: no waiter may miss it
  bool stopped_inside_ = false;    // of the thread that calls finish()
  std::mutex stop_mutex_;
  std::atomic<bool> has_notice_{false};  // asked in every step: no lock while there is none
  std::optional<train::PreemptionNotice> notice_;
  std::atomic<bool> saw_preemption_{false};
  std::condition_variable stopped_;

  Progress progress_;
  // Changed under the channel's lock.
  std::atomic<std::int64_t> computed_ns_{0};
  std::chrono::nanoseconds last_waited_{0};
  std::atomic<std::int64_t> iteration_{0};
  Clock::time_point last_report_ = Clock::now();
  double total_seconds_ = 0;
};

}  // namespace troupe::detail
