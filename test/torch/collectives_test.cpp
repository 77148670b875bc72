// SPDX-License-Identifier: Apache-2.0
// One contract for everything that carries collectives: shared memory and Gloo, process and thread ranks.
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>
#include <troupe/torch.hpp>
#include <troupe/torch_c10d.hpp>
#include <troupe/troupe.hpp>

#include "test/integration/support.hpp"

namespace train = troupe::train;
using namespace troupe::test;
using troupe::Json;

namespace {

/// Calls `test(options)` for every transport and placement.
template <class Test>
void on_every_transport(int workers, Test&& test) {
  for (bool shared_memory : {true, false})
    on_both_placements([&](troupe::Placement placement) {
      DOCTEST_CAPTURE(shared_memory);
      test(troupe::TrainerOptions{.backend = troupe::TorchConfig{.timeout_s = 20, .shared_memory = shared_memory},
                                  .num_workers = workers,
                                  .placement = placement});
    });
}

Json sums() {
  const int rank = train::world_rank();
  Json result = Json::object();
  for (auto type : {torch::kFloat, torch::kDouble, torch::kLong, torch::kInt, torch::kByte}) {
    auto tensor = torch::arange(10, torch::kDouble).to(type) + rank;
    result[c10::toString(type)] = train::torch::all_reduce(tensor).to(torch::kDouble).sum().item<double>();
  }
  // Larger than any stage, not a multiple of anything, and not contiguous.
  auto large = torch::full({1000003, 2}, static_cast<float>(rank + 1)).t();
  result["large"] = train::torch::all_reduce(large, train::torch::Reduce::mean).sum().item<double>() / 2000006;
  return result;
}

}  // namespace

DOCTEST_TEST_CASE("all_reduce sums every type and size over all ranks") {
  on_every_transport(3, [](const troupe::TrainerOptions& options) {
    TestTrainer trainer(options);
    for (const auto& result : trainer->run(troupe::fn<sums>)) {
      for (auto type : {"Float", "Double", "Long", "Int", "Byte"})
        DOCTEST_CHECK(result[type] == 3 * 45 + 10 * (0 + 1 + 2));
      DOCTEST_CHECK(result["large"] == 2.0);
    }
  });
}

DOCTEST_TEST_CASE("broadcast, all_gather, reduce_scatter and JSON values reach every rank") {
  on_every_transport(3, [](const troupe::TrainerOptions& options) {
    TestTrainer trainer(options);
    const auto results = trainer->run([]() -> Json {
      const int rank = train::world_rank();
      auto tensor = torch::full({5}, static_cast<float>(rank));
      Json result;
      result["broadcast"] = train::torch::broadcast(tensor, 2).sum().item<double>();
      for (const auto& one : train::torch::all_gather(torch::full({2, 2}, rank)))
        result["gathered"].push_back(one.sum().item<double>());
      result["scattered"] = train::torch::reduce_scatter(torch::arange(6)).sum().item<double>();
      train::torch::barrier();
      for (const auto& one : train::torch::all_gather_json({{"rank", rank}, {"text", std::string(rank * 1000, 'x')}}))
        result["json"].push_back(one["text"].get<std::string>().size());
      result["root"] = train::torch::broadcast_json({{"from", rank}}, 1)["from"];
      return result;
    });
    for (int rank = 0; rank < 3; ++rank) {
      const auto& result = results[static_cast<std::size_t>(rank)];
      DOCTEST_CHECK(result["broadcast"] == 10);
      DOCTEST_CHECK(result["gathered"] == Json({0, 4, 8}));
      DOCTEST_CHECK(result["scattered"] == 3 * (4 * rank + 1));
      DOCTEST_CHECK(result["json"] == Json({0, 1000, 2000}));
      DOCTEST_CHECK(result["root"] == 1);
    }
  });
}

DOCTEST_TEST_CASE("a c10d process group of the workers runs a plain c10d loop") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  const auto results = trainer->run([]() -> Json {
    auto group = train::torch::process_group();
    std::vector<at::Tensor> tensors{torch::full({4}, static_cast<float>(train::world_rank() + 1))};
    group->allreduce(tensors)->wait();
    return {group->getSize(), tensors[0].sum().item<double>()};
  });
  for (const auto& result : results) DOCTEST_CHECK(result == Json({2, 12.0}));
}

