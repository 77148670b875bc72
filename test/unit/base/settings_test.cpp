// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/host.hpp"
#include "runtime/base/settings.hpp"
#include "test/unit/thrown.hpp"

using namespace std::chrono_literals;
using troupe::BackendConfig;
using troupe::Json;
using troupe::Placement;
using troupe::TrainerOptions;
using troupe::detail::resolve_settings;
using troupe::test::contains;
using troupe::test::thrown_by;

namespace {

/// Options that are refused, and what the message must name: the option, the value, what is valid.
struct Refused {
  TrainerOptions options;
  std::vector<std::string> parts;
};

const std::vector<Refused> refused = {
    {{.num_workers = -1}, {"num_workers = -1", "0 (local mode", "to 4096"}},
    {{.num_workers = 4097}, {"num_workers = 4097", "to 4096"}},
    {{.workers = -2}, {"workers = -2", "0 (local mode"}},
    {{.num_workers = 2, .workers = 3}, {"num_workers and workers", "2 and 3", "give one"}},
    {{.resources_per_worker = {{"CPU", 1}}, .cpus_per_worker = 2},
     {"resources_per_worker[\"CPU\"] and cpus_per_worker", "1 and 2"}},
    {{.use_gpu = true, .resources_per_worker = {{"GPU", 1}}, .gpus_per_worker = 2},
     {"resources_per_worker[\"GPU\"] and gpus_per_worker", "1 and 2"}},
    {{.backend = "torch", .backend_args = BackendConfig("other")},
     {"backend and backend_args", "\"torch\"", "\"other\""}},
    {{.backend = BackendConfig("torch", {{"a", 1}}), .backend_args = BackendConfig("torch", {{"a", 2}})},
     {"backend and backend_args", "{\"a\":1}", "{\"a\":2}"}},
    {{.backend = BackendConfig("torch", Json::array({1}))}, {"backend.options = [1]", "a JSON object"}},
    {{.backend_args = BackendConfig("torch", Json(3))}, {"backend_args.options = 3", "a JSON object"}},
    {{.backend = BackendConfig("", {{"a", 1}})}, {"backend = \"\"", "name of a backend"}},
    {{.max_retries = -2}, {"max_retries = -2", "-1 (no limit)"}},
    {{.resources_per_worker = {{"CPU", -1}}}, {"resources_per_worker[\"CPU\"] = -1", "0 or more"}},
    {{.resources_per_worker = {{"disk", std::nan("")}}}, {"resources_per_worker[\"disk\"] = nan", "finite"}},
    {{.resources_per_worker = {{"disk", INFINITY}}}, {"resources_per_worker[\"disk\"] = inf", "finite"}},
    {{.cpus_per_worker = -0.5}, {"cpus_per_worker = -0.5", "0 or more"}},
    {{.cpus_per_worker = std::nan("")}, {"cpus_per_worker = nan", "finite"}},
    {{.gpus_per_worker = -1}, {"gpus_per_worker = -1", "0 or more"}},
    {{.resources_per_worker = {{"cpu", 1}}}, {"[\"cpu\"] = 1", "\"CPU\"", "case sensitive"}},
    {{.resources_per_worker = {{"Gpu", 1}}}, {"[\"Gpu\"] = 1", "\"GPU\"", "case sensitive"}},
    {{.resources_per_worker = {{"", 1}}}, {"resources_per_worker = an empty name", "\"CPU\""}},
    {{.resources_per_worker = {{"GPU", 1}}}, {"resources_per_worker[\"GPU\"] = 1 with use_gpu = false"}},
    {{.use_gpu = true, .resources_per_worker = {{"GPU", 0}}}, {"[\"GPU\"] = 0 with use_gpu = true"}},
    {{.use_gpu = true, .gpus_per_worker = 0}, {"gpus_per_worker = 0 with use_gpu = true"}},
    {{.placement = static_cast<Placement>(7)}, {"placement = 7", "Placement::process, Placement::thread"}},
    {{.worker_start_deadline = 0ms}, {"worker_start_deadline = 0 ms", "more than 0"}},
    {{.shutdown_deadline = -1ms}, {"shutdown_deadline = -1 ms", "more than 0"}},
    {{.report_deadline = 0ms}, {"report_deadline = 0 ms", "more than 0"}},
};

}  // namespace

DOCTEST_TEST_CASE("a bad option is refused with its name, its value and the valid ones") {
  for (const auto& [options, parts] : refused) {
    const auto text = thrown_by([&chosen = options] { resolve_settings(chosen); });
    DOCTEST_CAPTURE(text);
    DOCTEST_CAPTURE(parts.front());
    DOCTEST_CHECK(text.starts_with("invalid_option: "));
    for (const auto& part : parts) DOCTEST_CHECK(contains(text, part));
  }
}

