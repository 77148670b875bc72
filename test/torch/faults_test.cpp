// SPDX-License-Identifier: Apache-2.0
// Ranks that die or throw in the middle of collectives, on every transport.
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include <troupe/torch.hpp>
#include <troupe/torch_c10d.hpp>
#include <troupe/troupe.hpp>

#include "backends/torch/gloo_group.hpp"
#include "backends/torch/torch_group.hpp"
#include "test/support/no_threads.hpp"
#include "test/torch/faults_host.hpp"
#include "test/torch/transports.hpp"

namespace train = troupe::train;
using namespace troupe::test;
using troupe::Json;

namespace {

double now_ms(clockid_t clock = CLOCK_MONOTONIC) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
}

/// For a rank that goes: when that was. For one that is freed: how much later that is.
void note_end(const std::filesystem::path& folder) {
  std::ofstream(folder / "ended_at") << std::fixed << now_ms() << std::flush;
}
void note_lost(const std::filesystem::path& folder) {
  double ended_at = 0;
  std::ifstream(folder / "ended_at") >> ended_at;
  std::ofstream(folder / ("lost" + std::to_string(train::world_rank()))) << now_ms() - ended_at;
}

/// Ranks were freed. After how many milliseconds the last of them was.
double check_lost(const std::filesystem::path& folder, const char* transport,
                  std::initializer_list<const char*> ranks) {
  double slowest = 0;
  for (const char* rank : ranks) {
    double after_ms = -1;
    std::ifstream(folder / rank) >> after_ms;
    DOCTEST_CHECK(after_ms >= 0);
    DOCTEST_MESSAGE(std::string(transport), ": ", std::string(rank), " after ", after_ms, " ms");
    slowest = std::max(slowest, after_ms);
  }
  return slowest;
}

/// Ranks are free within 100 ms, in a scenario that gives what check_lost() gave. The best of three counts: a machine
/// that has more to do is late now and then.
template <class Scenario>
void check_freed_soon(Scenario&& scenario) {
  double best = scenario();
  for (int more = 0; more < 2 && best >= 100; ++more) best = std::min(best, scenario());
  if (std::getenv("TROUPE_SANITIZED") == nullptr) DOCTEST_CHECK(best < 100);
}

/// Rank 1 is killed by another thread of its process while all ranks reduce again and again; only in the first attempt.
Json reduce_until_killed(const troupe::Config& config) {
  const std::filesystem::path folder = config["folder"].get<std::string>();
  const int rank = train::world_rank();
  auto tensor = torch::ones({1 << 18});
  if (is_first(folder, "attempt" + std::to_string(rank))) {
    std::thread killer;
    try {
      // Another rank may still be in this one when rank 1 is through and dies.
      train::torch::all_reduce(tensor);
      if (rank == 1)
        killer = std::thread([folder] {
          note_end(folder);
          ::kill(::getpid(), SIGKILL);
        });
      for (;;) train::torch::all_reduce(tensor, train::torch::Reduce::mean);
    } catch (const troupe::GroupLost&) {
      note_lost(folder);
      throw;
    }
  }
  train::report({{"sum", train::torch::all_reduce(tensor).sum().item<double>()}});
  return ::getpid();
}

/// Shared memory with a name that a process maps.
std::set<std::string> named_memory_of(pid_t pid) {
  std::set<std::string> names;
  std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
  for (std::string line; std::getline(maps, line);)
    if (const auto at = line.find("/dev/shm/"); at != std::string::npos) names.insert(line.substr(at));
  return names;
}

/// Memory of groups that this process maps.
Json mapped_groups() {
  std::set<std::string> inodes;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("memfd:troupe") != std::string::npos) inodes.insert(line.substr(0, line.find(' ')));
  return inodes.size();
}

}  // namespace