DOCTEST_TEST_CASE("a rank that dies in the middle of an all_reduce frees the others, and the group forms again") {
  for (bool shared_memory : {true, false}) {
    DOCTEST_CAPTURE(shared_memory);
    TestTrainer trainer({.backend = troupe::TorchConfig{.shared_memory = shared_memory}, .num_workers = 3});
    trainer->start();
    const auto pids = trainer->worker_pids();
    auto recorder = std::make_shared<Recorder>();
    const auto results = trainer->run(
        [](const troupe::Config& config) -> Json {
          auto tensor = torch::ones({1000});
          train::torch::all_reduce(tensor);
          const bool first =
              is_first(config["folder"].get<std::string>(), "attempt" + std::to_string(train::world_rank()));
          if (first && train::world_rank() == 1) ::kill(::getpid(), SIGKILL);
          train::torch::all_reduce(tensor);
          train::report({{"sum", tensor.sum().item<double>()}});
          return ::getpid();
        },
        {.config = {{"folder", trainer.folder().string()}}, .callbacks = {recorder}});
    DOCTEST_REQUIRE(recorder->infos.size() == 1);
    DOCTEST_CHECK(recorder->infos[0].attempt == 2);
    DOCTEST_CHECK(recorder->rounds[0][0]["sum"] == 9000);
    DOCTEST_CHECK(results[0] == pids[0]);
    DOCTEST_CHECK(results[1] != pids[1]);
    DOCTEST_CHECK(results[2] == pids[2]);
  }
}

DOCTEST_TEST_CASE("an exception on one rank frees the others and is the reason of the failure") {
  on_every_transport(3, [](const troupe::TrainerOptions& options) {
    TestTrainer trainer(options);
    const auto error = error_of([&] {
      trainer->run([] {
        auto tensor = torch::ones({1000});
        train::torch::all_reduce(tensor);
        if (train::world_rank() == 2) throw std::runtime_error("bad batch");
        train::torch::all_reduce(tensor);
      });
    });
    DOCTEST_CHECK(error.rank == 2);
    DOCTEST_CHECK(error.says("bad batch"));
    const auto again = trainer->run([]() -> Json {
      auto tensor = torch::ones({10});
      return train::torch::all_reduce(tensor).sum().item<double>();
    });
    for (const auto& result : again) DOCTEST_CHECK(result == 30);
  });
}

DOCTEST_TEST_CASE("ranks that call different operations get a deadline that names who is missing") {
  TestTrainer trainer({.backend = troupe::TorchConfig{.timeout_s = 0.5}, .num_workers = 2});
  const auto error = error_of([&] {
    trainer->run([] {
      train::torch::barrier();
      if (train::world_rank() == 0) train::torch::barrier();
    });
  });
  DOCTEST_CHECK(error.code == troupe::ErrorCode::deadline);
  DOCTEST_CHECK(error.says("rank 1"));
}

DOCTEST_TEST_CASE("bad settings of the torch backend are refused with the valid ones") {
  const std::pair<troupe::TorchConfig, const char*> cases[] = {
      {{.backend = "mpi"}, "gloo"},
      {{.init_method = "file"}, "tcp"},
      {{.timeout_s = -1}, "seconds"},
  };
  for (const auto& [config, valid] : cases) {
    TestTrainer trainer({.backend = config, .num_workers = 1});
    const auto error = error_of([&] { trainer->start(); });
    DOCTEST_CHECK(error.code == troupe::ErrorCode::invalid_option);
    DOCTEST_CHECK(error.says(valid));
  }
}

DOCTEST_TEST_CASE("operations without a torch backend say which one to choose") {
  TestTrainer trainer({.num_workers = 1});
  DOCTEST_CHECK(error_of([&] { trainer->run([] { train::torch::barrier(); }); }).says(".backend = \"torch\""));
}
