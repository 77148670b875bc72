// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include <algorithm>
#include <atomic>
#include <latch>
#include <limits>
#include <numeric>

#include "test/integration/support.hpp"
#include "test/support/no_threads.hpp"

namespace train = troupe::train;
using namespace troupe::test;
using troupe::Json;

namespace {

using Values = std::vector<std::int64_t>;

/// Sample i is (i, -i).
struct Numbers : torch::data::datasets::Dataset<Numbers> {
  explicit Numbers(std::size_t count) : count_(count) {}
  torch::data::Example<> get(std::size_t index) override {
    const auto value = static_cast<std::int64_t>(index);
    return {torch::tensor(value), torch::tensor(-value)};
  }
  torch::optional<std::size_t> size() const override { return count_; }

private:
  std::size_t count_;
};

train::torch::TensorPair in_memory(std::int64_t count) { return {torch::arange(count), -torch::arange(count)}; }

Values values_of(const torch::Tensor& tensor) {
  const auto flat = tensor.contiguous();
  return {flat.data_ptr<std::int64_t>(), flat.data_ptr<std::int64_t>() + flat.numel()};
}

/// One epoch of a loader: the samples of each batch; targets must fit.
template <class Loader>
std::vector<Values> epoch_of(Loader& loader) {
  std::vector<Values> batches;
  for (auto& [x, y] : loader) {
    if (!torch::equal(x, -y)) throw std::runtime_error("targets do not belong to the data");
    batches.push_back(values_of(x));
  }
  return batches;
}

/// What `body` returns in local mode, where a loader has the data set for itself.
template <class Body>
Json alone(Body body) {
  TestTrainer trainer({.backend = "torch", .num_workers = 0});
  return trainer->run(body)[0];
}

struct Failing : Numbers {
  using Numbers::Numbers;
  torch::data::Example<> get(std::size_t index) override {
    if (index == 13) throw std::runtime_error("picture 13 is torn");
    return Numbers::get(index);
  }
};

struct NotCopyable {
  NotCopyable() = default;
  NotCopyable(NotCopyable&&) = default;
  std::size_t size() const { return 4; }
  torch::Tensor get(std::size_t index) { return torch::tensor(static_cast<std::int64_t>(index)); }
};

struct Stream : Numbers {
  using Numbers::Numbers;
  torch::optional<std::size_t> size() const override { return {}; }
};

}  // namespace

DOCTEST_TEST_CASE("workers read every sample of an epoch once, in batches of equal size, and others in the next") {
  on_both_placements([](troupe::Placement placement) {
    TestTrainer trainer({.backend = "torch", .num_workers = 3, .placement = placement});
    const auto results = trainer->run([]() -> Json {
      auto loader = train::torch::prepare_data_loader(in_memory(30), {.batch_size = 5, .shuffle = true, .seed = 1});
      const auto first = epoch_of(loader);
      return {{"size", loader.size()}, {"epochs", {first, epoch_of(loader)}}, {"state", loader.state()}};
    });
    for (int epoch : {0, 1}) {
      std::vector<std::int64_t> seen;
      for (const auto& result : results) {
        DOCTEST_CHECK(result["size"] == 2);
        DOCTEST_REQUIRE(result["epochs"][epoch].size() == 2);
        for (const auto& batch : result["epochs"][epoch]) {
          DOCTEST_CHECK(batch.size() == 5);
          for (const auto& value : batch) seen.push_back(value);
        }
      }
      std::sort(seen.begin(), seen.end());
      Values all(30);
      std::iota(all.begin(), all.end(), 0);
      DOCTEST_CHECK(seen == all);
    }
    DOCTEST_CHECK(results[0]["epochs"][0] != results[0]["epochs"][1]);
    DOCTEST_CHECK(results[0]["state"] == results[2]["state"]);
    DOCTEST_CHECK(results[0]["state"]["epoch"] == 2);
  });
}

