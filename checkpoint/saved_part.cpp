// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/saved_part.hpp"

namespace troupe::detail {

Json written_to_json(const SavedPart& part) {
  Json json = Json::object();
  if (part.shard) json["shard"] = {part.shard->file, part.shard->rank, part.shard->size, part.shard->crc};
  if (part.has_files) {
    json["files"] = Json::array();
    for (const auto& file : part.files) json["files"].push_back({file.name, file.size, file.crc});
  }
  return json;
}

void written_from_json(const Json& json, SavedPart& part) {
  if (json.contains("shard")) {
    const auto& shard = json.at("shard");
    part.shard = ShardInfo{shard.at(0).get<std::string>(), shard.at(1).get<int>(), shard.at(2).get<std::uint64_t>(),
                           shard.at(3).get<std::uint32_t>()};
  }
  part.has_files = json.contains("files");
  if (!part.has_files) return;
  for (const auto& file : json.at("files"))
    part.files.push_back(
        {file.at(0).get<std::string>(), file.at(1).get<std::uint64_t>(), file.at(2).get<std::uint32_t>()});
}

}  // namespace troupe::detail
