// SPDX-License-Identifier: Apache-2.0
// troupe checkpoint, as people call it.
#ifdef TROUPE_COMMAND_LINE
#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include <troupe/checkpoint.hpp>

#include "test/interop/programs.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

namespace fs = std::filesystem;
using troupe::Checkpoint;
using troupe::TensorData;
using troupe::test::contains;
using troupe::test::read_file;
using troupe::test::TempFolder;

namespace {

/// "exit code: output" of `troupe checkpoint ...`, run in the folder.
std::string told(const TempFolder& folder, const std::string& arguments) {
  const auto result = troupe::test::run_program("cd '" + folder.path().string() +
                                                "' && '" TROUPE_COMMAND_LINE "' checkpoint " + arguments);
  return std::to_string(result.status) + ": " + result.output;
}

Checkpoint sample() {
  return {{"epoch", 4},
          {"model", {{"fc.weight", TensorData::of<float>({1, 2, 3})}, {"fc.bias", TensorData::of<float>({4})}}}};
}

/// Changes a byte of a tensor.
void damage(const fs::path& checkpoint) {
  for (const auto& entry : fs::directory_iterator(checkpoint))
    if (entry.path().extension() == ".bin") {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(4096).put('x');
    }
}

}  // namespace

DOCTEST_TEST_CASE("the command line looks at checkpoints with exit code 0, and 1 if one is damaged or missing") {
  const TempFolder folder;
  const auto checkpoints = folder.path() / "run" / "checkpoints";
  for (const auto* name : {"checkpoint_000001", "checkpoint_000002"}) sample().to_directory(checkpoints / name);
  for (const auto* path : {"run", "run/checkpoints"}) {
    const auto list = told(folder, std::string("ls ") + path);
    DOCTEST_CHECK(list.starts_with("0: "));
    DOCTEST_CHECK(contains(list, "checkpoint_000001"));
    DOCTEST_CHECK(contains(list, "checkpoint_000002"));
    DOCTEST_CHECK(told(folder, std::string("verify ") + path).starts_with("0: "));
  }
  const auto shown = told(folder, "show run/checkpoints/checkpoint_000002");
  DOCTEST_CHECK(shown.starts_with("0: "));
  DOCTEST_CHECK(contains(shown, "model.fc.weight"));
  DOCTEST_CHECK(contains(shown, "float32[3]"));

  damage(checkpoints / "checkpoint_000002");
  DOCTEST_CHECK(told(folder, "ls run").starts_with("0: "));  // reads no tensors
  DOCTEST_CHECK(told(folder, "verify run/checkpoints/checkpoint_000001").starts_with("0: "));
  for (const auto* path : {"run", "run/checkpoints/checkpoint_000002"}) {
    const auto verified = told(folder, std::string("verify ") + path);
    DOCTEST_CHECK(verified.starts_with("1: "));
    DOCTEST_CHECK(contains(verified, "shard_00000"));
  }
  std::ofstream(checkpoints / "checkpoint_000001" / "manifest.json") << "{}";
  for (const auto* command : {"ls run", "show run/checkpoints/checkpoint_000001", "verify run"})
    DOCTEST_CHECK(told(folder, command).starts_with("1: "));

  DOCTEST_CHECK(contains(told(folder, "ls none"), "1: there is no checkpoint in none"));
  DOCTEST_CHECK(contains(told(folder, "verify none"), "1: there is no checkpoint in none"));
  DOCTEST_CHECK(contains(told(folder, "show none"), "1: troupe: none holds no checkpoint: there is no such folder"));
}

