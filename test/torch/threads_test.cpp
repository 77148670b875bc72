// SPDX-License-Identifier: Apache-2.0
// How many threads libtorch computes with in a worker.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "runtime/base/host.hpp"
#include "test/integration/support.hpp"

using namespace troupe::test;
using troupe::Json;

namespace {

/// What libtorch says, and how many threads take part in its work: of the training thread, and of a new one.
Json threads_of_worker() {
  const auto look = []() -> Json {
    // OpenMP makes helpers for each thread that computes, the first time it does.
    const auto before = thread_count(::getpid());
    at::ones({1 << 22}).sum();
    return {at::get_num_threads(), thread_count(::getpid()) - before + 1};
  };
  const auto here = look();
  Json on_new_thread;
  std::thread([&] { on_new_thread = look(); }).join();
  return {here, on_new_thread};
}

}  // namespace

DOCTEST_TEST_CASE("a worker process computes with its share of the cores, on all of its threads") {
  const EnvironmentGuard unset("OMP_NUM_THREADS", nullptr);
  const auto check = [](troupe::TrainerOptions options, int threads) {
    TestTrainer trainer(std::move(options));
    for (const auto& found : trainer->run(troupe::fn<threads_of_worker>))
      DOCTEST_CHECK(found == Json{{threads, threads}, {threads, threads}});
  };
  check({.backend = "torch", .num_workers = 1}, troupe::detail::core_count());
  check({.backend = "torch", .num_workers = 2}, std::max(1, troupe::detail::core_count() / 2));
  check({.backend = "torch", .num_workers = 2, .resources_per_worker = {{"CPU", 3}}}, 3);
}

namespace {

/// Its samples say how many threads libtorch computes with where they are read.
struct ThreadCounts : torch::data::Dataset<ThreadCounts> {
  torch::data::Example<> get(std::size_t /*index*/) override {
    const auto number = torch::full({1}, at::get_num_threads());
    return {number, number};
  }
  torch::optional<std::size_t> size() const override { return 8; }
};

}  // namespace

DOCTEST_TEST_CASE("threads of a data loader compute alone, and the training keeps its threads") {
  TestTrainer trainer({.backend = "torch", .num_workers = 1, .resources_per_worker = {{"CPU", 3}}});
  const EnvironmentGuard unset("OMP_NUM_THREADS", nullptr);
  const auto found = trainer->run([]() -> Json {
    const auto before = thread_count(::getpid());
    std::set<std::int64_t> in_loader;
    {
      auto loader = troupe::train::torch::prepare_data_loader(ThreadCounts(), {.batch_size = 1, .workers = 2});
      for (auto& [number, same] : loader) in_loader.insert(number.item<std::int64_t>());
    }
    // The system still lists a thread for a moment when it has been joined.
    const auto end = std::chrono::steady_clock::now() + patience;
    while (thread_count(::getpid()) > before && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    at::ones({1 << 22}).sum();
    return {in_loader, at::get_num_threads(), thread_count(::getpid()) - before + 1};
  });
  DOCTEST_CHECK(found[0] == Json{{1}, 3, 3});
}

DOCTEST_TEST_CASE("a worker has its share of the cores before its group is formed") {
  const EnvironmentGuard unset("OMP_NUM_THREADS", nullptr);
  TestTrainer trainer({.backend = "torch", .num_workers = 2, .resources_per_worker = {{"CPU", 3}}});
  trainer->start(troupe::Fn([] {
    if (at::get_num_threads() != 3) throw std::runtime_error(std::to_string(at::get_num_threads()) + " threads");
  }));
  DOCTEST_CHECK(trainer->started());
}

DOCTEST_TEST_CASE("OMP_NUM_THREADS of the program wins over the share of the cores") {
  const EnvironmentGuard chosen("OMP_NUM_THREADS", "2");
  TestTrainer trainer({.backend = "torch", .num_workers = 1, .resources_per_worker = {{"CPU", 3}}});
  DOCTEST_CHECK(trainer->run(troupe::fn<threads_of_worker>)[0] == Json{{2, 2}, {2, 2}});
}

DOCTEST_TEST_CASE("a worker that has loaded the reference BLAS warns of it") {
  CapturedOutput captured(2);
  TestTrainer trainer({.backend = "torch", .num_workers = 1});
  trainer->start(troupe::Fn([] {
    const auto folder = std::filesystem::temp_directory_path() / std::to_string(::getpid());
    std::filesystem::create_directory(folder);
    const auto path = folder / "libblas.so.3";
    std::ofstream(path) << "not much";
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (::mmap(nullptr, 1, PROT_READ, MAP_PRIVATE, file, 0) == MAP_FAILED) throw std::runtime_error("not mapped");
    ::close(file);
    std::filesystem::remove_all(folder);
  }));
  trainer->shutdown();
  const auto text = captured.text();
  DOCTEST_CHECK_MESSAGE(text.find("with the reference BLAS (") != std::string::npos, text);
  DOCTEST_CHECK_MESSAGE(text.find("libopenblas0-openmp") != std::string::npos, text);
}

DOCTEST_TEST_CASE("workers whose threads would spin for each other's cores are warned of, unless a policy was chosen") {
  const EnvironmentGuard no_number("OMP_NUM_THREADS", nullptr);
  const EnvironmentGuard no_count("GOMP_SPINCOUNT", nullptr);
  const auto log_of_start = [](const char* policy) {
    const EnvironmentGuard chosen("OMP_WAIT_POLICY", policy);
    CapturedOutput captured(2);
    const int threads = troupe::detail::core_count() + 1;
    TestTrainer trainer(
        {.backend = "torch", .num_workers = 2, .resources_per_worker = {{"CPU", static_cast<double>(threads)}}});
    trainer->start();
    trainer->shutdown();
    return captured.text();
  };
  const auto warned = log_of_start(nullptr);
  DOCTEST_CHECK_MESSAGE(warned.find("start the program with OMP_WAIT_POLICY=PASSIVE") != std::string::npos, warned);
  DOCTEST_CHECK_MESSAGE(warned.find("init(argc, argv, {.passive_threads = true})") != std::string::npos, warned);
  const auto chosen = log_of_start("PASSIVE");
  DOCTEST_CHECK_MESSAGE(chosen.find("OMP_WAIT_POLICY") == std::string::npos, chosen);
}
