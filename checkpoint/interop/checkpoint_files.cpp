// SPDX-License-Identifier: Apache-2.0
// Checkpoint's functions for files of other libraries.
#include <fmt/format.h>

#include <troupe/checkpoint.hpp>
#include <troupe/error.hpp>

#include "checkpoint/interop/flat_names.hpp"
#include "checkpoint/interop/safetensors.hpp"
#include "checkpoint/interop/torch_file.hpp"

namespace troupe {
namespace {

/// In the metadata: what a list of tensors cannot hold.
constexpr const char* values_key = "troupe";

}  // namespace

void Checkpoint::export_torch(const std::filesystem::path& path) const { detail::write_torch_file(path, *this); }

Checkpoint Checkpoint::import_torch(const std::filesystem::path& path) { return detail::read_torch_file(path); }

void Checkpoint::export_safetensors(const std::filesystem::path& path) const {
  auto flat = detail::to_flat_names(*this);
  detail::Safetensors content{std::move(flat.tensors), {{"format", "pt"}}};
  if (!flat.values.is_null())
    content.metadata[values_key] = flat.values.dump(-1, ' ', true, Json::error_handler_t::replace);
  detail::write_safetensors(path, content);
}

Checkpoint Checkpoint::import_safetensors(const std::filesystem::path& path,
                                          std::map<std::string, std::string>* metadata) {
  auto content = detail::read_safetensors(path);
  if (metadata != nullptr) *metadata = content.metadata;
  detail::FlatCheckpoint flat{std::move(content.tensors), nullptr};
  const auto values = content.metadata.find(values_key);
  if (values == content.metadata.end()) return detail::from_flat_names(flat);
  try {
    flat.values = Json::parse(values->second);
    return detail::from_flat_names(flat);
  } catch (const Json::exception&) {
    throw Error(ErrorCode::io, fmt::format("{}: the metadata \"{}\" is not JSON", path.string(), values_key));
  } catch (const Error& error) {
    throw Error(ErrorCode::io, fmt::format("{}: {}", path.string(), error.what()));
  }
}

}  // namespace troupe
