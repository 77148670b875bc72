// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/log.hpp"

#include <spdlog/logger.h>
#include <spdlog/sinks/stdout_sinks.h>

#include <cstdlib>
#include <memory>
#include <string_view>

namespace troupe::detail {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::error:
      return spdlog::level::err;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::info:
      return spdlog::level::info;
    case LogLevel::debug:
      break;
  }
  return spdlog::level::debug;
}

/// Sets the level; false for a name that is none.
bool set_level(spdlog::logger& logger, std::string_view name) {
  constexpr std::pair<std::string_view, LogLevel> names[] = {{"", LogLevel::warning},
                                                             {"error", LogLevel::error},
                                                             {"warning", LogLevel::warning},
                                                             {"info", LogLevel::info},
                                                             {"debug", LogLevel::debug}};
  for (const auto& [known, level] : names) {
    if (known != name) continue;
    logger.set_level(to_spdlog(level));
    return true;
  }
  logger.set_level(spdlog::level::warn);
  return false;
}

spdlog::logger* make_logger() {
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto* made = new spdlog::logger("troupe", std::move(sink));
  made->set_pattern("[troupe] %l: %v");
  const char* wanted = std::getenv("TROUPE_LOG");
  if (wanted != nullptr && !set_level(*made, wanted))
    made->warn("TROUPE_LOG={} is not a level; valid: error, warning (used now), info, debug", wanted);
  else if (wanted == nullptr)
    set_level(*made, "");
  return made;
}

/// Ours alone, not in spdlog's registry, which belongs to the host program. Never destroyed: threads may log until the
/// very end of the process.
spdlog::logger& logger() {
  static spdlog::logger* const instance = make_logger();
  return *instance;
}

}  // namespace

bool is_logged(LogLevel level) { return logger().should_log(to_spdlog(level)); }

void write_log(LogLevel level, const std::string& text) { logger().log(to_spdlog(level), "{}", text); }

}  // namespace troupe::detail
