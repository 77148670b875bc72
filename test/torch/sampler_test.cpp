// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>
#include <troupe/torch_recoverable.hpp>
#include <troupe/torch_sampler.hpp>

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include "backends/torch/recoverable_parts.hpp"
#include "runtime/session/session.hpp"
#include "test/integration/support.hpp"

namespace train = troupe::train;
using namespace troupe::test;
using troupe::Json;
using troupe::train::torch::DistributedSampler;
using troupe::train::torch::SamplerOptions;
using Indices = std::vector<std::size_t>;

namespace {

/// The samplers of all ranks of a world.
struct World {
  World(std::size_t size, const SamplerOptions& options, int world_size) {
    for (int rank = 0; rank < world_size; ++rank) ranks.emplace_back(size, options, world_size, rank);
  }
  void reset() {
    for (auto& rank : ranks) rank.reset();
  }
  /// One batch of all ranks together, without what pads it; empty at the end. All ranks must have equally many.
  Indices next(std::size_t batch_size) {
    Indices all;
    std::set<std::size_t> sizes;
    for (auto& rank : ranks) {
      auto indices = rank.next(batch_size);
      sizes.insert(indices ? indices->size() : 0);
      if (indices) all.insert(all.end(), indices->begin(), indices->end() - std::ptrdiff_t(rank.padded()));
    }
    DOCTEST_CHECK(sizes.size() == 1);
    return all;
  }
  /// All that is left of the epoch.
  Indices rest(std::size_t batch_size) {
    Indices all;
    for (auto batch = next(batch_size); !batch.empty(); batch = next(batch_size))
      all.insert(all.end(), batch.begin(), batch.end());
    return all;
  }
  Json state() const {
    for (const auto& rank : ranks) DOCTEST_CHECK(rank.state() == ranks[0].state());
    return ranks[0].state();
  }
  void load_state(const Json& state) {
    for (auto& rank : ranks) rank.load_state(state);
  }

  std::vector<DistributedSampler> ranks;
};

Indices sorted(Indices indices) {
  std::sort(indices.begin(), indices.end());
  return indices;
}

Indices up_to(std::size_t size) {
  Indices all(size);
  std::iota(all.begin(), all.end(), std::size_t{0});
  return all;
}

}  // namespace

DOCTEST_TEST_CASE("the order of samples is that of seed and epoch, whatever the number of workers and the batch size") {
  World alone(103, {.seed = 7}, 1);
  alone.reset();
  const auto order = alone.rest(1);
  DOCTEST_CHECK(sorted(order) == up_to(103));
  DOCTEST_CHECK(order != up_to(103));
  for (int world_size : {1, 2, 3, 5, 8})
    for (std::size_t batch_size : {1U, 4U, 7U, 100U}) {
      DOCTEST_CAPTURE(world_size);
      DOCTEST_CAPTURE(batch_size);
      World world(103, {.seed = 7}, world_size);
      world.reset();
      DOCTEST_CHECK(world.rest(batch_size) == order);
      world.reset();
      const auto second = world.rest(batch_size);
      DOCTEST_CHECK(second != order);
      DOCTEST_CHECK(sorted(second) == up_to(103));
    }
  World other_seed(103, {.seed = 8}, 1);
  other_seed.reset();
  DOCTEST_CHECK(other_seed.rest(1) != order);
}

DOCTEST_TEST_CASE("a shuffled order is the one that checkpoints of earlier builds go on in") {
  DistributedSampler sampler(10, {.seed = 42}, 1, 0);
  sampler.reset();
  DOCTEST_CHECK(*sampler.next(10) == Indices{6, 1, 8, 5, 2, 7, 4, 3, 9, 0});
}

