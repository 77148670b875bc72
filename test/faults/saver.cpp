// SPDX-License-Identifier: Apache-2.0
// Saves one checkpoint as a run does, and removes the one before it. Ends with 0, or with 3 and the error's text.
//   saver FOLDER ID GENERATION KILOBYTES [at-once]
// Or has a run's keeper save three, each worse than the one before, of which it keeps the best and the newest. Ends
// with 0 whatever fails; TOLD gets a line for each that was said to be saved.
//   saver keeper RUN dictionary|files TOLD
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include <troupe/error.hpp>

#include "checkpoint/folder.hpp"
#include "checkpoint/keeper.hpp"
#include "checkpoint/scan.hpp"
#include "checkpoint/writer.hpp"
#include "test/faults/state.hpp"

using namespace troupe::detail;

namespace {

void save_one(const std::filesystem::path& parent, std::uint64_t id, std::uint64_t generation, std::size_t size,
              bool at_once) {
  const auto folder = parent / checkpoint_name(id);
  make_folder(folder);
  WrittenShard shard;
  if (at_once) {  // by several threads, as without a training that they would disturb
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
}

/// A part as a rank sends it.
SavedPart part_of(std::uint64_t number, const CheckpointSetup& setup, const std::filesystem::path& files) {
  SavedPart part;
  part.generation = setup.generation;
  part.number = number;
  part.metrics = {{"loss", number}};
  if (files.empty()) {
    part.bytes = encode(troupe::test::state(number, 1024));
    return part;
  }
  part.has_files = true;
  try {
    const auto folder = std::filesystem::path(setup.folder) / checkpoint_name(setup.first_id + number - 1);
    make_folder(folder);
    part.files = copy_files(files, folder / files_folder);
  } catch (const std::exception& error) {
    part.error = error.what();
  }
  return part;
}

void keep_three(const std::filesystem::path& run, bool as_files, const std::filesystem::path& told) {
  CheckpointKeeper keeper({.directory = run, .strategy = troupe::test::best_one()});
  const auto setup = keeper.begin_attempt(1);
  std::ofstream lines(told);
  for (std::uint64_t number = 1; number <= 3; ++number) {
    const auto files = as_files ? troupe::test::make_files(told.parent_path(), number) : std::filesystem::path();
    for (const auto& over : keeper.add(part_of(number, setup, files)))
      if (over.result.error.empty() && over.fatal.empty()) lines << over.result.number << std::endl;
  }
  keeper.close();
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5 && count != 6) return 2;
  try {
    if (std::string(arguments[1]) == "keeper")
      keep_three(arguments[2], std::string(arguments[3]) == "files", arguments[4]);
    else
      save_one(arguments[1], std::strtoull(arguments[2], nullptr, 10), std::strtoull(arguments[3], nullptr, 10),
               std::strtoull(arguments[4], nullptr, 10) * 1024, count == 6);
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 3;
  }
  return 0;
}
