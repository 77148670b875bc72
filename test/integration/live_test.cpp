// SPDX-License-Identifier: Apache-2.0
// Functions that stay where they are when another rank is lost, or when the number of workers changes.
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <optional>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "actors/node/node.hpp"
#include "runtime/base/host.hpp"
#include "runtime/session/session.hpp"
#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

using namespace std::chrono_literals;

/// Ranks meet at keys of the group's store.
struct Meeting {
  std::shared_ptr<Store> store;
  std::uint64_t epoch;
  int rank;
  int size;

  std::string key(const std::string& place, int from) const { return fmt::format("{}/{}/{}", epoch, place, from); }
  void say(const std::string& place, int value) const { store->set(key(place, rank), std::to_string(value)); }
  /// What each rank said at this place, in rank order.
  std::vector<int> exchange(const std::string& place, int value) const {
    say(place, value);
    std::vector<int> values;
    for (int from = 0; from < size; ++from) values.push_back(std::stoi(store->get(key(place, from), patience)));
    return values;
  }
};

class MeetingBackend : public Backend {
public:
  void on_start(const BackendContext& context) override {
    detail::Session::require("test")->data().set(
        "meeting", std::make_shared<Meeting>(context.store, context.epoch, context.world_rank, context.world_size));
  }
};

const bool registered = register_backend("counting", [](const Json&) { return std::make_unique<MeetingBackend>(); });

/// Counts to `steps` together with all others: what training does, without the training.
class Counting {
public:
  explicit Counting(const Config& config) : config_(config), session_(detail::Session::require("test")) {}

  Json run() {
    session_->set_live(true);
    if (session_->joining()) rejoin({});
    const int from = step_;
    while (step_ < config_["steps"].get<int>()) {
      try {
        disturb();
        const auto place = fmt::format("step {}", step_);
        if (config_["late"] == name() && is_first(config_["folder"].get<std::string>(), "late")) fall_behind(place);
        meeting()->exchange(place, step_);
        step_ += 1;
      } catch (const Stopped&) {
        throw;
      } catch (const std::exception& error) {
        const int before = step_;
        const bool is_ours = dynamic_cast<const GroupLost*>(&error) == nullptr;
        if (is_ours && !session_->retries_user_errors()) throw;
        rejoin({error.what(), is_ours});
        if (step_ == before) continue;  // else the others had made this step already
      }
      session_->step_committed(step_);
      report();
      if (config_.contains("save")) save(config_["save"]);
    }
    session_->set_live(false);
    return {{"pid", ::getpid()}, {"from", from}, {"world", train::world_size()}};
  }

private:
  std::shared_ptr<Meeting> meeting() const { return session_->data().get<Meeting>("meeting"); }

  void rejoin(detail::GroupEnd why) {
    for (;;) try {
        session_->rejoin(why);
        const auto steps = meeting()->exchange("rejoin", has_state_ ? step_ : -1);
        const auto saves = meeting()->exchange("saves", static_cast<int>(session_->counters().saves));
        step_ = *std::max_element(steps.begin(), steps.end());
        const int saved = *std::max_element(saves.begin(), saves.end());
        if (!std::exchange(has_state_, true))
          session_->adopt({.reports = step_, .saves = static_cast<std::uint64_t>(saved)});
        session_->caught_up();
        fmt::print("I am rank {} of {}\n", train::world_rank(), train::world_size());
        return;
      } catch (const GroupLost& again) {
        why = {again.what()};
      }
  }

  std::string name() const { return fmt::format("{} {}", step_, train::world_rank()); }

  /// The others make this step with what this rank has said, and this rank loses its group before it sees that.
  void fall_behind(const std::string& place) {
    meeting()->say(place, step_);
    while (!session_->rejoin_wanted())
      if (train::wait_for_stop(1ms)) throw Stopped();
    throw GroupLost("this rank was late");
  }

  void report() {
    Json metrics{{"step", step_}};
    if (config_.contains("report")) {
      const auto& how = config_["report"];
      if (how["dies"] == name() && is_first(config_["folder"].get<std::string>(), "silent")) ::raise(SIGKILL);
      metrics["text"] = std::string(how["bytes"].get<std::size_t>(), 'x');
    }
    train::report(metrics);
  }