DOCTEST_TEST_CASE("no options at all give one worker in a process with all cores") {
  const auto settings = resolve_settings({});
  DOCTEST_CHECK(settings.world_size == 1);
  DOCTEST_CHECK_FALSE(settings.local_mode());
  DOCTEST_CHECK(settings.backend.name.empty());
  DOCTEST_CHECK(settings.threads_per_worker == troupe::detail::core_count());
  DOCTEST_CHECK(settings.resources == troupe::Resources{{"CPU", troupe::detail::core_count()}, {"GPU", 0}});
  DOCTEST_CHECK_FALSE(settings.use_gpu);
  DOCTEST_CHECK(settings.max_retries == 3);
  DOCTEST_CHECK(settings.placement == Placement::process);
  DOCTEST_CHECK(settings.worker_start_deadline == 60s);
  DOCTEST_CHECK(settings.shutdown_deadline == 5s);
  DOCTEST_CHECK(settings.report_deadline == 60s);
  DOCTEST_CHECK_FALSE(settings.retry_user_errors);
}

DOCTEST_TEST_CASE("every option reaches the settings") {
  const auto settings = resolve_settings({.backend = BackendConfig("torch", {{"a", 1}}),
                                          .num_workers = 7,
                                          .use_gpu = true,
                                          .resources_per_worker = {{"CPU", 2.5}, {"GPU", 0.5}, {"disk", 3}},
                                          .max_retries = -1,
                                          .placement = Placement::thread,
                                          .worker_start_deadline = 1ms,
                                          .shutdown_deadline = 2ms,
                                          .report_deadline = 3ms,
                                          .retry_user_errors = true});
  DOCTEST_CHECK(settings.backend.name == "torch");
  DOCTEST_CHECK(settings.backend.options.dump() == R"({"a":1,"gpus_per_worker":0.5})");  // for the worker's device
  DOCTEST_CHECK(settings.world_size == 7);
  DOCTEST_CHECK(settings.use_gpu);
  DOCTEST_CHECK(settings.resources == troupe::Resources{{"CPU", 2.5}, {"GPU", 0.5}, {"disk", 3}});
  DOCTEST_CHECK(settings.threads_per_worker == 2);
  DOCTEST_CHECK(settings.max_retries == -1);
  DOCTEST_CHECK(settings.placement == Placement::thread);
  DOCTEST_CHECK(settings.worker_start_deadline == 1ms);
  DOCTEST_CHECK(settings.shutdown_deadline == 2ms);
  DOCTEST_CHECK(settings.report_deadline == 3ms);
  DOCTEST_CHECK(settings.retry_user_errors);
}

DOCTEST_TEST_CASE("the review's spellings mean the same, also next to equal values") {
  const auto settings = resolve_settings(
      {.workers = 8, .cpus_per_worker = 2, .gpus_per_worker = 2, .backend_args = BackendConfig("torch")});
  DOCTEST_CHECK(settings.world_size == 8);
  DOCTEST_CHECK(settings.resources == troupe::Resources{{"CPU", 2}, {"GPU", 2}});
  DOCTEST_CHECK(settings.threads_per_worker == 2);
  DOCTEST_CHECK(settings.use_gpu);
  DOCTEST_CHECK(settings.backend.name == "torch");
  const auto twice = resolve_settings({.backend = "torch",
                                       .num_workers = 8,
                                       .resources_per_worker = {{"CPU", 2}},
                                       .workers = 8,
                                       .cpus_per_worker = 2,
                                       .backend_args = BackendConfig("torch")});
  DOCTEST_CHECK(twice.world_size == 8);
  DOCTEST_CHECK(twice.resources.at("CPU") == 2);
}

DOCTEST_TEST_CASE("the limits of each option are valid") {
  DOCTEST_CHECK(resolve_settings({.num_workers = 0}).local_mode());
  DOCTEST_CHECK(resolve_settings({.num_workers = 4096}).world_size == 4096);
  DOCTEST_CHECK(resolve_settings({.max_retries = 0}).max_retries == 0);
  DOCTEST_CHECK(resolve_settings({.backend = BackendConfig("torch", Json())}).backend.options.is_object());
  DOCTEST_CHECK(resolve_settings({.use_gpu = true}).resources.at("GPU") == 1);
  DOCTEST_CHECK(resolve_settings({.gpus_per_worker = 0}).resources.at("GPU") == 0);
}

DOCTEST_TEST_CASE("threads are the whole CPUs given, or a share of the cores, and at least one") {
  const int cores = troupe::detail::core_count();
  DOCTEST_CHECK(resolve_settings({.cpus_per_worker = 0.5}).threads_per_worker == 1);
  DOCTEST_CHECK(resolve_settings({.cpus_per_worker = 0}).threads_per_worker == 1);
  DOCTEST_CHECK(resolve_settings({.cpus_per_worker = 3.9}).threads_per_worker == 3);
  DOCTEST_CHECK(resolve_settings({.cpus_per_worker = 1e300}).threads_per_worker > 0);
  DOCTEST_CHECK(resolve_settings({.num_workers = 0}).threads_per_worker == cores);
  DOCTEST_CHECK(resolve_settings({.num_workers = 2}).threads_per_worker == std::max(1, cores / 2));
  DOCTEST_CHECK(resolve_settings({.num_workers = 4096}).threads_per_worker == std::max(1, cores / 4096));
}

DOCTEST_TEST_CASE("a deadline of for ever does not overflow a clock") {
  const auto deadline = resolve_settings({.report_deadline = std::chrono::milliseconds::max()}).report_deadline;
  DOCTEST_CHECK(deadline >= 24h * 365);
  DOCTEST_CHECK(std::chrono::steady_clock::now() + deadline > std::chrono::steady_clock::now());
}
