// SPDX-License-Identifier: Apache-2.0
// Deaths are seen at once, whatever the size of the process.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <set>
#include <string>

#include "actors/node/death_watch.hpp"
#include "actors/node/threads.hpp"
#include "test/node/harness.hpp"
#include "test/support/memory.hpp"
#include "test/support/skip.hpp"

namespace troupe::test {

using node::DeathWatch;
using node::LifeLine;
using node::Node;

namespace {

/// A process of this test that holds a life line, or does something else with it.
class Holder {
public:
  explicit Holder(void (*body)(int fd) = node::hold_life_line) : ends_(LifeLine::make()) {
    DOCTEST_REQUIRE(ends_);
    int ready[2];
    DOCTEST_REQUIRE(::pipe(ready) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      body(ends_.for_worker.get());
      if (::write(ready[1], "r", 1) == 1) {
        ::pause();
      }
      ::_exit(1);
    }
    ::close(ready[1]);
    char byte = 0;
    DOCTEST_REQUIRE(::read(ready[0], &byte, 1) == 1);
    ::close(ready[0]);
  }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() { die(); }
  void die() {
    if (pid_ > 0) {
      ::kill(pid_, SIGKILL);
      ::waitpid(std::exchange(pid_, -1), nullptr, 0);
    }
  }
  std::shared_ptr<const LifeLine> line() const { return ends_.line; }
  int fd() const { return ends_.for_worker.get(); }

private:
  LifeLine::Ends ends_;
  pid_t pid_ = -1;
};

/// Who died so far.
class Deaths {
public:
  void add(node::Token token) {
    const std::lock_guard lock(mutex_);
    tokens_.insert(token);
    changed_.notify_all();
  }
  bool has(node::Token token) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return tokens_.contains(token); });
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return tokens_.size();
  }

private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<node::Token> tokens_;
};

constexpr std::chrono::milliseconds longest_notice{5};

/// From SIGKILL to the first news of it.
std::chrono::steady_clock::duration time_to_notice_death(TestWorker& worker) {
  const auto pid = worker.pid();
  const auto killed = std::chrono::steady_clock::now();
  ::kill(pid, SIGKILL);
  worker.wait_for(Kind::dying);
  return std::chrono::steady_clock::now() - killed;
}

/// One thread for many lines, where the kernel can, and one for each.
template <class Test>
void in_both_ways(Test&& test) {
  for (const std::size_t lines : {node::can_wait_for_any() ? DeathWatch::most_lines : 1, std::size_t{1}}) {
    DOCTEST_CAPTURE(lines);
    test(lines);
  }
}

}  // namespace

DOCTEST_TEST_CASE("the death of a worker of two gigabytes is told within 5 ms, before its exit") {
  const bool has_room = megabytes_free() >= 4096;
  if (!has_room) {
    skip("the size: less than 4 GB of memory are free");
  }
  const char* const grow = has_room ? "grow 2048" : "grow 200";
  TestWorker worker;
  const auto pid = worker.pid();
  DOCTEST_REQUIRE(worker.ask(grow) == "ok");
  auto best = time_to_notice_death(worker);
  const auto dying = worker.wait_for(Kind::dying);
  DOCTEST_CHECK(dying.pid == pid);
  DOCTEST_CHECK(dying.text.empty());
  DOCTEST_CHECK_FALSE(dying.is_end());
  DOCTEST_CHECK(worker.wait_end().text == "killed by SIGKILL (out of memory?)");
  const auto events = worker.events();
  DOCTEST_REQUIRE(events.size() >= 3);
  DOCTEST_CHECK(events[0].kind == Kind::forked);
  DOCTEST_CHECK(events[1].kind == Kind::dying);
  DOCTEST_CHECK(events.back().kind == Kind::signaled);
  if (has_room) {  // a smaller one may be gone by the time somebody looks
    DOCTEST_REQUIRE(events.size() == 4);
    DOCTEST_CHECK(events[2].kind == Kind::dying);
    DOCTEST_CHECK(events[2].text == "killed by SIGKILL (out of memory?)");
  }
  // The best of five counts: the machine may have other things to do just then.
  for (int more = 0; more < 4 && best > longest_notice; ++more) {
    TestWorker another;
    DOCTEST_REQUIRE(another.ask(grow) == "ok");
    best = std::min(best, time_to_notice_death(another));
  }
  if (std::getenv("TROUPE_SANITIZED") == nullptr) {
    DOCTEST_CHECK(best <= longest_notice);
  }
}

DOCTEST_TEST_CASE("a death watch tells who died, and only that") {
  in_both_ways([](std::size_t lines_per_thread) {
    Deaths deaths;
    DeathWatch watch([&](node::Token token) { deaths.add(token); }, lines_per_thread);
    std::vector<std::unique_ptr<Holder>> holders;
    for (node::Token token = 0; token < 5; ++token) {
      holders.push_back(std::make_unique<Holder>());
      watch.add(token, holders.back()->line());
    }
    for (const node::Token token : {3, 0, 4}) {
      holders[token]->die();
      DOCTEST_CHECK(deaths.has(token));
    }
    watch.remove(1);
    holders[1]->die();
    holders[2]->die();
    DOCTEST_CHECK(deaths.has(2));
    DOCTEST_CHECK(deaths.count() == 4);
  });
}

DOCTEST_TEST_CASE("a holder that was dead before it was watched is told as well") {
  in_both_ways([](std::size_t lines_per_thread) {
    Holder holder;
    holder.die();
    Deaths deaths;
    DeathWatch watch([&](node::Token token) { deaths.add(token); }, lines_per_thread);
    watch.add(7, holder.line());
    DOCTEST_CHECK(deaths.has(7));
  });
}

DOCTEST_TEST_CASE("more lines than one thread can wait for are watched by more threads") {
  Deaths deaths;
  DeathWatch watch([&](node::Token token) { deaths.add(token); }, 2);
  std::vector<std::unique_ptr<Holder>> holders;
  for (node::Token token = 0; token < 5; ++token) {
    holders.push_back(std::make_unique<Holder>());
    watch.add(token, holders.back()->line());
  }
  for (node::Token token = 0; token < 5; ++token) {
    holders[token]->die();
    DOCTEST_CHECK(deaths.has(token));
  }
}

DOCTEST_TEST_CASE("a worker that spoils its life line is watched no more, and disturbs nobody") {
  // It writes for ever; only the value tells, so the watch must not look for ever.
  Holder spoiler([](int fd) {
    const auto parent = ::getpid();
    if (::fork() != 0) {
      return;
    }
    void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    auto* word = static_cast<volatile std::uint32_t*>(page);
    while (::getppid() == parent) {
      *word = (*word + 1) & 0xffff;
      node::futex_wake_all(const_cast<std::uint32_t*>(word), 0);
    }
    ::_exit(0);
  });
  Holder other;
  Deaths deaths;
  DeathWatch watch([&](node::Token token) { deaths.add(token); });
  watch.add(1, spoiler.line());
  watch.add(2, other.line());
  other.die();
  DOCTEST_CHECK(deaths.has(2));
  DOCTEST_CHECK(deaths.count() == 1);
}

DOCTEST_TEST_CASE("a life line cannot be cut short by its worker") {
  Holder holder;
  DOCTEST_CHECK(::ftruncate(holder.fd(), 0) != 0);
  DOCTEST_CHECK_FALSE(LifeLine::tells_death(holder.line()->value()));
}

}  // namespace troupe::test
