// SPDX-License-Identifier: Apache-2.0
// .pt files between troupe and Python's torch, both ways.
#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include <troupe/checkpoint.hpp>

#include "test/interop/programs.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

namespace fs = std::filesystem;
using troupe::Checkpoint;
using troupe::DType;
using troupe::TensorData;
using troupe::test::contains;
using troupe::test::run_python;
using troupe::test::TempFolder;
using troupe::test::thrown_by;
using troupe::test::torch_python;

namespace {

TensorData floats(std::vector<float> values, std::vector<std::int64_t> shape) {
  return TensorData::of<float>(std::move(values), std::move(shape));
}

void check_model(const Checkpoint& loaded) {
  DOCTEST_CHECK(loaded.size() == 7);
  DOCTEST_CHECK(loaded.at<TensorData>("0.weight") == floats({0, 1, 2, 3, 4, 5}, {2, 3}));
  DOCTEST_CHECK(loaded.at<TensorData>("0.bias") == floats({100, 101}, {2}));
  DOCTEST_CHECK(loaded.at<TensorData>("1.running_var") == floats({1, 1}, {2}));
  DOCTEST_CHECK(loaded.at<TensorData>("1.num_batches_tracked") ==
                TensorData::of<std::int64_t>({0}, std::vector<std::int64_t>{}));
}

void check_values(const Checkpoint& loaded) {
  DOCTEST_CHECK(loaded.at<int>("epoch") == 3);
  DOCTEST_CHECK(loaded.at<std::int64_t>("big") == std::int64_t{1} << 40);
  DOCTEST_CHECK(loaded.at<int>("negative") == -5);
  DOCTEST_CHECK(loaded.at<double>("lr") == 0.1);
  DOCTEST_CHECK(loaded.at<double>("inf") > 1e308);
  DOCTEST_CHECK(loaded.at<std::string>("name") == "ü");
  DOCTEST_CHECK(loaded["none"].is_null());
  DOCTEST_CHECK(loaded.at<bool>("yes"));
  DOCTEST_CHECK_FALSE(loaded.at<bool>("no"));
  DOCTEST_CHECK(loaded["list"].to_json().dump() == R"([1,2.5,"x",[null]])");
  DOCTEST_CHECK(loaded["tuple"].to_json().dump() == "[1,2]");
  DOCTEST_CHECK(loaded["size"].to_json().dump() == "[2,3]");
  DOCTEST_CHECK(loaded.at<std::string>("dtype") == "float16");
  DOCTEST_CHECK(loaded["nested"]["a"]["b"].as<TensorData>() ==
                TensorData::of<std::int64_t>({7}, std::vector<std::int64_t>{}));
  DOCTEST_CHECK(loaded.at<Checkpoint>("empty").empty());
  DOCTEST_CHECK(loaded["tensors"].at(0).as<TensorData>() == floats({1, 1}, {2}));
  DOCTEST_CHECK(loaded["tensors"].at(1).at(0).as<TensorData>() == floats({0}, {1}));
  const auto& optimizer = loaded["optimizer"];
  DOCTEST_CHECK(optimizer["param_groups"].at(0)["lr"].as<double>() == 0.25);
  DOCTEST_CHECK(optimizer["state"]["0"]["exp_avg"].as<TensorData>().shape() == std::vector<std::int64_t>{2, 3});
}

void check_views(const Checkpoint& loaded) {
  const auto base = floats({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {3, 4});
  DOCTEST_CHECK(loaded.at<TensorData>("base") == base);
  DOCTEST_CHECK(loaded.at<TensorData>("again") == base);
  DOCTEST_CHECK(loaded.at<TensorData>("transposed") == floats({0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}, {4, 3}));
  DOCTEST_CHECK(loaded.at<TensorData>("row") == floats({4, 5, 6, 7}, {4}));
  DOCTEST_CHECK(loaded.at<TensorData>("column") == floats({2, 6, 10}, {3}));
  DOCTEST_CHECK(loaded.at<TensorData>("steps") == floats({1, 3, 9, 11}, {2, 2}));
  DOCTEST_CHECK(loaded.at<TensorData>("expanded") == floats({1, 1, 1, 1, 1, 1}, {2, 3}));
  DOCTEST_CHECK(loaded.at<TensorData>("none_left") == floats({}, {0, 4}));
  DOCTEST_CHECK(loaded.at<TensorData>("scalar") == floats({11}, {}));
}

/// The bits of 0 and 1 in a type.
TensorData zero_and_one(DType dtype) {
  static const std::map<DType, std::uint64_t> floats{
      {DType::float16, 0x3c00},     {DType::float32, 0x3f800000},   {DType::float64, 0x3ff0000000000000},
      {DType::bfloat16, 0x3f80},    {DType::complex64, 0x3f800000}, {DType::complex128, 0x3ff0000000000000},
      {DType::float8_e4m3fn, 0x38}, {DType::float8_e5m2, 0x3c}};
  const auto size = troupe::size_of(dtype);
  const auto one = floats.contains(dtype) ? floats.at(dtype) : 1;
  std::string bytes(2 * size, '\0');
  for (std::size_t i = 0; i < std::min<std::size_t>(size, 8); ++i) bytes[size + i] = static_cast<char>(one >> (8 * i));
  return TensorData::copy_of(dtype, {2}, bytes.data());
}

}  // namespace

DOCTEST_TEST_CASE("state dicts that Python's torch saved are imported, and nothing in them is executed") {
  const auto python = torch_python();
  const TempFolder folder;
  if (python.empty()) return;
  const auto written = run_python(python, "torch_files.py", "write '" + folder.path().string() + "'");
  DOCTEST_REQUIRE_MESSAGE(written.status == 0, written.output);
  const auto load = [&](const std::string& name) { return Checkpoint::import_torch(folder.path() / name); };
  for (const std::string kind : {".pt", ".protocol4.pt", ".old.pt"}) {
    DOCTEST_CAPTURE(kind);
    check_model(load("model" + kind));
    check_values(load("values" + kind));
    check_views(load("views" + kind));
    DOCTEST_CHECK(load("parameter" + kind).at<TensorData>("weight") == floats({0, 1, 2, 3, 4, 5}, {2, 3}));
  }
  const auto types = load("dtypes.pt");
  DOCTEST_CHECK(types.size() >= 12);
  for (const auto& [name, item] : types) {
    const auto tensor = item.as<TensorData>();
    DOCTEST_CHECK(troupe::to_string(tensor.dtype()) == name);
    const TensorData first_two(tensor.dtype(), {2}, tensor.data(), tensor.owner());
    DOCTEST_CHECK(first_two == zero_and_one(tensor.dtype()));
  }
  for (const std::string kind : {"evil.pt", "evil.old.pt"})
    DOCTEST_CHECK(contains(thrown_by([&] { load(kind); }), "it needs posix.system"));
  DOCTEST_CHECK_FALSE(fs::exists("evil_was_here"));
  DOCTEST_CHECK(contains(thrown_by([&] { load("module.pt"); }), "it needs torch.nn.modules.container.Sequential"));
  DOCTEST_CHECK(contains(thrown_by([&] { load("tensor.pt"); }), "it holds a tensor, not a dict"));
  DOCTEST_CHECK(contains(thrown_by([&] { load("script.pt"); }), "TorchScript"));
}

DOCTEST_TEST_CASE("Python's torch loads an exported checkpoint with weights_only") {
  const auto python = torch_python();
  const TempFolder folder;
  if (python.empty()) return;
  const auto weight = floats({0, 1, 2, 3, 4, 5}, {2, 3});
  const bool newer = !contains(run_python(python, "torch_files.py", "version").output, "1.13");
  std::vector<troupe::CheckpointEntry> types;
  for (const auto dtype :
       {DType::uint8, DType::int8, DType::int16, DType::int32, DType::int64, DType::float16, DType::float32,
        DType::float64, DType::boolean, DType::bfloat16, DType::complex64, DType::complex128})
    types.emplace_back(std::string(troupe::to_string(dtype)), zero_and_one(dtype));
  if (newer)
    for (const auto dtype : {DType::uint16, DType::uint32, DType::uint64, DType::float8_e4m3fn, DType::float8_e5m2})
      types.emplace_back(std::string(troupe::to_string(dtype)), zero_and_one(dtype));
  const Checkpoint checkpoint{
      {"epoch", 4},
      {"big", 18'000'000'000'000'000'000u},
      {"lr", 0.1},
      {"name", "ü"},
      {"none", nullptr},
      {"yes", true},
      {"list", {1, 2.5, "x", {1, 2}}},
      {"model",
       {{"0.weight", weight},
        {"0.bias", floats({100, 101}, {2})},
        {"1.weight", floats({200, 201}, {2})},
        {"1.bias", floats({300, 301}, {2})},
        {"1.running_mean", floats({0, 0}, {2})},
        {"1.running_var", floats({1, 1}, {2})},
        {"1.num_batches_tracked", TensorData::of<std::int64_t>({0}, std::vector<std::int64_t>{})}}},
      {"tied", weight},
      {"scalar", floats({7}, {})},
      {"empty", TensorData::of<double>({}, {{0, 3}})},
      {"types", troupe::CheckpointItem::of_entries(std::move(types))}};
  const auto path = folder.path() / "model.pt";
  checkpoint.export_torch(path);
  checkpoint.at<Checkpoint>("model").export_torch(folder.path() / "tensors.pt");
  const auto result = run_python(python, "torch_files.py", "check '" + path.string() + "'");
  DOCTEST_CHECK_MESSAGE(result.status == 0, result.output);
  DOCTEST_CHECK(contains(result.output, "good"));
}