DOCTEST_TEST_CASE("data sets give the same batches as tensors: mapped, plain, and with any number of threads") {
  const auto result = alone([]() -> Json {
    Json epochs = Json::array();
    const auto add = [&](auto loader) {
      const auto first = epoch_of(loader);
      epochs.push_back({first, epoch_of(loader)});
    };
    for (int workers : {0, 1, 3}) {
      const train::torch::DataLoaderOptions options{.batch_size = 7, .shuffle = true, .workers = workers};
      add(train::torch::prepare_data_loader(in_memory(40), options));
      add(train::torch::prepare_data_loader(Numbers(40), options));
      add(train::torch::prepare_data_loader(Numbers(40).map(torch::data::transforms::Stack<>()), options));
    }
    return epochs;
  });
  DOCTEST_REQUIRE(result.size() == 9);
  DOCTEST_CHECK(result[0][0].size() == 6);
  for (const auto& epochs : result) DOCTEST_CHECK(epochs == result[0]);
}

DOCTEST_TEST_CASE("batches keep the type that the data set gives them") {
  DOCTEST_CHECK(alone([]() -> Json {
                  double sum = 0;
                  auto tensors = train::torch::prepare_data_loader(
                      torch::data::datasets::TensorDataset(torch::ones({4, 2})), {.batch_size = 2});
                  for (auto& batch : tensors) sum += batch.data.sum().item<double>();
                  auto plain = train::torch::prepare_data_loader(NotCopyable(), {.batch_size = 4, .workers = 1});
                  for (auto& batch : plain) sum += 100 * batch.sum().template item<double>();
                  return sum;
                }) == 608.0);
}

DOCTEST_TEST_CASE("what pads the last batch is marked, and drop_last leaves the end out") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2, .placement = troupe::Placement::thread});
  const auto results = trainer->run([](const troupe::Config&) -> Json {
    auto padded = train::torch::prepare_data_loader(in_memory(11), {.batch_size = 4});
    Json sizes = Json::array();
    for (auto& [x, y] : padded) sizes.push_back({x.size(0), padded.padded()});
    auto dropped = train::torch::prepare_data_loader(in_memory(11), {.batch_size = 4, .drop_last = true});
    return {sizes, epoch_of(dropped).size()};
  });
  DOCTEST_CHECK(results[0] == Json::parse("[[[4,0],[2,0]],1]"));
  DOCTEST_CHECK(results[1] == Json::parse("[[[4,0],[2,1]],1]"));
}

DOCTEST_TEST_CASE("a batch may be larger than every number of samples") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2, .placement = troupe::Placement::thread});
  const auto results = trainer->run([]() -> Json {
    auto loader =
        train::torch::prepare_data_loader(in_memory(10), {.batch_size = std::numeric_limits<std::int64_t>::max()});
    train::Recoverable state({.loader = loader});
    return {epoch_of(loader).size(), state.checkpoint().at<Json>("loader")["global_batch"]};
  });
  for (const auto& result : results) DOCTEST_CHECK(result == Json::parse("[1,20]"));
}

