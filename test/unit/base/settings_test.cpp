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
    {{.num_workers = {0, 2}}, {"num_workers = {0, 2}", "1 <= min <= max <= 4096, or max = inf"}},
    {{.num_workers = {3, 2}}, {"num_workers = {3, 2}", "1 <= min <= max"}},
    {{.num_workers = {1, 5000}}, {"num_workers = {1, 5000}", "max <= 4096"}},
    {{.num_workers = {5000, troupe::inf}}, {"num_workers = {5000, inf}", "max <= 4096"}},
    {{.num_workers = {1, 2}, .workers = 2}, {"num_workers and workers", "{1, 2} and 2"}},
    {{.spares = -1}, {"spares = -1", "0 to 64"}},
    {{.spares = 65}, {"spares = 65", "0 to 64"}},
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
    {{.preemption_grace = 0ms}, {"preemption_grace = 0 ms", "more than 0"}},
    {{.retry_policy = {.crash_loop_restarts = 0}}, {"retry_policy.crash_loop_restarts = 0", "1 or more"}},
    {{.retry_policy = {.crash_loop_window = -1ms}}, {"retry_policy.crash_loop_window = -1 ms", "0 ms to a year"}},
    {{.retry_policy = {.restarts_without_progress = -2}},
     {"retry_policy.restarts_without_progress = -2", "-1 (no limit), 0 or more"}},
    {{.retry_policy = {.first_delay = -1ms}}, {"retry_policy.first_delay = -1 ms", "0 ms to a year"}},
    {{.retry_policy = {.longest_delay = 24h * 366}}, {"retry_policy.longest_delay = 31622400000 ms", "0 ms to a year"}},
    {{.stopped_grace = -1ms}, {"stopped_grace = -1 ms", "0 (lost at once) or more"}},
    {{.ping_interval = 0ms}, {"ping_interval = 0 ms", "more than 0"}},
    {{.ping_deadline = -1ms}, {"ping_deadline = -1 ms", "0 (it may be silent) or more"}},
    {{.ping_interval = 100ms, .ping_deadline = 199ms}, {"ping_deadline = 199 ms", "at least two pings (200 ms"}},
    {{.progress_deadline = -1ms}, {"progress_deadline = -1 ms", "0 (no deadline) or more"}},
    {{.rejoin_deadline = 0ms}, {"rejoin_deadline = 0 ms", "more than 0"}},
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
  DOCTEST_CHECK(settings.spares == 0);
  DOCTEST_CHECK(settings.preemption_grace == 25s);
  DOCTEST_CHECK(settings.retry_policy.crash_loop_restarts == 5);
  DOCTEST_CHECK(settings.retry_policy.crash_loop_window == 60s);
  DOCTEST_CHECK(settings.retry_policy.restarts_without_progress == 3);
  DOCTEST_CHECK(settings.retry_policy.first_delay == 100ms);
  DOCTEST_CHECK(settings.retry_policy.longest_delay == 10s);
  DOCTEST_CHECK(settings.stopped_grace == 2s);
  DOCTEST_CHECK(settings.ping_interval == 1s);
  DOCTEST_CHECK(settings.ping_deadline == 10s);
  DOCTEST_CHECK(settings.progress_deadline == 0s);
  DOCTEST_CHECK(settings.rejoin_deadline == 60s);
  DOCTEST_CHECK_FALSE(settings.replace_stragglers);
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
                                          .retry_user_errors = true,
                                          .spares = 5,
                                          .preemption_grace = 6ms,
                                          .retry_policy = {.crash_loop_restarts = 1,
                                                           .crash_loop_window = 2ms,
                                                           .restarts_without_progress = -1,
                                                           .first_delay = 3ms,
                                                           .longest_delay = 4ms},
                                          .stopped_grace = 0ms,
                                          .ping_interval = 4ms,
                                          .ping_deadline = 8ms,
                                          .progress_deadline = 9ms,
                                          .replace_stragglers = true,
                                          .rejoin_deadline = 10ms});
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
  DOCTEST_CHECK(settings.spares == 5);
  DOCTEST_CHECK(settings.preemption_grace == 6ms);
  DOCTEST_CHECK(settings.retry_policy.crash_loop_restarts == 1);
  DOCTEST_CHECK(settings.retry_policy.crash_loop_window == 2ms);
  DOCTEST_CHECK(settings.retry_policy.restarts_without_progress == -1);
  DOCTEST_CHECK(settings.retry_policy.first_delay == 3ms);
  DOCTEST_CHECK(settings.retry_policy.longest_delay == 4ms);
  DOCTEST_CHECK(settings.stopped_grace == 0ms);
  DOCTEST_CHECK(settings.ping_interval == 4ms);
  DOCTEST_CHECK(settings.ping_deadline == 8ms);
  DOCTEST_CHECK(settings.progress_deadline == 9ms);
  DOCTEST_CHECK(settings.replace_stragglers);
  DOCTEST_CHECK(settings.rejoin_deadline == 10ms);
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

DOCTEST_TEST_CASE("an elastic group starts with as many workers as the cores have room for") {
  const int cores = troupe::detail::core_count();
  const auto any = resolve_settings({.num_workers = {1, troupe::inf}});
  DOCTEST_CHECK(any.world_size == cores);
  DOCTEST_CHECK(any.max_workers == cores);
  DOCTEST_CHECK(any.min_workers == 1);
  DOCTEST_CHECK(resolve_settings({.num_workers = {cores + 1, cores + 3}}).world_size == cores + 1);
  DOCTEST_CHECK(resolve_settings({.num_workers = {1, cores + 3}, .cpus_per_worker = 0}).world_size == cores + 3);
  DOCTEST_CHECK(resolve_settings({.num_workers = {1, 4}, .cpus_per_worker = 1e6}).world_size == 1);
  DOCTEST_CHECK(resolve_settings({.num_workers = 3}).max_workers == 3);
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