DOCTEST_TEST_CASE("a rank killed in the middle of an all_reduce frees the others, and the group forms again") {
  const auto kill_one = [](const Transport& transport) {
    TestTrainer trainer({.backend = transport.config, .num_workers = 3});
    trainer->start();
    const auto pids = trainer->worker_pids();
    auto recorder = std::make_shared<Recorder>();
    const auto results = trainer->run(troupe::fn<reduce_until_killed>,
                                      {.config = {{"folder", trainer.folder().string()}}, .callbacks = {recorder}});
    DOCTEST_REQUIRE(recorder->infos.size() == 1);
    DOCTEST_CHECK(recorder->infos[0].attempt == 2);
    DOCTEST_CHECK(recorder->rounds[0][0]["sum"] == 3.0 * (1 << 18));
    DOCTEST_CHECK(results[0] == pids[0]);
    DOCTEST_CHECK(results[1] != pids[1]);
    DOCTEST_CHECK(results[2] == pids[2]);
    const auto slowest = check_lost(trainer.folder(), transport.name, {"lost0", "lost2"});
    // Nothing is left of the group that was lost.
    // An operation over Gloo that was left behind may hold its memory a moment longer.
    const auto deadline = std::chrono::steady_clock::now() + patience;
    const auto equally_many = [&] {
      const auto mapped = trainer->run(troupe::fn<mapped_groups>);
      return mapped[0] == mapped[1] && mapped[2] == mapped[1];
    };
    bool equal = equally_many();
    while (!equal && std::chrono::steady_clock::now() < deadline) equal = equally_many();
    DOCTEST_CHECK(equal);
    return slowest;
  };
  for (const auto& transport : transports()) {
    const std::string name = transport.name;
    DOCTEST_CAPTURE(name);
    check_freed_soon([&] { return kill_one(transport); });
  }
}

DOCTEST_TEST_CASE("an exception on one rank frees the others and is the reason of the failure") {
  const auto fail_once = [](const troupe::TrainerOptions& options) {
    TestTrainer trainer(options);
    trainer->start();
    const auto pids = trainer->worker_pids();
    const auto error = error_of([&] {
      trainer->run(
          [](const troupe::Config& config) {
            auto tensor = torch::ones({1000}, train::torch::get_device());
            try {
              train::torch::all_reduce(tensor);
              if (train::world_rank() == 2) {
                note_end(config["folder"].get<std::string>());
                throw std::runtime_error("bad batch");
              }
              train::torch::all_reduce(tensor);
            } catch (const troupe::GroupLost&) {
              note_lost(config["folder"].get<std::string>());
              throw;
            }
          },
          {.config = {{"folder", trainer.folder().string()}}});
    });
    DOCTEST_CHECK(error.rank == 2);
    DOCTEST_CHECK(error.says("bad batch"));
    const auto slowest = check_lost(trainer.folder(), "an exception", {"lost0", "lost1"});
    DOCTEST_CHECK(trainer->worker_pids() == pids);
    const auto again = trainer->run([]() -> Json {
      auto tensor = torch::ones({10}, train::torch::get_device());
      return train::torch::all_reduce(tensor).sum().item<double>();
    });
    for (const auto& result : again) DOCTEST_CHECK(result == 30);
    return slowest;
  };
  on_every_transport(
      3, [&](const troupe::TrainerOptions& options) { check_freed_soon([&] { return fail_once(options); }); });
}

DOCTEST_TEST_CASE("a plain c10d loop whose peer is killed runs again, though c10d throws what it likes") {
  TestTrainer trainer({.backend = troupe::TorchConfig{.timeout_s = 20}, .num_workers = 3});
  const auto results = trainer->run(
      [](const troupe::Config& config) -> Json {
        const bool first = is_first(config["folder"].get<std::string>(), "rank" + std::to_string(train::world_rank()));
        auto group = train::torch::process_group();
        std::vector<at::Tensor> tensors{torch::ones({1000})};
        group->allreduce(tensors)->wait();
        if (first && train::world_rank() == 1) ::kill(::getpid(), SIGKILL);
        for (int i = 0; i < (first ? 1000000 : 3); ++i) group->allreduce(tensors)->wait();
        return tensors[0].sum().item<double>();
      },
      {.config = {{"folder", trainer.folder().string()}}});
  for (const auto& result : results) DOCTEST_CHECK(result == 81000);
}

DOCTEST_TEST_CASE("a c10d operation that takes too long is an error of the function, not a lost worker") {
  TestTrainer trainer({.backend = troupe::TorchConfig{.timeout_s = 5}, .num_workers = 2});
  const auto error = error_of([&] {
    trainer->run(
        [](const troupe::Config& config) {
          const auto over = std::filesystem::path(config["folder"].get<std::string>()) / "over";
          auto group = train::torch::process_group();
          std::vector<at::Tensor> tensors{torch::ones({1000})};
          group->allreduce(tensors)->wait();
          if (train::world_rank() == 1)
            while (!std::filesystem::exists(over)) std::this_thread::yield();
          try {
            group->allreduce(tensors)->wait();
          } catch (const std::exception&) {
            std::ofstream file(over);
            throw;
          }
        },
        {.config = {{"folder", trainer.folder().string()}}});
  });
  DOCTEST_CAPTURE(error.text);
  DOCTEST_CHECK(error.code == troupe::ErrorCode::user_code);
  DOCTEST_CHECK(error.says("imed out"));
}

