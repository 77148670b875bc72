// SPDX-License-Identifier: Apache-2.0
// Saves one checkpoint as a run does, and removes the one before it. Ends with 0, or with 3 and the error's text.
//   saver FOLDER ID GENERATION KILOBYTES [at-once]
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include <troupe/error.hpp>

#include "checkpoint/scan.hpp"
#include "checkpoint/writer.hpp"
#include "test/faults/state.hpp"

using namespace troupe::detail;

int main(int count, char** arguments) {
  if (count != 5 && count != 6) return 2;
  const std::filesystem::path parent = arguments[1];
  const auto id = std::strtoull(arguments[2], nullptr, 10);
  const auto generation = std::strtoull(arguments[3], nullptr, 10);
  const auto size = std::strtoull(arguments[4], nullptr, 10) * 1024;
  try {
    const auto folder = parent / checkpoint_name(id);
    make_folder(folder);
    WrittenShard shard;
    if (count == 6) {  // by several threads, as without a training that they would disturb
      shard.info =
          write_shard(folder / shard_name(0, generation), troupe::test::state(id, size), {.generation = generation});
    } else {
      CheckpointWriter writer;
      writer.save(troupe::test::state(id, size), folder / shard_name(0, generation), {.generation = generation},
                  [&](WrittenShard written) { shard = std::move(written); });
    }
    if (shard.error) throw *shard.error;
    Manifest manifest;
    manifest.id = id;
    manifest.generation = generation;
    manifest.shards.push_back(shard.info);
    commit(folder, manifest);
    if (id > 1) remove_checkpoint(parent / checkpoint_name(id - 1));
  } catch (const troupe::Error& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
  return 0;
}
