// SPDX-License-Identifier: Apache-2.0
// Locations, variables and files that say where a bucket is and who asks.
#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "checkpoint/storage/s3_settings.hpp"
#include "checkpoint/storage/storage.hpp"
#include "test/storage/servers.hpp"
#include "test/unit/thrown.hpp"

namespace fs = std::filesystem;
using troupe::storage::open_storage;
using troupe::storage::resolve_s3_settings;
using troupe::test::AwsEnvironment;
using troupe::test::contains;
using troupe::test::EnvironmentGuard;
using troupe::test::StrictServer;
using troupe::test::thrown_by;

namespace {

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

}  // namespace

DOCTEST_TEST_CASE("a location gives bucket, prefix, endpoint and region") {
  const AwsEnvironment environment({{"AWS_ACCESS_KEY_ID", "key"}, {"AWS_SECRET_ACCESS_KEY", "secret"}});
  auto settings = resolve_s3_settings("s3://my-bucket/a/b/?endpoint=http://127.0.0.1:9000/&region=eu-1");
  DOCTEST_CHECK(settings.bucket == "my-bucket");
  DOCTEST_CHECK(settings.prefix == "a/b");
  DOCTEST_CHECK(settings.endpoint == "http://127.0.0.1:9000");
  DOCTEST_CHECK(settings.region == "eu-1");
  DOCTEST_CHECK(settings.name() == "s3://my-bucket/a/b");
  settings = resolve_s3_settings("s3://my-bucket?endpoint=https%3A%2F%2Fhost.example");
  DOCTEST_CHECK(settings.endpoint == "https://host.example");
  DOCTEST_CHECK(settings.region == "us-east-1");
  DOCTEST_CHECK(resolve_s3_settings("s3://my-bucket").endpoint == "https://my-bucket.s3.us-east-1.amazonaws.com");
  DOCTEST_CHECK(resolve_s3_settings("s3://my.bucket").endpoint == "https://s3.us-east-1.amazonaws.com");
}

DOCTEST_TEST_CASE("a location that cannot be one is refused with what is valid") {
  const AwsEnvironment environment({{"AWS_ACCESS_KEY_ID", "key"}, {"AWS_SECRET_ACCESS_KEY", "secret"}});
  for (const std::string location : {"",
                                     "s3:",
                                     "s3:/bucket/a",
                                     "s3://",
                                     "s3:///a",
                                     "s3://B",
                                     "s3://Bucket/a",
                                     "s3://bucket?what=1",
                                     "s3://bucket?endpoint",
                                     "s3://bucket?endpoint=",
                                     "s3://bucket?endpoint=ftp://h",
                                     "s3://bucket?endpoint=127.0.0.1:9000",
                                     "s3://bucket?endpoint=http://h/path",
                                     "s3://bucket?endpoint=http://h%zz",
                                     "s3://bucket?region=a&region=b",
                                     "s3://bucket?region=a.b%0a",
                                     "s3://bucket/a#b",
                                     "gs://bucket/a",
                                     "file:///tmp",
                                     "https://host/bucket"}) {
    DOCTEST_CAPTURE(location);
    const auto text = thrown_by([&] { open_storage(location); });
    DOCTEST_CHECK(contains(text, "invalid_option: storage \"" + location + "\" is refused"));
    DOCTEST_CHECK(contains(text, "valid"));
  }
  DOCTEST_CHECK(
      contains(thrown_by([] { open_storage("s3://bucket?endpoint=http://user:pass@host"); }), "do not belong"));
  DOCTEST_CHECK(contains(thrown_by([] { open_storage("s3://bucket/a/../b"); }), "invalid_argument"));
}

DOCTEST_TEST_CASE("region and endpoint come from the variables when the location has none") {
  const AwsEnvironment environment({{"AWS_ACCESS_KEY_ID", "key"},
                                    {"AWS_SECRET_ACCESS_KEY", "secret"},
                                    {"AWS_DEFAULT_REGION", "default-1"},
                                    {"AWS_ENDPOINT_URL", "http://all:1"}});
  DOCTEST_CHECK(resolve_s3_settings("s3://bucket").region == "default-1");
  DOCTEST_CHECK(resolve_s3_settings("s3://bucket").endpoint == "http://all:1");
  const EnvironmentGuard region("AWS_REGION", "region-1");
  const EnvironmentGuard endpoint("AWS_ENDPOINT_URL_S3", "http://s3:1");
  DOCTEST_CHECK(resolve_s3_settings("s3://bucket").region == "region-1");
  DOCTEST_CHECK(resolve_s3_settings("s3://bucket").endpoint == "http://s3:1");
  DOCTEST_CHECK(resolve_s3_settings("s3://bucket?region=x-1").region == "x-1");
}

