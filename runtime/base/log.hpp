// SPDX-License-Identifier: Apache-2.0
// troupe's own messages, to stderr as "[troupe] warning: ...". TROUPE_LOG = error, warning (default), info or debug.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

namespace troupe {
namespace detail {

enum class LogLevel { error, warning, info, debug };

bool is_logged(LogLevel level);
void write_log(LogLevel level, const std::string& text);

/// Formats only what will be seen.
template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (is_logged(level)) write_log(level, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace detail

template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  detail::log(detail::LogLevel::error, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  detail::log(detail::LogLevel::warning, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  detail::log(detail::LogLevel::info, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  detail::log(detail::LogLevel::debug, format, std::forward<Args>(args)...);
}

}  // namespace troupe
