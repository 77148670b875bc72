// SPDX-License-Identifier: Apache-2.0
// PyTorchTrainer: creators, passes, statistics, retries.
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <limits>
#include <thread>

#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "actors/node/node.hpp"
#include "test/torch/model_support.hpp"

namespace train = troupe::train;
namespace tt = troupe::train::torch;
using namespace troupe::test;
using troupe::ErrorCode;
using troupe::Json;

namespace {

/// Notes that a worker does something, in a group of so many.
void note(const Json& config, const std::string& what) {
  if (config.contains("notes"))
    std::ofstream(std::filesystem::path(config["notes"].get<std::string>()) / what, std::ios::app)
        << train::world_size();
}

/// In the pass that the config names, rank 1 dies in its third step; once. Who comes in its place makes no step while
/// there is a note "alone". With "late" it dies when the pass is over, behind its last save.
struct MortalImpl : torch::nn::LinearImpl {
  explicit MortalImpl(Json given) : LinearImpl(2, 1), config(std::move(given)) {}
  MortalImpl(const MortalImpl&) = default;
  ~MortalImpl() override {
    if (config.contains("late") && calls > 0 && train::world_rank() == 1 && is_first(config["late"], "dead"))
      ::kill(::getpid(), SIGKILL);
  }
  at::Tensor forward(const at::Tensor& input) {
    note(config, "step");
    calls += 1;
    if (config.contains("notes") && train::world_rank() == 1 && calls == 3 && is_first(config["notes"], "dead"))
      ::kill(::getpid(), SIGKILL);
    const auto is_noted = [&](const char* what) {
      return std::filesystem::exists(std::filesystem::path(config["notes"].get<std::string>()) / what);
    };
    if (config.contains("notes") && train::world_rank() == 1 && is_noted("dead"))
      while (is_noted("alone")) std::this_thread::yield();
    return LinearImpl::forward(input);
  }
  Json config;
  int calls = 0;
};
TORCH_MODULE(Mortal);

Mortal make_mortal(const Json& config) {
  note(config, "made" + std::to_string(train::world_rank()));
  if (config.contains("block") && train::world_rank() == 0 && is_first(config["block"], "blocked")) {
    const auto checkpoints = std::filesystem::path(config["block"].get<std::string>()) / "run_001" / "checkpoints";
    std::filesystem::remove_all(checkpoints);
    std::ofstream(checkpoints) << "in the way";
  }
  Mortal net(config);
  fill(*net);
  return net;
}

torch::nn::Linear make_model(const Json& /*config*/) {
  torch::nn::Linear net(2, 1);
  fill(*net);
  return net;
}

tt::PassData<tt::TensorPair> make_data(const Json& config) {
  const auto x = waves({40, 2}, 1);
  const auto y = x.sum(1, true);
  // The first pass of a worker that dies ends here, once.
  if (config.contains("folder") && train::world_rank() == 1 && is_first(config["folder"].get<std::string>(), "dead"))
    ::kill(::getpid(), SIGKILL);
  return {{x, y}, {x.narrow(0, 0, 10), y.narrow(0, 0, 10)}};
}

template <class Model>
std::unique_ptr<torch::optim::Optimizer> make_sgd(Model& model, const Json& config) {
  return std::make_unique<torch::optim::SGD>(model->parameters(),
                                             torch::optim::SGDOptions(config.value("lr", 0.1)).momentum(0.5));
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(torch::nn::Linear& model, const Json& config) {
  return make_sgd(model, config);
}

at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) { return torch::mse_loss(output, target); }

/// Rank 1 has no number, but gradients.
at::Tensor loss_of_some(const at::Tensor& output, const at::Tensor& target) {
  const auto loss = torch::mse_loss(output, target);
  return train::world_rank() == 1 ? loss + std::numeric_limits<float>::quiet_NaN() : loss;
}

troupe::PyTorchTrainer make_trainer(const TempFolder& folder, Json config = Json::object()) {
  return troupe::PyTorchTrainer(tt::creators<make_model, make_data, make_optimizer, loss_of>(),
                                {.config = std::move(config),
                                 .num_replicas = 2,
                                 .batch_size = 8,
                                 .logdir = folder.path() / "results",
                                 .resources_per_worker = {{"CPU", 1}}});
}

troupe::PyTorchTrainer make_mortal_trainer(const std::filesystem::path& logdir, const Json& config) {
  return troupe::PyTorchTrainer(
      tt::creators<make_mortal, make_data, make_sgd<Mortal>, loss_of>(),
      {.config = config, .num_replicas = 2, .batch_size = 8, .logdir = logdir, .resources_per_worker = {{"CPU", 1}}});
}

}  // namespace

