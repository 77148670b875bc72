// SPDX-License-Identifier: Apache-2.0
#include "backends/shm_group.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstring>
#include <ctime>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/alignment.hpp"
#include "backends/lost_group.hpp"
#include "backends/rendezvous.hpp"
#include "runtime/base/host.hpp"

namespace troupe {
namespace {

/// About what the ranks of a step of 10 ms are apart: who sleeps then pays for a wake-up of an idle core many times a
/// step.
constexpr std::chrono::microseconds spin_with_a_core_each(2000);
/// Longer than an exchange between two running ranks. Who spins on lets others have the core whenever they want it: the
/// threads that bring the news of a lost rank, say.
constexpr std::chrono::microseconds spin_alone(200);
/// Regions that rank 0 may be ahead of the others: their descriptors wait in the Node, which has room for hundreds.
constexpr std::uint64_t regions_ahead = 64;

long futex(const std::atomic<std::uint32_t>* word, int operation, std::uint32_t value, const timespec* timeout) {
  return ::syscall(SYS_futex, word, operation, value, timeout, nullptr, 0);
}

class Descriptor {
public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

private:
  int fd_;
};

[[noreturn]] void throw_io(const char* what) {
  throw Error(ErrorCode::io,
              fmt::format("{} failed: {}. Is there enough memory, and are descriptors left (`ulimit -n`)?", what,
                          std::strerror(errno)));
}

}  // namespace

SharedRegion::SharedRegion(int descriptor, std::size_t bytes) : bytes_(bytes) {
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (address == MAP_FAILED) throw_io("mapping shared memory");
  data_ = static_cast<std::byte*>(address);
}

SharedRegion::~SharedRegion() { ::munmap(data_, bytes_); }

/// The head of every region. Words that different ranks write lie on lines of their own. Fresh memory is zero.
struct ShmGroup::Head {
  struct alignas(cache_line) Line {
    Counter value;
  };
  /// Tells a descriptor that was meant for an earlier group apart.
  char key[2 * cache_line];
  Line counters[4];
  // Of the group's first region only: who waits sleeps on `event`, which every arrival changes.
  alignas(cache_line) Counter event;
  Counter sleepers;
  Counter aborted;
};

/// What one member tells the others; behind the head of the group's first region.
struct ShmGroup::Seat {
  /// Barriers entered, to name those who are missing.
  alignas(cache_line) Counter entered;
  /// Two by turns: a member is at most one barrier ahead of who still reads.
  alignas(cache_line) Note notes[2];
};

ShmGroup::Counter& ShmGroup::Region::counter(std::size_t index) const {
  return reinterpret_cast<Head*>(memory_->data())->counters[index].value;
}

ShmGroup::ShmGroup(ShmGroupOptions options, std::shared_ptr<Store> store,
                   std::shared_ptr<DescriptorExchange> descriptors)
    : options_(std::move(options)),
      store_(std::move(store)),
      descriptors_(std::move(descriptors)),
      // With more ranks than cores, a spinning rank would keep the one it waits for from running.
      spin_(std::max(size(), options_.ranks_on_machine) <= detail::core_count() ? spin_with_a_core_each
                                                                                : std::chrono::nanoseconds(0)) {
  meet(*store_, options_.prefix + "/here", members()[static_cast<std::size_t>(rank())], members(), options_.timeout);
  control_memory_ = share(sizeof(Head) + sizeof(Seat) * options_.members.size());
  control_ = reinterpret_cast<Head*>(control_memory_->data());
}

ShmGroup::Seat& ShmGroup::seat(int member) const { return reinterpret_cast<Seat*>(control_ + 1)[member]; }

const ShmGroup::Note& ShmGroup::note(int member) const { return seat(member).notes[notes_ % 2]; }

/// Rank 0 makes the memory and hands it to the others. The store tells them when it is on its way, so that nobody waits
/// for a descriptor that will not come.
std::shared_ptr<SharedRegion> ShmGroup::share(std::size_t bytes) {
  if (next_region_ > 0 && next_region_ % regions_ahead == 0)
    meet(*store_, fmt::format("{}/before region {}", options_.prefix, next_region_),
         members()[static_cast<std::size_t>(rank())], members(), options_.timeout);
  const auto key = fmt::format("{}/region/{}", options_.prefix, next_region_++);
  if (key.size() >= sizeof(Head::key)) throw Error(ErrorCode::internal, "the name of a shared region is too long");
  const auto has_key = [&](const SharedRegion& region) {
    return std::strncmp(reinterpret_cast<const char*>(region.data()), key.c_str(), sizeof(Head::key)) == 0;
  };
  if (rank() == 0) {
    Descriptor memory(::memfd_create("troupe", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (memory.get() < 0 || ::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) throw_io("making shared memory");
    // Nobody can shrink it under the others, who would die of SIGBUS.
    if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) throw_io("sealing memory");
    auto region = std::make_shared<SharedRegion>(memory.get(), bytes);
    std::copy(key.begin(), key.end(), reinterpret_cast<char*>(region->data()));
    for (std::size_t i = 1; i < options_.members.size(); ++i) descriptors_->send(options_.members[i], memory.get());
    store_->set(key, std::to_string(bytes));
    return region;
  }
  if (store_->get(key, options_.timeout) != std::to_string(bytes))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rank {} wants shared memory of {} bytes where rank {} made another size: the ranks do not "
                            "run the same program or model",
                            options_.members.at(static_cast<std::size_t>(rank())), bytes, options_.members.front()));
  for (;;) {
    Descriptor memory(receive_memory(key));
    struct stat status{};
    if (::fstat(memory.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) != bytes) continue;
    auto region = std::make_shared<SharedRegion>(memory.get(), bytes);
    if (has_key(*region)) return region;  // else: of an earlier group
  }
}

