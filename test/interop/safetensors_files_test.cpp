// SPDX-License-Identifier: Apache-2.0
// safetensors between troupe and the Python package, both ways.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include <troupe/checkpoint.hpp>

#include "test/interop/programs.hpp"
#include "test/unit/temp_folder.hpp"

using troupe::Checkpoint;
using troupe::TensorData;
using troupe::test::run_python;
using troupe::test::TempFolder;

DOCTEST_TEST_CASE("safetensors of the Python package are imported, and it reads ours") {
  const std::string python = TROUPE_TEST_PYTHON;
  if (python.empty()) return troupe::test::skip("the Python package safetensors is not installed (./dev test does it)");
  const TempFolder folder;
  const auto file = (folder.path() / "python.safetensors").string();
  const auto written = run_python(python, "safetensors_files.py", "write '" + file + "'");
  DOCTEST_REQUIRE_MESSAGE(written.status == 0, written.output);
  std::map<std::string, std::string> metadata;
  const auto loaded = Checkpoint::import_safetensors(file, &metadata);
  DOCTEST_CHECK(metadata == std::map<std::string, std::string>{{"who", "python"}});
  DOCTEST_CHECK(loaded.size() == 15);
  DOCTEST_CHECK(loaded.at<TensorData>("float32") == TensorData::of<float>({0, 1, 2, 3, 4, 5}, {{2, 3}}));
  DOCTEST_CHECK(loaded.at<TensorData>("uint16") == TensorData::of<std::uint16_t>({0, 1, 2, 3, 4, 5}, {{2, 3}}));
  DOCTEST_CHECK(loaded.at<TensorData>("empty").shape() == std::vector<std::int64_t>{0, 3});

  const auto ours = (folder.path() / "ours.safetensors").string();
  const Checkpoint nested{{"model", loaded}, {"epoch", 3}};
  nested.export_safetensors(ours);
  const auto result = run_python(python, "safetensors_files.py", "check '" + ours + "'");
  DOCTEST_CHECK_MESSAGE(result.status == 0, result.output);
  DOCTEST_CHECK(Checkpoint::import_safetensors(ours) == nested);
}
