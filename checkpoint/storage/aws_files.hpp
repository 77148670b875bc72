// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace troupe::storage {

using AwsProfile = std::map<std::string, std::string>;

/// The keys of one profile, of ~/.aws/credentials and ~/.aws/config together (the first wins). Files that are not there
/// are empty ones. Throws invalid_option for a line that is none, and for a profile that was asked for and is nowhere.
AwsProfile read_aws_profile();

/// The keys of one section. These files are an INI dialect of their own: nested keys are indented, and tokens are
/// longer than the 200 characters at which libinih cuts lines.
AwsProfile read_aws_section(const std::filesystem::path& file, const std::string& section, bool& found);

}  // namespace troupe::storage
