// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "checkpoint/file.hpp"
#include "checkpoint/storage/s3_client.hpp"

namespace troupe::storage {

/// A multipart upload: parts in parallel, each in memory while it travels. The object appears when all are there; on
/// failure the parts are given up.
void upload_in_parts(S3Client& client, const std::string& key, const detail::File& file);

}  // namespace troupe::storage
