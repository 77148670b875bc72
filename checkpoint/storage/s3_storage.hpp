// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/storage/s3_settings.hpp"
#include "checkpoint/storage/storage.hpp"

namespace troupe::storage {

/// A bucket as storage. Throws invalid_option for a bad location, settings or credentials; does not connect yet.
std::unique_ptr<Storage> open_s3(const std::string& location, StorageOptions options);

}  // namespace troupe::storage