  void save(const Json& how) {
    const auto place = fmt::format("saved {}", step_);
    const auto die_if = [&](const char* when) {
      if (how[when] != name() || !is_first(config_["folder"].get<std::string>(), when)) return;
      if (how.contains("after")) meeting()->store->get(meeting()->key(place, how["after"].get<int>()), patience);
      ::raise(SIGKILL);
    };
    die_if("dies before");
    for (int i = 0; i < how["times"]; ++i)
      train::save_checkpoint(
          {{"step", step_}, {"data", TensorData::of(std::vector<std::uint8_t>(how["bytes"].get<std::size_t>(), 7))}},
          {.sharded = how["sharded"]});
    die_if("dies behind");
    if (how.contains("after")) meeting()->say(place, step_);
    train::flush_checkpoints();
  }

  void disturb() {
    const auto name = this->name();
    for (const auto& victim : config_["kill"])
      if (victim == name && is_first(config_["folder"].get<std::string>(), name)) ::raise(SIGKILL);
    for (const auto& thrower : config_["throw"])
      if (thrower == name && (config_["always"] || is_first(config_["folder"].get<std::string>(), "threw " + name)))
        throw std::runtime_error("a bad batch");
    if (config_["leave"] == name && is_first(config_["folder"].get<std::string>(), "left")) {
      session_->set_live(false);
      throw GroupLost("this rank does not wait");
    }
  }

  const Config& config_;
  std::shared_ptr<detail::Session> session_;
  int step_ = 0;
  bool has_state_ = !session_->joining();
};

Json count(const Config& config) { return Counting(config).run(); }

std::filesystem::path marker() { return std::getenv("TROUPE_TEST_MARKER"); }

void die_at_marker() {
  if (std::filesystem::exists(marker())) ::raise(SIGKILL);
}

void linger_at_marker() {
  if (std::filesystem::exists(marker())) std::this_thread::sleep_for(4s);
}

void die_three_times_at_marker() {
  for (const auto* name : {"first", "second", "third"})
    if (std::filesystem::exists(marker()) && is_first(marker().parent_path(), name)) ::raise(SIGKILL);
}

/// In the environment of workers that are started while it lives.
class ScopedVariable {
public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) { ::setenv(name, value.c_str(), 1); }
  ~ScopedVariable() { ::unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;
  ScopedVariable& operator=(const ScopedVariable&) = delete;

private:
  const char* name_;
};

Json config_of(TestTrainer& trainer, Json kill, int steps = 12) {
  return {{"folder", trainer.folder()},
          {"steps", steps},
          {"kill", std::move(kill)},
          {"leave", ""},
          {"throw", Json::array()},
          {"always", false},
          {"late", ""}};
}

Json decisions_of(TestTrainer& trainer) {
  std::ifstream file(trainer->latest_run_dir() / "run.json");
  return Json::parse(file).at("decisions");
}

/// Whether a decision about the size of the group says both.
bool has_decision(const Json& decisions, const std::string& why, const std::string& what) {
  return std::any_of(decisions.begin(), decisions.end(), [&](const Json& made) {
    return made["cause"] == "resize" && made["in_place"] == true &&
           made["error"].get<std::string>().find(why) != std::string::npos &&
           made["decision"].get<std::string>().find(what) != std::string::npos;
  });
}

/// Every step is told once, in order, by all or all but the lost.
void check_rounds(const Recorder& recorder, int steps) {
  DOCTEST_REQUIRE(static_cast<int>(recorder.rounds.size()) == steps);
  for (int i = 0; i < steps; ++i)
    for (const auto& report : recorder.rounds[static_cast<std::size_t>(i)]) {
      DOCTEST_CHECK(report["step"] == i + 1);
      DOCTEST_CHECK(report["_training_iteration"] == i + 1);
    }
}

}  // namespace

namespace {

struct Notes {
  int made = 0;
  int make() { return ++made; }
};

}  // namespace