DOCTEST_TEST_CASE("a loop goes on where another one stood, with another number of workers, threads ahead or not") {
  const auto body = [](const troupe::Config& config) -> Json {
    auto loader = train::torch::prepare_data_loader(
        Numbers(60), {.batch_size = 5, .shuffle = true, .workers = config["threads"].get<int>(), .seed = 9});
    if (config.contains("state")) loader.load_state(config["state"]);
    Values taken;
    Json state;
    for (auto& [x, y] : loader) {
      const auto values = values_of(x);
      taken.insert(taken.end(), values.begin(), values.end());
      state = loader.state();
      if (!config.contains("state") && loader.cursor() == 30) break;
    }
    return {{"taken", taken}, {"state", state}, {"epoch", loader.epoch()}};
  };
  for (int threads : {0, 2}) {
    Values taken;
    const auto run = [&](int num_workers, Json config) {
      config["threads"] = threads;
      TestTrainer trainer({.backend = "torch", .num_workers = num_workers, .placement = troupe::Placement::thread});
      const auto results = trainer->run(body, {.config = std::move(config)});
      for (const auto& result : results) {
        const auto values = result["taken"].get<Values>();
        taken.insert(taken.end(), values.begin(), values.end());
        DOCTEST_CHECK(result["state"] == results[0]["state"]);
      }
      return results[0];
    };
    const auto broken_off = run(3, Json::object());
    DOCTEST_CHECK(broken_off["epoch"] == 0);
    const auto finished = run(2, {{"state", broken_off["state"]}});
    DOCTEST_CHECK(finished["epoch"] == 1);
    std::sort(taken.begin(), taken.end());
    Values all(60);
    std::iota(all.begin(), all.end(), 0);
    DOCTEST_CHECK(taken == all);
  }
}

DOCTEST_TEST_CASE("a loop that is left early is followed by the next epoch, and set_epoch chooses one") {
  const auto result = alone([]() -> Json {
    auto loader = train::torch::prepare_data_loader(Numbers(32), {.batch_size = 2, .shuffle = true, .workers = 2});
    for (auto& batch : loader) {
      (void)batch;
      break;
    }
    const auto second = epoch_of(loader);
    const auto epoch = loader.epoch();
    loader.set_epoch(1);
    return {epoch, second == epoch_of(loader), second.size()};
  });
  DOCTEST_CHECK(result == Json::parse("[2,true,16]"));
}

DOCTEST_TEST_CASE("a position that is set inside a loop ends it, and is where the loader stands and goes on") {
  for (int threads : {0, 2}) {
    DOCTEST_CAPTURE(threads);
    TestTrainer trainer({.backend = "torch", .num_workers = 0});
    const auto result = trainer->run(
        [](const troupe::Config& config) -> Json {
          auto loader = train::torch::prepare_data_loader(
              Numbers(32), {.batch_size = 2, .shuffle = true, .workers = config["threads"].get<int>()});
          Json kept;
          for ([[maybe_unused]] auto& batch : loader)
            if (loader.cursor() == 10) {
              kept = loader.state();
              break;
            }
          int batches = 0;
          for ([[maybe_unused]] auto& batch : loader)
            if (++batches == 3) loader.load_state(kept);
          Json seen = {batches, loader.state() == kept, loader.epoch(), loader.cursor(), epoch_of(loader).size()};
          for ([[maybe_unused]] auto& batch : loader) loader.set_epoch(5);
          return {seen, loader.epoch(), epoch_of(loader).size(), loader.epoch()};
        },
        {.config = {{"threads", threads}}})[0];
    DOCTEST_CHECK(result == Json::parse("[[3,true,0,10,11],5,16,6]"));
  }
}

DOCTEST_TEST_CASE("an error of the data set names the batch by its place in the epoch, also after going on in it") {
  const auto text = alone([]() -> Json {
    auto loader = train::torch::prepare_data_loader(Failing(32), {.batch_size = 2});
    for ([[maybe_unused]] auto& batch : loader)
      if (loader.cursor() == 10) break;
    const auto kept = loader.state();
    loader.load_state(kept);
    return error_of([&] { epoch_of(loader); }).text;
  });
  DOCTEST_CHECK(text.get<std::string>().find("batch 6 of epoch 0 (samples 12, 13)") != std::string::npos);
}

