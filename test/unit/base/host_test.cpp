// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <arpa/inet.h>
#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "runtime/base/host.hpp"
#include "runtime/base/table.hpp"
#include "test/unit/temp_folder.hpp"

namespace detail = troupe::detail;

DOCTEST_TEST_CASE("the host has a name, an IPv4 address and a core") {
  DOCTEST_CHECK_FALSE(detail::host_name().empty());
  in_addr address{};
  DOCTEST_CHECK(::inet_pton(AF_INET, detail::node_ip().c_str(), &address) == 1);
  DOCTEST_CHECK(detail::core_count() >= 1);
  DOCTEST_CHECK(detail::gpu_count() >= 0);
}

DOCTEST_TEST_CASE("only cores that may be used count") {
  int cores = 0;
  std::thread bound([&] {
    cpu_set_t all;
    CPU_ZERO(&all);
    ::sched_getaffinity(0, sizeof all, &all);
    int first = 0;
    while (!CPU_ISSET(first, &all)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    cores = detail::core_count();
  });
  bound.join();
  DOCTEST_CHECK(cores == 1);
}

DOCTEST_TEST_CASE("the smallest limit of a cgroup and those above it counts, in whole cores") {
  const troupe::test::TempFolder folder;
  const auto root = folder.path() / "cgroup";
  std::filesystem::create_directories(root / "pod" / "box");
  const auto quota = [&](const std::string& membership) {
    std::ofstream(folder.path() / "self") << "5:devices:/other\n" << membership << "\n";
    return detail::cpu_quota(folder.path() / "self", root);
  };
  const auto limit = [&](const std::string& group, const std::string& text) {
    std::ofstream(root / group / "cpu.max") << text << "\n";
  };
  DOCTEST_CHECK(quota("0::/pod/box") == std::nullopt);
  limit("pod/box", "max 100000");
  DOCTEST_CHECK(quota("0::/pod/box") == std::nullopt);
  limit("pod", "400000 100000");
  DOCTEST_CHECK(quota("0::/pod/box") == 4);
  limit("pod/box", "110000 50000");
  DOCTEST_CHECK(quota("0::/pod/box") == 3);
  DOCTEST_CHECK(quota("0::/pod") == 4);
  limit("", "1000 100000");  // as a container sees its own group
  for (const char* membership : {"0::/", "0::/../..", "0::/not/mounted/here"}) DOCTEST_CHECK(quota(membership) == 1);
  DOCTEST_CHECK(detail::cpu_quota("/nowhere", "/nowhere") == std::nullopt);
}

DOCTEST_TEST_CASE("GPUs are counted the way CUDA counts them") {
  DOCTEST_CHECK(detail::count_visible_gpus(std::nullopt, 4) == 4);
  DOCTEST_CHECK(detail::count_visible_gpus("", 4) == 0);
  DOCTEST_CHECK(detail::count_visible_gpus("-1", 4) == 0);
  DOCTEST_CHECK(detail::count_visible_gpus("0", 4) == 1);
  DOCTEST_CHECK(detail::count_visible_gpus("2, 3", 4) == 2);
  DOCTEST_CHECK(detail::count_visible_gpus("0,-1,1", 4) == 1);
  DOCTEST_CHECK(detail::count_visible_gpus("0,9,1", 4) == 1);
  DOCTEST_CHECK(detail::count_visible_gpus("GPU-8932f937,MIG-1", 4) == 2);
  DOCTEST_CHECK(detail::count_visible_gpus("none", 4) == 0);
  DOCTEST_CHECK(detail::count_visible_gpus("0,1", 0) == 0);
}

DOCTEST_TEST_CASE("a table has aligned columns and no trailing blanks") {
  DOCTEST_CHECK(detail::format_table({"rank", "host", "pid"}, {{"0", "a-long-host", "4711"}, {"10", "é", ""}, {"2"}}) ==
                "rank  host         pid\n"
                "0     a-long-host  4711\n"
                "10    é\n"
                "2\n");
  DOCTEST_CHECK(detail::format_table({}, {{"a", "b"}}) == "\na  b\n");
}
