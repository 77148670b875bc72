// SPDX-License-Identifier: Apache-2.0
// Whole checkpoints in storage: there with their manifest, or not at all.
#include <doctest/doctest.h>

#include <fstream>
#include <string>
#include <vector>

#include "checkpoint/storage/transfer.hpp"
#include "test/storage/servers.hpp"
#include "test/unit/thrown.hpp"

namespace fs = std::filesystem;
using namespace troupe::storage;
using troupe::test::contains;
using troupe::test::random_bytes;
using troupe::test::read_file;
using troupe::test::StrictServer;
using troupe::test::TempFolder;
using troupe::test::thrown_by;

namespace {

const std::string manifest{manifest_name};

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary) << text;
}

/// A folder as a committed checkpoint has it, one file in several parts.
fs::path make_checkpoint(const fs::path& folder) {
  write(folder / manifest, "the manifest");
  write(folder / "shard_0.bin", random_bytes(6 << 20));
  write(folder / "shard_1.bin", random_bytes(100));
  write(folder / "files/notes with blanks.txt", "notes");
  return folder;
}

std::vector<std::string> put_order(StrictServer& server) {
  std::vector<std::string> order;
  for (const std::string request : server.ask({{"ask", "requests"}}))
    if (request.starts_with("PUT ") || request.starts_with("DELETE ")) order.push_back(request);
  return order;
}

}  // namespace

DOCTEST_TEST_CASE("a checkpoint goes to S3 and back, its manifest last") {
  const TempFolder folder;
  StrictServer server;
  const auto storage = server.open();
  const auto source = make_checkpoint(folder.path() / "source");
  upload_checkpoint(source, *storage, "run/checkpoint_000001");
  DOCTEST_CHECK(put_order(server).back() == "PUT /bucket/runs/run/checkpoint_000001/" + manifest);
  const auto target = folder.path() / "target";
  download_checkpoint(*storage, "run/checkpoint_000001", target);
  for (const std::string name : {manifest.c_str(), "shard_0.bin", "shard_1.bin", "files/notes with blanks.txt"})
    DOCTEST_CHECK(read_file(target / name) == read_file(source / name));
  DOCTEST_CHECK(list_checkpoints(*storage, "run/") ==
                std::vector<StoredCheckpoint>{{"run/checkpoint_000001", (6 << 20) + 100 + 5 + 12}});
  DOCTEST_CHECK(contains(thrown_by([&] { upload_checkpoint(source, *storage, "run/checkpoint_000001"); }), "already"));
  DOCTEST_CHECK(
      contains(thrown_by([&] { download_checkpoint(*storage, "run/checkpoint_000001", target); }), "not an empty"));
  DOCTEST_CHECK(fs::exists(target / manifest));
  put_order(server);
  remove_checkpoint(*storage, "run/checkpoint_000001");
  DOCTEST_CHECK(put_order(server).front() == "DELETE /bucket/runs/run/checkpoint_000001/" + manifest);
  DOCTEST_CHECK(storage->list("").empty());
  remove_checkpoint(*storage, "run/checkpoint_000001");
}

DOCTEST_TEST_CASE("an upload that fails is no checkpoint, and can be repeated or removed") {
  const TempFolder folder;
  StrictServer server;
  const auto storage = server.open();
  const auto source = make_checkpoint(folder.path() / "source");
  for (const std::string file : {"shard_0.bin", "shard_1.bin", "files/", manifest.c_str()}) {
    server.fault({{"fault", "status"},
                  {"status", 403},
                  {"code", "AccessDenied"},
                  {"method", "PUT"},
                  {"part", file},
                  {"count", 1}});
    DOCTEST_CHECK(contains(thrown_by([&] { upload_checkpoint(source, *storage, "c"); }), "AccessDenied"));
    DOCTEST_CHECK(list_checkpoints(*storage).empty());
    DOCTEST_CHECK(
        contains(thrown_by([&] { download_checkpoint(*storage, "c", folder.path() / "t"); }), "no whole checkpoint"));
  }
  DOCTEST_CHECK_FALSE(storage->list("").empty());
  remove_checkpoint(*storage, "c");
  DOCTEST_CHECK(storage->list("").empty());
  upload_checkpoint(source, *storage, "c");
  DOCTEST_CHECK(list_checkpoints(*storage).size() == 1);
}

DOCTEST_TEST_CASE("a download that fails leaves no folder") {
  const TempFolder folder;
  StrictServer server;
  const auto storage = server.open();
  upload_checkpoint(make_checkpoint(folder.path() / "source"), *storage, "c");
  const auto target = folder.path() / "a/target";
  server.fault({{"fault", "short"}, {"method", "GET"}, {"part", "shard_1"}, {"count", 1}});
  DOCTEST_CHECK(contains(thrown_by([&] { download_checkpoint(*storage, "c", target); }), "io: "));
  DOCTEST_CHECK_FALSE(fs::exists(target));
  download_checkpoint(*storage, "c", target);
  DOCTEST_CHECK(fs::exists(target / manifest));
}

DOCTEST_TEST_CASE("a folder without a manifest and one with links are refused") {
  const TempFolder folder;
  const auto storage = open_storage((folder.path() / "store").string());
  DOCTEST_CHECK(contains(thrown_by([&] { upload_checkpoint(folder.path() / "none", *storage, "c"); }), "not a whole"));
  write(folder.path() / "half/shard_0.bin", "x");
  DOCTEST_CHECK(contains(thrown_by([&] { upload_checkpoint(folder.path() / "half", *storage, "c"); }), "not a whole"));
  const auto linked = make_checkpoint(folder.path() / "linked");
  fs::create_symlink("/etc/passwd", linked / "link");
  DOCTEST_CHECK(contains(thrown_by([&] { upload_checkpoint(linked, *storage, "c"); }), "neither a file nor a folder"));
  DOCTEST_CHECK(storage->list("").empty());
}
