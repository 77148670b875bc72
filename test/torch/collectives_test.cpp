// SPDX-License-Identifier: Apache-2.0
// One contract for everything that carries collectives, on process and thread ranks.
#include <signal.h>
#include <torch/torch.h>
#include <unistd.h>
#include <troupe/torch.hpp>
#include <troupe/torch_c10d.hpp>
#include <troupe/troupe.hpp>

#include <filesystem>
#include <fstream>
#include <thread>

#include "backends/torch/torch_group.hpp"
#include "test/torch/transports.hpp"

namespace train = troupe::train;
using namespace troupe::test;
using troupe::Json;

namespace {

/// On the device of the group.
at::Tensor here(const at::Tensor& tensor) { return tensor.to(train::torch::get_device()); }

Json sums() {
  const int rank = train::world_rank();
  Json result = Json::object();
  for (auto type : {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kLong, torch::kInt,
                    torch::kShort, torch::kChar, torch::kByte, torch::kComplexFloat}) {
    auto tensor = here(torch::arange(10, torch::kDouble).to(type) + rank);
    result["sums"].push_back(at::real(train::torch::all_reduce(tensor)).to(torch::kDouble).sum().item<double>());
  }
  // Larger than any stage, not a multiple of anything, and not contiguous.
  auto large = here(torch::full({1000003, 2}, static_cast<float>(rank + 1))).t();
  result["large"] = train::torch::all_reduce(large, train::torch::Reduce::mean).sum().item<double>() / 2000006;
  return result;
}

}  // namespace

TROUPE_TRANSPORT_CASE("all_reduce sums every type and size over all ranks", 3) {
  TestTrainer trainer(options);
  for (const auto& result : trainer->run(troupe::fn<sums>)) {
    DOCTEST_CHECK(result["sums"] == std::vector<double>(10, 3 * 45 + 10 * (0 + 1 + 2)));
    DOCTEST_CHECK(result["large"] == 2.0);
  }
}

TROUPE_TRANSPORT_CASE("all_reduce finds the smallest and largest, of truth values all and any, and lets NaN win", 3) {
  TestTrainer trainer(options);
  const auto results = trainer->run([]() -> Json {
    using train::torch::all_reduce, train::torch::Reduce;
    const int rank = train::world_rank();
    Json found;
    for (auto type : {torch::kFloat, torch::kBFloat16, torch::kLong, torch::kByte})
      for (auto reduce : {Reduce::min, Reduce::max})
        found.push_back(all_reduce(here(torch::tensor({5 + rank, 7 - rank}).to(type)), reduce).sum().item<double>());
    for (auto reduce : {Reduce::min, Reduce::max})
      found.push_back(all_reduce(here(torch::tensor({rank == 1, true, false})), reduce).sum().item<double>());
    for (auto reduce : {Reduce::min, Reduce::max})  // NCCL does not say what it makes of NaN
      found.push_back(!train::torch::get_device().is_cpu() ||
                      all_reduce(torch::full({1}, rank == 1 ? NAN : 1.0), reduce).isnan().item<bool>());
    return found;
  });
  for (const auto& result : results) DOCTEST_CHECK(result == Json({10, 14, 10, 14, 10, 14, 10, 14, 1, 2, true, true}));
}

