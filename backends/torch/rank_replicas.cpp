// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/rank_replicas.hpp"

#include <ATen/Functions.h>
#include <troupe/torch_checkpoint.hpp>
#include <troupe/torch_model.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include <troupe/error.hpp>

namespace troupe {

using train::torch::get_device;
using train::torch::rng_state;
using train::torch::set_rng_state;

namespace {

constexpr std::int64_t header = sizeof(std::int64_t);

std::int64_t length_of(const at::Tensor& packed) {
  std::int64_t length = 0;
  std::memcpy(&length, packed.data_ptr(), header);
  return length;
}

}  // namespace

at::Tensor random_state() {
  const auto device = get_device();
  return device.is_cpu() ? rng_state() : at::cat({rng_state(), rng_state(device)});
}

void set_random_state(const at::Tensor& bytes) {
  const auto device = get_device();
  const auto length = rng_state().numel();
  const auto more = device.is_cpu() ? 0 : rng_state(device).numel();
  if (bytes.numel() != length + more)
    throw Error(ErrorCode::invalid_argument, "the state of the random numbers comes from another kind of device");
  set_rng_state(bytes.narrow(0, 0, length).contiguous());
  if (more > 0) set_rng_state(bytes.narrow(0, length, more).contiguous(), device);
}

std::shared_ptr<RankReplicas> RankReplicas::of(detail::RankData& rank) {
  return rank.get_or_make<RankReplicas>("torch replicas");
}

void RankReplicas::enable(std::function<OwnState()> mine) {
  mine_ = std::move(mine);
  room_ = 0;
  gathered_.clear();
}

void RankReplicas::disable() {
  mine_ = nullptr;
  gathered_.clear();
}

/// The length of the values, the random numbers, and as much of the values as there is room for.
at::Tensor RankReplicas::packed(const OwnState& state) const {
  const auto length = static_cast<std::int64_t>(state.values.size());
  const auto random = state.random.defined() ? state.random.numel() : 0;
  auto bytes = at::zeros({header + random + room_}, at::kByte);
  auto* out = bytes.data_ptr<std::uint8_t>();
  std::memcpy(out, &length, header);
  if (random > 0) std::memcpy(out + header, state.random.data_ptr(), static_cast<std::size_t>(random));
  std::memcpy(out + header + random, state.values.data(), static_cast<std::size_t>(std::min(length, room_)));
  return bytes;
}

void RankReplicas::exchange(Collective& collective) {
  if (!mine_) return;
  const auto mine = mine_();
  std::vector<at::Tensor> all;
  for (std::int64_t longest = 0;;) {
    all = collective.all_gather_values(packed(mine));
    for (const auto& one : all) longest = std::max(longest, length_of(one));
    if (longest <= room_) break;
    // All ranks see that. Values that grow a little in each step need this seldom.
    room_ = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(longest)));
  }
  gathered_.clear();
  for (const auto& one : all) {
    const auto random = one.numel() - header - room_;
    const auto* values = reinterpret_cast<const char*>(one.data_ptr<std::uint8_t>()) + header + random;
    gathered_.push_back({random > 0 ? one.narrow(0, header, random) : at::Tensor(),
                         std::string(values, static_cast<std::size_t>(length_of(one)))});
  }
}

void RankReplicas::keep() {
  if (!gathered_.empty()) kept_ = std::exchange(gathered_, {});
}

}  // namespace troupe
