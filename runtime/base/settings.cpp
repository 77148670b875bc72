// SPDX-License-Identifier: Apache-2.0
// Checks of TrainerOptions, one function an option.
#include "runtime/base/settings.hpp"

#include <fmt/format.h>
#include <strings.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include <troupe/error.hpp>

#include "runtime/base/host.hpp"

namespace troupe::detail {
namespace {

using std::chrono::milliseconds;

[[noreturn]] void refuse(std::string_view option, const std::string& given, std::string_view valid) {
  throw Error(ErrorCode::invalid_option, fmt::format("{} = {} is refused; valid: {}", option, given, valid));
}

[[noreturn]] void refuse_both(std::string_view option, std::string_view alias, const std::string& values) {
  throw Error(
      ErrorCode::invalid_option,
      fmt::format("{} and {} are two names of one option and were given different values ({}): give one of them",
                  option, alias, values));
}

std::string show(const WorkerCount& count) {
  const auto number = [](int value) { return value == inf ? std::string("inf") : std::to_string(value); };
  return count.min == count.max ? number(*count.min)
                                : fmt::format("{{{}, {}}}", number(*count.min), number(*count.max));
}

/// Fills in all but how many there are at the start, which is a matter of resources.
void resolve_workers(const TrainerOptions& options, Settings& settings) {
  const WorkerCount alias = options.workers ? WorkerCount(*options.workers) : WorkerCount();
  if (options.num_workers && alias && options.num_workers != alias)
    refuse_both("num_workers", "workers", fmt::format("{} and {}", show(options.num_workers), show(alias)));
  const auto* name = options.num_workers || !alias ? "num_workers" : "workers";
  const auto count = options.num_workers ? options.num_workers : alias ? alias : WorkerCount(1);
  const bool is_range = count.min != count.max;
  if (!is_range && (*count.min < 0 || *count.min > max_workers))
    refuse(name, show(count),
           fmt::format("0 (local mode: the function runs in the caller's thread) to {}, or a range {{min, max}}",
                       max_workers));
  if (is_range && (*count.min < 1 || *count.min > max_workers || *count.max < *count.min ||
                   (*count.max > max_workers && *count.max != inf)))
    refuse(name, show(count), fmt::format("{{min, max}} with 1 <= min <= max <= {}, or max = inf", max_workers));
  settings.min_workers = *count.min;
  settings.max_workers = *count.max;
}

/// An elastic group starts with as many as there is room for.
void resolve_world_size(Settings& settings) {
  const double cpus = settings.resources.contains("CPU") ? settings.resources.at("CPU") : 1;
  const double room = std::min(cpus > 0 ? core_count() / cpus : max_workers, double{max_workers});
  if (settings.max_workers == inf) settings.max_workers = std::max(settings.min_workers, static_cast<int>(room));
  settings.world_size = std::clamp(static_cast<int>(room), settings.min_workers, settings.max_workers);
}

std::string show(const BackendConfig& backend) {
  return fmt::format("\"{}\" {}", backend.name, backend.options.dump(-1, ' ', true, Json::error_handler_t::replace));
}

BackendConfig resolve_backend(const TrainerOptions& options) {
  const bool given = !options.backend.name.empty() || !options.backend.options.empty();
  const bool use_alias = !given && options.backend_args;
  if (given && options.backend_args &&
      (options.backend.name != options.backend_args->name || options.backend.options != options.backend_args->options))
    refuse_both("backend", "backend_args",
                fmt::format("{} and {}", show(options.backend), show(*options.backend_args)));
  auto backend = use_alias ? *options.backend_args : options.backend;
  const auto* name = use_alias ? "backend_args" : "backend";
  if (backend.options.is_null()) backend.options = Json::object();
  if (!backend.options.is_object())
    refuse(fmt::format("{}.options", name), backend.options.dump(-1, ' ', true, Json::error_handler_t::replace),
           "a JSON object, {{\"key\", value}} with two pairs of braces");
  if (backend.name.empty() && !backend.options.empty())
    refuse(name, show(backend), "options only together with the name of a backend, such as \"torch\"");
  return backend;
}

void check_resource(const std::string& option, const std::string& key, double amount) {
  if (key.empty()) refuse(option, "an empty name", "a name for each resource: \"CPU\", \"GPU\" or one of your own");
  for (const auto* known : {"CPU", "GPU"})
    if (key != known && strcasecmp(key.c_str(), known) == 0)
      refuse(fmt::format("{}[\"{}\"]", option, key), fmt::format("{}", amount),
             fmt::format("\"{}\" (names are case sensitive, write it in capitals)", known));
  if (!std::isfinite(amount) || amount < 0)
    refuse(fmt::format("{}[\"{}\"]", option, key), fmt::format("{}", amount), "a finite amount, 0 or more");
}

/// Puts an alias' value under `key`.
void merge_alias(Resources& resources, const char* key, const char* alias, std::optional<double> amount) {
  if (!amount) return;
  if (!std::isfinite(*amount) || *amount < 0) refuse(alias, fmt::format("{}", *amount), "a finite amount, 0 or more");
  auto [place, added] = resources.emplace(key, *amount);
  if (!added && place->second != *amount)
    refuse_both(fmt::format("resources_per_worker[\"{}\"]", key), alias,
                fmt::format("{} and {}", place->second, *amount));
}

void resolve_gpus(const TrainerOptions& options, Settings& settings) {
  // An option of its own name asks for GPUs loudly enough; resources_per_worker alone does not.
  settings.use_gpu = options.use_gpu || options.gpus_per_worker.value_or(0) > 0;
  const double gpus = settings.resources.emplace("GPU", settings.use_gpu ? 1 : 0).first->second;
  const auto* name = options.gpus_per_worker ? "gpus_per_worker" : "resources_per_worker[\"GPU\"]";
  if (!settings.use_gpu && gpus > 0)
    refuse(name, fmt::format("{} with use_gpu = false", gpus), "0 GPUs, or use_gpu = true");
  if (settings.use_gpu && gpus == 0) refuse(name, "0 with use_gpu = true", "more than 0 GPUs, or use_gpu = false");
}

void resolve_resources(const TrainerOptions& options, Settings& settings) {
  for (const auto& [key, amount] : options.resources_per_worker) check_resource("resources_per_worker", key, amount);
  settings.resources = options.resources_per_worker;
  merge_alias(settings.resources, "CPU", "cpus_per_worker", options.cpus_per_worker);
  merge_alias(settings.resources, "GPU", "gpus_per_worker", options.gpus_per_worker);
  resolve_gpus(options, settings);
  resolve_world_size(settings);
  const int share = std::max(1, core_count() / std::max(1, settings.world_size));
  const double cpus = settings.resources.emplace("CPU", share).first->second;
  settings.threads_per_worker =
      static_cast<int>(std::clamp(std::floor(cpus), 1.0, double{std::numeric_limits<int>::max()}));
}

int resolve_spares(int spares) {
  constexpr int most = 64;
  if (spares < 0 || spares > most) refuse("spares", std::to_string(spares), fmt::format("0 to {}", most));
  return spares;
}

int resolve_retries(int max_retries) {
  if (max_retries < -1) refuse("max_retries", std::to_string(max_retries), "-1 (no limit), 0 (never) or more");
  return max_retries;
}

RetryPolicy resolve_retry_policy(const RetryPolicy& policy) {
  const auto at_least = [](const char* option, int value, int least, const char* valid) {
    if (value < least) refuse(fmt::format("retry_policy.{}", option), std::to_string(value), valid);
  };
  at_least("crash_loop_restarts", policy.crash_loop_restarts, 1, "1 or more");
  at_least("restarts_without_progress", policy.restarts_without_progress, -1, "-1 (no limit), 0 or more");
  for (const auto& [option, delay] :
       {std::pair("crash_loop_window", policy.crash_loop_window), std::pair("first_delay", policy.first_delay),
        std::pair("longest_delay", policy.longest_delay)})
    if (delay < milliseconds::zero() || delay > longest_deadline)
      refuse(fmt::format("retry_policy.{}", option), fmt::format("{} ms", delay.count()), "0 ms to a year");
  return policy;
}

Placement resolve_placement(Placement placement) {
  if (placement != Placement::process && placement != Placement::thread)
    refuse("placement", std::to_string(static_cast<int>(placement)), "Placement::process, Placement::thread");
  return placement;
}

milliseconds resolve_deadline(std::string_view option, milliseconds deadline) {
  if (deadline <= milliseconds::zero())
    refuse(option, fmt::format("{} ms", deadline.count()), "more than 0, for example std::chrono::seconds(5)");
  return std::min(deadline, longest_deadline);
}

/// One that may be 0: at once, or never.
milliseconds resolve_pause(std::string_view option, milliseconds pause, std::string_view zero) {
  if (pause < milliseconds::zero())
    refuse(option, fmt::format("{} ms", pause.count()), fmt::format("0 ({}) or more", zero));
  return std::min(pause, longest_deadline);
}

void resolve_watch(const TrainerOptions& options, Settings& settings) {
  settings.stopped_grace = resolve_pause("stopped_grace", options.stopped_grace, "lost at once");
  settings.ping_interval = resolve_deadline("ping_interval", options.ping_interval);
  settings.ping_deadline = resolve_pause("ping_deadline", options.ping_deadline, "it may be silent");
  if (settings.ping_deadline > milliseconds::zero() && settings.ping_deadline < 2 * settings.ping_interval)
    refuse("ping_deadline", fmt::format("{} ms", settings.ping_deadline.count()),
           fmt::format("0 (it may be silent), or at least two pings ({} ms with ping_interval = {} ms)",
                       2 * settings.ping_interval.count(), settings.ping_interval.count()));
  settings.progress_deadline = resolve_pause("progress_deadline", options.progress_deadline, "no deadline");
  settings.replace_stragglers = options.replace_stragglers;
}

}  // namespace

Settings resolve_settings(const TrainerOptions& options) {
  Settings settings;
  settings.backend = resolve_backend(options);
  resolve_workers(options, settings);
  resolve_resources(options, settings);
  // The torch backend puts each worker on its device.
  if (settings.use_gpu && settings.backend.name == "torch")
    settings.backend.options["gpus_per_worker"] = settings.resources.at("GPU");
  settings.max_retries = resolve_retries(options.max_retries);
  settings.placement = resolve_placement(options.placement);
  settings.worker_start_deadline = resolve_deadline("worker_start_deadline", options.worker_start_deadline);
  settings.shutdown_deadline = resolve_deadline("shutdown_deadline", options.shutdown_deadline);
  settings.report_deadline = resolve_deadline("report_deadline", options.report_deadline);
  settings.retry_user_errors = options.retry_user_errors;
  settings.preemption_grace = resolve_deadline("preemption_grace", options.preemption_grace);
  settings.rejoin_deadline = resolve_deadline("rejoin_deadline", options.rejoin_deadline);
  settings.retry_policy = resolve_retry_policy(options.retry_policy);
  settings.spares = resolve_spares(options.spares);
  resolve_watch(options, settings);
  return settings;
}

}  // namespace troupe::detail
