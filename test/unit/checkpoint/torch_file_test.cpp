// SPDX-License-Identifier: Apache-2.0
// Files of torch.save(): round trips, and pickles that no state dict has.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>

#include <troupe/checkpoint.hpp>

#include "checkpoint/interop/pickle.hpp"
#include "checkpoint/interop/zip_archive.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

using troupe::Checkpoint;
using troupe::DType;
using troupe::TensorData;
using troupe::test::contains;
using troupe::test::read_file;
using troupe::test::TempFolder;
using troupe::test::thrown_by;

namespace {

using namespace std::string_literals;

/// Imports an archive with this pickle and a storage "0" of 16 bytes.
Checkpoint import_pickle(const std::string& pickle) {
  const TempFolder folder;
  const auto path = folder.path() / "x.pt";
  troupe::detail::ZipWriter zip(path);
  zip.add("archive/data.pkl", pickle);
  zip.add("archive/data/0", "0123456789abcdef");
  zip.add("archive/version", "3\n");
  zip.finish();
  return Checkpoint::import_torch(path);
}
std::string refused(const std::string& pickle) {
  return thrown_by([&] { import_pickle(pickle); });
}

const std::string storage = "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\4tQ"s;
std::string tensor(const std::string& offset, const std::string& sizes, const std::string& strides,
                   const std::string& from = storage) {
  return "ctorch._utils\n_rebuild_tensor_v2\n(" + from + offset + sizes + strides + "\x89" + "}tR";
}
std::string dict_of(const std::string& value) { return "\x80\2}(X\1\0\0\0a"s + value + "u."; }

Checkpoint sample() {
  return {{"epoch", 4},
          {"big", std::int64_t{-5'000'000'000}},
          {"huge", 18'000'000'000'000'000'000u},
          {"lr", 0.1},
          {"inf", INFINITY},
          {"name", "ü"},
          {"none", nullptr},
          {"yes", true},
          {"list", {1, 2.5, "x", {1, 2}}},
          {"model",
           {{"w", TensorData::of<float>({1, 2, 3, 4, 5, 6}, {{2, 3}})}, {"steps", TensorData::of<std::int64_t>({7})}}},
          {"empty", TensorData::of<double>({}, {{0, 3}})},
          {"scalar", TensorData::of<std::uint16_t>({7}, std::vector<std::int64_t>{})},
          {"mixed", {TensorData::of<std::uint8_t>({1}), 3}}};
}

}  // namespace

DOCTEST_TEST_CASE("a checkpoint goes through a .pt file and back") {
  const TempFolder folder;
  const auto path = folder.path() / "model.pt";
  const auto saved = sample();
  saved.export_torch(path);
  DOCTEST_CHECK(Checkpoint::import_torch(path) == saved);
  DOCTEST_CHECK(Checkpoint::import_torch(path).at<std::uint64_t>("huge") == 18'000'000'000'000'000'000u);
  const auto first = read_file(path);
  saved.export_torch(path);
  DOCTEST_CHECK(read_file(path) == first);  // equal content, equal files
}

DOCTEST_TEST_CASE("storages begin at multiples of 64 in a .pt file, and tensors that share bytes share one") {
  const TempFolder folder;
  const auto path = folder.path() / "model.pt";
  const std::string mark = "here are the bytes of the tensor";
  const auto tensor = TensorData::copy_of(DType::uint8, {32}, mark.data());
  const auto other = TensorData::copy_of(DType::uint8, {32}, mark.data());
  Checkpoint{{"a", tensor}, {"tied", tensor}, {"b", other}}.export_torch(path);
  const auto file = read_file(path);
  int found = 0;
  for (auto at = file.find(mark); at != std::string::npos; at = file.find(mark, at + 1), ++found)
    DOCTEST_CHECK(at % 64 == 0);
  DOCTEST_CHECK(found == 2);
}

DOCTEST_TEST_CASE("packed values are refused by their key in an export, and no file is left") {
  const TempFolder folder;
  Checkpoint checkpoint;
  checkpoint.set("state", Checkpoint::pack(std::string("x")));
  const Checkpoint outer{{"inner", checkpoint}};
  DOCTEST_CHECK(
      contains(thrown_by([&] { outer.export_torch(folder.path() / "x.pt"); }), "\"inner.state\" cannot be exported"));
  DOCTEST_CHECK(contains(thrown_by([&] { sample().export_torch(folder.path() / "no/x.pt"); }), "io: "));
  DOCTEST_CHECK(std::filesystem::is_empty(folder.path()));
}

DOCTEST_TEST_CASE("views with strides become tensors of their own") {
  // 2 x 2 of 4 floats, transposed: elements 0, 2, 1, 3.
  const auto loaded = import_pickle(dict_of(tensor("K\0"s, "K\2K\2\x86", "K\1K\2\x86"))).at<TensorData>("a");
  DOCTEST_CHECK(std::string(reinterpret_cast<const char*>(loaded.data()), 16) == "012389ab4567cdef");
  const auto column = import_pickle(dict_of(tensor("K\1", "K\2\x85", "K\2\x85"))).at<TensorData>("a");
  DOCTEST_CHECK(std::string(reinterpret_cast<const char*>(column.data()), 8) == "4567cdef");
}

DOCTEST_TEST_CASE("globals that are no part of a state dict are refused by name, and never called") {
  for (const std::string global :
       {"posix\nsystem", "builtins\neval", "torch.storage\n_load_from_bytes", "os\nsystem",
        "torch.nn.modules.linear\nLinear", "torch._utils\n_rebuild_sparse_tensor", "torch\nload",
        "numpy.core.multiarray\nscalar", "collections\ndefaultdict", "torch\n", "\n"}) {
    auto name = global;
    name.replace(name.find('\n'), 1, ".");
    DOCTEST_CHECK(contains(refused("\x80\2c" + global + "\n(X\2\0\0\0idtR."s), "it needs " + name));
    const auto split = global.find('\n');
    const auto text = [](const std::string& part) {
      return "\x8c" + std::string(1, static_cast<char>(part.size())) + part;
    };
    DOCTEST_CHECK(contains(refused("\x80\4" + text(global.substr(0, split)) + text(global.substr(split + 1)) + "\x93."),
                           "it needs " + name));
  }
}

DOCTEST_TEST_CASE("pickles that no pickler writes are refused") {
  DOCTEST_CHECK(import_pickle("\x80\2}.").empty());
  for (const auto& [pickle, why] : std::vector<std::pair<std::string, std::string>>{
           {"", "ends in the middle"},
           {"\x80\2", "ends in the middle"},
           {"\x80\1}.", "protocol 1"},
           {"\x80\6}.", "protocol 6"},
           {"\x80\2.", "more values than it made"},
           {"\x80\2}}.", "leaves values behind"},
           {"\x80\2(}.", "leaves values behind"},
           {"\x80\2t.", "a mark that is not there"},
           {"\x80\2h\5.", "did not remember"},
           {"\x80\2}Na.", "not a list"},
           {"\x80\2)Na.", "not a list"},
           {"\x80\2]NNs.", "not a dict"},
           {"\x80\2}(Nu.", "not a dict"},
           {"\x80\2NNR.", "it calls None"},
           {"\x80\2X\xff\xff\xff\xff.", "ends in the middle"},
           {"\x80\2\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "ends in the middle"},
           {"\x80\2ctorch", "has no end"},
           {"\x80\2\x8a\x09" + std::string(9, '\1') + ".", "64 bits"},
           {"\x80\2NQ.", "a persistent id is None"},
           {"\x80\2)Q.", "0 arguments"},
           {"\x80\2]N0b.", "more values"},
           {"\x80\2N}b.", "sets attributes of None"},
           {"\x80\2\x81.", "operation 0x81"},
           {"\x80\2\x82.", "operation 0x82"},
           {"\x80\2i.", "operation 0x69"},
           {"\x80\2o.", "operation 0x6f"},
           {"\x80\2V1\n.", "operation 0x56"},
           {"\x80\2].", "it holds a list"},
           {"\x80\2N.", "it holds None"},
           {"\x80\2}(NK\1u.", "None is a key"},
           {"\x80\2}(G" + std::string(8, '\0') + "K\1u.", "a float is a key"},
           {dict_of("ctorch\nFloatStorage\n"), "the object torch.FloatStorage"},
           {dict_of("ccollections\nOrderedDict\n"), "the object collections.OrderedDict"},
           {dict_of("ctorch\nfloat32\n)R"), "it calls torch.float32"},
           {dict_of(storage), "a bare storage"},
           {dict_of(tensor("K\0"s, "K\5\x85", "K\1\x85")), "reaches beyond"},
           {dict_of(tensor("K\1", "K\4\x85", "K\1\x85")), "reaches beyond"},
           {dict_of(tensor("K\0"s, "K\2\x85", "K\4\x85")), "reaches beyond"},
           {dict_of(tensor("K\0"s, "K\2\x85", ")")), "one stride for each size"},
           {dict_of(tensor("J\xff\xff\xff\xff", "K\2\x85", "K\1\x85")), "begins before"},
           {dict_of(tensor("K\0"s, "J\xff\xff\xff\xff\x85", "K\1\x85")), "a size or stride"},
           {dict_of(tensor("K\0"s, "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x85", "K\2\x85")), "reaches beyond"},
           {dict_of(tensor("K\0"s, "\x8a\5\0\0\0\0\x10\x85"s, "K\0\x85"s)), "far larger than the file"},
           {dict_of(tensor("K\0"s, ")", ")", "N")), "argument 0"},
           {dict_of(tensor("K\0"s, ")", ")", "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\5tQ"s)),
            "too few"},
           {dict_of(tensor("K\0"s, ")", ")", "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0001X\3\0\0\0cpuK\5tQ"s)),
            "has no"},
           {dict_of(tensor("K\0"s, ")", ")", "(X\7\0\0\0storagectorch\nfloat32\nX\1\0\0\0000X\3\0\0\0cpuK\4tQ"s)),
            "not a storage"},
       }) {
    DOCTEST_CAPTURE(why);
    DOCTEST_CHECK(contains(refused(pickle), why));
  }
}

DOCTEST_TEST_CASE("circles, deep nesting and values that multiply do not hang or crash the reader") {
  DOCTEST_CHECK(contains(refused("\x80\2}q\0X\1\0\0\0ah\0s."s), "nested more than"));
  DOCTEST_CHECK(contains(refused(dict_of("]q\1h\1a")), "nested more than"));
  std::string deep;
  for (int i = 0; i < 200'000; ++i) deep += ']';
  for (int i = 0; i < 200'000 - 1; ++i) deep += 'a';
  DOCTEST_CHECK(contains(refused(dict_of(deep)), "nested more than"));
  std::string many = "]q\1";  // each list holds the one before ten times: 10^50 values
  for (char i = 2; i < 50; ++i) {
    const auto last = "h"s + static_cast<char>(i - 1);
    many += "]q"s + i + "(";
    for (int k = 0; k < 10; ++k) many += last;
    many += "e";
  }
  DOCTEST_CHECK(contains(refused("\x80\2}X\1\0\0\0a("s + many + "tq\xff"s + "s."), "too often"));
}

DOCTEST_TEST_CASE("files that are no .pt files say so") {
  const TempFolder folder;
  const auto path = folder.path() / "x.pt";
  DOCTEST_CHECK(contains(thrown_by([&] { Checkpoint::import_torch(path); }), "io: "));
  for (const std::string content : {"", "PK", "PK\3\4", "hello", "PK\3\4 and no more"}) {
    std::ofstream(path, std::ios::binary) << content;
    DOCTEST_CHECK(contains(thrown_by([&] { Checkpoint::import_torch(path); }), path.string()));
  }
  troupe::detail::ZipWriter zip(path);
  zip.add("other", "x");
  zip.finish();
  DOCTEST_CHECK(contains(thrown_by([&] { Checkpoint::import_torch(path); }), "no data.pkl"));
}

DOCTEST_TEST_CASE("files with any bytes changed or cut give an error or a checkpoint, never a crash") {
  const TempFolder folder;
  const auto torch = folder.path() / "x.pt";
  const auto safe = folder.path() / "x.safetensors";
  auto saved = sample();
  saved.erase("huge");
  saved.export_torch(torch);
  saved.export_safetensors(safe);
  std::mt19937 random(1);
  int good = 0;
  int bad = 0;
  for (const auto& path : {torch, safe}) {
    const auto original = read_file(path);
    for (int round = 0; round < 1500; ++round) {
      auto bytes = original;
      for (auto count = random() % 4 + 1; count > 0; --count)
        bytes[random() % bytes.size()] = static_cast<char>(random());
      if (round % 5 == 0) bytes.resize(random() % bytes.size());
      std::ofstream(path, std::ios::binary) << bytes;
      try {
        (path == torch ? Checkpoint::import_torch(path) : Checkpoint::import_safetensors(path)).to_dict();
        ++good;
      } catch (const troupe::Error&) {
        ++bad;
      }
    }
  }
  DOCTEST_CHECK(good > 0);
  DOCTEST_CHECK(bad > 1000);
}

DOCTEST_TEST_CASE("pickles with any bytes changed give an error or a checkpoint, never a crash") {
  std::mt19937 random(2);
  const auto original =
      dict_of("}(X\1\0\0\0b"s + tensor("K\0"s, "K\2K\2\x86", "K\1K\2\x86") + "X\1\0\0\0c(K\1M\2\2NG" +
              std::string(8, 'x') + "tX\1\0\0\0d]q\1(h\1ctorch\nfloat32\nccollections\nOrderedDict\n)Reu");
  const std::string operations = "().NJKMGXU}]tuaesqrhjcRQb\x85\x86\x87\x88\x89\x8a\x8c\x93\x94\x95";
  int bad = 0;
  for (int round = 0; round < 50'000; ++round) {
    auto pickle = original;
    for (auto count = random() % 6 + 1; count > 0; --count)
      pickle[random() % pickle.size()] =
          round % 2 == 0 ? static_cast<char>(random()) : operations[random() % operations.size()];
    // Files cost time: most are only read, some are also turned into a checkpoint.
    const auto error = round % 250 == 0 ? refused(pickle) : thrown_by([&] {
      std::string_view rest(pickle);
      troupe::detail::PickleReader().read(rest);
    });
    bad += error != "nothing" ? 1 : 0;
  }
  DOCTEST_CHECK(bad > 25'000);
}
