// SPDX-License-Identifier: Apache-2.0
// Ranks of one host that share memory: regions with one part per rank, and a barrier. No torch here.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <troupe/store.hpp>

namespace troupe {

/// Memory of all ranks: each has a part of equal size. Nothing of it has a name, so nothing is left behind.
class SharedRegion {
public:
  SharedRegion(int descriptor, std::size_t bytes);
  ~SharedRegion();
  SharedRegion(const SharedRegion&) = delete;
  SharedRegion& operator=(const SharedRegion&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }

private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

struct ShmGroupOptions {
  int rank = 0;              ///< among the members
  std::vector<int> members;  ///< their world ranks
  std::string prefix;        ///< of our keys in the store: one a group and epoch
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  int ranks_on_machine = 0;  ///< if there are more than the members
};

/// One rank's side of the group. Regions and barriers are collective: every member calls them in the same order.
class ShmGroup {
public:
  /// A number that all members see and only ever raise; it wraps around.
  using Counter = std::atomic<std::uint32_t>;
  /// A cache line of a member's own words.
  using Note = std::array<std::int64_t, 8>;
  /// Gives the members that somebody still waits for.
  using Late = std::function<std::vector<int>()>;

  /// Memory with a part for every member, and a few counters.
  class Region {
  public:
    Region(std::shared_ptr<SharedRegion> memory, std::size_t offset, std::size_t part_bytes)
        : memory_(std::move(memory)), offset_(offset), part_bytes_(part_bytes) {}
    std::byte* part(int rank) const { return memory_->data() + offset_ + static_cast<std::size_t>(rank) * part_bytes_; }
    std::size_t part_bytes() const { return part_bytes_; }
    const std::shared_ptr<SharedRegion>& memory() const { return memory_; }
    /// 0 to 3: for whoever uses the region.
    Counter& counter(std::size_t index) const;

  private:
    std::shared_ptr<SharedRegion> memory_;
    std::size_t offset_;
    std::size_t part_bytes_;
  };

  ShmGroup(ShmGroupOptions options, std::shared_ptr<Store> store, std::shared_ptr<DescriptorExchange> descriptors);

  int rank() const { return options_.rank; }
  /// World ranks of the members.
  const std::vector<int>& members() const { return options_.members; }
  int size() const { return static_cast<int>(options_.members.size()); }

  /// Makes a region with a part of `part_bytes` (rounded up) for every member.
  std::shared_ptr<Region> make_region(std::size_t part_bytes);

  /// Raises a counter and wakes who waits for it. Throws once this rank and the others are at different operations:
  /// after a wait() that did not end well, and after leave_step().
  void arrive(Counter& counter, std::uint32_t by = 1);
  /// Whether it has come that far.
  static bool reached(const Counter& counter, std::uint32_t target) {
    return static_cast<std::int32_t>(counter.load(std::memory_order_acquire) - target) >= 0;
  }
  /// Waits until it has. Throws GroupLost once aborted, Error(deadline) when it takes too long, which names those who
  /// are `late`; without it, those who have not come to the same barrier.
  void wait(const Counter& counter, std::uint32_t target, const Late& late = {});
  /// Returns when every member has called it.
  void barrier();
  /// The same, and every member sees what the others came with: true if all notes are equal, see notes() if not.
  bool barrier(const Note& mine);
  /// Of the last barrier that had some, by member.
  std::vector<Note> notes() const;

  /// This rank has left an operation that others are still in, and what it does next is not the rest of it: all that
  /// follows throws, GroupLost if that was the reason.
  void leave_step(bool group_is_lost);
  /// Throws what arrive() would: before this rank writes where others may still read.
  void check_in_step() const;

  /// From any thread of any member: every wait of every member ends with GroupLost, now and later.
  void abort() noexcept;

private:
  struct Head;
  struct Seat;
  Seat& seat(int member) const;
  const Note& note(int member) const;
  std::shared_ptr<SharedRegion> share(std::size_t bytes);
  bool spin(const Counter& counter, std::uint32_t target) const;
  bool is_aborted() const;
  int receive_memory(const std::string& key);
  [[noreturn]] void throw_late(const Late& late);

  const ShmGroupOptions options_;
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<DescriptorExchange> descriptors_;
  const std::chrono::nanoseconds spin_;
  std::uint64_t next_region_ = 0;
  std::uint32_t barriers_ = 0;
  std::uint32_t notes_ = 0;  // barriers that had some
  bool out_of_step_ = false;
  bool lost_ = false;
  std::shared_ptr<SharedRegion> control_memory_;
  Head* control_ = nullptr;
};

}  // namespace troupe
