// SPDX-License-Identifier: Apache-2.0
// What a worker process finds around it, and what nobody finds: a listening socket.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "test/integration/support.hpp"

namespace troupe::test {
namespace {

namespace fs = std::filesystem;

Json read_environment(const Config& config) {
  Json values = Json::object();
  for (const auto& name : config["names"].get<std::vector<std::string>>()) {
    const char* value = std::getenv(name.c_str());
    values[name] = value != nullptr ? Json(value) : Json();
  }
  return values;
}

bool listens_somewhere() {
  for (auto pid : process_tree(::getpid()))
    if (!listening_addresses(pid).empty()) return true;
  return false;
}

}  // namespace

DOCTEST_TEST_CASE("workers find their place in the environment") {
  TestTrainer trainer({.num_workers = 2, .resources_per_worker = {{"CPU", 3}}});
  EnvironmentGuard unset("OMP_NUM_THREADS", nullptr);
  const Json names = {"RANK",        "LOCAL_RANK",     "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE",
                      "MASTER_ADDR", "OMP_NUM_THREADS"};
  const auto found = trainer->run(fn<read_environment>, {.config = {{"names", names}}});
  DOCTEST_CHECK(found.at(1).dump() == R"({"RANK":"1","LOCAL_RANK":"1","NODE_RANK":"0","WORLD_SIZE":"2",)"
                                      R"("LOCAL_WORLD_SIZE":"2","MASTER_ADDR":"127.0.0.1","OMP_NUM_THREADS":"3"})");
  DOCTEST_CHECK(found.at(0)["RANK"] == "0");
  DOCTEST_CHECK(std::getenv("RANK") == nullptr);  // the driver's own is left alone
}

DOCTEST_TEST_CASE("workers of a group are told the same port, which is free and which nobody of ours opens") {
  EnvironmentGuard no_address("MASTER_ADDR", nullptr);
  EnvironmentGuard no_port("MASTER_PORT", nullptr);
  const Json names = {"MASTER_ADDR", "MASTER_PORT"};
  TestTrainer trainer({.num_workers = 2});
  const auto found = trainer->run(fn<read_environment>, {.config = {{"names", names}}});
  DOCTEST_CHECK(found.at(0) == found.at(1));
  const int port = std::stoi(found.at(0)["MASTER_PORT"].get<std::string>());
  // It can be opened while the workers live: nobody has.
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  DOCTEST_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  ::close(fd);
  EnvironmentGuard own_address("MASTER_ADDR", "10.0.0.5");
  EnvironmentGuard own_port("MASTER_PORT", "1234");
  TestTrainer other({.num_workers = 1});
  DOCTEST_CHECK(other->run(fn<read_environment>, {.config = {{"names", names}}}).at(0).dump() ==
                R"({"MASTER_ADDR":"10.0.0.5","MASTER_PORT":"1234"})");
}

DOCTEST_TEST_CASE("workers see what the driver set and unset after init") {
  TestTrainer trainer({.num_workers = 1});
  EnvironmentGuard own("OMP_NUM_THREADS", "7");
  EnvironmentGuard fresh("TROUPE_TEST_VARIABLE", "a=b c");
  EnvironmentGuard gone("PATH", nullptr);
  const Json names = {"OMP_NUM_THREADS", "TROUPE_TEST_VARIABLE", "PATH"};
  const auto found = trainer->run(fn<read_environment>, {.config = {{"names", names}}});
  DOCTEST_CHECK(found.at(0).dump() == R"({"OMP_NUM_THREADS":"7","TROUPE_TEST_VARIABLE":"a=b c","PATH":null})");
}

DOCTEST_TEST_CASE("threads of workers are passive if init is told so and the environment has no policy") {
  const auto policies = [](const char* wait_policy, const char* spin_count, bool wanted) {
    const EnvironmentGuard wait("OMP_WAIT_POLICY", wait_policy);
    const EnvironmentGuard spin("GOMP_SPINCOUNT", spin_count);
    const EnvironmentGuard init("TROUPE_TEST_PASSIVE_THREADS", wanted ? "1" : nullptr);
    return Program("policies").read_line();
  };
  DOCTEST_CHECK(policies(nullptr, nullptr, false) == "none none");
  DOCTEST_CHECK(policies(nullptr, nullptr, true) == "PASSIVE PASSIVE");
  DOCTEST_CHECK(policies("ACTIVE", nullptr, true) == "ACTIVE ACTIVE");
  DOCTEST_CHECK(policies(nullptr, "1000", true) == "none none");
}

DOCTEST_TEST_CASE("workers work where the driver was at start") {
  TempFolder elsewhere;
  const auto before = fs::current_path();
  fs::current_path(elsewhere.path());
  TestTrainer trainer({.num_workers = 1});
  trainer->start();
  fs::current_path(before);
  const auto where = trainer->run([] { return fs::current_path().string(); });
  DOCTEST_CHECK(where.at(0) == fs::canonical(elsewhere.path()).string());
}

DOCTEST_TEST_CASE("workers read nothing from the driver's terminal and hold no descriptor of others") {
  TestTrainer trainer({.num_workers = 4});
  const auto results = trainer->run([] {
    char one = 0;
    Json open = Json::array();
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const auto target = fs::read_symlink(entry.path(), error).string();
      if (target.find("/proc/") == std::string::npos) open.push_back(target);
    }
    return Json{{"read", ::read(STDIN_FILENO, &one, 1)}, {"open", open.size()}};
  });
  for (const auto& result : results) {
    DOCTEST_CHECK(result["read"] == 0);
    DOCTEST_CHECK(result["open"] == results[0]["open"]);
    DOCTEST_CHECK(result["open"] < 16);
  }
}

DOCTEST_TEST_CASE("no process of the tree listens anywhere") {
  TestTrainer trainer({.num_workers = 3});
  auto iterator = trainer->run_iterator([] {
    train::report({{"x", 1}});
    train::wait_for_stop();
  });
  iterator.begin();
  DOCTEST_CHECK(process_tree(::getpid()).size() == 5);
  DOCTEST_CHECK(!listens_somewhere());
}

}  // namespace troupe::test
