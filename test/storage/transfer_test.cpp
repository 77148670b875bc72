// SPDX-License-Identifier: Apache-2.0
// Whole checkpoints in storage: there with their manifest, or not at all.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <troupe/checkpoint.hpp>
#include <troupe/storage.hpp>

#include "checkpoint/folder.hpp"
#include "checkpoint/storage/mirror.hpp"
#include "checkpoint/storage/transfer.hpp"
#include "test/storage/servers.hpp"
#include "test/unit/thrown.hpp"

namespace fs = std::filesystem;
using troupe::Checkpoint;
using troupe::DType;
using troupe::TensorData;
using troupe::storage::download_checkpoint;
using troupe::storage::list_checkpoints;
using troupe::storage::open_storage;
using troupe::storage::remove_checkpoint;
using troupe::storage::upload_checkpoint;
using troupe::test::contains;
using troupe::test::random_bytes;
using troupe::test::read_file;
using troupe::test::StrictServer;
using troupe::test::TempFolder;
using troupe::test::thrown_by;

namespace {

const std::string manifest{troupe::detail::manifest_name};

/// A checkpoint of six MiB and some bytes, which travels in several parts.
Checkpoint sample() {
  const auto bytes = random_bytes(6 << 20);
  return {{"epoch", 3}, {"weight", TensorData::copy_of(DType::uint8, {6 << 20}, bytes.data())}};
}

fs::path make_checkpoint(const fs::path& folder) {
  sample().to_directory(folder);
  return folder;
}

/// A committed checkpoint of the user's files.
fs::path make_files_checkpoint(const TempFolder& temporary) {
  fs::create_directories(temporary.path() / "mine/deep");
  std::ofstream(temporary.path() / "mine/notes with blanks.txt") << "notes";
  std::ofstream(temporary.path() / "mine/deep/b.bin") << "b";
  const auto folder = temporary.path() / "of files";
  fs::create_directories(folder);
  troupe::detail::Manifest content;
  content.id = 1;
  content.has_files = true;
  content.files = troupe::detail::copy_files(temporary.path() / "mine", folder / "files");
  troupe::detail::commit(folder, content);
  return folder;
}

std::vector<std::string> put_order(StrictServer& server) {
  std::vector<std::string> order;
  for (const std::string request : server.ask({{"ask", "requests"}}))
    if (request.starts_with("PUT ") || request.starts_with("DELETE ")) order.push_back(request);
  return order;
}

/// A store that does not answer: every request waits until it is told to give up.
class SilentStorage : public troupe::storage::Storage {
public:
  explicit SilentStorage(std::atomic<int>& requests, bool gives_up) : requests_(requests), gives_up_(gives_up) {}
  std::string name() const override { return "a silent store"; }
  void put(const std::string&, std::string_view) override { wait(); }
  void put_file(const std::string&, const fs::path&) override { wait(); }
  std::string get(const std::string&, const troupe::storage::Range&) override { wait(); }
  void get_file(const std::string&, const fs::path&) override { wait(); }
  std::vector<troupe::storage::ObjectInfo> list(const std::string&) override { wait(); }
  std::optional<troupe::storage::ObjectInfo> head(const std::string&) override { wait(); }
  void remove(const std::string&) override { wait(); }
  void give_up_after(std::chrono::milliseconds) override {
    gives_up_ = true;
    gives_up_.notify_all();
  }

private:
  [[noreturn]] void wait() {
    ++requests_;
    requests_.notify_all();
    gives_up_.wait(false);
    throw troupe::storage::Unavailable(troupe::ErrorCode::io, "no answer");
  }

  std::atomic<int>& requests_;
  std::atomic<bool> gives_up_;
};

/// Five that are wanted, of one folder.
troupe::storage::CheckpointMirror::Wanted five(const fs::path& source) {
  troupe::storage::CheckpointMirror::Wanted wanted;
  for (int number = 1; number <= 5; ++number) wanted.emplace("checkpoint_00000" + std::to_string(number), source);
  return wanted;
}

}  // namespace

DOCTEST_TEST_CASE("a store that does not answer is asked once for all checkpoints, told of, and asked again later") {
  const TempFolder folder;
  const auto source = make_checkpoint(folder.path() / "source");
  std::atomic<int> requests{0};
  std::vector<std::string> errors;
  troupe::storage::CheckpointMirror mirror(std::make_unique<SilentStorage>(requests, true), "run",
                                           [&](const std::string& text) { errors.push_back(text); });
  for (int pass = 1; pass <= 2; ++pass) {
    mirror.want(five(source));
    mirror.flush();
    DOCTEST_CHECK(requests == pass);
    DOCTEST_REQUIRE(errors.size() == static_cast<std::size_t>(pass));
    DOCTEST_CHECK(contains(errors.back(), "a silent store does not answer"));
  }
}