TROUPE_TRANSPORT_CASE("empty, non-contiguous and gradient-requiring tensors go through every operation", 2) {
  TestTrainer trainer(options);
  const auto results = trainer->run([]() -> Json {
    const int rank = train::world_rank();
    const auto empty = here(torch::zeros({0, 3}));
    Json result;
    result["empty"] = {train::torch::all_reduce(empty).numel(), train::torch::broadcast(empty, 1).numel(),
                       train::torch::all_gather(empty).at(1).numel(), train::torch::reduce_scatter(empty).numel()};
    const auto base = here(torch::zeros({4, 6}, torch::kShort));
    const auto columns = base.slice(1, 0, 6, 2);
    train::torch::broadcast(columns.fill_(rank + 1), 1);
    train::torch::all_reduce(columns);
    result["untouched"] = base.slice(1, 1, 6, 2).sum().item<double>();
    result["columns"] = columns.sum().item<double>();
    result["gathered"] = train::torch::all_gather(columns).at(1).sum().item<double>();
    result["scattered"] = train::torch::reduce_scatter(columns).sum().item<double>();
    auto leaf = here(torch::ones({2, 2})).requires_grad_().t();
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
}

DOCTEST_TEST_CASE("tensors that differ between ranks are refused with who called what") {
  struct Case {
    int mistake;
    std::vector<std::string> parts;
  };
  const Case cases[] = {{0, {"all_reduce(sum) of Float [2, 4] on rank", "all_reduce(sum) of Float [2, 5] on rank"}},
                        {1, {"all_gather of Float [3] on rank", "all_gather of Double [3] on rank"}},
                        {2, {"broadcast(root 0) of Float [3] on rank 0"}},
                        {3, {"barrier on rank 0", "all_reduce(sum) of Float [0] on rank"}},
                        {4, {"barrier on rank 0", "all_gather of Float [3] on rank"}}};
  on_every_transport(3, [&](const troupe::TrainerOptions& options) {
    TestTrainer trainer(options);
    for (const auto& one : cases) {
      const auto error = error_of([&] {
        trainer->run(
            [](const troupe::Config& config) {
              const int rank = train::world_rank();
              const int mistake = config["mistake"];
              if (mistake == 0) train::torch::all_reduce(torch::ones({2, rank == 0 ? 5 : 4}));
              if (mistake == 1)
                train::torch::all_gather(torch::ones({3}).to(rank == 2 ? torch::kDouble : torch::kFloat));
              if (mistake == 2) train::torch::broadcast(torch::ones({3}), rank);
              if (mistake >= 3 && rank == 0) train::torch::barrier();
              if (mistake == 3 && rank != 0) train::torch::all_reduce(torch::ones({0}));
              if (mistake == 4 && rank != 0) train::torch::all_gather(torch::ones({3}));
            },
            {.config = {{"mistake", one.mistake}}});
      });
      DOCTEST_CAPTURE(error.text);
      DOCTEST_CHECK(error.code == troupe::ErrorCode::invalid_argument);
      for (const auto& part : one.parts) DOCTEST_CHECK(error.says(part));
    }
  });
}

#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 203
DOCTEST_TEST_CASE("unsigned integers of more than 8 bits are gathered, but not reduced") {
  on_every_transport(2, [](const troupe::TrainerOptions& options) {
    TestTrainer trainer(options);
    const auto results = trainer->run([]() -> Json {
      Json result;
      for (auto type : {torch::kUInt16, torch::kUInt32, torch::kUInt64}) {
        const auto tensor = torch::full({2}, 3 + train::world_rank()).to(type);
        const auto reduced = error_of([&] { train::torch::all_reduce(tensor); });
        const auto scattered = error_of([&] { train::torch::reduce_scatter(tensor); });
        result["refused"].push_back(reduced.code == troupe::ErrorCode::invalid_argument &&
                                    reduced.says("cannot be reduced") && scattered.says("reduce_scatter() of UInt"));
        result["last"].push_back(train::torch::all_gather(tensor)[1][1].item<int>());
      }
      return result;
    });
    for (const auto& result : results) {
      DOCTEST_CHECK(result["refused"] == Json({true, true, true}));
      DOCTEST_CHECK(result["last"] == Json({4, 4, 4}));
    }
  });
}
#endif

TROUPE_TRANSPORT_CASE("halves whose sum is too large for a half have a mean, and gradients too", 4) {
  TestTrainer trainer(options);
  const auto results = trainer->run([]() -> Json {
    Json values;
    for (const auto type : {torch::kHalf, torch::kBFloat16}) {
      const auto given = here(torch::full({4}, 40000.0).to(type));
      auto tensor = given.clone();
      train::torch::all_reduce(tensor, train::torch::Reduce::mean);
      values.push_back(tensor.to(torch::kFloat).equal(given.to(torch::kFloat)));
    }
    // The sum of three parts leaves the range of a half, that of all four does not.
    const auto parts = here(torch::full({4}, train::world_rank() == 3 ? -60000.0 : 30000.0).to(torch::kHalf));
    const auto scattered = train::torch::reduce_scatter(parts).to(torch::kFloat);
    values.push_back(scattered.sum().item<double>() == 30000);
    const auto collective = troupe::TorchGroup::current("test")->collective();
    const auto buffer = collective->make_buffer(3, torch::kHalf);
    buffer->tensor().fill_(20000);
    buffer->start(0.25);
    buffer->contribute();
    buffer->finish();
    values.push_back(buffer->tensor().to(torch::kFloat).equal(here(torch::full({3}, 20000.0F))));
    return values;
  });
  for (const auto& values : results) DOCTEST_CHECK(values == Json({true, true, true, true}));
}

TROUPE_TRANSPORT_CASE("conjugates that were not computed yet arrive as such", 2) {
  TestTrainer trainer(options);
  const auto results = trainer->run([]() -> Json {
    const auto imaginary = torch::full({2}, 1.0 + train::world_rank()).to(torch::kFloat);
    const auto made = here(torch::complex(torch::ones({2}), imaginary));
    const auto gathered = train::torch::all_gather(torch::conj(made));
    auto sum = torch::conj(made);
    train::torch::all_reduce(sum);
    return {torch::imag(gathered[1].resolve_conj())[0].item<double>(),
            torch::imag(sum.resolve_conj())[0].item<double>()};
  });
  for (const auto& values : results) DOCTEST_CHECK(values == Json({-2.0, -3.0}));
}

DOCTEST_TEST_CASE("after an operation that took too long others fail as well, instead of giving wrong sums") {
  for (auto transport : transports()) {
    const std::string name = transport.name;
    DOCTEST_CAPTURE(name);
    transport.config.timeout_s = 2;
    TestTrainer trainer({.backend = transport.config, .num_workers = 4});
    // Rank 0 comes when rank 1 has given up. Nobody gets a sum, of none of the two.
    const auto results = trainer->run(
        [](const troupe::Config& config) -> Json {
          auto tensor = torch::ones({100000});
          train::torch::all_reduce(tensor);
          if (train::world_rank() == 0)
            while (!std::filesystem::exists(config["late"].get<std::string>())) std::this_thread::yield();
          const auto first = error_of([&] { train::torch::all_reduce(tensor); });
          if (train::world_rank() == 1) std::ofstream(config["late"].get<std::string>()) << "";
          const auto second = error_of([&] { train::torch::all_reduce(tensor); });
          return {first.text, second.text};
        },
        {.config = {{"late", (trainer.folder() / "late").string()}}});
    DOCTEST_CHECK(results.size() == 4);
    if (!transport.config.shared_memory) continue;  // Gloo closes its connections, and says so in its own words
    const auto says = [&](int rank, int operation, const char* part) {
      return results[static_cast<std::size_t>(rank)][static_cast<std::size_t>(operation)].get<std::string>().find(
                 part) != std::string::npos;
    };
    DOCTEST_CHECK(says(1, 0, "for rank 0"));
    for (int rank : {1, 3}) DOCTEST_CHECK(says(rank, 1, "let the function end"));
  }
}

DOCTEST_TEST_CASE("a gradient bucket that waits too long names the rank that is late") {
  for (auto transport : transports()) {
    if (!transport.config.shared_memory) continue;  // Gloo does not know
    const std::string name = transport.name;
    DOCTEST_CAPTURE(name);
    transport.config.timeout_s = 2;
    TestTrainer trainer({.backend = transport.config, .num_workers = 3});
    const auto results = trainer->run(
        [](const troupe::Config& config) -> Json {
          const std::filesystem::path given_up = config["given_up"].get<std::string>();
          const auto buffer = troupe::TorchGroup::current("test")->collective()->make_buffer(1000, torch::kFloat);
          if (train::world_rank() == 1)  // which never starts it, and stays until rank 0 has said so
            while (!std::filesystem::exists(given_up)) std::this_thread::yield();
          if (train::world_rank() != 0) return "";
          buffer->start(1.0);
          const auto error = error_of([&] { buffer->contribute(); });
          std::ofstream(given_up) << "";
          return error.text;
        },
        {.config = {{"given_up", (trainer.folder() / "given up").string()}}});
    DOCTEST_CAPTURE(results[0].dump());
    // Rank 2 has not started it either; between hosts rank 0 waits for those of its own.
    const auto* late = transport.config.pretend_hosts > 0 ? "for rank 1: do all" : "for rank 1, 2: do all";
    DOCTEST_CHECK(results[0].get<std::string>().find(late) != std::string::npos);
  }
}

DOCTEST_TEST_CASE("a call that waits for a worker which dies ends at once, and the group forms again") {
  on_every_transport(2, [](const troupe::TrainerOptions& options) {
    if (options.placement == troupe::Placement::thread) return;  // threads have no death of their own
    TestTrainer trainer(options);
    trainer->start();
    const auto workers = trainer->workers();
    const auto sum = [] {
      auto tensor = torch::ones({1});
      train::torch::all_reduce(tensor);
      return tensor.item<double>();
    };
    DOCTEST_CHECK(workers.execute(sum) == std::vector<double>{2, 2});
    auto waiting = workers[0].submit(sum);
    auto dying = workers[1].submit([] { return ::raise(SIGKILL); });
    DOCTEST_CHECK(error_of([&] { dying.get(); }).code == troupe::ErrorCode::worker_lost);
    DOCTEST_CHECK(error_of([&] { waiting.get(); }).says("another rank is gone"));
    DOCTEST_CHECK(trainer->run(sum) == std::vector<Json>{2.0, 2.0});
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

TROUPE_TRANSPORT_CASE("broadcast, all_gather, reduce_scatter and JSON values reach every rank", 3) {
  TestTrainer trainer(options);
  const auto results = trainer->run([]() -> Json {
    const int rank = train::world_rank();
    auto tensor = here(torch::full({5}, static_cast<float>(rank)));
    Json result;
    result["broadcast"] = train::torch::broadcast(tensor, 2).sum().item<double>();
    for (const auto& one : train::torch::all_gather(here(torch::full({2, 2}, rank))))
      result["gathered"].push_back(one.sum().item<double>());
    result["scattered"] = train::torch::reduce_scatter(here(torch::arange(6))).sum().item<double>();
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

DOCTEST_TEST_CASE("operations of a process group may take the user's timeout, not that of connecting") {
#if TORCH_VERSION_MAJOR >= 2
  TestTrainer trainer({.backend = troupe::TorchConfig{.timeout_s = 67}, .num_workers = 2});
  for (const auto& seconds : trainer->run([]() -> Json {
         const auto gloo = train::torch::process_group()->getBackend(at::kCPU);
         return std::chrono::duration_cast<std::chrono::seconds>(gloo->getBackendOptions()->timeout).count();
       }))
    DOCTEST_CHECK(seconds == 67);
#else
  skip("libtorch 1.13 does not tell");
#endif
}

DOCTEST_TEST_CASE("one worker has a c10d process group of its own") {
  TestTrainer trainer({.backend = "torch", .num_workers = 1});
  DOCTEST_CHECK(trainer->run([]() -> Json {
    auto group = train::torch::process_group();
    std::vector<at::Tensor> tensors{torch::ones({4})};
    group->allreduce(tensors)->wait();
    return {group->getSize(), tensors[0].sum().item<double>()};
  })[0] == Json({1, 4.0}));
}

DOCTEST_TEST_CASE("workers that share memory listen nowhere, and those with a process group on loopback only") {
  TestTrainer trainer({.backend = "torch", .num_workers = 2});
  const auto results = trainer->run([]() -> Json {
    train::torch::all_reduce(torch::ones({4}));
    train::torch::broadcast(torch::ones({4}));
    train::torch::all_gather(torch::ones({4}));
    train::torch::reduce_scatter(torch::ones({4}));
    train::torch::barrier();
    auto net = train::torch::prepare_model(torch::nn::Linear(4, 1));
    net->forward(torch::ones({2, 4})).sum().backward();
    Json found = {{"shared memory", listening_addresses(::getpid())}};
    train::torch::process_group();
    found["process group"] = listening_addresses(::getpid());
    return found;
  });
  for (const auto& found : results) {
    DOCTEST_CAPTURE(found.dump());
    DOCTEST_CHECK(found["shared memory"].empty());
#if TORCH_VERSION_MAJOR >= 2  // older Gloo listens only while it connects
    DOCTEST_CHECK(!found["process group"].empty());
#endif
    for (const auto& address : found["process group"])
      DOCTEST_CHECK(address.get<std::string>().starts_with("127.0.0.1:"));
  }
}

DOCTEST_TEST_CASE("a process group needs workers: in local mode the error says how many") {
  TestTrainer trainer({.backend = "torch", .num_workers = 0});
  const auto error = error_of([&] { trainer->run([] { train::torch::process_group(); }); });
  DOCTEST_CAPTURE(error.text);
  DOCTEST_CHECK(error.says("local mode has no process group: use num_workers = 1"));
}

DOCTEST_TEST_CASE("a rank that stays away is named when the group forms, and when an operation waits for it") {
  for (auto transport : transports()) {
    const std::string name = transport.name;
    DOCTEST_CAPTURE(name);
    transport.config.timeout_s = 2;
    TestTrainer trainer({.backend = transport.config, .num_workers = 3});
    // The others come together, or `late` after the first of them has failed.
    const auto absent = [&](int rank, int operations, int late = -1) {
      return error_of([&] {
        const auto folder = trainer.folder() / std::to_string(rank);
        std::filesystem::create_directory(folder);
        trainer->run(
            [](const troupe::Config& config) {
              const std::filesystem::path place = config["folder"].get<std::string>();
              const auto wait_for = [&](const std::string& what) {
                while (!std::filesystem::exists(place / what)) std::this_thread::yield();
              };
              for (int i = 0; i < config["operations"]; ++i) train::torch::barrier();
              const int mine = train::world_rank();
              if (mine == config["rank"]) return;
              std::ofstream(place / std::to_string(mine));
              for (int other = 0; other < 3; ++other)
                if (other != config["rank"]) wait_for(std::to_string(other));
              if (mine == config["late"]) wait_for("failed");
              try {
                train::torch::barrier();
              } catch (const troupe::Error&) {
                std::ofstream(place / "failed");
                throw;
              }
            },
            {.config = {{"rank", rank}, {"operations", operations}, {"late", late}, {"folder", folder.string()}}});
      });
    };
    for (int rank : {0, 2}) {
      const auto error = absent(rank, 0);
      DOCTEST_CAPTURE(error.text);
      DOCTEST_CHECK(error.code == troupe::ErrorCode::deadline);
      DOCTEST_CHECK(error.says("the group did not form within 2000 ms"));
      DOCTEST_CHECK(error.says("rank " + std::to_string(rank) + " did not come"));
    }
    // Rank 2, on its other host, waits for rank 0 and knows nothing of rank 1: it comes when rank 0 has said its part.
    const auto error = absent(1, 1, transport.config.pretend_hosts > 0 ? 2 : -1);
    DOCTEST_CAPTURE(error.text);
    DOCTEST_CHECK(error.code == troupe::ErrorCode::deadline);
    if (transport.config.shared_memory) DOCTEST_CHECK(error.says("rank 1"));  // Gloo does not know
  }
}

DOCTEST_TEST_CASE("bad settings of the torch backend are refused in the constructor with the valid ones") {
  struct Refused {
    const char* key;
    Json value;
    const char* valid;
  };
  const Refused cases[] = {
      {"backend", "mpi", "\"auto\", \"gloo\", \"nccl\""},
      {"backend", Json(), "\"auto\""},
      {"init_method", "file", "\"env\", \"tcp\""},
      {"timeout_s", -1, "seconds above 0"},
      {"timeout_s", 0, "seconds above 0"},
      {"timeout_s", 2e6, "up to 1000000"},
      {"timeout_s", "long", "seconds above 0"},
      {"timeout_s", NAN, "seconds above 0"},
      {"interface", 3, "an address or the name of an interface"},
      {"shared_memory", 1, "true, false"},
      {"keep_memory", "yes", "true, false"},
      {"pretend_hosts", -1, "0 (as they are) to 4096"},
      {"pretend_hosts", 4097, "to 4096"},
      {"pretend_hosts", 1.5, "to 4096"},
      {"gpus_per_worker", -1, "0 or more"},
      {"time_out", 3, "backend, init_method, timeout_s, interface"},
  };
  // Every field is in the table.
  const auto fields = troupe::TorchConfig().to_backend_config().options;
  for (const auto& item : fields.items())
    DOCTEST_CHECK_MESSAGE(
        std::any_of(std::begin(cases), std::end(cases), [&](const Refused& one) { return one.key == item.key(); }),
        item.key());
  TempFolder folder;
  const auto logdir = folder.path() / "results";
  for (const auto& [key, value, valid] : cases) {
    const troupe::BackendConfig backend("torch", {{key, value}});
    const auto error = error_of([&] { troupe::Trainer trainer({.backend = backend, .logdir = logdir}); });
    DOCTEST_CAPTURE(error.text);
    DOCTEST_CHECK(error.code == troupe::ErrorCode::invalid_option);
    DOCTEST_CHECK(error.says(key));
    DOCTEST_CHECK(error.says(valid));
  }
  DOCTEST_CHECK(error_of([&] {
                  troupe::Trainer trainer({.backend = troupe::TorchConfig{.init_method = "file"}, .logdir = logdir});
                }).says("TorchConfig.init_method = \"file\" is refused"));
  DOCTEST_CHECK(std::filesystem::is_empty(folder.path()));
}

DOCTEST_TEST_CASE("an interface is taken by its name, and init_method tcp forms the same group") {
  TestTrainer trainer(
      {.backend = troupe::TorchConfig{.init_method = "tcp", .timeout_s = 20, .interface = "lo", .shared_memory = false},
       .num_workers = 2});
  for (const auto& sum : trainer->run([] { return train::torch::all_reduce(torch::ones({3})).sum().item<double>(); }))
    DOCTEST_CHECK(sum == 6);
}

DOCTEST_TEST_CASE("operations without a torch backend say which one to choose") {
  TestTrainer trainer({.num_workers = 1});
  DOCTEST_CHECK(error_of([&] { trainer->run([] { train::torch::barrier(); }); }).says(".backend = \"torch\""));
}

DOCTEST_TEST_CASE("Gloo on an interface that is not there says so") {
  TestTrainer trainer(
      {.backend = troupe::TorchConfig{.interface = "nosuch0", .shared_memory = false}, .num_workers = 2});
  const auto error = error_of([&] { trainer->run([] { train::torch::barrier(); }); });
  DOCTEST_CAPTURE(error.text);
  DOCTEST_CHECK(error.says("TorchConfig.interface"));
  DOCTEST_CHECK(error.says("nosuch0"));
}

DOCTEST_TEST_CASE("gradient buckets and other operations may be begun in another order on each rank") {
  on_every_transport(3, [](const troupe::TrainerOptions& options) {
    TestTrainer trainer(options);
    const auto results = trainer->run([]() -> Json {
      const int rank = train::world_rank();
      const auto collective = troupe::TorchGroup::current("test")->collective();
      const auto buffer = collective->make_buffer(1000, torch::kFloat);
      Json sums;
      for (int round = 0; round < 20; ++round) {
        buffer->tensor().fill_(rank + round);
        auto other = torch::full({1000}, 10.0F * static_cast<float>(rank));
        const bool bucket_first = (rank + round) % 2 == 0;
        if (bucket_first) buffer->start(1.0);
        collective->all_reduce(other);
        if (!bucket_first) buffer->start(1.0);
        buffer->contribute();
        buffer->finish();
        sums = {buffer->tensor().sum().item<double>() - 3000.0 * round, other.sum().item<double>()};
        if (sums != Json{3000.0, 30000.0}) break;
      }
      return sums;
    });
    for (const auto& sums : results) DOCTEST_CHECK(sums == Json{3000.0, 30000.0});
  });
}

DOCTEST_TEST_CASE("ranks on any number of hosts reduce, gather and train alike to the bit") {
  const auto run = [](int workers, int hosts) {
    TestTrainer trainer(
        {.backend = troupe::TorchConfig{.timeout_s = 20, .pretend_hosts = hosts}, .num_workers = workers});
    return trainer->run([]() -> Json {
      const int rank = train::world_rank();
      Json result;
      result["sum"] = train::torch::all_reduce(torch::full({300001}, 1.0 + rank)).sum().item<double>();
      result["root"] =
          train::torch::broadcast(torch::full({300001}, rank), train::world_size() - 1).sum().item<double>();
      for (const auto& one : train::torch::all_gather(torch::full({300001}, rank)))
        result["all"].push_back(one[7].item<int>());
      torch::manual_seed(3);
      torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
      net = train::torch::prepare_model(net, {.bucket_bytes = 64});
      torch::optim::SGD optimizer(net->parameters(), 0.1);
      const auto x = torch::randn({12, 6}).narrow(0, 12 / train::world_size() * rank, 12 / train::world_size());
      for (int step = 0; step < 10; ++step) {
        optimizer.zero_grad();
        const auto out = net->forward(x);
        // Another operation while gradients are under way, as layers that talk to other ranks have.
        out.register_hook([](const at::Tensor& gradient) {
          return train::torch::all_reduce(gradient.clone()) / train::world_size();
        });
        out.square().mean().backward();
        optimizer.step();
      }
      for (const auto& parameter : net->parameters()) result["net"].push_back(parameter.sum().item<double>());
      return result;
    });
  };
  const auto expected = run(3, 0);
  const std::pair<int, int> layouts[] = {{3, 2}, {3, 3}, {4, 2}, {4, 3}};
  for (const auto& [workers, hosts] : layouts) {
    DOCTEST_CAPTURE(workers);
    DOCTEST_CAPTURE(hosts);
    const auto results = run(workers, hosts);
    for (const auto& result : results) {
      DOCTEST_CHECK(result == results[0]);
      DOCTEST_CHECK(result["sum"] == 300001.0 * workers * (workers + 1) / 2);
      DOCTEST_CHECK(result["root"] == 300001.0 * (workers - 1));
      DOCTEST_CHECK(result["all"] == (workers == 3 ? Json({0, 1, 2}) : Json({0, 1, 2, 3})));
      for (std::size_t i = 0; workers == 3 && i < 4; ++i)
        DOCTEST_CHECK(result["net"][i].get<double>() ==
                      doctest::Approx(expected[0]["net"][i].get<double>()).epsilon(1e-5));
    }
  }
  DOCTEST_CHECK(run(4, 2) == run(4, 2));
}