DOCTEST_TEST_CASE("a call that waits for the end of a run is not made while the run goes on in place") {
  TestTrainer trainer({.backend = "counting", .num_workers = 2});
  auto workers = trainer->to_worker_group<Notes>();
  std::optional<std::future<int>> pending;
  auto callback = std::make_shared<FunctionCallback>();
  int rounds = 0;
  callback->on_result = [&](const auto&, const auto&) {
    if (rounds++ == 0) pending = workers[0].submit([](Notes& notes) { return notes.make(); });
  };
  trainer->run(fn<count>, {.config = config_of(trainer, {"250 1"}, 300), .callbacks = {callback}});
  DOCTEST_CHECK(rounds == 300);
  DOCTEST_CHECK(pending->get() == 1);
}

DOCTEST_TEST_CASE("the survivors of a lost rank go on in place and the newcomer joins them") {
  for (int victim : {0, 1, 2}) {
    DOCTEST_CAPTURE(victim);
    TestTrainer trainer({.backend = "counting", .num_workers = 3});
    trainer->start();
    const auto pids = trainer->worker_pids();
    auto recorder = std::make_shared<Recorder>();
    const auto results =
        trainer->run(fn<count>, {.config = config_of(trainer, {fmt::format("5 {}", victim)}), .callbacks = {recorder}});
    check_rounds(*recorder, 12);
    for (const auto& info : recorder->infos) DOCTEST_CHECK(info.attempt == 1);
    for (int rank : {0, 1, 2}) {
      const auto& result = results[static_cast<std::size_t>(rank)];
      DOCTEST_CHECK((result["pid"] == pids[static_cast<std::size_t>(rank)]) == (rank != victim));
      // The victim may have been one ahead of the others, who then make the step again.
      DOCTEST_CHECK((rank == victim ? result["from"] == 5 || result["from"] == 4 : result["from"] == 0));
    }
  }
}

DOCTEST_TEST_CASE("two at once, one after the other, and a newcomer too may be lost") {
  TestTrainer trainer({.backend = "counting", .num_workers = 3, .max_retries = -1});
  auto recorder = std::make_shared<Recorder>();
  const auto results =
      trainer->run(fn<count>, {.config = config_of(trainer, {"2 0", "2 2", "4 1", "6 0"}), .callbacks = {recorder}});
  check_rounds(*recorder, 12);
  DOCTEST_CHECK(results.at(2)["from"] >= 1);
}

DOCTEST_TEST_CASE("a spare takes the place of a lost worker, and another spare its own") {
  std::vector<ProcessWatch> others;
  {
    TestTrainer trainer({.backend = "counting", .num_workers = 2, .max_retries = -1, .spares = 1});
    trainer->start();
    const auto workers = trainer->worker_pids();
    const std::set<pid_t> known(workers.begin(), workers.end());
    const auto results = trainer->run(fn<count>, {.config = config_of(trainer, {"3 1", "6 0", "8 1"})});
    DOCTEST_CHECK(results.at(0)["from"] >= 5);
    DOCTEST_CHECK(results.at(1)["from"] >= 7);
    for (pid_t pid : process_tree(::getpid()))
      if (pid != ::getpid() && pid != node::Node::instance().fork_server_pid()) others.emplace_back(pid);
    DOCTEST_CHECK(others.size() >= 2);
    for (const auto& result : results) DOCTEST_CHECK_FALSE(known.contains(result["pid"].get<pid_t>()));
  }
  for (const auto& process : others) DOCTEST_CHECK(process.ends_within(std::chrono::milliseconds(0)));
}

