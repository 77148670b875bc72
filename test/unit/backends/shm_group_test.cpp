// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string>
#include <vector>

#include "backends/shm_group.hpp"

namespace {

/// A store in which every other rank has come.
struct CompleteStore : troupe::Store {
  void set(const std::string& /*key*/, const std::string& /*value*/) override {}
  std::string get(const std::string& /*key*/, Timeout /*timeout*/) override { return {}; }
  std::int64_t add(const std::string& /*key*/, std::int64_t amount) override { return amount; }
  bool check(const std::vector<std::string>& /*keys*/) override { return true; }
  bool erase(const std::string& /*key*/) override { return false; }
  std::int64_t count() override { return 0; }
  void wait(const std::vector<std::string>& /*keys*/, Timeout /*timeout*/) override {}
};

/// Keeps what is sent, as another rank would.
struct Received : troupe::DescriptorExchange {
  ~Received() override {
    for (int descriptor : descriptors) ::close(descriptor);
  }
  void send(int /*to_rank*/, int descriptor) override {
    descriptors.push_back(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
  }
  int receive(std::chrono::milliseconds /*timeout*/) override { return -1; }

  std::vector<int> descriptors;
};

}  // namespace

DOCTEST_TEST_CASE("nobody who gets the shared memory can shrink, grow or unseal it") {
  const auto received = std::make_shared<Received>();
  troupe::ShmGroup group({.rank = 0, .members = {0, 1}, .prefix = "test"}, std::make_shared<CompleteStore>(), received);
  const auto region = group.make_region(10'000);
  DOCTEST_REQUIRE(received->descriptors.size() == 2);  // of the group, and of the region
  for (int descriptor : received->descriptors) {
    DOCTEST_CHECK(::fcntl(descriptor, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
    struct stat before{};
    ::fstat(descriptor, &before);
    DOCTEST_CHECK(before.st_size > 0);
    for (off_t size : {off_t{0}, before.st_size - 1, before.st_size + 1}) {
      errno = 0;
      DOCTEST_CHECK(::ftruncate(descriptor, size) == -1);
      DOCTEST_CHECK(errno == EPERM);
    }
    DOCTEST_CHECK(::fcntl(descriptor, F_ADD_SEALS, F_SEAL_WRITE) == -1);
  }
  DOCTEST_CHECK(region->part(1)[9'999] == std::byte{0});
}