#if TORCH_VERSION_MAJOR >= 2  // older Gloo leaves nothing to tell its connections by
DOCTEST_TEST_CASE("sockets that another thread opens while Gloo forms are none of the group's") {
  TestTrainer trainer({.backend = troupe::TorchConfig{.timeout_s = 20}, .num_workers = 2});
  const auto results = trainer->run([]() -> Json {
    std::atomic<bool> formed{false};
    std::deque<int> open;
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in here{};
    here.sin_family = AF_INET;
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof here;
    ::bind(listener, reinterpret_cast<sockaddr*>(&here), length);
    ::listen(listener, 8);
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&here), &length);
    int connected = 0;
    std::thread other([&] {
      while (!formed) {
        open.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (::connect(open.back(), reinterpret_cast<const sockaddr*>(&here), length) == 0) ++connected;
        open.push_back(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
        open.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        while (open.size() >= 60) {
          ::close(open.front());
          open.pop_front();
        }
      }
    });
    train::torch::process_group();
    formed = true;
    other.join();
    for (int socket : open) ::close(socket);
    ::close(listener);
    const bool lost = troupe::TorchGroup::current("test")->has_lost_peers();
    train::torch::barrier();  // nobody ends its connections before all have looked
    return {{"connected", connected}, {"lost", lost}};
  });
  for (const auto& result : results) {
    DOCTEST_CHECK(result["connected"] > 0);
    DOCTEST_CHECK(result["lost"] == false);
  }
}
#endif

DOCTEST_TEST_CASE("a rank killed while the group forms or during backward frees the others") {
  for (const auto& transport : transports()) {
    const std::string name = transport.name;
    DOCTEST_CAPTURE(name);
    TestTrainer trainer({.backend = transport.config, .num_workers = 3});
    for (const char* when : {"forming", "backward"}) {
      const auto results = trainer->run(
          [](const troupe::Config& config) -> Json {
            const std::string when_killed = config["when"];
            const bool doomed = train::world_rank() == 2 && is_first(config["folder"].get<std::string>(), when_killed);
            if (doomed && when_killed == "forming") ::kill(::getpid(), SIGKILL);
            auto net = train::torch::prepare_model(torch::nn::Linear(64, 64), {.bucket_bytes = 64});
            auto out = net->forward(torch::ones({1, 64}));
            if (doomed) out.register_hook([](const at::Tensor&) { ::kill(::getpid(), SIGKILL); });
            out.sum().backward();
            return net->weight.grad().sum().item<double>();
          },
          {.config = {{"folder", trainer.folder().string()}, {"when", when}}});
      for (const auto& result : results) DOCTEST_CHECK(result == 64 * 64);
    }
  }
}

namespace {

std::atomic<bool> other_has_failed{false};

}  // namespace

DOCTEST_TEST_CASE("groups of thread ranks that form at the same moment are aborted one by one") {
  const troupe::TrainerOptions options{.backend = troupe::TorchConfig{.timeout_s = 20, .shared_memory = false},
                                       .num_workers = 2,
                                       .placement = troupe::Placement::thread};
  other_has_failed = false;
  static std::barrier<> all_at_once(4);
  TestTrainer lasting(options);
  std::vector<Json> results;
  std::thread beside([&] {
    results = lasting->run([]() -> Json {
      all_at_once.arrive_and_wait();
      auto tensor = torch::ones({1000});
      train::torch::all_reduce(tensor);
      other_has_failed.wait(false);
      for (int i = 0; i < 5; ++i) train::torch::all_reduce(tensor, train::torch::Reduce::mean);
      return tensor.sum().item<double>();
    });
  });
  TestTrainer failing(options);
  const auto error = error_of([&] {
    failing->run([] {
      all_at_once.arrive_and_wait();
      auto tensor = torch::ones({1000});
      train::torch::all_reduce(tensor);
      if (train::world_rank() == 1) throw std::runtime_error("bad batch");
      train::torch::all_reduce(tensor);
    });
  });
  failing->shutdown();
  other_has_failed = true;
  other_has_failed.notify_all();
  beside.join();
  DOCTEST_CHECK(error.says("bad batch"));
  DOCTEST_CHECK(results == std::vector<Json>{2000.0, 2000.0});
}

