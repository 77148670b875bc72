// SPDX-License-Identifier: Apache-2.0
#include "actors/run_journal.hpp"

#include <doctest/doctest.h>

#include <sys/resource.h>

#include <csignal>
#include <fstream>

#include "runtime/engine/run_machine.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

using namespace std::chrono_literals;
using troupe::ErrorCode;
using troupe::Json;
using troupe::detail::RunJournal;
using troupe::test::TempFolder;
using namespace troupe::engine;

namespace {

const Failure lost{FailureKind::worker_lost, ErrorCode::worker_lost, 1, "killed by SIGKILL"};

/// A program that opens the journal, does something, and dies.
template <class Work>
void program(const TempFolder& folder, Work&& work) {
  RunJournal journal(folder.path(), true, Json::object());
  work(journal);
}

/// Files of this program cannot grow beyond that size, as on a full disk.
class FullDisk {
public:
  explicit FullDisk(std::uintmax_t size) {
    before_action_ = std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    auto limit = before_;
    limit.rlim_cur = size;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, before_action_);
  }

private:
  rlimit before_{};
  void (*before_action_)(int) = nullptr;
};

std::uintmax_t journal_size(const TempFolder& folder) { return std::filesystem::file_size(folder.path() / "journal"); }

Decision restart(FailureKind cause, const std::string& error, Time time = Clock::now()) {
  return {time, 1, cause, 1, error, -1, {true, 100ms, "restart 1 of 3"}};
}

}  // namespace

DOCTEST_TEST_CASE("a journal whose folder cannot be made is an error of ours that names it") {
  const TempFolder folder;
  std::ofstream(folder.path() / "file") << "no folder";
  const auto place = folder.path() / "file" / "run_001";
  const auto error = troupe::test::thrown_by([&] { RunJournal(place, false, Json::object()); });
  DOCTEST_CHECK_MESSAGE(error.starts_with("io: "), error);
  DOCTEST_CHECK_MESSAGE(troupe::test::contains(error, place.string()), error);
}

DOCTEST_TEST_CASE("a new journal has no history") {
  const TempFolder folder;
  RunJournal journal(folder.path(), false, Json::object());
  DOCTEST_CHECK(journal.epoch() == 1);
  DOCTEST_CHECK(journal.history().attempts == 0);
  DOCTEST_CHECK(journal.history().decisions.empty());
  DOCTEST_CHECK(journal.why_lost().empty());
}

DOCTEST_TEST_CASE("what a program decided comes back in the next one") {
  const TempFolder folder;
  const auto then = Clock::now() - 1min;
  program(folder, [&](RunJournal& journal) {
    journal.attempt_begins(journal.next_generation(), 1);
    auto made = restart(FailureKind::user_error, "bad batch", then);
    made.step = 5;
    made.in_place = true;
    journal.decided(journal.next_generation(), made);
    journal.attempt_begins(journal.next_generation(), 2);
  });
  program(folder, [&](RunJournal& journal) {
    const auto& history = journal.history();
    DOCTEST_CHECK(history.attempts == 2);
    DOCTEST_REQUIRE(history.decisions.size() == 1);
    const auto& made = history.decisions[0];
    DOCTEST_CHECK(made.cause == FailureKind::user_error);
    DOCTEST_CHECK(made.attempt == 1);
    DOCTEST_CHECK(made.rank == 1);
    DOCTEST_CHECK(made.error == "bad batch");
    DOCTEST_CHECK(made.round == -1);
    DOCTEST_CHECK(made.step == 5);
    DOCTEST_CHECK(made.in_place);
    DOCTEST_CHECK(made.decision.retry);
    DOCTEST_CHECK(made.decision.delay == 100ms);
    DOCTEST_CHECK(made.decision.reason == "restart 1 of 3");
    // By the time of day, since programs share no other clock.
    DOCTEST_CHECK(std::chrono::abs(made.time - then) < 10s);
  });
}

DOCTEST_TEST_CASE("a record that found no room does not keep later ones out") {
  const TempFolder folder;
  program(folder, [&](RunJournal& journal) {
    {
      const FullDisk full(journal_size(folder) + 10);
      journal.attempt_begins(journal.next_generation(), 1);
    }
    journal.attempt_begins(journal.next_generation(), 2);
  });
  program(folder, [&](RunJournal& journal) {
    DOCTEST_CHECK(journal.history().attempts == 2);
    DOCTEST_CHECK(journal.epoch() == 3);  // nothing was torn
  });
}

