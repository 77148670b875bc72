// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <ctime>
#include <mutex>
#include <string_view>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <troupe/error.hpp>

#include "runtime/base/host.hpp"

namespace troupe::detail {
namespace {

constexpr Activity in_report{WaitsFor::driver, "report()"};
constexpr Activity in_save{WaitsFor::driver, "save_checkpoint()"};
constexpr Activity in_load{WaitsFor::driver, "load_checkpoint()"};
constexpr Activity in_wait{WaitsFor::driver, "wait_for_stop()"};
// Newcomers are brought by the driver; those that wait for them are not to blame.
constexpr Activity in_rejoin{WaitsFor::driver, "rejoin()"};

thread_local std::shared_ptr<Session> thread_session;

struct ProcessSession {
  std::mutex mutex;
  std::shared_ptr<Session> session;
};

ProcessSession& process_session() {
  static ProcessSession instance;
  return instance;
}

// Autofilled metrics are appended to the user's MessagePack object as bytes: building them as Json would double the
// cost of a report.

void append_big_endian(std::string& out, std::uint64_t value, int bytes) {
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) out.push_back(static_cast<char>(value >> shift));
}

void append_map_header(std::string& out, std::size_t entries) {
  const bool small = entries <= 0xffff;
  out.push_back(static_cast<char>(small ? 0xde : 0xdf));
  append_big_endian(out, entries, small ? 2 : 4);
}

void append_text(std::string& out, std::string_view text) {
  if (text.size() < 32) {
    out.push_back(static_cast<char>(0xa0 | text.size()));
  } else {
    out.push_back(static_cast<char>(0xda));
    append_big_endian(out, text.size(), 2);
  }
  out.append(text);
}

void append_integer(std::string& out, std::int64_t value) {
  out.push_back(static_cast<char>(0xd3));
  append_big_endian(out, static_cast<std::uint64_t>(value), 8);
}

void append_real(std::string& out, double value) {
  out.push_back(static_cast<char>(0xcb));
  append_big_endian(out, std::bit_cast<std::uint64_t>(value), 8);
}

/// Length of the header of a packed object.
std::size_t map_header_bytes(std::string_view packed) {
  switch (static_cast<unsigned char>(packed.front())) {
    case 0xde:
      return 3;
    case 0xdf:
      return 5;
    default:
      return 1;
  }
}

const std::string& own_host_name() {
  static const std::string name = host_name();
  return name;
}

const std::string& own_address() {
  static const std::string address = node_ip();
  return address;
}

}  // namespace

Session::Session(RankInfo ranks, std::shared_ptr<ReportChannel> channel, bool detailed_metrics)
    : ranks_(ranks), channel_(std::move(channel)), detailed_metrics_(detailed_metrics) {}

void Session::stop() {
  // First: whoever was stopped in what follows sees that it should stop.
  {
    std::lock_guard lock(stop_mutex_);
    stop_.store(true, std::memory_order_release);
  }
  stopped_.notify_all();
  if (channel_) channel_->stop();
  if (checkpoints_) checkpoints_->stop();
  if (rejoining_) rejoining_->stop();
}

void Session::refuse_outside_run(const char* caller) const {
  throw Error(ErrorCode::invalid_state,
              fmt::format("{} was called on rank {} outside a run: it works only in a train function that run() or "
                          "run_iterator() started",
                          caller, ranks().world_rank),
              ranks().world_rank);
}

CheckpointClient& Session::checkpoints(const char* caller) const {
  if (!checkpoints_) refuse_outside_run(caller);
  return *checkpoints_;
}

void Session::save_checkpoint(const Checkpoint& state, bool sharded, const Json& metrics) {
  auto& client = checkpoints("save_checkpoint()");
  if (should_stop()) throw Stopped();  // who has seen that cannot report or save any more
  if (catching_up_.load(std::memory_order_acquire)) return;
  const Progress::Doing doing(progress_, in_save);
  client.save(state, sharded, iteration_, metrics);
}

