// SPDX-License-Identifier: Apache-2.0
// Tables for people, in plain text.
#pragma once

#include <string>
#include <vector>

namespace troupe::detail {

/// Left-aligned columns with two spaces between them, one line a row, no trailing blanks. Rows may be shorter or longer
/// than the header.
std::string format_table(std::vector<std::string> header, std::vector<std::vector<std::string>> rows);

}  // namespace troupe::detail