DOCTEST_TEST_CASE("a rank that waits for a slow one uses no processor time, with more ranks than cores") {
  for (const auto& transport : transports()) {
    const std::string name = transport.name;
    DOCTEST_CAPTURE(name);
    const int workers = static_cast<int>(std::thread::hardware_concurrency()) + 1;
    TestTrainer trainer({.backend = transport.config, .num_workers = workers});
    const auto results = trainer->run([]() -> Json {
      train::torch::barrier();
      const auto begin = now_ms(CLOCK_PROCESS_CPUTIME_ID);
      if (train::world_rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(400));  // the slow one
      train::torch::barrier();
      return now_ms(CLOCK_PROCESS_CPUTIME_ID) - begin;
    });
    for (const auto& milliseconds : results) DOCTEST_CHECK(milliseconds.get<double>() < 100);
  }
}

DOCTEST_TEST_CASE("nothing of the shared memory is left when the host program is killed") {
  Program host("train_for_ever");
  std::istringstream line(host.read_line());
  std::vector<ProcessWatch> watches;
  std::set<std::string> names;  // of this host alone: other programs have memory, too
  for (pid_t pid = 0; line >> pid;) {
    watches.emplace_back(pid);
    names.merge(named_memory_of(pid));
  }
  DOCTEST_REQUIRE(watches.size() >= 4);  // the host, its fork server, two workers
  host.signal(SIGKILL);
  DOCTEST_CHECK(host.wait_text() == "signal 9");
  // The memory has no name: it goes with the last process that maps it.
  for (const auto& watch : watches) DOCTEST_CHECK(watch.ends_within(patience));
  for (const auto& name : names) DOCTEST_CHECK_FALSE(std::filesystem::exists(name));
}

namespace {

/// Of a group that has one member.
struct OwnStore : troupe::Store {
  void set(const std::string& key, const std::string& value) override { values[key] = value; }
  std::string get(const std::string& key, Timeout /*timeout*/) override { return values[key]; }
  std::int64_t add(const std::string& /*key*/, std::int64_t amount) override { return amount; }
  bool check(const std::vector<std::string>& /*keys*/) override { return true; }
  bool erase(const std::string& /*key*/) override { return false; }
  std::int64_t count() override { return 0; }
  void wait(const std::vector<std::string>& /*keys*/, Timeout /*timeout*/) override {}
  std::map<std::string, std::string> values;
};

/// Of a group whose other member has come, but does not tell where it is: as if it died while it connects.
struct SilentStore : OwnStore {
  void set(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mutex);
    values[key] = value;
  }
  std::string get(const std::string& key, Timeout /*timeout*/) override {
    std::unique_lock lock(mutex);
    if (values.contains(key)) return values[key];
    is_asked = true;
    changed.notify_all();
    changed.wait_for(lock, patience, [this] { return is_released; });
    throw troupe::GroupLost("nobody has told");
  }
  void wait_until_asked() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return is_asked; });
  }
  void release() {
    std::lock_guard lock(mutex);
    is_released = true;
    changed.notify_all();
  }

  std::mutex mutex;
  std::condition_variable changed;
  bool is_asked = false;
  bool is_released = false;
};

}  // namespace

DOCTEST_TEST_CASE("an abort ends the wait for a peer that is lost while Gloo connects") {
  TestTrainer trainer({.num_workers = 1});
  const auto milliseconds = trainer->run([]() -> Json {
    const auto store = std::make_shared<SilentStore>();
    troupe::GlooGroup group({.members = {0, 1}, .prefix = "test"}, store);
    std::thread aborting([&] {
      store->wait_until_asked();
      group.abort();
    });
    const auto begin = now_ms();
    const auto error = error_of([&] { group.process_group(); });
    const auto took = now_ms() - begin;
    aborting.join();
    store->release();
    if (error.code != troupe::ErrorCode::group_lost) throw std::runtime_error(error.text);
    return took;
  })[0];
  DOCTEST_CHECK(milliseconds.get<double>() < 10'000);  // far below `patience`, after which the store gives up
}

DOCTEST_TEST_CASE("a Gloo group that was aborted ends no worker that has no thread left") {
  TestTrainer trainer({.num_workers = 1});
  const auto results = trainer->run([]() -> Json {
    auto group = std::make_unique<troupe::GlooGroup>(troupe::GlooGroupOptions{.members = {0}, .prefix = "test"},
                                                     std::make_shared<OwnStore>());
    group->process_group();
    group->abort();
    const NoThreads none;
    group = nullptr;
    return "ended";
  });
  DOCTEST_CHECK(results[0] == "ended");
}