DOCTEST_TEST_CASE("a wrong command line of the checkpoint commands gives exit code 2 and a hint") {
  const TempFolder folder;
  for (const auto* command : {"ls", "show", "verify"}) {
    DOCTEST_CHECK(contains(told(folder, command), "2: PATH is required"));
    DOCTEST_CHECK(contains(told(folder, std::string(command) + " a b"), "2: "));
    DOCTEST_CHECK(contains(told(folder, std::string(command) + " a --fast"), "--fast"));
    DOCTEST_CHECK(contains(told(folder, std::string(command) + " a --fast"), "--help"));
    DOCTEST_CHECK(contains(told(folder, std::string(command) + " --help"), "0: "));
  }
  DOCTEST_CHECK(contains(told(folder, ""), "2: A subcommand is required"));
  DOCTEST_CHECK(contains(told(folder, "remove a"), "2: "));
}

DOCTEST_TEST_CASE("the command line exports a checkpoint, a part of it, and imports it again") {
  const TempFolder folder;
  sample().to_directory(folder.path() / "saved");
  for (const std::string name : {"all.pt", "all.pth", "all.safetensors"}) {
    DOCTEST_CHECK(contains(told(folder, "export saved " + name), "0: " + name + ": 2 tensors, "));
    DOCTEST_CHECK(contains(told(folder, "import " + name + " from_" + name), "0: from_" + name + ": 2 tensors, "));
    DOCTEST_CHECK(Checkpoint::from_path(folder.path() / ("from_" + name)) == sample());
  }
  DOCTEST_CHECK(contains(told(folder, "export saved --format pt --key model part"), "0: "));
  DOCTEST_CHECK(Checkpoint::import_torch(folder.path() / "part") == sample().at<Checkpoint>("model"));
  DOCTEST_CHECK(contains(told(folder, "import --format pt --key model part imported"), "0: "));
  DOCTEST_CHECK(Checkpoint::from_path(folder.path() / "imported") ==
                Checkpoint{{"model", sample().at<Checkpoint>("model")}});
}

DOCTEST_TEST_CASE("the command line tells what it cannot convert, with exit code 1 or 2") {
  const TempFolder folder;
  sample().to_directory(folder.path() / "saved");
  DOCTEST_CHECK(contains(told(folder, "export saved"), "2: OUT is required"));
  DOCTEST_CHECK(contains(told(folder, "export saved model.bin"), "2: "));
  DOCTEST_CHECK(contains(told(folder, "export saved model.bin"), "--format pt or"));
  DOCTEST_CHECK(contains(told(folder, "export saved x.pt --format onnx"), "2: "));
  DOCTEST_CHECK(contains(told(folder, "export none x.pt"), "1: troupe: none holds no checkpoint"));
  DOCTEST_CHECK(contains(told(folder, "export saved x.pt --key nowhere"), "1: troupe: "));
  DOCTEST_CHECK(contains(told(folder, "export saved x.pt --key nowhere"), "epoch"));
  DOCTEST_CHECK(contains(told(folder, "export saved x.pt --key epoch"), "1: troupe: "));
  DOCTEST_CHECK(contains(told(folder, "export saved no/x.pt"), "1: troupe: "));
  DOCTEST_CHECK_FALSE(fs::exists(folder.path() / "x.pt"));
  std::ofstream(folder.path() / "x.pt") << "mine";
  DOCTEST_CHECK(contains(told(folder, "export saved x.pt"), "1: troupe: x.pt is there already"));
  DOCTEST_CHECK(contains(told(folder, "import x.pt out"), "1: troupe: cannot import x.pt"));
  DOCTEST_CHECK(read_file(folder.path() / "x.pt") == "mine");
  DOCTEST_CHECK(contains(told(folder, "export saved x.pt --force"), "0: "));
  DOCTEST_CHECK(contains(told(folder, "import x.pt saved"), "1: troupe: saved is there already"));
  DOCTEST_CHECK(contains(told(folder, "import none.pt out"), "1: troupe: "));
  damage(folder.path() / "saved");  // and is not exported then
  DOCTEST_CHECK(contains(told(folder, "export saved y.pt"), "1: troupe: "));
  DOCTEST_CHECK_FALSE(fs::exists(folder.path() / "y.pt"));
}
#endif