DOCTEST_TEST_CASE("those who wait for a checkpoint that a lost rank has not finished go on in place") {
  const Json plain{{"times", 1}, {"bytes", 1 << 20}, {"sharded", false}, {"dies before", ""}, {"dies behind", ""}};
  struct Case {
    const char* what;
    Json save;
    const char* late = "";
  };
  std::vector<Case> cases{{"rank 0 does not begin", plain},
                          {"rank 0 writes", plain},
                          {"a shard is missing, and a third save waits", plain},
                          {"rank 0 lives, but is a step behind", plain, "5 0"}};
  cases[0].save["dies before"] = "6 0";
  cases[1].save["dies behind"] = "6 0";
  cases[1].save["bytes"] = 64 << 20;
  cases[2].save["dies before"] = "6 1";
  cases[2].save["sharded"] = true;
  cases[2].save["times"] = 3;
  cases[3].save["dies before"] = "6 2";
  cases[3].save["after"] = 1;  // which has made the step, too
  for (auto& [what, save, late] : cases) {
    DOCTEST_CAPTURE(what);
    TestTrainer trainer({.backend = "counting", .num_workers = 3, .rejoin_deadline = 20s});
    auto config = config_of(trainer, Json::array(), 8);
    config["save"] = std::move(save);
    config["late"] = late;
    auto recorder = std::make_shared<Recorder>();
    const auto took = time_of([&] { trainer->run(fn<count>, {.config = std::move(config), .callbacks = {recorder}}); });
    DOCTEST_CHECK(took < 15s);
    check_rounds(*recorder, 8);
    for (const auto& info : recorder->infos) DOCTEST_CHECK(info.attempt == 1);
    DOCTEST_CHECK(decisions_of(trainer).size() == 1);
    DOCTEST_CHECK(trainer->latest_checkpoint()->at<int>("step") == 8);
  }
}

DOCTEST_TEST_CASE("a replacement that takes its time is not blamed for the reports that others wait for") {
  const TempFolder folder;
  const ScopedVariable variable("TROUPE_TEST_MARKER", (folder.path() / "slow from now on").string());
  TestTrainer trainer({.backend = "counting", .num_workers = 2, .report_deadline = 2s});
  trainer->start(fn<linger_at_marker>);
  std::ofstream(marker()) << "x";
  auto config = config_of(trainer, Json::array());
  config["report"] = {{"bytes", 2 << 20}, {"dies", "6 1"}};  // all of a rank's credit
  auto recorder = std::make_shared<Recorder>();
  trainer->run(fn<count>, {.config = std::move(config), .callbacks = {recorder}});
  check_rounds(*recorder, 12);
  for (const auto& info : recorder->infos) DOCTEST_CHECK(info.attempt == 1);
}

DOCTEST_TEST_CASE("retries are counted when ranks go on in place, too") {
  TestTrainer trainer({.backend = "counting", .num_workers = 2, .max_retries = 1});
  const auto error = error_of([&] { trainer->run(fn<count>, {.config = config_of(trainer, {"2 0", "4 1"})}); });
  DOCTEST_CHECK(error.training_failed);
  DOCTEST_CHECK(error.rank == 1);
  DOCTEST_CHECK(error.says("max_retries = 1 is used up"));
}

DOCTEST_TEST_CASE("a step that threw is made again in place, if exceptions are retried") {
  on_both_placements([](Placement placement) {
    for (bool retry : {true, false}) {
      TestTrainer trainer(
          {.backend = "counting", .num_workers = 2, .placement = placement, .retry_user_errors = retry});
      auto recorder = std::make_shared<Recorder>();
      auto config = config_of(trainer, Json::array());
      config["throw"] = {"5 1"};
      const RunOptions options{.config = std::move(config), .callbacks = {recorder}};
      if (retry) {
        trainer->run(fn<count>, options);
        check_rounds(*recorder, 12);
        DOCTEST_CHECK(recorder->infos.back().attempt == 1);
      } else {
        DOCTEST_CHECK(error_of([&] { trainer->run(fn<count>, options); }).says("a bad batch"));
      }
    }
  });
}

