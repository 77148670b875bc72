// SPDX-License-Identifier: Apache-2.0
// S3 that fails: what can be tried again is, what cannot says why, and half an object is never taken for a whole one.
#include <doctest/doctest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "checkpoint/storage/storage.hpp"
#include "test/storage/servers.hpp"
#include "test/unit/thrown.hpp"

namespace fs = std::filesystem;
using troupe::Json;
using troupe::storage::open_storage;
using troupe::test::contains;
using troupe::test::random_bytes;
using troupe::test::read_file;
using troupe::test::StrictServer;
using troupe::test::TempFolder;
using troupe::test::thrown_by;

namespace {

constexpr std::size_t three_parts = (10 << 20) + 5;

/// A port of the loopback address where nobody listens, and nobody else can as long as this lives.
class ClosedPort {
public:
  ClosedPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address_;
    auto* address = reinterpret_cast<sockaddr*>(&address_);
    DOCTEST_REQUIRE(::bind(fd_, address, length) == 0);
    DOCTEST_REQUIRE(::getsockname(fd_, address, &length) == 0);
  }
  ~ClosedPort() { ::close(fd_); }
  ClosedPort(const ClosedPort&) = delete;
  ClosedPort& operator=(const ClosedPort&) = delete;
  int number() const { return ntohs(address_.sin_port); }

private:
  int fd_;
  sockaddr_in address_{};
};

/// Puts a file of three parts and an object beside it.
struct Bucket {
  TempFolder folder;
  std::string content = random_bytes(three_parts);
  StrictServer server;
  fs::path file = folder.path() / "file";

  Bucket() { std::ofstream(file, std::ios::binary) << content; }
  std::string downloaded(const troupe::storage::StorageOptions& options = StrictServer::quick()) {
    const auto target = folder.path() / "downloaded";
    server.open("/runs", options)->get_file("big", target);
    return read_file(target);
  }
};

}  // namespace

DOCTEST_TEST_CASE("requests that fail for a while are repeated until they work") {
  Bucket bucket;
  const auto storage = bucket.server.open();
  for (const Json& fault :
       {Json{{"fault", "status"}, {"status", 503}, {"code", "SlowDown"}},
        Json{{"fault", "status"}, {"status", 500}, {"code", "InternalError"}},
        Json{{"fault", "status"}, {"status", 429}}, Json{{"fault", "drop"}}, Json{{"fault", "lost"}}}) {
    auto now = fault;
    now["count"] = 3;
    for (const auto* step : {"POST", "PUT"}) {
      now["method"] = step;
      bucket.server.fault(now);
      storage->put_file("big", bucket.file);
      DOCTEST_CHECK(bucket.downloaded() == bucket.content);
    }
    for (const auto* step : {"HEAD", "GET"}) {
      now["method"] = step;
      bucket.server.fault(now);
      DOCTEST_CHECK(bucket.downloaded() == bucket.content);
      bucket.server.fault(now);
      DOCTEST_CHECK(storage->list("").size() == 1);
    }
    now["method"] = "DELETE";
    bucket.server.fault(now);
    storage->remove("big");
    DOCTEST_CHECK(storage->list("").empty());
  }
}

DOCTEST_TEST_CASE("an answer that breaks off, stalls or is cut is never taken for the whole object") {
  Bucket bucket;
  bucket.server.open()->put_file("big", bucket.file);
  auto impatient = StrictServer::quick();
  impatient.stall_timeout = std::chrono::seconds(1);
  for (const auto* kind : {"cut", "stall"}) {  // tried again
    bucket.server.fault({{"fault", kind}, {"method", "GET"}, {"count", 2}});
    DOCTEST_CHECK(bucket.downloaded(impatient) == bucket.content);
  }
  for (const auto* kind : {"short", "endless"}) {  // a server that lies is not asked again
    bucket.server.fault({{"fault", kind}, {"method", "GET"}, {"count", 1}});
    DOCTEST_CHECK(contains(thrown_by([&] { bucket.downloaded(); }), "io: "));
    bucket.server.fault({{"fault", kind}, {"method", "GET"}, {"count", 1}});
    DOCTEST_CHECK(contains(thrown_by([&] { bucket.server.open()->get("big"); }), "bytes"));
  }
  DOCTEST_CHECK(bucket.downloaded() == bucket.content);
  DOCTEST_CHECK(std::distance(fs::directory_iterator(bucket.folder.path()), {}) == 2);  // nothing half is left
}

DOCTEST_TEST_CASE("an upload that fails leaves no object and no parts") {
  Bucket bucket;
  const auto storage = bucket.server.open();
  bucket.server.fault({{"fault", "status"},
                       {"status", 403},
                       {"code", "AccessDenied"},
                       {"method", "PUT"},
                       {"part", "partNumber=2"},
                       {"count", 1}});
  const auto text = thrown_by([&] { storage->put_file("big", bucket.file); });
  DOCTEST_CHECK(contains(text, "AccessDenied (403)"));
  DOCTEST_CHECK(contains(text, "s3://bucket/runs/big"));
  DOCTEST_CHECK_FALSE(storage->head("big"));
  DOCTEST_CHECK(bucket.server.ask({{"ask", "uploads"}}) == 0);
}