DOCTEST_TEST_CASE("an epoch goes on with another number of workers, and no sample is lost or read twice") {
  for (int after : {1, 2, 3, 7}) {
    DOCTEST_CAPTURE(after);
    World before(1000, {.seed = 3}, 4);
    before.reset();
    (void)before.rest(16);
    before.reset();  // the second epoch
    Indices taken;
    for (int step = 0; step < 5; ++step) {
      const auto batch = before.next(16);
      taken.insert(taken.end(), batch.begin(), batch.end());
    }
    DOCTEST_CHECK(before.state()["cursor"] == 5 * 4 * 16);
    World resumed(1000, {.seed = 3}, after);
    resumed.load_state(Json::parse(before.state().dump()));
    resumed.reset();
    const auto rest = resumed.rest(9);
    DOCTEST_CHECK(rest == before.rest(16));  // in the same order, too
    taken.insert(taken.end(), rest.begin(), rest.end());
    DOCTEST_CHECK(sorted(taken) == up_to(1000));
    DOCTEST_CHECK(resumed.state()["epoch"] == 2);
    DOCTEST_CHECK(resumed.state()["cursor"] == 0);
  }
}

DOCTEST_TEST_CASE("what drop_last leaves of an epoch is left out by another number of workers, too") {
  World two(20, {.drop_last = true, .seed = 1}, 2);
  two.reset();
  auto taken = two.next(3);
  World three(20, {.drop_last = true, .seed = 1}, 3);
  three.load_state(two.state());
  three.reset();
  const auto more = three.rest(3);
  DOCTEST_CHECK(more.size() == 9);  // of 14: 5 do not fill a batch of each
  taken.insert(taken.end(), more.begin(), more.end());
  const std::set<std::size_t> distinct(taken.begin(), taken.end());
  DOCTEST_CHECK(distinct.size() == 15);
  three.reset();
  DOCTEST_CHECK(three.ranks[0].epoch() == 1);
  DOCTEST_CHECK(three.rest(3).size() == 18);
  // Too little is left for even one batch.
  two.next(3);
  three.load_state(two.state());
  three.reset();
  DOCTEST_CHECK(three.next(3).empty());
  three.reset();
  DOCTEST_CHECK(three.ranks[0].epoch() == 1);
  DOCTEST_CHECK(three.next(3).size() == 9);
}

DOCTEST_TEST_CASE("a sampler that is part of a Recoverable is dealt anew among the workers that are left") {
  using troupe::detail::Session;
  const auto be_rank = [](int rank, int workers) {
    Session::bind(std::make_shared<Session>(troupe::detail::RankInfo{.world_rank = rank, .world_size = workers}));
  };
  World world(40, {.seed = 5}, 3);
  world.reset();
  std::vector<train::torch::detail::RecoverablePartPtr> parts;
  for (auto& sampler : world.ranks) parts.push_back(train::RecoverableState(sampler).part());
  auto taken = world.next(4);
  for (auto& part : parts) part->keep();
  world.next(4);  // in a step that does not end
  world.ranks.pop_back();
  for (int rank = 0; rank < 2; ++rank) {
    be_rank(rank, 2);
    const auto place = static_cast<std::size_t>(rank);
    parts[place]->restore();
    parts[place]->rejoined(train::ElasticBatch::keep_per_worker);
  }
  Session::bind(nullptr);
  const auto rest = world.rest(4);
  taken.insert(taken.end(), rest.begin(), rest.end());
  DOCTEST_CHECK(sorted(taken) == up_to(40));
  world.reset();
  DOCTEST_CHECK(world.ranks[0].epoch() == 1);
  DOCTEST_CHECK(sorted(world.rest(4)) == up_to(40));
}

