// SPDX-License-Identifier: Apache-2.0
#include "actors/run_journal.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <utility>

#include "checkpoint/file.hpp"
#include "runtime/base/host.hpp"
#include "runtime/base/log.hpp"

namespace troupe::detail {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

std::int64_t unix_ms(system_clock::time_point time) {
  return std::chrono::duration_cast<milliseconds>(time.time_since_epoch()).count();
}

/// Programs do not share a steady clock, so the journal has the time of day.
std::int64_t to_unix_ms(engine::Time time) {
  return unix_ms(system_clock::now()) - std::chrono::duration_cast<milliseconds>(engine::Clock::now() - time).count();
}
engine::Time from_unix_ms(std::int64_t time) {
  return engine::Clock::now() - milliseconds(std::max<std::int64_t>(0, unix_ms(system_clock::now()) - time));
}

constexpr std::array kinds = {engine::FailureKind::worker_lost, engine::FailureKind::user_error,
                              engine::FailureKind::preempted, engine::FailureKind::resized, engine::FailureKind::fatal};

engine::FailureKind kind_of(const std::string& cause) {
  const auto* found = std::find_if(kinds.begin(), kinds.end(), [&](auto kind) { return cause_name(kind) == cause; });
  return found == kinds.end() ? engine::FailureKind::fatal : *found;
}

Json to_json(const engine::Decision& made) {
  Json json{{"record", "decision"},
            {"time_ms", to_unix_ms(made.time)},
            {"attempt", made.attempt},
            {"cause", cause_name(made.cause)},
            {"rank", made.rank},
            {"error", made.error},
            {"round", made.round},
            {"restart", made.decision.retry},
            {"delay_ms", made.decision.delay.count()},
            {"reason", made.decision.reason},
            {"died_at_once", made.decision.died_at_once},
            {"progressed", made.decision.progressed},
            {"in_place", made.in_place}};
  if (made.step) json["step"] = *made.step;
  return json;
}

engine::Decision decision_from(const Json& json) {
  engine::Decision made;
  made.time = from_unix_ms(json.at("time_ms").get<std::int64_t>());
  made.attempt = json.at("attempt").get<int>();
  made.cause = kind_of(json.at("cause").get<std::string>());
  made.rank = json.at("rank").get<int>();
  made.error = json.at("error").get<std::string>();
  made.round = json.at("round").get<std::int64_t>();
  const bool at_once = json.value("died_at_once", false);
  made.decision = {json.at("restart").get<bool>(), milliseconds(json.at("delay_ms").get<std::int64_t>()),
                   json.at("reason").get<std::string>(), at_once,
                   json.value("progressed", !at_once)};  // older journals do not tell
  made.in_place = json.at("in_place").get<bool>();
  if (json.contains("step")) made.step = json.at("step").get<std::int64_t>();
  return made;
}

}  // namespace

bool is_further(std::int64_t iteration, std::int64_t& furthest) {
  const bool is_new = iteration <= 0 || iteration > furthest;
  furthest = std::max(furthest, iteration);
  return is_new;
}

RunJournal::RunJournal(const std::filesystem::path& directory, bool resume, Json about)
    : file_(std::in_place, (make_folder(directory), directory / "journal")) {
  const auto& records = file_->records();
  for (const auto& record : records)
    epoch_ = std::max(epoch_, static_cast<std::uint32_t>(record.value("generation", std::uint64_t{0}) >> 32U) + 1);
  // What cannot be read, or is not there, may have been a program too.
  if (file_->damaged() || (resume && records.empty())) epoch_ += 1;
  if (file_->damaged())
    log_warning("the end of the journal in {} was torn; it goes on before that", directory.string());
  read_history(records);
  about["record"] = "program";
  about["host"] = host_name();
  about["pid"] = ::getpid();
  about["time_ms"] = unix_ms(system_clock::now());
  about["generation"] = std::uint64_t{epoch_} << 32U;
  try {
    file_->append(about, epoch_ > 1);
  } catch (const Error& error) {
    // The next program would take the same epoch, and each could take the other's messages for its own.
    if (epoch_ > 1) throw;
    report(error);
  }
}

void RunJournal::read_history(const std::vector<Json>& records) {
  std::int64_t furthest = 0;  // where a checkpoint was committed
  for (const auto& record : records) {
    const auto kind = record.value("record", std::string());
    try {
      if (kind == "attempt") history_.attempts = record.at("attempt").get<int>();
      if (kind == "decision") history_.decisions.push_back(decision_from(record));
      if (kind == "commit" && is_further(record.at("round").get<std::int64_t>(), furthest))
        history_.before_progress = history_.decisions.size();
      if (kind == "end") {
        history_ = {};
        furthest = 0;
      }
    } catch (const Json::exception& error) {
      log_warning("a record of the journal is passed over: {}", error.what());
    }
  }
}

std::uint64_t RunJournal::next_generation() const {
  static std::atomic<std::uint32_t> next{1};
  return (std::uint64_t{epoch_} << 32U) | next++;
}

void RunJournal::attempt_begins(std::uint64_t generation, int attempt) {
  // The first attempt of the first program has nobody to be told apart from.
  append({{"record", "attempt"}, {"generation", generation}, {"attempt", attempt}}, epoch_ > 1 || attempt > 1);
}

void RunJournal::committed(std::uint64_t generation, std::uint64_t checkpoint, std::int64_t round) {
  // The manifest is what makes it durable.
  append({{"record", "commit"}, {"generation", generation}, {"checkpoint", checkpoint}, {"round", round}}, false);
}

void RunJournal::decided(std::uint64_t generation, const engine::Decision& decision) {
  auto record = to_json(decision);
  record["generation"] = generation;
  append(record, decision.decision.retry);
}

void RunJournal::ended(std::string_view status) {
  append({{"record", "end"}, {"generation", std::uint64_t{epoch_} << 32U}, {"status", status}}, false);
  std::lock_guard lock(mutex_);
  file_.reset();
}

std::string RunJournal::why_lost() const {
  std::lock_guard lock(mutex_);
  return file_ ? file_->why_lost() : "the run has ended";
}

void RunJournal::append(const Json& record, bool durable) {
  std::lock_guard lock(mutex_);
  if (!file_) return;
  try {
    file_->append(record, durable);
    failed_ = false;
  } catch (const std::exception& error) {
    report(error);
  }
}

/// Training matters more; a program that is started again may count less. The next record may find room again.
void RunJournal::report(const std::exception& error) {
  if (!std::exchange(failed_, true)) log_warning("a record of the run's journal is not written: {}", error.what());
}

}  // namespace troupe::detail