DOCTEST_TEST_CASE("the end of a run waits for a store that does not answer only as long as it was told") {
  const TempFolder folder;
  const auto source = make_checkpoint(folder.path() / "source");
  std::atomic<int> requests{0};
  std::vector<std::string> errors;
  troupe::storage::CheckpointMirror mirror(std::make_unique<SilentStorage>(requests, false), "run",
                                           [&](const std::string& text) { errors.push_back(text); });
  mirror.want(five(source));
  requests.wait(0);  // under way
  mirror.want(five(source));
  mirror.finish(std::chrono::milliseconds(1));
  DOCTEST_CHECK(requests == 1);
  DOCTEST_CHECK(errors.size() == 1);
}

DOCTEST_TEST_CASE("a request gives up when its time is cut, whatever it was before") {
  StrictServer server;
  auto options = StrictServer::quick();
  options.retry_limit = std::chrono::hours(1);
  const auto storage = server.open("/runs", options);
  server.fault({{"fault", "status"}, {"status", 503}, {"method", "HEAD"}, {"count", 1000}});
  storage->give_up_after(std::chrono::milliseconds(0));
  try {
    storage->head("a");
    DOCTEST_FAIL("there was an answer");
  } catch (const troupe::storage::Unavailable& error) {
    DOCTEST_CHECK(contains(error.what(), "attempt 1, given up after 0.0 s"));
  }
}

