// SPDX-License-Identifier: Apache-2.0
// The journal of a run, `<run>/journal`: attempts, commits and decisions, so that a program that is started again goes
// on where the one before it died. May be used from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <troupe/json.hpp>

#include "checkpoint/journal.hpp"
#include "runtime/engine/failure_policy.hpp"

namespace troupe::detail {

/// What the programs before this one have left of a run that they did not end.
struct RunHistory {
  int attempts = 0;
  std::vector<engine::Decision> decisions;
  std::size_t before_progress = 0;  ///< so many of them came before the latest progress
};

/// Is a checkpoint that was committed in that iteration progress? One that repeats what an earlier attempt has done is
/// not. 0: nobody knows where it was.
bool is_further(std::int64_t iteration, std::int64_t& furthest);

class RunJournal {
public:
  /// Takes the run over: from now on the generations of earlier programs are old. `about` says what runs, for people.
  /// Throws invalid_state when another program drives the run, io when an earlier one did and that this one does now
  /// cannot be written.
  RunJournal(const std::filesystem::path& directory, bool resume, Json about);

  /// Empty if the run is new, or was ended before: going on with it is a new beginning then.
  const RunHistory& history() const { return history_; }
  /// How many programs have driven the run, with this one.
  std::uint32_t epoch() const { return epoch_; }

  /// Higher than all before it: the epoch, and a number that this program has not used for any run.
  std::uint64_t next_generation() const;
  /// It is on disk when this returns; only then may anybody hear of the generation.
  void attempt_begins(std::uint64_t generation, int attempt);
  void committed(std::uint64_t generation, std::uint64_t checkpoint, std::int64_t round);
  void decided(std::uint64_t generation, const engine::Decision& decision);
  /// The last record; others may have the run now.
  void ended(std::string_view status);

  /// Empty, or why this program must not write to the run any more.
  std::string why_lost() const;

private:
  void append(const Json& record, bool durable);
  void report(const std::exception& error);
  void read_history(const std::vector<Json>& records);

  mutable std::mutex mutex_;
  std::optional<Journal> file_;
  std::uint32_t epoch_ = 1;
  RunHistory history_;
  bool failed_ = false;  // the latest record is not there
};

}  // namespace troupe::detail
