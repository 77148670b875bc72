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
  for (auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong, torch::kInt,
                    torch::kShort, torch::kChar, torch::kByte, torch::kComplexFloat}) {
    auto tensor = torch::arange(10, torch::kDouble).to(type) + rank;
    result["sums"].push_back(at::real(train::torch::all_reduce(tensor)).to(torch::kDouble).sum().item<double>());
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
      DOCTEST_CHECK(result["sums"] == std::vector<double>(10, 3 * 45 + 10 * (0 + 1 + 2)));
      DOCTEST_CHECK(result["large"] == 2.0);
    }
  });
}

DOCTEST_TEST_CASE("all_reduce finds the smallest and largest, of truth values all and any, and lets NaN win") {
  on_every_transport(3, [](const troupe::TrainerOptions& options) {
    TestTrainer trainer(options);
    const auto results = trainer->run([]() -> Json {
      using train::torch::all_reduce, train::torch::Reduce;
      const int rank = train::world_rank();
      Json found;
      for (auto type : {torch::kFloat, torch::kBFloat16, torch::kLong, torch::kByte})
        for (auto reduce : {Reduce::min, Reduce::max})
          found.push_back(all_reduce(torch::tensor({5 + rank, 7 - rank}).to(type), reduce).sum().item<double>());
      for (auto reduce : {Reduce::min, Reduce::max})
        found.push_back(all_reduce(torch::tensor({rank == 1, true, false}), reduce).sum().item<double>());
      for (auto reduce : {Reduce::min, Reduce::max})
        found.push_back(all_reduce(torch::full({1}, rank == 1 ? NAN : 1.0), reduce).isnan().item<bool>());
      return found;
    });
    for (const auto& result : results)
      DOCTEST_CHECK(result == Json({10, 14, 10, 14, 10, 14, 10, 14, 1, 2, true, true}));
  });
}

DOCTEST_TEST_CASE("empty, non-contiguous and gradient-requiring tensors go through every operation") {
  on_every_transport(2, [](const troupe::TrainerOptions& options) {
    TestTrainer trainer(options);
    const auto results = trainer->run([]() -> Json {
      const int rank = train::world_rank();
      const auto empty = torch::zeros({0, 3});
      Json result;
      result["empty"] = {train::torch::all_reduce(empty).numel(), train::torch::broadcast(empty, 1).numel(),
                         train::torch::all_gather(empty).at(1).numel(), train::torch::reduce_scatter(empty).numel()};
      const auto base = torch::zeros({4, 6}, torch::kShort);
      const auto columns = base.slice(1, 0, 6, 2);
      train::torch::broadcast(columns.fill_(rank + 1), 1);
      train::torch::all_reduce(columns);
      result["untouched"] = base.slice(1, 1, 6, 2).sum().item<double>();
      result["columns"] = columns.sum().item<double>();
      result["gathered"] = train::torch::all_gather(columns).at(1).sum().item<double>();
      result["scattered"] = train::torch::reduce_scatter(columns).sum().item<double>();
      auto leaf = torch::ones({2, 2}, torch::requires_grad()).t();
      result["leaf"] = train::torch::all_reduce(leaf).sum().item<double>();
      return result;
    });
    for (const auto& result : results) {
      DOCTEST_CHECK(result["empty"] == Json({0, 0, 0, 0}));
      DOCTEST_CHECK(result["untouched"] == 0);
      DOCTEST_CHECK(result["columns"] == 12 * 4);
      DOCTEST_CHECK(result["gathered"] == 12 * 4);
      DOCTEST_CHECK(result["scattered"] == 12 * 4);
      DOCTEST_CHECK(result["leaf"] == 8);
    }
  });
}

DOCTEST_TEST_CASE("tensors that differ between ranks are refused with who called what, and the group goes on") {
  on_every_transport(3, [](const troupe::TrainerOptions& options) {
    TestTrainer trainer(options);
    const auto results = trainer->run([]() -> Json {
      const int rank = train::world_rank();
      const std::function<void()> mistakes[] = {
          [&] { train::torch::all_reduce(torch::ones({2, rank == 1 ? 5 : 4})); },
          [&] { train::torch::all_gather(torch::ones({3}).to(rank == 2 ? torch::kDouble : torch::kFloat)); },
          [&] { train::torch::broadcast(torch::ones({3}), rank); },
          [&] { rank == 0 ? train::torch::barrier() : void(train::torch::all_reduce(torch::ones({0}))); }};
      Json texts;
      for (const auto& mistake : mistakes) texts.push_back(error_of(mistake).text);
      texts.push_back(train::torch::all_reduce(torch::ones({4})).sum().item<double>());
      return texts;
    });
    const std::vector<std::string> parts[] = {
        {"all_reduce(sum) of Float [2, 4] on ranks 0, 2", "all_reduce(sum) of Float [2, 5] on rank 1"},
        {"all_gather of Float [3] on ranks 0, 1", "all_gather of Double [3] on rank 2"},
        {"broadcast(root 0)", "broadcast(root 2) of Float [3] on rank 2"},
        {"barrier on rank 0", "all_reduce(sum) of Float [0] on ranks 1, 2"}};
    for (const auto& texts : results) {
      DOCTEST_CHECK(texts[4] == 12);
      for (std::size_t i = 0; i < 4; ++i)
        for (const auto& part : parts[i]) {
          const auto text = texts[i].get<std::string>();
          DOCTEST_CAPTURE(text);
          DOCTEST_CHECK(text.find(part) != std::string::npos);
        }
    }
  });
}

DOCTEST_TEST_CASE("tensors that cannot be reduced are refused before anything is sent") {
  on_every_transport(2, [](const troupe::TrainerOptions& options) {
    TestTrainer trainer(options);
    const auto results = trainer->run([]() -> Json {
      using train::torch::all_reduce, train::torch::Reduce;
      Json texts;
      const auto refuse = [&](auto&& body) { texts.push_back(error_of(body).text); };
      refuse([] { all_reduce(torch::ones({2}, torch::kBool)); });
      refuse([] { all_reduce(torch::ones({2}, torch::kLong), Reduce::mean); });
      refuse([] { all_reduce(torch::ones({2}, torch::kComplexFloat), Reduce::max); });
      refuse([] { all_reduce(torch::Tensor()); });
      refuse([] { all_reduce(torch::ones({2}).to_sparse()); });
      refuse([] { all_reduce(torch::ones({2}, torch::kMeta)); });
      refuse([] { train::torch::reduce_scatter(torch::ones({3})); });
      refuse([] { train::torch::reduce_scatter(torch::ones({})); });
      refuse([] { train::torch::broadcast(torch::ones({2}), 2); });
      texts.push_back(all_reduce(torch::ones({2})).sum().item<double>());
      return texts;
    });
    const char* parts[] = {"any",  "float type",       "no order",    "empty",    "to_dense",
                           "meta", "2 ranks, which 3", "without dim", "no rank 2"};
    for (const auto& texts : results) {
      for (std::size_t i = 0; i < std::size(parts); ++i)
        DOCTEST_CHECK(texts[i].get<std::string>().find(parts[i]) != std::string::npos);
      DOCTEST_CHECK(texts[std::size(parts)] == 4);
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
