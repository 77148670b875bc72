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

/// Longer means "never"; clamped so that now + deadline cannot overflow.
constexpr milliseconds longest_deadline = std::chrono::hours(24 * 365);

[[noreturn]] void refuse(std::string_view option, const std::string& given, std::string_view valid) {
  throw Error(ErrorCode::invalid_option, fmt::format("{} = {} is refused; valid: {}", option, given, valid));
}

[[noreturn]] void refuse_both(std::string_view option, std::string_view alias, const std::string& values) {
  throw Error(
      ErrorCode::invalid_option,
      fmt::format("{} and {} are two names of one option and were given different values ({}): give one of them",
                  option, alias, values));
}

int resolve_workers(const TrainerOptions& options) {
  if (options.num_workers && options.workers && *options.num_workers != *options.workers)
    refuse_both("num_workers", "workers", fmt::format("{} and {}", *options.num_workers, *options.workers));
  const auto* name = options.num_workers || !options.workers ? "num_workers" : "workers";
  int count = options.num_workers.value_or(options.workers.value_or(1));
  if (count < 0 || count > max_workers)
    refuse(name, std::to_string(count),
           fmt::format("0 (local mode: the function runs in the caller's thread) to {}", max_workers));
  return count;
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
  const int share = std::max(1, core_count() / std::max(1, settings.world_size));
  const double cpus = settings.resources.emplace("CPU", share).first->second;
  settings.threads_per_worker =
      static_cast<int>(std::clamp(std::floor(cpus), 1.0, double{std::numeric_limits<int>::max()}));
}

int resolve_retries(int max_retries) {
  if (max_retries < -1) refuse("max_retries", std::to_string(max_retries), "-1 (no limit), 0 (never) or more");
  return max_retries;
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

}  // namespace

Settings resolve_settings(const TrainerOptions& options) {
  Settings settings;
  settings.backend = resolve_backend(options);
  settings.world_size = resolve_workers(options);
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
  return settings;
}

}  // namespace troupe::detail