std::optional<Checkpoint> Session::load_checkpoint() {
  auto& client = checkpoints("load_checkpoint()");
  const Progress::Doing doing(progress_, in_load);
  auto loaded = client.load();
  // A function that goes on where an earlier attempt was counts on from there.
  std::int64_t none = 0;
  if (loaded.checkpoint && iteration_.compare_exchange_strong(none, loaded.iteration) && channel_)
    channel_->set_origin({loaded.iteration, loaded.is_start});
  return std::move(loaded.checkpoint);
}

RankInfo Session::ranks() const {
  std::lock_guard lock(ranks_mutex_);
  return ranks_;
}

void Session::allow_rejoin(std::shared_ptr<Rejoining> rejoining, bool joining, bool retries_user_errors) {
  rejoining_ = std::move(rejoining);
  joining_ = joining;
  catching_up_ = joining;
  retries_user_errors_ = retries_user_errors;
}

void Session::step_committed(std::int64_t step) {
  last_step_.store(step, std::memory_order_relaxed);
  progress_.made();
  if (rejoining_ && tell_progress_.exchange(false)) rejoining_->progressed(step);
}

void Session::set_live(bool live) {
  const Progress::Doing doing(progress_, in_rejoin);
  if (rejoining_) rejoining_->set_live(live);
}

void Session::set_ranks(const RankInfo& ranks) {
  std::lock_guard lock(ranks_mutex_);
  ranks_ = ranks;
}

void Session::rejoin(const GroupEnd& end) {
  if (!rejoining_) throw GroupLost("the group is lost, and there is nobody to form a new one with");
  const Progress::Doing doing(progress_, in_rejoin);
  const auto ranks = rejoining_->rejoin(counters(), end);
  set_ranks(ranks);
  if (checkpoints_) checkpoints_->set_place(ranks.world_rank, ranks.world_size);
  tell_progress_ = true;
  joining_ = false;
}

Counters Session::counters() const { return {iteration_, checkpoints_ ? checkpoints_->saves() : 0}; }

void Session::adopt(Counters counters) {
  iteration_ = counters.reports;
  if (checkpoints_) checkpoints_->count_from(counters.saves);
}

Json Session::give_back(const Checkpoint& result) {
  auto returned = checkpoints("a function that returns a checkpoint").give_back(result);
  data_->set(returned_key, std::move(returned.memory));
  return to_json(returned.source);
}

Json give_back(const Checkpoint& result) {
  return Session::require("a function that returns a checkpoint")->give_back(result);
}

void Session::finish() noexcept {
  stopped_inside_ = should_stop();
  if (!checkpoints_) return;
  if (on_saving_ && checkpoints_->saves() > 0) on_saving_();
  checkpoints_->finish();
}

void Session::notify_preemption(train::PreemptionNotice notice) {
  std::lock_guard lock(stop_mutex_);
  notice_ = notice;
  has_notice_ = true;
}

void Session::forget_preemption() {
  has_notice_ = false;
  saw_preemption_ = false;
}

std::optional<train::PreemptionNotice> Session::preemption_notice() {
  if (!has_notice_.load(std::memory_order_acquire)) return std::nullopt;
  saw_preemption_ = true;
  std::lock_guard lock(stop_mutex_);
  return notice_;
}

void Session::wait_for_stop() {
  const Progress::Doing doing(progress_, in_wait);
  std::unique_lock lock(stop_mutex_);
  stopped_.wait(lock, [this] { return should_stop(); });
}

bool Session::wait_for_stop(std::chrono::milliseconds timeout) {
  // A day at a time: the end of a longer wait may lie beyond what the clock can tell.
  constexpr std::chrono::milliseconds day = std::chrono::hours(24);
  std::unique_lock lock(stop_mutex_);
  for (; timeout > day; timeout -= day)
    if (stopped_.wait_for(lock, day, [this] { return should_stop(); })) return true;
  return stopped_.wait_for(lock, timeout, [this] { return should_stop(); });
}

