// SPDX-License-Identifier: Apache-2.0
// troupe checkpoint export and import, as people call them.
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

}  // namespace

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
  for (const auto& entry : fs::directory_iterator(folder.path() / "saved"))  // a damaged one is not exported
    if (entry.path().extension() == ".bin") {
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(4096).put('x');
    }
  DOCTEST_CHECK(contains(told(folder, "export saved y.pt"), "1: troupe: "));
  DOCTEST_CHECK_FALSE(fs::exists(folder.path() / "y.pt"));
}
#endif