DOCTEST_TEST_CASE("an exception of the data set comes out of the loop with batch and samples, and the loader goes on") {
  for (int threads : {0, 2}) {
    DOCTEST_CAPTURE(threads);
    TestTrainer trainer({.backend = "torch", .num_workers = 2, .placement = troupe::Placement::thread});
    const auto error = error_of([&] {
      trainer->run(
          [](const troupe::Config& config) {
            auto loader = train::torch::prepare_data_loader(Failing(32),
                                                            {.batch_size = 4, .workers = config["threads"].get<int>()});
            for (auto& batch : loader) (void)batch;
          },
          {.config = {{"threads", threads}}});
    });
    DOCTEST_CHECK(error.code == troupe::ErrorCode::user_code);
    DOCTEST_CHECK(error.rank == 1);
    DOCTEST_CHECK(error.says("batch 1 of epoch 0 (samples 12, 13, 14, 15): picture 13 is torn"));
  }
  DOCTEST_CHECK(alone([]() -> Json {
                  auto loader = train::torch::prepare_data_loader(Failing(14), {.batch_size = 1, .workers = 2});
                  int failures = 0;
                  int batches = 0;
                  for (int epoch = 0; epoch < 2; ++epoch) try {
                      for (auto& batch : loader) batches += static_cast<int>(batch.data.size(0));
                    } catch (const troupe::Error&) {
                      failures += 1;
                    }
                  return {failures, batches, loader.cursor()};
                }) == Json::parse("[2,26,14]"));
}

DOCTEST_TEST_CASE("a loop that goes on behind a batch that could not be made stays in step with the other workers") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  for (const int threads : {0, 2}) {
    const auto results = trainer->run(
        [](const troupe::Config& config) -> Json {
          auto loader = train::torch::prepare_data_loader(Failing(32),
                                                          {.batch_size = 4, .workers = config["threads"].get<int>()});
          Json firsts = Json::array();
          for (int step = 0; step < 5; ++step) try {
              firsts.push_back(loader.next().data[0].item<std::int64_t>());
            } catch (const troupe::Error&) {
              firsts.push_back("torn");
            }
          return {firsts, loader.state()};
        },
        {.config = {{"threads", threads}}});
    DOCTEST_CAPTURE(threads);
    DOCTEST_CHECK(results[0][0] == Json::parse("[0,8,16,24,0]"));
    DOCTEST_CHECK(results[1][0] == Json::parse(R"([4,"torn",20,28,4])"));
    DOCTEST_CHECK(results[0][1] == results[1][1]);
  }
}

namespace {
std::atomic<int> waiting_threads{0};

/// Every sample but the first waits until it is released.
struct Slow : Numbers {
  Slow(std::size_t count, std::shared_ptr<std::latch> release) : Numbers(count), release_(std::move(release)) {}
  torch::data::Example<> get(std::size_t index) override {
    if (index > 0) {
      waiting_threads += 1;
      waiting_threads.notify_all();
      release_->wait();
    }
    return Numbers::get(index);
  }

private:
  std::shared_ptr<std::latch> release_;
};
}  // namespace

DOCTEST_TEST_CASE("leaving a loop does not wait for its threads") {
  DOCTEST_CHECK(alone([]() -> Json {
                  waiting_threads = 0;
                  auto release = std::make_shared<std::latch>(1);
                  auto loader = train::torch::prepare_data_loader(Slow(100, release), {.batch_size = 1, .workers = 2});
                  std::int64_t first = -1;
                  for (auto& [x, y] : loader) {
                    first = x.item<std::int64_t>();
                    break;
                  }
                  for (int seen = waiting_threads; seen < 2; seen = waiting_threads) waiting_threads.wait(seen);
                  const int seen = waiting_threads;  // both threads are in get(): nobody waited for them
                  release->count_down();
                  return {first, seen};
                }) == Json::parse("[0,2]"));
}

namespace {
constexpr int most_ahead = 2 * 3;  // threads and prefetch below

struct Progress {
  std::atomic<int> asked{1};  ///< batches that the loop has asked for
  std::atomic<int> made{0};
  std::atomic<bool> too_far{false};
};

/// Of one sample a batch: notes when one is made that the loop is too far from.
struct Watched : Numbers {
  Watched(std::size_t count, std::shared_ptr<Progress> progress) : Numbers(count), progress_(std::move(progress)) {}
  torch::data::Example<> get(std::size_t index) override {
    if (static_cast<int>(index) >= progress_->asked + most_ahead) progress_->too_far = true;
    progress_->made += 1;
    progress_->made.notify_all();
    return Numbers::get(index);
  }

private:
  std::shared_ptr<Progress> progress_;
};
}  // namespace