DOCTEST_TEST_CASE("a program that cannot say that it drives a run of another one does not") {
  const TempFolder folder;
  program(folder, [&](RunJournal&) {});
  {
    const FullDisk full(journal_size(folder) + 10);
    DOCTEST_CHECK_THROWS(RunJournal(folder.path(), true, Json::object()));
  }
  program(folder, [&](RunJournal& journal) { DOCTEST_CHECK(journal.epoch() == 3); });
}

DOCTEST_TEST_CASE("progress without a checkpoint is known in the next program") {
  const TempFolder folder;
  program(folder, [&](RunJournal& journal) {
    auto made = restart(FailureKind::worker_lost, "killed");
    made.decision.progressed = true;
    journal.decided(1, made);
    journal.decided(1, restart(FailureKind::worker_lost, "killed"));
  });
  program(folder, [&](RunJournal& journal) {
    DOCTEST_CHECK(journal.history().decisions.at(0).decision.progressed);
    DOCTEST_CHECK_FALSE(journal.history().decisions.at(1).decision.progressed);
  });
}

DOCTEST_TEST_CASE("a checkpoint that repeats what was committed before is no progress") {
  const TempFolder folder;
  program(folder, [&](RunJournal& journal) {
    journal.committed(1, 1, 10);
    journal.decided(1, restart(FailureKind::worker_lost, "killed"));
    journal.committed(1, 2, 5);
    journal.committed(1, 3, 10);
  });
  program(folder, [&](RunJournal& journal) {
    DOCTEST_CHECK(journal.history().before_progress == 0);
    journal.committed(1, 4, 11);
  });
  program(folder, [&](RunJournal& journal) { DOCTEST_CHECK(journal.history().before_progress == 1); });
  std::int64_t furthest = 0;
  for (int i = 0; i < 2; ++i) DOCTEST_CHECK(troupe::detail::is_further(0, furthest));  // nobody knows
}

DOCTEST_TEST_CASE("every cause comes back as itself") {
  const TempFolder folder;
  const std::vector causes = {FailureKind::worker_lost, FailureKind::user_error, FailureKind::preempted,
                              FailureKind::resized, FailureKind::fatal};
  program(folder, [&](RunJournal& journal) {
    for (auto cause : causes) journal.decided(1, restart(cause, "x"));
  });
  program(folder, [&](RunJournal& journal) {
    DOCTEST_REQUIRE(journal.history().decisions.size() == causes.size());
    for (std::size_t i = 0; i < causes.size(); ++i) DOCTEST_CHECK(journal.history().decisions[i].cause == causes[i]);
    DOCTEST_CHECK_FALSE(journal.history().decisions[0].step);
  });
}

DOCTEST_TEST_CASE("generations rise with every attempt and every program") {
  const TempFolder folder;
  std::uint64_t last = 0;
  for (std::uint32_t epoch = 1; epoch <= 3; ++epoch)
    program(folder, [&](RunJournal& journal) {
      // The first program was told to go on with a run that has no journal: another one may have driven it.
      DOCTEST_CHECK(journal.epoch() == epoch + 1);
      for (int attempt = 1; attempt <= 2; ++attempt) {
        const auto next = journal.next_generation();
        DOCTEST_CHECK(next > last);
        DOCTEST_CHECK((next >> 32U) == journal.epoch());
        journal.attempt_begins(last = next, attempt);
      }
    });
}

DOCTEST_TEST_CASE("a run that has ended is a new beginning for who goes on with it") {
  const TempFolder folder;
  program(folder, [&](RunJournal& journal) {
    journal.attempt_begins(1, 1);
    journal.decided(1, restart(FailureKind::worker_lost, "killed"));
    journal.ended("failed");
    DOCTEST_CHECK_FALSE(journal.why_lost().empty());
    // Others may have it from here on.
    RunJournal other(folder.path(), true, Json::object());
    DOCTEST_CHECK(other.history().attempts == 0);
    DOCTEST_CHECK(other.history().decisions.empty());
  });
}