void Session::report(const Json& metrics) {
  if (!channel_) refuse_outside_run("report()");
  // The buffer is reused: a report of the usual size allocates nothing here.
  thread_local std::string packed;
  packed.clear();
  if (metrics.is_null())
    packed.push_back(static_cast<char>(0x80));
  else if (metrics.is_object())
    pack_to(packed, metrics);
  else
    require_object(metrics, "metrics of report()");
  if (packed.size() > max_payload_bytes)
    throw Error(ErrorCode::too_large,
                fmt::format("a report of {} bytes on rank {} is above the limit of {} bytes: report numbers, and write "
                            "large data to files or checkpoints",
                            packed.size(), ranks().world_rank, max_payload_bytes),
                ranks().world_rank);
  if (should_stop()) throw Stopped();  // who has seen that cannot report or save any more
  if (catching_up_.load(std::memory_order_acquire)) return;
  const Progress::Doing doing(progress_, in_report);
  channel_->push([&](std::string& out) { append_report(out, metrics, packed); });
}

void Session::append_report(std::string& out, const Json& metrics, std::string_view packed) {
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - last_report_).count();
  last_report_ = now;
  const auto waited = progress_.waited() + channel_->waited();
  const auto computed = std::chrono::duration<double>(std::exchange(last_waited_, waited) - waited).count() + seconds;
  computed_ns_ += static_cast<std::int64_t>(std::max(computed, 0.0) * 1e9);
  total_seconds_ += seconds;
  iteration_ += 1;

  static const Json::object_t none;
  const auto& given = metrics.is_object() ? metrics.get_ref<const Json::object_t&>() : none;
  // A user's own value under one of our keys wins.
  const auto is_given = [&](std::string_view key) {
    for (const auto& entry : given)
      if (!entry.first.empty() && entry.first.front() == '_' && entry.first == key) return true;
    return false;
  };

  constexpr std::array<std::string_view, 8> keys = {"_timestamp", "_time_this_iter_s", "_training_iteration",
                                                    "_date",      "_hostname",         "_node_ip",
                                                    "_pid",       "_time_total_s"};
  const std::size_t count = detailed_metrics_ ? keys.size() : 3;
  std::size_t added = 0;
  for (std::size_t i = 0; i < count; ++i) added += is_given(keys[i]) ? 0 : 1;

  append_map_header(out, given.size() + added);
  out.append(packed.substr(map_header_bytes(packed)));
  const std::time_t unix_seconds = std::time(nullptr);
  for (std::size_t i = 0; i < count; ++i) {
    if (is_given(keys[i])) continue;
    append_text(out, keys[i]);
    switch (i) {
      case 0:
        append_integer(out, unix_seconds);
        break;
      case 1:
        append_real(out, seconds);
        break;
      case 2:
        append_integer(out, iteration_);
        break;
      case 3:
        append_text(out, fmt::format("{:%Y-%m-%d_%H-%M-%S}", fmt::localtime(unix_seconds)));
        break;
      case 4:
        append_text(out, own_host_name());
        break;
      case 5:
        append_text(out, own_address());
        break;
      case 6:
        append_integer(out, ::getpid());
        break;
      default:
        append_real(out, total_seconds_);
        break;
    }
  }
}

std::shared_ptr<Session> Session::current() {
  if (thread_session) return thread_session;
  auto& process = process_session();
  std::lock_guard lock(process.mutex);
  return process.session;
}

std::shared_ptr<Session> Session::require(const char* caller) {
  if (auto session = current()) return session;
  throw Error(ErrorCode::not_in_worker,
              fmt::format("{} was called where no worker is. It works inside a function that a Trainer runs; on a "
                          "thread of your own there (placement thread, local mode), bind the rank first: "
                          "`auto context = train::context();` in the function, `train::ContextGuard guard(context);` "
                          "on the thread",
                          caller));
}

std::shared_ptr<Session> Session::bind(std::shared_ptr<Session> session) {
  return std::exchange(thread_session, std::move(session));
}

void Session::bind_process(std::shared_ptr<Session> session) {
  auto& process = process_session();
  std::lock_guard lock(process.mutex);
  process.session = std::move(session);
}

}  // namespace troupe::detail