DOCTEST_TEST_CASE("a checkpoint goes to S3 and back, its manifest last") {
  const TempFolder folder;
  StrictServer server;
  const auto storage = server.open();
  const auto source = make_checkpoint(folder.path() / "source");
  upload_checkpoint(source, *storage, "run/checkpoint_000001");
  DOCTEST_CHECK(put_order(server).back() == "PUT /bucket/runs/run/checkpoint_000001/" + manifest);
  const auto target = folder.path() / "target";
  download_checkpoint(*storage, "run/checkpoint_000001", target);
  DOCTEST_CHECK(Checkpoint::from_path(target) == sample());
  const auto stored = list_checkpoints(*storage, "run/");
  DOCTEST_REQUIRE(stored.size() == 1);
  DOCTEST_CHECK(stored[0].key == "run/checkpoint_000001");
  DOCTEST_CHECK(stored[0].bytes > (6 << 20));
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

DOCTEST_TEST_CASE("a checkpoint of files goes to storage and back") {
  const TempFolder folder;
  const auto storage = open_storage((folder.path() / "store").string());
  upload_checkpoint(make_files_checkpoint(folder), *storage, "c");
  download_checkpoint(*storage, "c", folder.path() / "target");
  const auto files = Checkpoint::from_path(folder.path() / "target").as_directory();  // checks every byte
  DOCTEST_CHECK(read_file(files.path() / "notes with blanks.txt") == "notes");
  DOCTEST_CHECK(read_file(files.path() / "deep/b.bin") == "b");
}

DOCTEST_TEST_CASE("an upload that fails is no checkpoint, and can be repeated or removed") {
  const TempFolder folder;
  StrictServer server;
  const auto storage = server.open();
  const auto source = make_files_checkpoint(folder);
  for (const std::string& file : {std::string("notes"), std::string("deep"), manifest}) {
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

DOCTEST_TEST_CASE("a download that fails, or finds parts missing or changed, leaves no folder") {
  const TempFolder folder;
  StrictServer server;
  const auto storage = server.open();
  upload_checkpoint(make_checkpoint(folder.path() / "source"), *storage, "c");
  const auto target = folder.path() / "a/target";
  const auto refused = [&] {
    auto text = thrown_by([&] { download_checkpoint(*storage, "c", target); });
    DOCTEST_CHECK_FALSE(fs::exists(target));
    return text;
  };
  server.fault({{"fault", "short"}, {"method", "GET"}, {"part", "shard_"}, {"count", 1}});
  DOCTEST_CHECK(contains(refused(), "io: "));
  server.fault({{"fault", "short"}, {"method", "GET"}, {"part", manifest}, {"count", 1}});
  DOCTEST_CHECK(contains(refused(), "io: "));
  download_checkpoint(*storage, "c", target);
  fs::remove_all(target);
  const auto shard = storage->list("c/shard").at(0).key;
  storage->put(shard, "another size");
  DOCTEST_CHECK(contains(refused(), "has 12 bytes"));
  storage->remove(shard);
  DOCTEST_CHECK(contains(refused(), shard));
  storage->put("c/" + manifest, "not a manifest");
  DOCTEST_CHECK(contains(refused(), "io: "));
}

DOCTEST_TEST_CASE("a folder that is no whole checkpoint is not uploaded") {
  const TempFolder folder;
  const auto storage = open_storage((folder.path() / "store").string());
  DOCTEST_CHECK(contains(thrown_by([&] { upload_checkpoint(folder.path() / "none", *storage, "c"); }), "not a whole"));
  const auto source = make_checkpoint(folder.path() / "source");
  for (const auto& entry : fs::directory_iterator(source))
    if (entry.path().filename() != manifest) fs::resize_file(entry.path(), 100);
  DOCTEST_CHECK(contains(thrown_by([&] { upload_checkpoint(source, *storage, "c"); }), "has 100 bytes"));
  fs::resize_file(source / manifest, 10);
  DOCTEST_CHECK(contains(thrown_by([&] { upload_checkpoint(source, *storage, "c"); }), "io: "));
  fs::remove(source / manifest);
  DOCTEST_CHECK(contains(thrown_by([&] { upload_checkpoint(source, *storage, "c"); }), "not a whole"));
  DOCTEST_CHECK(storage->list("").empty());
}

DOCTEST_TEST_CASE("locations name whole checkpoints: upload, list, download, remove") {
  const TempFolder folder;
  StrictServer server;
  const auto source = make_files_checkpoint(folder);
  const auto query = "?endpoint=" + server.endpoint() + "&region=eu-test-1";
  const std::vector<std::pair<std::string, std::string>> places{
      {"s3://bucket/run", query}, {"s3://bucket", query}, {(folder.path() / "store/run").string(), ""}};
  for (const auto& [parent, end] : places) {
    const auto location = parent + "/checkpoint_000001" + end;
    troupe::upload_checkpoint(source, location);
    const auto found = troupe::list_stored_checkpoints(parent + end);
    DOCTEST_REQUIRE(found.size() == 1);
    DOCTEST_CHECK(found[0].location == location);
    const auto target = folder.path() / "target";
    troupe::download_checkpoint(location, target);
    DOCTEST_CHECK(read_file(target / "files/deep/b.bin") == "b");
    fs::remove_all(target);
    troupe::remove_stored_checkpoint(location);
    DOCTEST_CHECK(troupe::list_stored_checkpoints(parent + end).empty());
  }
  for (const std::string location : {"", "/", "s3://bucket", "s3://bucket/", "s3://"})
    DOCTEST_CHECK(
        contains(thrown_by([&] { troupe::upload_checkpoint(source, location); }), "does not name a checkpoint"));
}

DOCTEST_TEST_CASE("a mirror leaves alone what it has not brought, also when its own copy is gone before it was taken") {
  const TempFolder folder;
  const auto location = (folder.path() / "store").string();
  const auto source = make_checkpoint(folder.path() / "source");
  const auto storage = open_storage(location);
  upload_checkpoint(source, *storage, "run/checkpoint_000001");
  storage->put("run/checkpoint_000002/shard_0", "left by a broken upload");

  std::vector<std::string> errors;
  troupe::storage::CheckpointMirror mirror(open_storage(location), "run",
                                           [&](const std::string& text) { errors.push_back(text); });
  const auto gone = folder.path() / "gone";
  mirror.want({{"checkpoint_000001", gone}, {"checkpoint_000002", gone}, {"checkpoint_000003", source}});
  mirror.flush();
  DOCTEST_CHECK(errors.empty());
  mirror.want({{"checkpoint_000001", source}});
  mirror.flush();
  DOCTEST_REQUIRE(errors.size() == 1);
  DOCTEST_CHECK(contains(errors.front(), "already"));
  mirror.want({});
  mirror.flush();
  const auto stored = list_checkpoints(*storage);
  DOCTEST_REQUIRE(stored.size() == 1);
  DOCTEST_CHECK(stored[0].key == "run/checkpoint_000001");
  DOCTEST_CHECK(storage->list("run/checkpoint_000002/").empty());
}