DOCTEST_TEST_CASE("only one journal drives a run") {
  const TempFolder folder;
  program(folder, [&](RunJournal&) {
    const auto error = troupe::test::thrown_by([&] { RunJournal(folder.path(), true, Json::object()); });
    DOCTEST_CHECK(troupe::test::contains(error, "is active"));
  });
}

DOCTEST_TEST_CASE("a torn end and a record of nobody's are passed over") {
  const TempFolder folder;
  program(folder, [&](RunJournal& journal) {
    journal.attempt_begins(1, 1);
    journal.decided(1, restart(FailureKind::worker_lost, "killed"));
  });
  {
    std::ofstream file(folder.path() / "journal", std::ios::app);
    file << troupe::detail::journal_line({{"record", "decision"}, {"attempt", "not a number"}});
    file << troupe::detail::journal_line({{"record", "of the future"}});
    file << "1234 torn";
  }
  program(folder, [&](RunJournal& journal) {
    DOCTEST_CHECK(journal.history().attempts == 1);
    DOCTEST_CHECK(journal.history().decisions.size() == 1);
  });
}

DOCTEST_TEST_CASE("restarts without progress and crash loops are counted across programs") {
  for (const bool at_once : {false, true}) {
    const TempFolder folder;
    std::string end;
    int failures = 0;
    while (end.empty() && failures < 20)
      program(folder, [&](RunJournal& journal) {
        RunMachine run({.max_retries = -1});
        const auto& before = journal.history();
        run.go_on_after(before.attempts, before.decisions, before.before_progress);
        run.begin(Clock::now());
        // Each program dies after two failures.
        for (int i = 0; i < 2 && end.empty(); ++i) {
          journal.attempt_begins(journal.next_generation(), run.attempt());
          if (!at_once) run.worked();
          const auto actions = run.attempt_ended(lost, Clock::now());
          failures += 1;
          if (!actions.empty() && std::holds_alternative<FinishRun>(actions[0]))
            end = std::get<FinishRun>(actions[0]).outcome.decision;
          else
            journal.decided(journal.next_generation(), run.decisions().back());
          if (run.deadline()) run.tick(*run.deadline());
        }
      });
    DOCTEST_CHECK(failures == (at_once ? 6 : 4));
    DOCTEST_CHECK(end.starts_with(at_once ? "crash loop: 5 restarts" : "no progress in 3 restarts"));
  }
}

DOCTEST_TEST_CASE("the budgets hold across programs") {
  const TempFolder folder;
  const RetryLimits limits{.max_retries = 3};
  // Each program dies after one restart.
  for (int used = 0; used < 3; ++used)
    program(folder, [&](RunJournal& journal) {
      RunMachine run(limits);
      const auto& before = journal.history();
      run.go_on_after(before.attempts, before.decisions, before.before_progress);
      DOCTEST_CHECK(run.restarts().lost_workers == used);
      run.begin(Clock::now());
      journal.attempt_begins(journal.next_generation(), run.attempt());
      DOCTEST_CHECK(run.attempt() == used + 1);
      run.progress();
      journal.committed(journal.next_generation(), 1, 10 * (used + 1));
      run.attempt_ended(lost, Clock::now());
      DOCTEST_CHECK(run.decisions().back().decision.retry);
      journal.decided(journal.next_generation(), run.decisions().back());
      Decision resized{.time = Clock::now(), .cause = FailureKind::resized, .error = "resize(3)", .in_place = true};
      resized.decision.retry = true;
      journal.decided(journal.next_generation(), resized);  // costs nothing
    });
  program(folder, [&](RunJournal& journal) {
    RunMachine run(limits);
    const auto& before = journal.history();
    DOCTEST_CHECK(before.decisions.size() == 6);
    DOCTEST_CHECK(before.before_progress == 4);
    run.go_on_after(before.attempts, before.decisions, before.before_progress);
    run.begin(Clock::now());
    const auto end = run.attempt_ended(lost, Clock::now());
    DOCTEST_REQUIRE(end.size() == 1);
    DOCTEST_REQUIRE(std::holds_alternative<FinishRun>(end[0]));
    DOCTEST_CHECK(std::get<FinishRun>(end[0]).outcome.decision == "max_retries = 3 is used up");
  });
}
