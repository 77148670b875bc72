// SPDX-License-Identifier: Apache-2.0
// Files of Python's torch.save() and torch.load(weights_only=True).
#pragma once

#include <filesystem>

#include <troupe/checkpoint.hpp>

namespace troupe::detail {

/// Throws invalid_argument for what Python would not take (packed values), io when it cannot be written.
void write_torch_file(const std::filesystem::path& path, const Checkpoint& checkpoint);
/// Zip files and the older ones. Tuples and torch.Size become lists, ints as keys become strings, strided views their
/// own contiguous tensors, a type such as torch.float32 a string. Throws io for a damaged file, invalid_argument for
/// one with more than data in it.
Checkpoint read_torch_file(const std::filesystem::path& path);

}  // namespace troupe::detail