DOCTEST_TEST_CASE("an upload's end that fails with status 200 is seen and repeated") {
  Bucket bucket;
  const auto storage = bucket.server.open();
  bucket.server.fault({{"fault", "error200"}, {"method", "POST"}, {"part", "uploadId"}, {"count", 2}});
  storage->put_file("big", bucket.file);
  DOCTEST_CHECK(bucket.downloaded() == bucket.content);
  bucket.server.fault(
      {{"fault", "error200"}, {"code", "InvalidPart"}, {"method", "POST"}, {"part", "uploadId"}, {"count", 1}});
  DOCTEST_CHECK(contains(thrown_by([&] { storage->put_file("other", bucket.file); }), "InvalidPart"));
  DOCTEST_CHECK_FALSE(storage->head("other"));
  DOCTEST_CHECK(bucket.server.ask({{"ask", "uploads"}}) == 0);
}

DOCTEST_TEST_CASE("an object that is replaced during its download gives an error, not a mixture") {
  Bucket bucket;
  const auto storage = bucket.server.open("/runs", [] {
    auto options = StrictServer::quick();
    options.connections = 1;
    return options;
  }());
  storage->put_file("big", bucket.file);
  // The second part is asked for again and again while another thread replaces the object.
  bucket.server.fault({{"fault", "status"}, {"status", 503}, {"method", "GET"}, {"count", 8}});
  std::jthread replacing([&] { bucket.server.open()->put("big", random_bytes(three_parts, 2)); });
  const auto target = bucket.folder.path() / "target";
  const auto text = thrown_by([&] { storage->get_file("big", target); });
  replacing.join();
  if (text == "nothing")
    DOCTEST_CHECK((read_file(target) == bucket.content || read_file(target) == random_bytes(three_parts, 2)));
  else
    DOCTEST_CHECK(contains(text, "PreconditionFailed"));
}

DOCTEST_TEST_CASE("retries end at their limit, with the reason") {
  Bucket bucket;
  auto options = StrictServer::quick();
  options.retry_limit = std::chrono::milliseconds(50);
  const auto storage = bucket.server.open("/runs", options);
  bucket.server.fault(
      {{"fault", "status"}, {"status", 503}, {"code", "SlowDown"}, {"method", "PUT"}, {"count", 100000}});
  const auto text = thrown_by([&] { storage->put("a", "b"); });
  DOCTEST_CHECK(contains(text, "io: PUT s3://bucket/runs/a at http://127.0.0.1:"));
  DOCTEST_CHECK(contains(text, "SlowDown (503)"));
  DOCTEST_CHECK(contains(text, "given up"));
}

DOCTEST_TEST_CASE("an endpoint where nobody listens is an error that names it") {
  const ClosedPort port;
  const auto endpoint = "http://127.0.0.1:" + std::to_string(port.number());
  troupe::test::AwsEnvironment environment({{"AWS_ACCESS_KEY_ID", "a"}, {"AWS_SECRET_ACCESS_KEY", "b"}});
  auto options = StrictServer::quick();
  options.retry_limit = std::chrono::milliseconds(50);
  const auto storage = open_storage("s3://bucket?endpoint=" + endpoint, options);
  const auto text = thrown_by([&] { storage->list(""); });
  DOCTEST_CHECK(contains(text, endpoint));
  DOCTEST_CHECK(contains(text, "does it run?"));
}

DOCTEST_TEST_CASE("errors of S3 come with its code and what to change, and are not repeated") {
  StrictServer server;
  const auto refused = [&](const std::string& location) {
    server.ask({{"ask", "requests"}});
    auto text = thrown_by([&] { open_storage(location, StrictServer::quick())->put("a", "b"); });
    DOCTEST_CHECK(server.ask({{"ask", "requests"}}).size() == 1);
    return text;
  };
  const auto at = "?endpoint=" + server.endpoint();
  DOCTEST_CHECK(contains(refused("s3://nowhere" + at + "&region=eu-test-1"), "NoSuchBucket (404)"));
  DOCTEST_CHECK(contains(refused("s3://nowhere" + at + "&region=eu-test-1"), "make it"));
  DOCTEST_CHECK(contains(refused("s3://denied" + at + "&region=eu-test-1"), "AccessDenied (403): Access Denied"));
  DOCTEST_CHECK(contains(refused("s3://bucket" + at + "&region=us-wrong-1"), "add region=eu-test-1"));
  {
    const troupe::test::EnvironmentGuard guard("AWS_SECRET_ACCESS_KEY", "wrong");
    DOCTEST_CHECK(contains(refused("s3://bucket" + at + "&region=eu-test-1"), "SignatureDoesNotMatch (403)"));
  }
  const troupe::test::EnvironmentGuard guard("AWS_ACCESS_KEY_ID", "OTHER");
  DOCTEST_CHECK(contains(refused("s3://bucket" + at + "&region=eu-test-1"), "access key OTHER"));
}

DOCTEST_TEST_CASE("a stop request ends an upload that waits, and gives its parts up") {
  Bucket bucket;
  std::stop_source source;
  auto options = StrictServer::quick();
  options.retry_limit = std::chrono::minutes(10);
  options.first_backoff = std::chrono::minutes(1);
  options.stop = source.get_token();
  const auto storage = bucket.server.open("/runs", options);
  bucket.server.fault({{"fault", "status"}, {"status", 503}, {"method", "PUT"}, {"count", 1}});
  std::jthread stopping([&] {
    while (bucket.server.ask({{"ask", "requests"}}).dump().find("PUT") == std::string::npos) std::this_thread::yield();
    source.request_stop();
  });
  DOCTEST_CHECK(contains(thrown_by([&] { storage->put_file("big", bucket.file); }), "stopped: "));
  stopping.join();
  DOCTEST_CHECK(bucket.server.ask({{"ask", "uploads"}}) == 0);
  DOCTEST_CHECK(contains(thrown_by([&] { storage->head("big"); }), "stopped: "));
}