int ShmGroup::receive_memory(const std::string& key) {
  constexpr std::chrono::milliseconds slice(50);
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  do {
    if (const int memory = descriptors_->receive(std::min(slice, options_.timeout)); memory >= 0) return memory;
    store_->check({key});  // throws GroupLost once who sent it is known to be gone
  } while (std::chrono::steady_clock::now() < deadline);
  throw Error(ErrorCode::deadline,
              fmt::format("waited {} ms (timeout_s) for the shared memory that rank {} has made",
                          options_.timeout.count(), options_.members.front()),
              options_.members[static_cast<std::size_t>(rank())]);
}

std::shared_ptr<ShmGroup::Region> ShmGroup::make_region(std::size_t part_bytes) {
  const auto offset = round_up(offsetof(Head, event), 4096);
  const auto part = round_up(std::max<std::size_t>(part_bytes, 1), 4096);
  return std::make_shared<Region>(share(offset + part * options_.members.size()), offset, part);
}

void ShmGroup::arrive(Counter& counter, std::uint32_t by) {
  check_in_step();
  counter.fetch_add(by, std::memory_order_acq_rel);
  control_->event.fetch_add(1, std::memory_order_seq_cst);
  if (control_->sleepers.load(std::memory_order_seq_cst) > 0) futex(&control_->event, FUTEX_WAKE, INT_MAX, nullptr);
}

/// By the clock: a pause takes from 10 to 140 cycles, depending on the processor.
bool ShmGroup::spin(const Counter& counter, std::uint32_t target) const {
  if (reached(counter, target)) return true;
  if (spin_ == spin_.zero()) return false;
  const auto begin = std::chrono::steady_clock::now();
  for (auto spent = begin - begin; spent < spin_; spent = std::chrono::steady_clock::now() - begin) {
    for (int i = 0; i < 8; ++i) {
      __builtin_ia32_pause();
      if (reached(counter, target)) return true;
    }
    if (control_->aborted.load(std::memory_order_relaxed) != 0) return false;  // the caller looks once more
    if (spent > spin_alone) ::sched_yield();
  }
  return false;
}

void ShmGroup::wait(const Counter& counter, std::uint32_t target, const Late& late) {
  check_in_step();
  // What all have come to is done, even if the group is lost by now.
  if (spin(counter, target)) return;
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  for (;;) {
    // The event is read before the counter: an arrival in between changes it, and the sleep ends at once.
    const auto event = control_->event.load(std::memory_order_seq_cst);
    if (reached(counter, target)) return;
    if (is_aborted()) {
      leave_step(true);  // what this rank calls next must not raise a counter that others wait for
      throw GroupLost(lost_group);
    }
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) throw_late(late);
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
    const timespec timeout{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
    control_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    futex(&control_->event, FUTEX_WAIT, event, &timeout);
    control_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
  }
}

void ShmGroup::barrier() {
  check_in_step();
  if (size() == 1) return;
  barriers_ += static_cast<std::uint32_t>(size());
  seat(rank()).entered.fetch_add(1, std::memory_order_relaxed);
  arrive(control_->counters[0].value);
  wait(control_->counters[0].value, barriers_);
}

bool ShmGroup::barrier(const Note& mine) {
  check_in_step();  // a slow rank may still read the note that this one would take the place of
  notes_ += 1;
  seat(rank()).notes[notes_ % 2] = mine;
  barrier();
  for (int member = 0; member < size(); ++member)
    if (note(member) != mine) return false;
  return true;
}

std::vector<ShmGroup::Note> ShmGroup::notes() const {
  std::vector<Note> all;
  for (int member = 0; member < size(); ++member) all.push_back(note(member));
  return all;
}

void ShmGroup::abort() noexcept {
  control_->aborted.store(1, std::memory_order_seq_cst);
  control_->event.fetch_add(1, std::memory_order_seq_cst);
  futex(&control_->event, FUTEX_WAKE, INT_MAX, nullptr);
}

bool ShmGroup::is_aborted() const { return control_->aborted.load(std::memory_order_acquire) != 0; }

void ShmGroup::leave_step(bool group_is_lost) {
  out_of_step_ = true;
  lost_ = lost_ || group_is_lost;
}

void ShmGroup::check_in_step() const {
  if (!out_of_step_) return;
  if (lost_ || is_aborted()) throw GroupLost(lost_group);
  throw Error(
      ErrorCode::deadline,
      "an earlier operation of this group failed or took too long (timeout_s), so the ranks may be at "
      "different ones by now: let the function end with this error, and the next attempt or run forms the group "
      "anew",
      options_.members[static_cast<std::size_t>(rank())]);
}

void ShmGroup::throw_late(const Late& late) {
  out_of_step_ = true;
  std::vector<int> missing;
  const auto mine = seat(rank()).entered.load();
  if (late)
    missing = late();
  else
    for (int other = 0; other < size(); ++other)
      if (seat(other).entered.load() != mine) missing.push_back(other);
  for (int& member : missing) member = options_.members[static_cast<std::size_t>(member)];
  throw Error(ErrorCode::deadline,
              fmt::format("a collective operation waited {} ms (timeout_s) for {}: do all ranks call the same "
                          "operations in the same order?",
                          options_.timeout.count(),
                          missing.empty() ? "another rank" : fmt::format("rank {}", fmt::join(missing, ", "))),
              options_.members[static_cast<std::size_t>(rank())]);
}

}  // namespace troupe
