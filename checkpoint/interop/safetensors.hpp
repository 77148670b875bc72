// SPDX-License-Identifier: Apache-2.0
// The safetensors format: 8 bytes length, a JSON header, raw bytes.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <troupe/tensor_data.hpp>

namespace troupe::detail {

struct Safetensors {
  std::vector<std::pair<std::string, TensorData>> tensors;  ///< as in the file
  std::map<std::string, std::string> metadata;
};

/// Only the header is read; tensors are mapped. Throws io for a file that breaks a rule of the format.
Safetensors read_safetensors(const std::filesystem::path& path);
/// Throws invalid_argument for types that the format has no name for.
void write_safetensors(const std::filesystem::path& path, const Safetensors& content);

}  // namespace troupe::detail
