// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/system_error.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <system_error>

namespace troupe::detail {
namespace {

std::string_view advice_for(int error_number) {
  switch (error_number) {
    case EACCES:
    case EPERM:
    case EROFS:
      return "choose a folder that you may write to, or change its permissions";
    case ENOSPC:
    case EDQUOT:
      return "free some space on that disk, or choose another one";
    case ENOTDIR:
    case EEXIST:
    case EISDIR:
      return "something else has that name: remove it, or choose another path";
    case ENOENT:
      return "its folder does not exist: make it, or choose another path";
    case ENAMETOOLONG:
      return "choose a shorter path";
    case EMFILE:
    case ENFILE:
      return "too many files are open: raise the limit (ulimit -n)";
    default:
      return "check the path, or choose another one";
  }
}

}  // namespace

Error io_error(std::string_view what, const std::filesystem::path& path, int error_number) {
  return {ErrorCode::io, fmt::format("{} {}: {}; {}", what, path.string(),
                                     std::generic_category().message(error_number), advice_for(error_number))};
}

}  // namespace troupe::detail