DOCTEST_TEST_CASE("a step that throws every time ends the run early, steps that throw once do not") {
  on_both_placements([](Placement placement) {
    for (bool always : {true, false}) {
      TestTrainer trainer({.backend = "counting",
                           .num_workers = 2,
                           .max_retries = -1,
                           .placement = placement,
                           .retry_user_errors = true});
      auto config = config_of(trainer, Json::array());
      config["always"] = always;
      config["throw"] = always ? Json{"5 1"} : Json{"3 1", "5 1", "6 0", "7 1"};
      auto recorder = std::make_shared<Recorder>();
      const RunOptions options{.config = std::move(config), .callbacks = {recorder}};
      if (always) {
        const auto error = error_of([&] { trainer->run(fn<count>, options); });
        DOCTEST_CHECK(error.code == ErrorCode::user_code);
        DOCTEST_CHECK(error.rank == 1);
        DOCTEST_CHECK(error.says("a bad batch"));
        DOCTEST_CHECK_MESSAGE(error.says("the same exception as before at the same place (after step 5)"), error.text);
        const auto decisions = decisions_of(trainer);
        DOCTEST_REQUIRE(decisions.size() == 2);
        for (const auto& made : decisions) {
          DOCTEST_CHECK(made["in_place"] == true);
          DOCTEST_CHECK(made["step"] == 5);
        }
      } else {
        trainer->run(fn<count>, options);
        check_rounds(*recorder, 12);
        DOCTEST_CHECK(recorder->infos.back().attempt == 1);
        DOCTEST_CHECK(decisions_of(trainer).size() == 4);
      }
    }
  });
}

DOCTEST_TEST_CASE("progress between losses keeps them from being a crash loop") {
  TestTrainer trainer({.backend = "counting", .num_workers = 2, .max_retries = -1});
  Json kill = Json::array();
  for (int step = 2; step < 22; step += 2) kill.push_back(fmt::format("{} {}", step, step % 4 == 0 ? 0 : 1));
  auto recorder = std::make_shared<Recorder>();
  trainer->run(fn<count>, {.config = config_of(trainer, kill, 24), .callbacks = {recorder}});
  check_rounds(*recorder, 24);
}

