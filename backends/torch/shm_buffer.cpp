// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/shm_buffer.hpp"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "backends/torch/shm_pieces.hpp"

namespace troupe {
namespace {

/// The largest piece: what one rank copies is still in the caches when another one sums it.
constexpr std::size_t largest_piece = std::size_t{512} << 10;
/// The counter of a buffer's region: members that have summed all they own, in all rounds.
constexpr std::size_t finished = 0;

/// As many pieces for every member.
std::size_t piece_count(std::size_t bytes, std::size_t members) {
  return members * std::max<std::size_t>(1, round_up(bytes, members * largest_piece) / (members * largest_piece));
}

/// Whether the elements lie in memory one after the other, in the same order.
bool same_layout(const at::Tensor& one, const at::Tensor& other) {
  if (one.layout() != at::kStrided || other.layout() != at::kStrided || one.sizes() != other.sizes()) return false;
  if (one.is_contiguous() && other.is_contiguous()) return true;
  return one.strides() == other.strides() && one.is_non_overlapping_and_dense();
}

}  // namespace

ShmBuffer::ShmBuffer(std::shared_ptr<ShmGroup> group, std::int64_t elements, at::ScalarType type)
    : group_(std::move(group)),
      type_(type),
      bytes_(static_cast<std::size_t>(elements) * c10::elementSize(type)),
      pieces_(piece_count(bytes_, size())),
      piece_bytes_(round_up((bytes_ + pieces_ - 1) / pieces_, cache_line)),
      // A line behind each part, for the counters of what its member has shown and ended.
      region_(group_->make_region(round_up(bytes_, cache_line) + cache_line)),
      next_own_(pieces_) {
  // The tensor keeps the memory: gradients may outlive the group.
  tensor_ = at::from_blob(part(rank()), {elements}, [memory = region_->memory()](void*) {}, at::TensorOptions(type));
}

ShmGroup::Counter* ShmBuffer::counters(std::size_t member) const {
  return reinterpret_cast<ShmGroup::Counter*>(part(member) + round_up(bytes_, cache_line));
}

/// Remembered where that will do: most of it need not be copied.
void ShmBuffer::put(const at::Tensor& place, const at::Tensor& values) {
  if (values.scalar_type() != type_ || !values.device().is_cpu() || values.is_neg() || !same_layout(place, values))
    return ReduceBuffer::put(place, values);
  if (values.numel() > 0) given_[static_cast<std::size_t>(bytes_of(place) - part(rank()))] = values;
}

/// Calls visit(offset, bytes, mine) for runs of a piece; `mine` is where this rank's elements are.
template <class Visit>
void ShmBuffer::for_each_run(std::size_t piece, Visit&& visit) const {
  const auto end = std::min(bytes_, (piece + 1) * piece_bytes_);
  for (auto at = piece * piece_bytes_; at < end;) {
    const auto next = given_.upper_bound(at);
    auto run_end = next == given_.end() ? end : std::min(end, next->first);
    const std::byte* mine = part(rank()) + at;
    if (next != given_.begin())
      if (const auto& [begin, values] = *std::prev(next); at < begin + values.nbytes()) {
        run_end = std::min(run_end, begin + values.nbytes());
        mine = bytes_of(values) + (at - begin);
      }
    visit(at, run_end - at, mine);
    at = run_end;
  }
}

void ShmBuffer::start(double scale) {
  scale_ = scale;
  base_ = round_ * static_cast<std::uint32_t>(pieces_);
  round_ += 1;
  next_own_ = rank();
  const auto last = rank() + 1 == size() ? pieces_ - 2 : pieces_ - 1;  // of those that others own
  std::size_t not_shown = 0;
  for (std::size_t piece = 0; piece <= last; ++piece) {
    if (piece % size() == rank()) continue;
    place(piece);
    not_shown += piece_bytes_;
    if (not_shown < largest_piece / 2 && piece != last) continue;  // a wake-up for each tiny one would cost more
    show(piece);
    not_shown = 0;
    sum_shown();  // ranks that come here at the same time find each other's pieces in the cache
  }
  sum_shown();
  end_if_summed();
}

/// Puts this rank's elements of a piece where its owner reads them.
void ShmBuffer::place(std::size_t piece) {
  for_each_run(piece, [&](std::size_t at, std::size_t bytes, const std::byte* mine) {
    if (auto* to = part(rank()) + at; to != mine) copy_bytes(to, mine, bytes);
  });
}

void ShmBuffer::show(std::size_t piece) {
  auto& counter = shown(rank());
  group_->arrive(counter, target(piece) - counter.load(std::memory_order_relaxed));
}

bool ShmBuffer::is_shown_by_all(std::size_t piece) const {
  for (std::size_t member = 0; member < size(); ++member)
    if (member != rank() && !ShmGroup::reached(shown(member), target(piece))) return false;
  return true;
}

/// In the order of the ranks, whoever owns it: the same bits in every run.
void ShmBuffer::sum(std::size_t piece) {
  std::vector<const std::byte*> from(size());
  std::vector<std::byte*> to(size());
  for_each_run(piece, [&](std::size_t at, std::size_t bytes, const std::byte* mine) {
    for (std::size_t member = 0; member < size(); ++member) {
      from[member] = member == rank() ? mine : part(member) + at;
      to[member] = part((rank() + member) % size()) + at;  // its own part is written first
    }
    reduce_run(from, to, bytes, type_, Reduce::sum, scale_);
  });
}

void ShmBuffer::sum_shown() {
  for (; next_own_ < pieces_ && is_shown_by_all(next_own_); next_own_ += size()) sum(next_own_);
}

void ShmBuffer::end_if_summed() {
  if (next_own_ < pieces_) return;
  given_.clear();
  ended(rank()).store(round_, std::memory_order_relaxed);
  group_->arrive(region_->counter(finished));
}

void ShmBuffer::poke() {
  if (next_own_ >= pieces_) return;
  sum_shown();
  end_if_summed();
}

void ShmBuffer::contribute() {
  if (next_own_ >= pieces_) return;
  const auto late = [this] {
    return late_members(0, group_->size(), [this](int member) {
      return member == group_->rank() || ShmGroup::reached(shown(static_cast<std::size_t>(member)), target(next_own_));
    });
  };
  for (; next_own_ < pieces_; next_own_ += size()) {
    for (std::size_t member = 0; member < size(); ++member)
      if (member != rank()) group_->wait(shown(member), target(next_own_), late);
    sum(next_own_);
  }
  end_if_summed();
}

void ShmBuffer::finish() {
  contribute();
  group_->wait(region_->counter(finished), round_ * static_cast<std::uint32_t>(size()), [this] {
    return late_members(0, group_->size(), [this](int member) {
      return ShmGroup::reached(ended(static_cast<std::size_t>(member)), round_);
    });
  });
}

}  // namespace troupe
