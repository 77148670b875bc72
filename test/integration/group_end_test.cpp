// SPDX-License-Identifier: Apache-2.0
// The WorkerGroup actor ends by an exception of its own while its worker processes live.
#include <future>

#include "actors/protocols.hpp"
#include "actors/run_journal.hpp"
#include "actors/system.hpp"
#include "checkpoint/keeper.hpp"
#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

void report_then_wait() {
  train::report({{"x", 1}});
  train::wait_for_stop();
}

std::shared_ptr<detail::Run> run_in(const std::filesystem::path& folder) {
  detail::RunSpec spec;
  spec.function = detail::identify(reinterpret_cast<detail::AnyEntry>(fn<report_then_wait>.entry()));
  spec.config = detail::pack(Json::object());
  spec.directory = folder;
  spec.journal = std::make_shared<detail::RunJournal>(folder, false, Json::object());
  spec.keeper = std::make_shared<detail::CheckpointKeeper>(detail::KeeperOptions{.directory = folder});
  return std::make_shared<detail::Run>(std::move(spec));
}

}  // namespace

DOCTEST_TEST_CASE("when the worker group fails the run ends with an error and no worker process is left") {
  const TempFolder folder;
  const auto system = shared_system();
  auto spec = std::make_shared<local::GroupSpec>();
  spec->settings = detail::resolve_settings({.num_workers = 2});
  spec->cpus = CpuLedger::instance()->open({1, 2, 2});
  spec->log_folder = folder.path() / "logs";
  spec->working_directory = std::filesystem::current_path();
  const auto view = std::make_shared<local::GroupView>(2, 2);
  const auto queue = std::make_shared<local::CallQueue>();
  const auto started = std::make_shared<std::promise<void>>();
  const auto trainer = spawn_trainer(*system);
  compat::post(trainer, local::StartGroup{spec, view, queue, started});
  started->get_future().get();
  std::vector<ProcessWatch> workers;
  for (const auto& row : view->rows()) workers.emplace_back(row.pid);
  DOCTEST_CHECK(workers.size() == 2);

  const auto run = run_in(folder.path() / "run_001");
  compat::post(trainer, local::BeginRun{run});
  std::vector<Json> round;
  ResultInfo info;
  DOCTEST_REQUIRE(run->next_round(round, info));
  for (const auto& worker : workers) DOCTEST_CHECK(!worker.ends_within(std::chrono::milliseconds(0)));
  queue->push({9, {}, "", [](auto&&...) { throw std::runtime_error("no memory"); }});  // that there is no rank 9

  const bool has_ended = run->wait_for(patience);
  compat::end(trainer);
  DOCTEST_REQUIRE(has_ended);
  const auto& outcome = run->conclude().outcome;
  DOCTEST_REQUIRE(outcome.failure);
  DOCTEST_CHECK(outcome.failure->code == ErrorCode::internal);
  DOCTEST_CHECK(outcome.failure->text.starts_with("the worker group ended: "));
  DOCTEST_CHECK(outcome.failure->text.find("no memory") != std::string::npos);
  for (const auto& worker : workers) DOCTEST_CHECK(worker.ends_within(patience));
}

}  // namespace troupe::test
