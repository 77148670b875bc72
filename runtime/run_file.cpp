// SPDX-License-Identifier: Apache-2.0
#include "runtime/run_file.hpp"

#include <unistd.h>

#include <ctime>
#include <fstream>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/version.hpp>

#include "checkpoint/keeper.hpp"
#include "runtime/base/host.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/versions.hpp"
#include "runtime/base/write_file.hpp"
#include "runtime/run_errors.hpp"

namespace troupe {
namespace {

std::string time_text(std::time_t time) { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(time)); }
std::string now_text() { return time_text(std::time(nullptr)); }

Json to_json(const engine::Decision& made) {
  const auto ago = std::chrono::duration_cast<std::chrono::system_clock::duration>(engine::Clock::now() - made.time);
  Json json{{"time", time_text(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now() - ago))},
            {"attempt", made.attempt},
            {"cause", cause_name(made.cause)}};
  if (made.rank >= 0) json["rank"] = made.rank;
  json["error"] = made.error;
  json["decision"] = made.decision.retry ? made.decision.reason : "end: " + made.decision.reason;
  json["delay_ms"] = made.decision.delay.count();
  json["in_place"] = made.in_place;
  if (made.step) json["step"] = *made.step;
  return json;
}

std::string caf_version() {
#if TROUPE_CAF_LEGACY
  return fmt::format("{}.{}.{}", CAF_MAJOR_VERSION, CAF_MINOR_VERSION, CAF_PATCH_VERSION);
#else
  return fmt::format("{}.{}.{}", CAF_VERSION_MAJOR, CAF_VERSION_MINOR, CAF_VERSION_PATCH);
#endif
}

}  // namespace

const char* status_name(engine::RunStatus status) {
  switch (status) {
    case engine::RunStatus::succeeded:
      return "succeeded";
    case engine::RunStatus::stopped:
      return "stopped";
    case engine::RunStatus::failed:
      return "failed";
    case engine::RunStatus::interrupted:
      return "interrupted";
  }
  return "?";
}

RunFile::RunFile(const std::filesystem::path& directory, const detail::Settings& settings, const detail::RunSpec& run,
                 Json config, const std::vector<local::GroupView::Row>& workers, StartTimings timings)
    : path_(directory / "run.json") {
  content_["versions"] = {{"troupe", TROUPE_VERSION}, {"caf", caf_version()}, {"compiler", __VERSION__}};
  content_["versions"].update(detail::linked_versions());
  content_["build"] = detail::build_id();
  content_["function"] = run.function_name;
  content_["config"] = std::move(config);
  content_["num_workers"] = settings.local_mode() ? 0 : static_cast<int>(workers.size());
  if (settings.min_workers != settings.max_workers) {
    content_["min_workers"] = settings.min_workers;
    content_["max_workers"] = settings.max_workers;
  }
  content_["placement"] = settings.placement == Placement::process ? "process" : "thread";
  content_["backend"] = settings.backend.name;
  content_["backend_options"] = settings.backend.options;
  content_["resources_per_worker"] = settings.resources;
  content_["driver"] = {{"host", detail::host_name()}, {"pid", ::getpid()}};
  set_ranks(workers);
  content_["timings"] = {{"actor_system_ms", timings.actor_system_ms}, {"workers_ms", timings.workers_ms}};
  if (std::filesystem::exists(path_)) {
    // A run that goes on: what it was before stays readable.
    const auto before = read_run_file(path_.parent_path());
    content_["earlier"] = before.value("earlier", Json::array());
    content_["earlier"].push_back(
        {{"started", before.value("started", Json())}, {"outcome", before.value("outcome", Json())}});
  }
  content_["started"] = now_text();
  content_["outcome"] = {{"status", "running"}};
  write();
}

void RunFile::set_ranks(const std::vector<local::GroupView::Row>& workers) {
  auto ranks = Json::array();
  for (std::size_t rank = 0; rank < workers.size(); ++rank)
    ranks.push_back({{"rank", rank},
                     {"host", detail::host_name()},
                     {"pid", workers[rank].pid},
                     {"start_ms", workers[rank].started_ms}});
  content_["ranks"] = std::move(ranks);
}

void RunFile::finish(const detail::RunResult& result, const std::vector<local::GroupView::Row>& workers,
                     const detail::CheckpointKeeper& keeper) {
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun_;
  set_ranks(workers);
  content_["ended"] = now_text();
  content_["timings"]["run_ms"] = took.count();
  Json outcome{{"status", status_name(result.outcome.status)}, {"attempts", result.outcome.attempts}};
  if (result.outcome.failure) {
    outcome["code"] = to_string(result.outcome.failure->code);
    if (result.outcome.failure->rank >= 0) outcome["rank"] = result.outcome.failure->rank;
    outcome["error"] = describe_failure(result.outcome);
  }
  content_["outcome"] = std::move(outcome);
  auto& decisions = content_["decisions"] = Json::array();
  for (const auto& decision : result.outcome.decisions) decisions.push_back(to_json(decision));
  content_["checkpoints"] = {{"committed", keeper.committed()}, {"errors", keeper.errors()}};
  try {
    write();
  } catch (const std::exception& error) {
    // The run's own result matters more.
    log_error("{}", error.what());
  }
}

Json read_run_file(const std::filesystem::path& directory) {
  std::ifstream in(directory / "run.json");
  auto content = Json::parse(in, nullptr, false);
  if (!content.is_object() || !content.contains("num_workers") || !content.contains("backend"))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} holds no run: it has no run.json that troupe wrote. Give the folder of a run, such as "
                            "<logdir>/run_001",
                            directory.string()));
  return content;
}

void RunFile::write() const {
  detail::write_file_atomically(path_, content_.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace troupe