DOCTEST_TEST_CASE("each train is one pass, goes on where the last ended, and gives the mean over the workers") {
  TempFolder folder;
  auto trainer = make_trainer(folder);
  const auto before = trainer.validate();
  DOCTEST_CHECK(before["num_samples"] == 10);
  const auto first = trainer.train();
  DOCTEST_CHECK(first["epoch"] == 0);
  DOCTEST_CHECK(first["batch_count"] == 5);
  trainer.save(folder.path() / "saved");
  const auto second = trainer.train();
  DOCTEST_CHECK(second["epoch"] == 1);
  DOCTEST_CHECK(second["train_loss"].get<double>() < first["train_loss"].get<double>());
  const auto after = trainer.validate();
  DOCTEST_CHECK(after["validation_loss"].get<double>() < before["validation_loss"].get<double>());
  // Another one goes on from the file with the same bits.
  trainer.shutdown();
  auto other = make_trainer(folder);
  other.load(folder.path() / "saved");
  DOCTEST_CHECK(other.train() == second);
  DOCTEST_CHECK(other.validate() == after);
}

DOCTEST_TEST_CASE("a worker whose loss is not a number is left out of the mean over the workers") {
  TempFolder folder;
  troupe::PyTorchTrainer trainer(
      tt::creators<make_model, make_data, make_optimizer, loss_of_some>(),
      {.num_replicas = 2, .batch_size = 8, .logdir = folder.path(), .resources_per_worker = {{"CPU", 1}}});
  const auto loss = trainer.train()["train_loss"];
  DOCTEST_REQUIRE(loss.is_number());
  DOCTEST_CHECK(loss.get<double>() > 0);
}

DOCTEST_TEST_CASE("a pass that loses a worker ends as if it had not, or fails without retries") {
  TempFolder folder;
  auto wanted = make_trainer(folder);
  const auto statistics = wanted.train();
  wanted.shutdown();
  {
    TempFolder place;
    auto trainer = make_trainer(place, {{"folder", place.path().string()}});
    DOCTEST_CHECK(error_of([&] { trainer.train({.max_retries = 0}); }).training_failed);
    DOCTEST_CHECK_FALSE(trainer.state());
    DOCTEST_CHECK(trainer.train({.max_retries = 0}) == statistics);  // it dies only once
  }
  TempFolder place;
  auto trainer = make_trainer(place, {{"folder", place.path().string()}});
  DOCTEST_CHECK(trainer.train({.max_retries = 2}) == statistics);
}

DOCTEST_TEST_CASE("each pass with a path replaces the state that lies there") {
  TempFolder folder;
  const auto path = folder.path() / "before" / "";  // with a slash at its end
  auto trainer = make_trainer(folder);
  for (int pass = 0; pass < 4; ++pass) {
    DOCTEST_CHECK(trainer.train({.max_retries = 1, .checkpoint = path.string()})["epoch"] == pass);
    if (pass == 0) continue;
    // What lies there is the state before the pass: that pass again is the same.
    auto other = make_trainer(folder);
    other.load(path);
    DOCTEST_CHECK(other.train()["epoch"] == pass);
    DOCTEST_CHECK(*other.state() == *trainer.state());
  }
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  DOCTEST_CHECK(names == std::vector<std::string>{"before", "results"});  // nothing beside it
  // Files of others stay.
  std::filesystem::create_directory(folder.path() / "mine");
  std::ofstream(folder.path() / "mine" / "file") << "text";
  DOCTEST_CHECK(error_of([&] { trainer.save(folder.path() / "mine"); }).says("something else is there"));
  DOCTEST_CHECK(read_file(folder.path() / "mine" / "file") == "text");
}

DOCTEST_TEST_CASE("a pass that loses a worker in the middle goes on in place") {
  TempFolder folder;
  const auto train = [&](const Json& config, const char* results) {
    auto trainer = make_mortal_trainer(folder.path() / results, config);
    const auto statistics = trainer.train({.max_retries = 1});
    auto state = *trainer.state();
    state.erase("rng");  // nobody has seeded them
    return std::pair(statistics, state);
  };
  const auto wanted = train(Json::object(), "wanted");
  const auto found = train({{"notes", folder.path().string()}}, "found");
  DOCTEST_CHECK(found.first == wanted.first);
  DOCTEST_CHECK(found.second == wanted.second);
  DOCTEST_CHECK(read_file(folder.path() / "made0") == "2");  // rank 0 never left the pass
  DOCTEST_CHECK(read_file(folder.path() / "made1") == "22");
}