DOCTEST_TEST_CASE("credentials and settings come from the profile in the files of AWS") {
  const AwsEnvironment environment({});
  const std::string token(1500, 't');
  write(environment.home() / ".aws/credentials",
        "# a comment\n[default]\naws_access_key_id = D\naws_secret_access_key=d=/+\n\n[other]\n aws_access_key_id = "
        "nested\n"
        "aws_access_key_id=O\r\naws_secret_access_key\t=\to\naws_session_token = " +
            token + "\n");
  write(environment.home() / ".aws/config",
        "[default]\nregion = d-1\ns3 =\n  max_concurrent_requests = 20\n[profile other]\nregion = o-1\n"
        "endpoint_url = http://127.0.0.1:1\naws_access_key_id = not this one\n");
  auto settings = resolve_s3_settings("s3://bucket");
  DOCTEST_CHECK(settings.access_key == "D");
  DOCTEST_CHECK(settings.secret_key == "d=/+");
  DOCTEST_CHECK(settings.session_token.empty());
  DOCTEST_CHECK(settings.region == "d-1");
  const EnvironmentGuard profile("AWS_PROFILE", "other");
  settings = resolve_s3_settings("s3://bucket");
  DOCTEST_CHECK(settings.access_key == "O");
  DOCTEST_CHECK(settings.secret_key == "o");
  DOCTEST_CHECK(settings.session_token == token);
  DOCTEST_CHECK(settings.region == "o-1");
  DOCTEST_CHECK(settings.endpoint == "http://127.0.0.1:1");
  const EnvironmentGuard key("AWS_ACCESS_KEY_ID", "E");
  const EnvironmentGuard secret("AWS_SECRET_ACCESS_KEY", "e");
  settings = resolve_s3_settings("s3://bucket");
  DOCTEST_CHECK(settings.access_key == "E");
  DOCTEST_CHECK(settings.session_token.empty());  // a token belongs to its key
}

DOCTEST_TEST_CASE("missing and wrong credentials are errors that say what to set") {
  const AwsEnvironment environment({});
  const auto refused = [] { return thrown_by([] { resolve_s3_settings("s3://bucket/a"); }); };
  DOCTEST_CHECK(contains(refused(), "invalid_option: no credentials for s3://bucket/a: set AWS_ACCESS_KEY_ID"));
  {
    const EnvironmentGuard only("AWS_ACCESS_KEY_ID", "E");
    DOCTEST_CHECK(contains(refused(), "(both)"));
    const EnvironmentGuard secret("AWS_SECRET_ACCESS_KEY", "line\nend");
    DOCTEST_CHECK(contains(refused(), "copied wrongly"));
  }
  {
    const EnvironmentGuard profile("AWS_PROFILE", "ghost");
    DOCTEST_CHECK(contains(refused(), "AWS_PROFILE is \"ghost\""));
  }
  write(environment.home() / ".aws/config", "[default]\nrole_arn = x\n");
  DOCTEST_CHECK(contains(refused(), "role_arn is not understood"));
  write(environment.home() / ".aws/config", "[default]\nwhat is this\n");
  DOCTEST_CHECK(contains(refused(), "config:2: neither"));
}

DOCTEST_TEST_CASE("temporary credentials are signed with their token") {
  StrictServer server({{"AWS_ACCESS_KEY_ID", "TESTKEY"},
                       {"AWS_SECRET_ACCESS_KEY", "test/secret+key"},
                       {"AWS_SESSION_TOKEN", "session//token=="}});
  const auto storage = server.open();
  storage->put("a", "b");
  DOCTEST_CHECK(storage->get("a") == "b");
  const EnvironmentGuard token("AWS_SESSION_TOKEN", "wrong");
  DOCTEST_CHECK(contains(thrown_by([&] { server.open()->put("a", "c"); }), "InvalidToken"));
}
