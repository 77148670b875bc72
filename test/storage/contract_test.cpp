// SPDX-License-Identifier: Apache-2.0
// What every storage must do: a folder, a strict S3 server of ours, and moto, an S3 server that others wrote.
#include <doctest/doctest.h>

#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/storage/storage.hpp"
#include "test/storage/servers.hpp"
#include "test/unit/thrown.hpp"

namespace fs = std::filesystem;
using troupe::storage::ObjectInfo;
using troupe::storage::open_storage;
using troupe::storage::Storage;
using troupe::test::contains;
using troupe::test::MotoServer;
using troupe::test::random_bytes;
using troupe::test::read_file;
using troupe::test::StrictServer;
using troupe::test::TempFolder;
using troupe::test::thrown_by;

namespace {

void check_bytes(Storage& storage) {
  DOCTEST_CHECK_FALSE(storage.head("a/b"));
  DOCTEST_CHECK(contains(thrown_by([&] { storage.get("a/b"); }), "io: "));
  storage.put("a/b", "first");
  storage.put("a/b", "second one");
  DOCTEST_CHECK(storage.get("a/b") == "second one");
  DOCTEST_CHECK(storage.get("a/b", {.offset = 7}) == "one");
  DOCTEST_CHECK(storage.get("a/b", {.offset = 3, .length = 4}) == "ond ");
  DOCTEST_CHECK(storage.get("a/b", {.offset = 10}).empty());
  DOCTEST_CHECK(contains(thrown_by([&] { storage.get("a/b", {.offset = 8, .length = 3}); }), "10 bytes"));
  DOCTEST_CHECK(contains(thrown_by([&] { storage.get("a/b", {.offset = 11}); }), "10 bytes"));
  DOCTEST_CHECK(storage.head("a/b") == ObjectInfo{"a/b", 10});
  storage.put("empty", "");
  DOCTEST_CHECK(storage.get("empty").empty());
  DOCTEST_CHECK(storage.head("empty") == ObjectInfo{"empty", 0});
  const auto binary = random_bytes(70'000);
  storage.put("binary", binary);
  DOCTEST_CHECK(storage.get("binary") == binary);
}

void check_lists(Storage& storage) {
  std::vector<ObjectInfo> expected;
  for (const auto* key : {"l/a", "l/b/1", "l/b/2", "l/b/3", "l/b/x y+ü&=.txt", "l/c", "l/d"}) {
    storage.put(key, std::string(key) + "!");
    expected.push_back({key, std::string(key).size() + 1});
  }
  DOCTEST_CHECK(storage.list("l/") == expected);
  DOCTEST_CHECK(storage.list("l/b/").size() == 4);
  DOCTEST_CHECK(storage.list("l/b").size() == 4);
  DOCTEST_CHECK(storage.list("none").empty());
  DOCTEST_CHECK(storage.get("l/b/x y+ü&=.txt") == "l/b/x y+ü&=.txt!");
  storage.remove("l/b/x y+ü&=.txt");
  storage.remove("l/never was");
  for (const auto& object : storage.list("l/b")) storage.remove(object.key);
  DOCTEST_CHECK(storage.list("l/").size() == 3);
}

void check_files(Storage& storage) {
  const TempFolder folder;
  const auto source = folder.path() / "source";
  const auto target = folder.path() / "target";
  // One byte more and less than parts, several parts, and none.
  for (const std::size_t size : {0u, 10u, (5u << 20), (5u << 20) + 1, (17u << 20) + 12345}) {
    const auto content = random_bytes(size, static_cast<unsigned>(size));
    std::ofstream(source, std::ios::binary) << content;
    storage.put_file("files/f", source);
    DOCTEST_CHECK(storage.head("files/f")->size == size);
    storage.get_file("files/f", target);
    DOCTEST_CHECK(read_file(target) == content);
    if (size > 100) DOCTEST_CHECK(storage.get("files/f", {.offset = size - 7}) == content.substr(size - 7));
  }
  fs::remove(target);
  DOCTEST_CHECK(contains(thrown_by([&] { storage.get_file("files/none", target); }), "files/none"));
  DOCTEST_CHECK(contains(thrown_by([&] { storage.get_file("files/f", folder.path() / "no/folder"); }), "no/folder"));
  DOCTEST_CHECK(contains(thrown_by([&] { storage.put_file("x", folder.path() / "none"); }), "none"));
  DOCTEST_CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 1);  // the source, nothing half
}

void check_keys(Storage& storage) {
  for (const std::string key : {"", "/a", "a/", "a//b", "../a", "a/../b", ".", "a/.", "a\nb"}) {
    DOCTEST_CHECK(contains(thrown_by([&] { storage.put(key, "x"); }), "invalid_argument: "));
    DOCTEST_CHECK(contains(thrown_by([&] { storage.get(key); }), "cannot be the key"));
    DOCTEST_CHECK(contains(thrown_by([&] { storage.remove(key); }), "cannot be the key"));
  }
  DOCTEST_CHECK(contains(thrown_by([&] { storage.put(std::string(1025, 'k'), "x"); }), "1024"));
}

void check_all(Storage& storage) {
  check_bytes(storage);
  check_lists(storage);
  check_files(storage);
  check_keys(storage);
}

}  // namespace

DOCTEST_TEST_CASE("a folder is a storage") {
  const TempFolder folder;
  const auto root = folder.path() / "new/folder";
  const auto storage = open_storage(root.string());
  check_all(*storage);
  for (const auto& object : storage->list("")) storage->remove(object.key);
  DOCTEST_CHECK(fs::is_empty(root));
}

DOCTEST_TEST_CASE("a bucket of a strict S3 server is a storage, and every signature is right") {
  StrictServer server;
  check_all(*server.open("/runs/deep"));
  check_lists(*server.open(""));
  DOCTEST_CHECK(server.ask({{"ask", "uploads"}}) == 0);
}

DOCTEST_TEST_CASE("a bucket of moto is a storage") {
  const auto server = MotoServer::start();
  if (!server) return;
  check_all(*open_storage(server->location("runs"), StrictServer::quick()));
}

DOCTEST_TEST_CASE("keys below the prefix of a location are those of the storage, and no others") {
  StrictServer server;
  const auto outer = server.open("");
  outer->put("run", "beside");
  outer->put("runs2/a", "beside");
  const auto inner = server.open("/runs/");
  inner->put("a", "inside");
  DOCTEST_CHECK(inner->list("") == std::vector<ObjectInfo>{{"a", 6}});
  DOCTEST_CHECK(outer->get("runs/a") == "inside");
  DOCTEST_CHECK(inner->name() == "s3://bucket/runs");
}