DOCTEST_TEST_CASE("the end of an epoch is dealt evenly and padded by one sample at most, or left out") {
  std::vector<DistributedSampler> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.emplace_back(22, SamplerOptions{.shuffle = false}, 4, rank);
  std::vector<Indices> last;
  std::vector<std::size_t> padded;
  for (auto& rank : ranks) {
    rank.reset();
    DOCTEST_CHECK(rank.batches(4) == 2);
    DOCTEST_CHECK(rank.next(4)->size() == 4);
    DOCTEST_CHECK(rank.padded() == 0);
    last.push_back(*rank.next(4));
    padded.push_back(rank.padded());
    DOCTEST_CHECK(!rank.next(4).has_value());
  }
  DOCTEST_CHECK(last == std::vector<Indices>{{16, 17}, {18, 19}, {20, 0}, {21, 1}});
  DOCTEST_CHECK(padded == std::vector<std::size_t>{0, 0, 1, 1});

  World dropping(22, {.shuffle = false, .drop_last = true}, 4);
  dropping.reset();
  DOCTEST_CHECK(dropping.ranks[0].batches(4) == 1);
  DOCTEST_CHECK(dropping.next(4) == up_to(16));
  DOCTEST_CHECK(dropping.state()["epoch"] == 1);  // nothing is left that fills a batch
  DOCTEST_CHECK(dropping.next(4).empty());
}

DOCTEST_TEST_CASE("samplers of impossible worlds and states that belong elsewhere are refused") {
  const auto refusal = [](auto&& body) {
    const auto error = error_of(body);
    DOCTEST_CHECK(error.code == troupe::ErrorCode::invalid_argument);
    return error.text;
  };
  const auto says = [&](const std::string& text, const char* part) {
    DOCTEST_CAPTURE(text);
    DOCTEST_CHECK(text.find(part) != std::string::npos);
  };
  says(refusal([] { DistributedSampler(0, {}, 1, 0); }), "empty");
  says(refusal([] { DistributedSampler(3, {}, 4, 0); }), "3 samples, fewer than the 4 workers");
  says(refusal([] { DistributedSampler(3, {}, 2, 2); }), "no rank 2");
  DistributedSampler sampler(100, {.seed = 5}, 2, 0);
  sampler.reset();
  says(refusal([&] { (void)sampler.next(0); }), "batch size of 0");
  says(refusal([&] { sampler.set_epoch(-1); }), "begin with 0");
  (void)sampler.next(10);
  const auto good = sampler.state();
  const auto with = [&](const char* key, const Json& value) {
    auto state = good;
    state[key] = value;
    return refusal([&] { sampler.load_state(state); });
  };
  says(with("size", 99), "99 samples, this one has 100");
  says(with("seed", 6), ".seed = 6");
  says(with("shuffle", false), ".shuffle");
  says(with("cursor", 101), "beyond the 100 samples");
  says(with("cursor", -1), "\"cursor\"");
  says(with("epoch", "two"), "\"epoch\"");
  says(with("epoch", 0.5), "\"epoch\"");
  says(refusal([&] { sampler.load_state(Json::array()); }), "object");
  says(refusal([&] { sampler.load_state(nullptr); }), "object");
  DOCTEST_CHECK(sampler.state() == good);
}

DOCTEST_TEST_CASE("the sampler works in libtorch's own loader and archives") {
  auto data = torch::data::datasets::TensorDataset(torch::arange(10))
                  .map(torch::data::transforms::Stack<torch::data::TensorExample>());
  auto loader = torch::data::make_data_loader(data, DistributedSampler(10, {.shuffle = false}, 2, 1), 2);
  const auto read = [&] {
    std::vector<std::int64_t> values;
    for (auto& batch : *loader)
      for (std::int64_t i = 0; i < batch.data.size(0); ++i) values.push_back(batch.data[i].item<std::int64_t>());
    return values;
  };
  DOCTEST_CHECK(read() == std::vector<std::int64_t>{2, 3, 6, 7, 9});
  DOCTEST_CHECK(read() == std::vector<std::int64_t>{2, 3, 6, 7, 9});  // the next epoch

  DistributedSampler sampler(50, {.seed = 1}, 1, 0);
  sampler.reset();
  (void)sampler.next(20);
  std::stringstream file;
  torch::serialize::OutputArchive out;
  sampler.save(out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  DistributedSampler restored(50, {.seed = 1}, 1, 0);
  restored.load(in);
  restored.reset();
  DOCTEST_CHECK(*restored.next(30) == *sampler.next(30));
}