DOCTEST_TEST_CASE("a survivor of many recoveries holds no more descriptors and threads than after the first ones") {
  TestTrainer trainer({.backend = "counting", .num_workers = 3, .max_retries = -1});
  trainer->start();
  const auto survivor = trainer->worker_pids().at(0);
  const auto count_of = [survivor](const char* what) {
    return std::distance(std::filesystem::directory_iterator(fmt::format("/proc/{}/{}", survivor, what)), {});
  };
  trainer->run(fn<count>, {.config = config_of(trainer, {"3 1", "5 2", "7 1", "9 2"})});
  const auto descriptors = count_of("fd");
  const auto threads = count_of("task");
  Json kill = Json::array();
  for (int step = 2; step < 66; step += 2) kill.push_back(fmt::format("{} {}", step, step % 4 == 0 ? 1 : 2));
  trainer->run(fn<count>, {.config = config_of(trainer, kill, 68)});
  DOCTEST_CHECK(trainer->worker_pids().at(0) == survivor);
  DOCTEST_CHECK(decisions_of(trainer).size() == kill.size());
  // What belongs to the last one that died may take a moment to go.
  const auto end = std::chrono::steady_clock::now() + patience;
  while ((count_of("fd") > descriptors || count_of("task") > threads) && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  DOCTEST_CHECK(count_of("fd") <= descriptors);
  DOCTEST_CHECK(count_of("task") <= threads);
}

DOCTEST_TEST_CASE("a rank that does not wait sends all back to the start") {
  TestTrainer trainer({.backend = "counting", .num_workers = 2});
  auto recorder = std::make_shared<Recorder>();
  auto config = config_of(trainer, Json::array());
  config["leave"] = "3 1";
  const auto results = trainer->run(fn<count>, {.config = std::move(config), .callbacks = {recorder}});
  DOCTEST_CHECK(recorder->infos.back().attempt == 2);
  DOCTEST_CHECK(results.at(0)["from"] == 0);
}

DOCTEST_TEST_CASE("an elastic group grows and shrinks while the function runs") {
  on_both_placements([](Placement placement) {
    TestTrainer trainer({.backend = "counting", .num_workers = {2, 4}, .placement = placement, .cpus_per_worker = 1e6});
    trainer->start();
    DOCTEST_CHECK(trainer->num_workers() == 2);
    std::set<std::size_t> sizes;
    auto callback = std::make_shared<FunctionCallback>();
    int target = 4;
    callback->on_result = [&](const std::vector<Json>& results, const ResultInfo& info) {
      sizes.insert(results.size());
      if (info.round == 1) trainer->resize(target);
      if (results.size() == 4) trainer->resize(target = 3);
      if (results.size() == 3 && target == 3) info.stop();
    };
    trainer->run(fn<count>, {.config = config_of(trainer, Json::array(), 1 << 30), .callbacks = {callback}});
    DOCTEST_CHECK(sizes.contains(2));
    DOCTEST_CHECK(sizes.contains(4));
    DOCTEST_CHECK(sizes.contains(3));
    DOCTEST_CHECK(trainer->num_workers() == 3);
    const auto decisions = decisions_of(trainer);
    DOCTEST_CHECK(has_decision(decisions, "resize(4)", "the group grows to 4 workers"));
    DOCTEST_CHECK(has_decision(decisions, "resize(3)", "the group shrinks to 3 workers"));
    // The next run has as many.
    DOCTEST_CHECK(trainer->run(fn<count>, {.config = config_of(trainer, Json::array(), 2)}).size() == 3);
  });
}

DOCTEST_TEST_CASE("an elastic group grows when another trainer gives its cores back") {
  on_both_placements([](Placement placement) {
    const double half = detail::core_count() / 2.0;
    TestTrainer other({.num_workers = 1, .placement = placement, .cpus_per_worker = half});
    other->start();
    TestTrainer trainer(
        {.backend = "counting", .num_workers = {1, inf}, .placement = placement, .cpus_per_worker = half});
    trainer->start();
    DOCTEST_CHECK(trainer->num_workers() == 1);
    auto callback = std::make_shared<FunctionCallback>();
    callback->on_result = [&](const std::vector<Json>& results, const ResultInfo& info) {
      if (info.round == 1) other->shutdown();
      if (results.size() == 2) info.stop();
    };
    trainer->run(fn<count>, {.config = config_of(trainer, Json::array(), 1 << 30), .callbacks = {callback}});
    DOCTEST_CHECK(trainer->num_workers() == 2);
    DOCTEST_CHECK(has_decision(decisions_of(trainer), "there is room for more", "the group grows to 2 workers"));
    // Who wants a fixed number of workers gets them, room or not.
    other->start();
    DOCTEST_CHECK(other->num_workers() == 1);
    DOCTEST_CHECK(trainer->num_workers() == 2);
  });
}

namespace {

/// Two workers; no other one for the victim until the survivor has gone on alone.
void lose_and_find_again(int victim) {
  const TempFolder folder;
  const auto marker = folder.path() / "no more workers";
  const ScopedVariable variable("TROUPE_TEST_MARKER", marker.string());
  TestTrainer trainer({.backend = "counting", .num_workers = {1, 2}, .cpus_per_worker = 0});
  trainer->start(fn<die_at_marker>);
  DOCTEST_CHECK(trainer->num_workers() == 2);
  auto callback = std::make_shared<FunctionCallback>();
  bool alone = false;
  callback->on_result = [&](const std::vector<Json>& results, const ResultInfo& info) {
    if (info.round == 1) {
      std::ofstream(marker) << "x";
      ::kill(trainer->worker_pids().at(static_cast<std::size_t>(victim)), SIGKILL);
    }
    // A round may lack the report of a rank that was lost; the group has only one once it has gone on.
    if (!alone && results.size() == 1 && trainer->num_workers() == 1) {
      alone = true;
      std::filesystem::remove(marker);
    }
    if (alone && results.size() == 2) info.stop();
  };
  trainer->run(fn<count>, {.config = config_of(trainer, Json::array(), 1 << 30), .callbacks = {callback}});
  DOCTEST_CHECK(alone);
  DOCTEST_CHECK(trainer->num_workers() == 2);
  const auto decisions = decisions_of(trainer);
  DOCTEST_CHECK(has_decision(decisions, fmt::format("rank {} could not be started: killed by SIGKILL", victim),
                             "goes on with 1 worker"));
  DOCTEST_CHECK(has_decision(decisions, "there is room for more", "the group grows to 2 workers"));
  // Whoever has a rank writes to its file.
  const auto log = [&](int rank) {
    return read_file(trainer->latest_run_dir() / fmt::format("logs/rank_{}.log", rank));
  };
  const auto says = [](const std::string& text, const char* what) { return text.find(what) != std::string::npos; };
  DOCTEST_CHECK(says(log(0), "I am rank 0 of 1"));
  DOCTEST_CHECK(says(log(1), "I am rank 1 of 2"));
  DOCTEST_CHECK_FALSE(says(log(0), "I am rank 1"));
  DOCTEST_CHECK_FALSE(says(log(1), "I am rank 0"));
}

}  // namespace

DOCTEST_TEST_CASE("a worker that cannot be replaced is done without, and there again once it can be") {
  lose_and_find_again(1);
}

DOCTEST_TEST_CASE("a survivor whose rank changes, and changes back, writes to the log file of its rank") {
  lose_and_find_again(0);
}

DOCTEST_TEST_CASE("those that need a worker wait for it when it cannot be had at once") {
  const TempFolder folder;
  const auto marker = folder.path() / "three deaths";
  const ScopedVariable variable("TROUPE_TEST_MARKER", marker.string());
  TestTrainer trainer({.backend = "counting", .num_workers = 2});
  trainer->start(fn<die_three_times_at_marker>);
  auto recorder = std::make_shared<Recorder>();
  auto callback = std::make_shared<FunctionCallback>();
  callback->on_start = [&](const auto&) { std::ofstream(marker) << "x"; };
  trainer->run(fn<count>, {.config = config_of(trainer, {"5 1"}), .callbacks = {callback, recorder}});
  check_rounds(*recorder, 12);
  DOCTEST_CHECK(recorder->infos.back().attempt == 1);
  DOCTEST_CHECK(has_decision(decisions_of(trainer), "rank 1 could not be started: killed by SIGKILL",
                             "the others wait, and try 1 of 10 follows"));
}

namespace {

/// The first newcomer dies, the second one throws, the third one takes its time.
Json count_after_a_hard_way(const Config& config) {
  const std::filesystem::path folder = config["folder"].get<std::string>();
  if (detail::Session::require("test")->joining()) {
    if (is_first(folder, "died")) ::raise(SIGKILL);
    if (is_first(folder, "threw")) throw std::runtime_error("no data");
    std::ofstream(folder / "on its way") << "x";
    wait_for_fifo(folder / "go");
  }
  return count(config);
}

}  // namespace

DOCTEST_TEST_CASE("a newcomer that dies, throws or is slow on its way to the others disturbs nobody") {
  TestTrainer trainer({.backend = "counting", .num_workers = {1, 2}, .max_retries = 0, .cpus_per_worker = 1e6});
  trainer->start();
  const std::filesystem::path folder = trainer.folder();
  const Fifo go(folder / "go");
  auto callback = std::make_shared<FunctionCallback>();
  int meanwhile = 0;
  callback->on_result = [&](const std::vector<Json>& results, const ResultInfo& info) {
    if (info.round == 1) trainer->resize(2);
    if (std::filesystem::exists(folder / "on its way") && ++meanwhile == 1000) write_fifo(go.path(), "go");
    if (results.size() == 2) info.stop();
  };
  trainer->run(fn<count_after_a_hard_way>,
               {.config = config_of(trainer, Json::array(), 1 << 30), .callbacks = {callback}});
  DOCTEST_CHECK(meanwhile >= 1000);
  DOCTEST_CHECK(trainer->num_workers() == 2);
  const auto decisions = decisions_of(trainer);
  DOCTEST_CHECK(has_decision(decisions, "lost before it could join the others: killed by SIGKILL", "with 1 worker"));
  DOCTEST_CHECK(has_decision(decisions, "threw before it could join the others: no data", "goes on with 1 worker"));
  DOCTEST_CHECK(has_decision(decisions, "resize(2)", "the group grows to 2 workers"));
}

DOCTEST_TEST_CASE("a resize outside the range is refused") {
  TestTrainer trainer({.num_workers = {2, 4}, .cpus_per_worker = 1e6});
  DOCTEST_CHECK(error_of([&] { trainer->resize(5); }).says("resize(5) is refused; valid: 2 to 4"));
  DOCTEST_CHECK(error_of([&] { trainer->resize(3); }).says("not started"));
}

}  // namespace troupe::test
