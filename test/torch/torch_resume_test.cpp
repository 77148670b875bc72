// SPDX-License-Identifier: Apache-2.0
// Model, optimizer, schedule, data order and random numbers go on from a
// checkpoint as if nothing had happened.
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>
#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "test/integration/support.hpp"

namespace train = troupe::train;
namespace tt = troupe::train::torch;
using namespace troupe::test;
using troupe::Json;

namespace {

/// Saves in the middle of every epoch; gives the weights. With "folder", rank 1
/// is killed once, two epochs on.
std::vector<double> train_whole(const troupe::Config& config) {
  torch::manual_seed(0);
  const auto x = torch::randn({50, 4});
  const auto y = torch::randn({50, 2});
  torch::nn::Sequential net(torch::nn::Linear(4, 8), torch::nn::Dropout(0.2), torch::nn::Linear(8, 2));
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01).amsgrad(true));
  tt::CosineAnnealingLR scheduler(optimizer, {.t_max = 8});
  auto loader = tt::prepare_data_loader({x, y}, {.batch_size = 8, .shuffle = true});
  if (const auto checkpoint = train::load_checkpoint()) {
    tt::load_state_dict(net, checkpoint->at("model"));
    tt::load_state_dict(optimizer, checkpoint->at("optimizer"));
    scheduler.load_state(checkpoint->at<Json>("scheduler"));
    loader.load_state(checkpoint->at<Json>("loader"));
    tt::set_rng_state(checkpoint->at<at::Tensor>("rng"));
  }
  net = tt::prepare_model(net);
  train::report({{"first_epoch", loader.epoch()}});
  for (auto epoch = loader.epoch(); epoch < config["num_epochs"]; ++epoch) {
    for (auto& [inputs, targets] : loader) {
      optimizer.zero_grad();
      torch::mse_loss(net->forward(inputs), targets).backward();
      optimizer.step();
      if (loader.cursor() != 32) continue;
      train::save_checkpoint({{"model", tt::state_dict(net)},
                              {"optimizer", tt::state_dict(optimizer)},
                              {"scheduler", scheduler.state()},
                              {"loader", loader.state()},
                              {"rng", tt::rng_state()}});
      if (epoch != 2 || train::world_rank() != 1 || !config.contains("folder")) continue;
      train::flush_checkpoints();
      if (is_first(config["folder"].get<std::string>(), "killed")) ::kill(::getpid(), SIGKILL);
    }
    scheduler.step();
  }
  std::vector<double> weights;
  for (const auto& parameter : net->parameters()) {
    const auto flat = parameter.detach().flatten().to(torch::kDouble).contiguous();
    weights.insert(weights.end(), flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel());
  }
  return weights;
}

troupe::Result fit(const TempFolder& folder, Json config, troupe::StartCheckpoint from = {}) {
  troupe::TorchTrainer trainer(
      troupe::fn<train_whole>,
      {.train_loop_config = std::move(config),
       .scaling_config = {.num_workers = 2, .resources_per_worker = {{"CPU", 1}}},
       .run_config = {.storage_path = folder.path().string(), .failure_config = {.max_failures = 1}},
       .resume_from_checkpoint = std::move(from)});
  return trainer.fit();
}

}  // namespace

DOCTEST_TEST_CASE(
    "training goes on from the middle of an epoch with the same "
    "bits, after a death and in a new run") {
  TempFolder folder;
  const auto straight = fit(folder, {{"num_epochs", 5}});
  DOCTEST_CHECK(straight.metrics["first_epoch"] == 0);
  DOCTEST_CHECK(straight.returns[0] == straight.returns[1]);

  const auto killed = fit(folder, {{"num_epochs", 5}, {"folder", folder.path().string()}});
  DOCTEST_CHECK(killed.metrics["first_epoch"] == 2);
  DOCTEST_CHECK(killed.returns == straight.returns);

  const auto first = fit(folder, {{"num_epochs", 2}});
  DOCTEST_REQUIRE(first.checkpoint);
  const auto second = fit(folder, {{"num_epochs", 5}}, first.checkpoint);
  DOCTEST_CHECK(second.metrics["first_epoch"] == 1);
  DOCTEST_CHECK(second.returns == straight.returns);
}
