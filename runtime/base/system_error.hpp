// SPDX-License-Identifier: Apache-2.0
// Errors of the file system in our form: what, which path, why, what to change.
#pragma once

#include <filesystem>
#include <string_view>

#include <troupe/error.hpp>

namespace troupe::detail {

/// Error(io) such as "cannot make the folder /x/y: Permission denied; choose a folder that you may write to".
Error io_error(std::string_view what, const std::filesystem::path& path, int error_number);

}  // namespace troupe::detail