DOCTEST_TEST_CASE("a pass that loses a worker behind its last save is still one pass") {
  TempFolder folder;
  const auto train_twice = [&](const Json& config, const char* results) {
    auto trainer = make_mortal_trainer(folder.path() / results, config);
    const auto first = trainer.train({.max_retries = 1});
    return std::vector<Json>{first, trainer.train({.max_retries = 1})};
  };
  const auto wanted = train_twice(Json::object(), "wanted");
  DOCTEST_CHECK(wanted[1]["epoch"] == 1);
  DOCTEST_CHECK(train_twice({{"late", folder.path().string()}}, "found") == wanted);
  DOCTEST_CHECK_FALSE(is_first(folder.path().string(), "dead"));
}

DOCTEST_TEST_CASE("a pass whose state cannot be saved is an error, and is made again by the next one") {
  TempFolder folder;
  auto trainer = make_mortal_trainer(folder.path() / "results", {{"block", (folder.path() / "results").string()}});
  const auto error = error_of([&] { trainer.train(); });
  DOCTEST_CHECK(error.code == ErrorCode::io);
  DOCTEST_CHECK(error.says("pass 1 was trained, but its state could not be saved"));
  DOCTEST_CHECK(trainer.train()["epoch"] == 0);
  DOCTEST_CHECK(trainer.train()["epoch"] == 1);
}

DOCTEST_TEST_CASE("a trainer with a range goes on with fewer workers, and with more in a later pass") {
  TempFolder folder;
  troupe::PyTorchTrainer trainer(tt::creators<make_mortal, make_data, make_sgd<Mortal>, loss_of>(),
                                 {.config = {{"notes", folder.path().string()}},
                                  .num_replicas = {1, 2},
                                  .batch_size = 8,
                                  .logdir = folder.path() / "results",
                                  .resources_per_worker = {{"CPU", 0.5}}});
  // No worker lives that is made after the first two: whoever should replace the lost one dies while it starts, or at
  // the latest in its first step.
  std::ofstream(folder.path() / "alone");
  std::atomic<bool> over = false;
  std::thread killer([&] {
    std::set<pid_t> first;
    for (; !over; std::this_thread::sleep_for(std::chrono::microseconds(200))) {
      const auto server = troupe::node::Node::instance().fork_server_pid();
      if (server <= 1) continue;
      for (const auto pid : process_tree(server)) {
        if (pid == server || first.contains(pid)) continue;
        if (first.size() < 2)
          first.insert(pid);
        else
          ::kill(pid, SIGKILL);
      }
    }
  });
  const auto statistics = trainer.train({.max_retries = -1});
  over = true;
  killer.join();
  std::filesystem::remove(folder.path() / "alone");
  DOCTEST_CHECK(statistics["epoch"] == 0);
  DOCTEST_CHECK(statistics["batch_count"] == 5);  // the batch of all together stays
  const auto worlds = [&] { return read_file(folder.path() / "step"); };
  DOCTEST_CHECK(worlds().front() == '2');
  DOCTEST_CHECK(worlds().back() == '1');
  // There is room again: a later pass has two workers.
  const auto deadline = std::chrono::steady_clock::now() + patience;
  int pass = 1;
  while (worlds().back() == '1' && std::chrono::steady_clock::now() < deadline)
    DOCTEST_REQUIRE(trainer.train({.max_retries = -1})["epoch"] == pass++);  // as before: the workers stay
  DOCTEST_CHECK(worlds().back() == '2');
}

DOCTEST_TEST_CASE("PyTorchTrainer refuses what cannot work") {
  TempFolder folder;
  auto trainer = make_trainer(folder);
  DOCTEST_CHECK(error_of([&] { trainer.train({.max_retries = 1, .checkpoint = ""}); }).says("\"auto\" or a path"));
  DOCTEST_CHECK(error_of([&] { trainer.save(folder.path() / "x"); }).code == ErrorCode::invalid_state);
  DOCTEST_CHECK(error_of([&] { trainer.load(folder.path() / "nothing"); }).code == ErrorCode::io);
  DOCTEST_CHECK(error_of([] { troupe::PyTorchTrainer nothing({}); }).says("creators"));
  DOCTEST_CHECK(error_of([] {
                  troupe::PyTorchTrainer none(tt::creators<make_model, make_data, make_optimizer, loss_of>(),
                                              {.batch_size = 0});
                }).says("batch_size = 0"));
}
