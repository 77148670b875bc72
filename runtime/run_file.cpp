// SPDX-License-Identifier: Apache-2.0
#include "runtime/run_file.hpp"

#include <unistd.h>

#include <ctime>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <troupe/version.hpp>

#include "runtime/base/host.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/write_file.hpp"
#include "runtime/run_errors.hpp"

namespace troupe {
namespace {

std::string now_text() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

std::string caf_version() {
#if TROUPE_CAF_LEGACY
  return fmt::format("{}.{}.{}", CAF_MAJOR_VERSION, CAF_MINOR_VERSION, CAF_PATCH_VERSION);
#else
  return fmt::format("{}.{}.{}", CAF_VERSION_MAJOR, CAF_VERSION_MINOR, CAF_VERSION_PATCH);
#endif
}

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

}  // namespace

RunFile::RunFile(std::filesystem::path directory, const detail::Settings& settings, const detail::RunSpec& run,
                 Json config, const std::vector<local::GroupView::Row>& workers, StartTimings timings)
    : path_(std::move(directory) / "run.json") {
  content_["versions"] = {{"troupe", TROUPE_VERSION}, {"caf", caf_version()}, {"compiler", __VERSION__}};
  content_["build"] = detail::build_id();
  content_["function"] = run.function_name;
  content_["config"] = std::move(config);
  content_["num_workers"] = settings.world_size;
  content_["placement"] = settings.placement == Placement::process ? "process" : "thread";
  content_["backend"] = settings.backend.name;
  content_["backend_options"] = settings.backend.options;
  content_["resources_per_worker"] = settings.resources;
  content_["driver"] = {{"host", detail::host_name()}, {"pid", ::getpid()}};
  set_ranks(workers);
  content_["timings"] = {{"actor_system_ms", timings.actor_system_ms}, {"workers_ms", timings.workers_ms}};
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

void RunFile::finish(const detail::RunResult& result, const std::vector<local::GroupView::Row>& workers) {
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
  try {
    write();
  } catch (const std::exception& error) {
    // The run's own result matters more.
    log_error("{}", error.what());
  }
}

void RunFile::write() const {
  detail::write_file_atomically(path_, content_.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace troupe
