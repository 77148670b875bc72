// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <troupe/error.hpp>

#include "backends/shm_group.hpp"
#include "test/unit/thrown.hpp"

using troupe::test::contains;
using troupe::test::thrown_by;

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
  int receive(std::chrono::milliseconds /*timeout*/) override {
    asked += 1;
    return -1;
  }

  std::vector<int> descriptors;
  int asked = 0;
};

/// What two ranks of a process have in common. Rank 1 takes its time: a descriptor reaches it when rank 0 waits for it.
class Meeting {
public:
  void set(const std::string& key, const std::string& value) {
    std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(int rank, const std::string& key) {
    std::unique_lock lock(mutex_);
    wait(lock, rank, [&] { return values_.contains(key); });
    return values_[key];
  }
  void send(int descriptor) {
    std::lock_guard lock(mutex_);
    under_way_.push_back(::fcntl(descriptor, F_DUPFD_CLOEXEC, 3));
    most_ = std::max(most_, under_way_.size());
  }
  int receive() {
    std::unique_lock lock(mutex_);
    wait(lock, 1, [&] { return first_waits_ && !under_way_.empty(); });
    const int descriptor = under_way_.front();
    under_way_.pop_front();
    return descriptor;
  }
  /// Rank 0 wants nothing any more.
  void leave() {
    std::lock_guard lock(mutex_);
    first_waits_ = true;
    changed_.notify_all();
  }
  std::size_t most_under_way() const { return most_; }

private:
  template <class Done>
  void wait(std::unique_lock<std::mutex>& lock, int rank, Done&& done) {
    if (rank == 0) first_waits_ = true;
    changed_.notify_all();
    changed_.wait(lock, done);
    if (rank == 0) first_waits_ = false;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::deque<int> under_way_;
  bool first_waits_ = false;
  std::size_t most_ = 0;
};

struct MeetingStore : CompleteStore {
  MeetingStore(Meeting& where, int mine) : meeting(where), rank(mine) {}
  void set(const std::string& key, const std::string& value) override { meeting.set(key, value); }
  std::string get(const std::string& key, Timeout /*timeout*/) override { return meeting.get(rank, key); }
  void wait(const std::vector<std::string>& keys, Timeout /*timeout*/) override {
    for (const auto& key : keys) meeting.get(rank, key);
  }
  Meeting& meeting;
  int rank;
};

struct MeetingDescriptors : troupe::DescriptorExchange {
  explicit MeetingDescriptors(Meeting& where) : meeting(where) {}
  void send(int /*to_rank*/, int descriptor) override { meeting.send(descriptor); }
  int receive(std::chrono::milliseconds /*timeout*/) override { return meeting.receive(); }
  Meeting& meeting;
};

/// Keeps what is set.
struct KeepingStore : CompleteStore {
  void set(const std::string& key, const std::string& value) override { values[key] = value; }
  std::string get(const std::string& key, Timeout /*timeout*/) override { return values[key]; }
  std::map<std::string, std::string> values;
};

/// The rank that made the memory is gone.
struct BereftStore : KeepingStore {
  bool check(const std::vector<std::string>& /*keys*/) override { throw troupe::GroupLost("rank 7 is gone"); }
};

}  // namespace

DOCTEST_TEST_CASE("a rank waits for shared memory as long as the group's timeout, and names who made it") {
  const auto store = std::make_shared<KeepingStore>();
  const auto make = [&](int rank) {
    troupe::ShmGroup group(
        {.rank = rank, .members = {7, 9}, .prefix = "test", .timeout = std::chrono::milliseconds(100)}, store,
        std::make_shared<Received>());
  };
  make(0);
  const auto text = thrown_by([&] { make(1); });
  DOCTEST_CAPTURE(text);
  DOCTEST_CHECK(contains(text, "waited 100 ms (timeout_s) for the shared memory that rank 7 has made"));
}

DOCTEST_TEST_CASE("a rank hears at once that the one that made the shared memory is lost before it has come") {
  const auto store = std::make_shared<BereftStore>();
  const auto other = std::make_shared<Received>();
  const auto make = [&](int rank, const std::shared_ptr<Received>& descriptors) {
    troupe::ShmGroup group({.rank = rank, .members = {7, 9}, .prefix = "test", .timeout = std::chrono::minutes(1)},
                           store, descriptors);
  };
  make(0, std::make_shared<Received>());
  DOCTEST_CHECK_THROWS_AS(make(1, other), troupe::GroupLost);
  DOCTEST_CHECK(other->asked == 1);
}

DOCTEST_TEST_CASE("a rank that makes many regions does not run ahead of the others") {
  Meeting meeting;
  const auto make_many = [&](int rank) {
    troupe::ShmGroup group({.rank = rank, .members = {0, 1}, .prefix = "test"},
                           std::make_shared<MeetingStore>(meeting, rank),
                           std::make_shared<MeetingDescriptors>(meeting));
    for (int i = 0; i < 300; ++i) group.make_region(1);
  };
  std::thread other([&] { make_many(1); });
  make_many(0);
  meeting.leave();
  other.join();
  DOCTEST_CHECK(meeting.most_under_way() > 1);
  DOCTEST_CHECK(meeting.most_under_way() <= 64);  // the Node has room for a few hundred
}

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

DOCTEST_TEST_CASE("a wait that takes too long names those it waits for, and all that follows is refused") {
  const auto make_group = [] {
    return troupe::ShmGroup(
        {.rank = 0, .members = {3, 5, 7}, .prefix = "test", .timeout = std::chrono::milliseconds(5)},
        std::make_shared<CompleteStore>(), std::make_shared<Received>());
  };
  auto group = make_group();
  const auto region = group.make_region(1);
  const auto late = thrown_by([&] { group.wait(region->counter(0), 1, [] { return std::vector<int>{2}; }); });
  DOCTEST_CAPTURE(late);
  DOCTEST_CHECK(contains(late, "waited 5 ms (timeout_s) for rank 7: do all"));
  for (const auto& refused :
       {thrown_by([&] { group.arrive(region->counter(0)); }), thrown_by([&] { group.barrier(); })})
    DOCTEST_CHECK(contains(refused, "let the function end"));
  DOCTEST_CHECK(region->counter(0).load() == 0);
  auto at_barrier = make_group();
  DOCTEST_CHECK(contains(thrown_by([&] { at_barrier.barrier(); }), "for rank 5, 7: do all"));
}

DOCTEST_TEST_CASE("a rank that has seen its group lost raises no counter any more") {
  troupe::ShmGroup group({.rank = 0, .members = {0, 1, 2}, .prefix = "test"}, std::make_shared<CompleteStore>(),
                         std::make_shared<Received>());
  const auto region = group.make_region(1);
  group.arrive(region->counter(0));
  group.abort();
  DOCTEST_CHECK_THROWS_AS(group.wait(region->counter(0), 3), troupe::GroupLost);
  DOCTEST_CHECK_THROWS_AS(group.arrive(region->counter(0)), troupe::GroupLost);
  DOCTEST_CHECK_THROWS_AS(group.check_in_step(), troupe::GroupLost);
  DOCTEST_CHECK(region->counter(0).load() == 1);
}

DOCTEST_TEST_CASE("a rank that has seen its group lost leaves its notes to those who still compare them") {
  Meeting meeting;
  const auto member = [&](int rank) {
    return troupe::ShmGroup({.rank = rank, .members = {0, 1}, .prefix = "test"},
                            std::make_shared<MeetingStore>(meeting, rank),
                            std::make_shared<MeetingDescriptors>(meeting));
  };
  const troupe::ShmGroup::Note first{1};
  std::vector<troupe::ShmGroup::Note> seen;
  std::thread slow([&] {
    auto group = member(1);
    group.barrier(first);
    meeting.get(1, "the other one has gone on");
    seen = group.notes();
  });
  auto group = member(0);
  meeting.leave();  // what it has sent may arrive
  group.barrier(first);
  group.abort();
  DOCTEST_CHECK_THROWS_AS(group.barrier({2}), troupe::GroupLost);
  DOCTEST_CHECK_THROWS_AS(group.barrier({3}), troupe::GroupLost);
  meeting.set("the other one has gone on", "");
  slow.join();
  DOCTEST_CHECK(seen == std::vector{first, first});
}

DOCTEST_TEST_CASE("a rank that left an operation in the middle raises no counter any more") {
  troupe::ShmGroup group({.rank = 0, .members = {0, 1}, .prefix = "test"}, std::make_shared<CompleteStore>(),
                         std::make_shared<Received>());
  const auto region = group.make_region(1);
  group.arrive(region->counter(0));
  group.leave_step(false);
  DOCTEST_CHECK(contains(thrown_by([&] { group.arrive(region->counter(0)); }), "failed or took too long"));
  DOCTEST_CHECK(region->counter(0).load() == 1);
  group.leave_step(true);
  DOCTEST_CHECK_THROWS_AS(group.barrier(), troupe::GroupLost);
}
