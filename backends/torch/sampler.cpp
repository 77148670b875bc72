// SPDX-License-Identifier: Apache-2.0
#include <torch/serialize/archive.h>
#include <troupe/torch_sampler.hpp>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/train.hpp>

#include "backends/torch/mix.hpp"

namespace troupe::train::torch {
namespace {

/// An order that no version of a library changes: checkpoints of other builds go on in it.
std::vector<std::size_t> shuffled(std::size_t size, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::size_t> order(size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  Mix64 random(mix(mix(seed) + epoch));
  for (std::size_t left = size; left > 1; --left) std::swap(order[left - 1], order[random.below(left)]);
  return order;
}

void require_batch_size(std::size_t batch_size) {
  if (batch_size == 0) throw Error(ErrorCode::invalid_argument, "a batch size of 0 is refused: at least 1");
}

[[noreturn]] void refuse_state(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("the loader's state is refused: {}", why));
}

std::uint64_t number_of(const Json& state, const char* key) {
  const auto found = state.find(key);
  if (found == state.end() || !found->is_number_integer() ||
      (!found->is_number_unsigned() && found->get<std::int64_t>() < 0))
    refuse_state(fmt::format("it needs \"{}\", a whole number of 0 or more; it is {}", key,
                             state.dump(-1, ' ', true, Json::error_handler_t::replace)));
  return found->get<std::uint64_t>();
}

}  // namespace

DistributedSampler::DistributedSampler(std::size_t size, const SamplerOptions& options)
    : DistributedSampler(size, options, world_size(), world_rank()) {}

DistributedSampler::DistributedSampler(std::size_t size, const SamplerOptions& options, int world_size, int rank)
    : size_(size),
      options_(options),
      world_size_(static_cast<std::size_t>(world_size)),
      rank_(static_cast<std::size_t>(rank)) {
  if (world_size < 1 || rank < 0 || rank >= world_size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("there is no rank {} among {} workers: ranks are 0 to world_size - 1", rank, world_size));
  if (size_ == 0)
    throw Error(ErrorCode::invalid_argument, "the data set is empty: check the path it was read from", rank);
  if (size_ < world_size_)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the data set has {} samples, fewer than the {} workers: use fewer workers or more data",
                            size_, world_size_),
                rank);
}

void DistributedSampler::move_to(std::int64_t epoch, std::size_t cursor) {
  epoch_ = epoch;
  cursor_ = cursor;
  padded_ = 0;
}

void DistributedSampler::reset(::torch::optional<std::size_t> new_size) {
  if (new_size && *new_size != size_) {
    *this = DistributedSampler(*new_size, options_, static_cast<int>(world_size_), static_cast<int>(rank_));
  } else if (!at_start_) {
    move_to(epoch_ + 1, 0);
  }
  at_start_ = false;
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  if (epoch < 0)
    throw Error(ErrorCode::invalid_argument, fmt::format("set_epoch({}) is refused: epochs begin with 0", epoch));
  move_to(epoch, 0);
  at_start_ = true;
}

std::size_t DistributedSampler::index_at(std::size_t position) const {
  return options_.shuffle ? order_[position] : position;
}

::torch::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  require_batch_size(batch_size);
  at_start_ = false;
  padded_ = 0;
  const auto left = size_ - cursor_;
  // No product: batch_size * world_size may be larger than a number can be.
  const bool full = left / world_size_ >= batch_size;
  if (left == 0 || (!full && options_.drop_last)) {
    cursor_ = size_;
    return {};
  }
  if (options_.shuffle && order_epoch_ != epoch_) {
    order_ = shuffled(size_, options_.seed, static_cast<std::uint64_t>(epoch_));
    order_epoch_ = epoch_;
  }
  // The first `longer` workers get one sample more than the others.
  const auto each = full ? batch_size : left / world_size_;
  const auto longer = full ? 0 : left % world_size_;
  const auto begin = cursor_ + rank_ * each + std::min(rank_, longer);
  const auto end = begin + each + (rank_ < longer ? 1 : 0);
  std::vector<std::size_t> indices;
  indices.reserve(each + 1);
  for (auto position = begin; position < end; ++position) indices.push_back(index_at(position));
  if (longer != 0 && rank_ >= longer) {
    indices.push_back(index_at(rank_ - longer));
    padded_ = 1;
  }
  cursor_ += full ? batch_size * world_size_ : left;
  if (options_.drop_last && (size_ - cursor_) / world_size_ < batch_size) cursor_ = size_;
  return indices;
}

std::size_t DistributedSampler::batches(std::size_t batch_size) const {
  require_batch_size(batch_size);
  const auto each = size_ / world_size_;  // full batches hold this many samples of every worker
  const auto full = each / batch_size;
  const bool rest = full * batch_size * world_size_ < size_;
  return full + (rest && !options_.drop_last ? 1 : 0);
}

Json DistributedSampler::state_at(std::int64_t epoch, std::size_t cursor) const {
  const bool ended = cursor >= size_;
  return {{"epoch", ended ? epoch + 1 : epoch},
          {"cursor", ended ? 0 : cursor},
          {"size", size_},
          {"shuffle", options_.shuffle},
          {"seed", options_.seed}};
}

void DistributedSampler::load_state(const Json& state) {
  if (!state.is_object()) refuse_state("it must be an object, as state() gives it");
  const auto epoch = number_of(state, "epoch");
  const auto cursor = number_of(state, "cursor");
  const auto size = number_of(state, "size");
  const auto seed = number_of(state, "seed");
  if (size != size_) refuse_state(fmt::format("it belongs to a data set of {} samples, this one has {}", size, size_));
  if (state.value("shuffle", Json()) != options_.shuffle)
    refuse_state(fmt::format("it belongs to a loader with another .shuffle than {}", options_.shuffle));
  if (options_.shuffle && seed != options_.seed)
    refuse_state(fmt::format("it belongs to .seed = {}, this loader has .seed = {}", seed, options_.seed));
  if (cursor > size_) refuse_state(fmt::format("\"cursor\" is {}, beyond the {} samples", cursor, size_));
  if (epoch >= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    refuse_state(fmt::format("\"epoch\" is {}", epoch));
  const bool ended = cursor == size_;
  move_to(static_cast<std::int64_t>(epoch) + (ended ? 1 : 0), ended ? 0 : cursor);
  at_start_ = true;
}

void DistributedSampler::go_on_at(const Json& state) {
  load_state(state);
  at_start_ = cursor_ == 0;
}

void DistributedSampler::reshard(int world_size, int rank) {
  auto moved = DistributedSampler(size_, options_, world_size, rank);
  moved.move_to(epoch_, cursor_);
  moved.at_start_ = at_start_;
  *this = std::move(moved);
}

void DistributedSampler::save(::torch::serialize::OutputArchive& archive) const {
  archive.write("troupe_sampler", c10::IValue(state().dump()));
}

void DistributedSampler::load(::torch::serialize::InputArchive& archive) {
  c10::IValue text;
  archive.read("troupe_sampler", text);
  load_state(Json::parse(text.toStringRef()));
}

}  // namespace troupe::train::torch
