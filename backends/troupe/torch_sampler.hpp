// SPDX-License-Identifier: Apache-2.0
// Which samples a worker reads, and in which order. The order of an epoch is a function of (seed, epoch) alone; where
// an epoch stands is the number of samples that all workers together have taken. So a run may go on with another number
// of workers in the middle of an epoch, and no sample is lost or read twice.
#pragma once

#include <torch/data/samplers/base.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include <troupe/json.hpp>

namespace troupe::train::torch {

struct SamplerOptions {
  bool shuffle = true;
  /// The end of an epoch that does not fill a batch on every worker: false pads it, true leaves it out.
  bool drop_last = false;
  std::uint64_t seed = 0;
};

/// A sampler for prepare_data_loader(), for torch::data::make_data_loader() and for loops of your own.
///
/// Each call of next(n) takes the following world_size * n samples of the epoch's order, and gives this worker its n of
/// them. When fewer are left, they are dealt evenly; a worker that is one short gets a sample of the epoch's beginning
/// again (padded() is 1), so that all workers have batches of equal size.
class DistributedSampler : public ::torch::data::samplers::Sampler<> {
public:
  /// For the calling worker.
  explicit DistributedSampler(std::size_t size, const SamplerOptions& options = {});
  /// For rank `rank` of `world_size`, anywhere.
  DistributedSampler(std::size_t size, const SamplerOptions& options, int world_size, int rank);

  /// Begins an epoch: the first call the first one (or goes on where load_state() says), each further call the next.
  void reset(::torch::optional<std::size_t> new_size = ::torch::nullopt) override;
  /// Indices of this worker's next batch; nothing at the end of the epoch.
  ::torch::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  /// The next reset() begins this epoch.
  void set_epoch(std::int64_t epoch);

  std::size_t size() const { return size_; }
  std::int64_t epoch() const { return epoch_; }
  /// How many samples of the epoch all workers together have taken; what drop_last leaves out counts as taken.
  std::size_t cursor() const { return cursor_; }
  /// How many samples at the end of the last batch are there only to fill it: 0 or 1.
  std::size_t padded() const { return padded_; }
  /// How many calls of next(batch_size) a whole epoch has.
  std::size_t batches(std::size_t batch_size) const;

  /// Seed, size and position, the same on all workers.
  Json state() const { return state_at(epoch_, cursor_); }
  /// The same for another position; the end of an epoch is the beginning of the next.
  Json state_at(std::int64_t epoch, std::size_t cursor) const;
  /// The next reset() goes on there, whatever the number of workers was. Throws invalid_argument for a state that does
  /// not belong to this seed, size or order, and then changes nothing.
  void load_state(const Json& state);
  /// The same in the middle of a loop: the next reset() begins another epoch if this one has begun.
  void go_on_at(const Json& state);
  /// Goes on at the present position as rank `rank` of `world_size`. Throws as the constructor, and then changes
  /// nothing.
  void reshard(int world_size, int rank);

  void save(::torch::serialize::OutputArchive& archive) const override;
  void load(::torch::serialize::InputArchive& archive) override;

private:
  std::size_t index_at(std::size_t position) const;
  void move_to(std::int64_t epoch, std::size_t cursor);

  std::size_t size_;
  SamplerOptions options_;
  std::size_t world_size_;
  std::size_t rank_;
  std::int64_t epoch_ = 0;
  std::size_t cursor_ = 0;
  std::size_t padded_ = 0;
  bool at_start_ = true;  ///< the next reset() stays at this epoch
  std::vector<std::size_t> order_;
  std::int64_t order_epoch_ = -1;  ///< the epoch that order_ belongs to
};

}  // namespace troupe::train::torch