DOCTEST_TEST_CASE("threads make as many batches ahead of the loop as prefetch says, and no more") {
  DOCTEST_CHECK(alone([]() -> Json {
                  auto progress = std::make_shared<Progress>();
                  auto loader = train::torch::prepare_data_loader(Watched(100, progress),
                                                                  {.batch_size = 1, .workers = 2, .prefetch = 3});
                  int batches = 0;
                  for ([[maybe_unused]] auto& batch : loader) {
                    batches += 1;
                    const int ahead = std::min(100, batches + most_ahead);
                    for (int made = progress->made; made < ahead; made = progress->made) progress->made.wait(made);
                    progress->asked += 1;
                  }
                  return {batches, progress->too_far.load()};
                }) == Json::parse("[100,false]"));
}

DOCTEST_TEST_CASE("bad data sets and options are refused with what to change") {
  const auto says = [](auto body, int num_workers, troupe::ErrorCode code, const char* part) {
    TestTrainer trainer({.backend = "torch", .num_workers = num_workers, .placement = troupe::Placement::thread});
    const auto error = error_of([&] { trainer->run(body); });
    DOCTEST_CAPTURE(error.text);
    DOCTEST_CHECK(error.code == code);
    DOCTEST_CHECK(error.says(part));
  };
  const auto option = troupe::ErrorCode::invalid_option;
  const auto argument = troupe::ErrorCode::invalid_argument;
  using train::torch::prepare_data_loader;
  says([] { prepare_data_loader(in_memory(8), {.batch_size = 0}); }, 0, option, "batch_size = 0");
  says([] { prepare_data_loader(Numbers(8), {.batch_size = -2}); }, 0, option, "batch_size = -2");
  says([] { prepare_data_loader(in_memory(8), {.workers = -1}); }, 0, option, "workers = -1");
  says([] { prepare_data_loader(in_memory(8), {.prefetch = 0}); }, 0, option, "prefetch = 0");
  says([] { prepare_data_loader(NotCopyable(), {.workers = 2}); }, 0, option, "cannot be copied");
  says([] { prepare_data_loader(in_memory(0)); }, 0, argument, "empty");
  says([] { prepare_data_loader(Numbers(0)); }, 0, argument, "empty");
  says([] { prepare_data_loader(Stream(8)); }, 0, argument, "size()");
  says([] { prepare_data_loader(in_memory(2)); }, 3, argument, "2 samples, fewer than the 3 workers");
  says([] { prepare_data_loader(in_memory(7), {.batch_size = 4, .drop_last = true}); }, 2, argument, "drop_last");
  says([] { prepare_data_loader({torch::ones({3}), torch::ones({4})}); }, 0, argument, "x has 3 samples, y has 4");
  says([] { prepare_data_loader({torch::ones({3}), torch::Tensor()}); }, 0, argument, "undefined");
  says([] { prepare_data_loader({torch::tensor(1), torch::tensor(1)}); }, 0, argument, "single number");
  says([] { prepare_data_loader(in_memory(8 + train::world_rank())); }, 2, argument, "\"samples\":8");
  says(
      [] {
        auto loader = prepare_data_loader(in_memory(8), {.shuffle = true, .seed = 2});
        loader.load_state(prepare_data_loader(in_memory(8), {.shuffle = true, .seed = 1}).state());
      },
      0, argument, ".seed = 1");
  says(
      [] {
        auto loader = prepare_data_loader(Numbers(8), {.workers = 2});
        const NoThreads none;
        epoch_of(loader);
      },
      0, troupe::ErrorCode::start_failed, "data loader");
}
