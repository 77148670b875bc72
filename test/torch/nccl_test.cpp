// SPDX-License-Identifier: Apache-2.0
// NCCL and GPUs as far as a machine without any can tell. The contract of collectives runs on NCCL where GPUs are.
#include <ATen/Functions.h>

#include <chrono>
#include <thread>

#include <troupe/torch.hpp>
#include <troupe/troupe.hpp>

#include "backends/torch/device.hpp"
#include "backends/torch/nccl.hpp"
#include "runtime/base/host.hpp"
#include "test/torch/transports.hpp"

using namespace troupe::test;
using troupe::ErrorCode;

DOCTEST_TEST_CASE("workers compute on the CPU unless GPUs are asked for, which must be there") {
  TestTrainer trainer({.backend = "torch", .num_workers = 1});
  DOCTEST_CHECK(trainer->run([] { return troupe::train::torch::get_device().str(); })[0] == "cpu");
  DOCTEST_CHECK(troupe::train::torch::get_device().is_cpu());
  DOCTEST_CHECK(troupe::device_of_worker(3, 0).is_cpu());
  if (troupe::detail::gpu_count() > 0) return skip("the errors of a machine without GPUs: this one has some");
  TestTrainer on_gpu({.backend = "torch", .num_workers = 2, .use_gpu = true});
  const auto error = error_of([&] { on_gpu->start(); });
  DOCTEST_CHECK(error.says("the workers need 2 GPUs, but this host has 0"));
  DOCTEST_CHECK(error.says("use_gpu = false"));
  // Were one promised, libtorch would say what is missing.
  const auto missing = error_of([] { troupe::device_of_worker(0, 1); });
  DOCTEST_CHECK(missing.code == ErrorCode::start_failed);
  DOCTEST_CHECK(missing.says("use_gpu = false"));
}

DOCTEST_TEST_CASE("the backend nccl is refused at start where it cannot work, with what to do") {
  TestTrainer trainer({.backend = troupe::TorchConfig{.backend = "nccl"}, .num_workers = 2});
  const auto error = error_of([&] { trainer->start(); });
  DOCTEST_CAPTURE(error.text);
  if (!troupe::nccl_is_compiled_in()) {
    DOCTEST_CHECK(error.says("built without NCCL"));
    DOCTEST_CHECK(error.says("TROUPE_WITH_NCCL"));
  } else {
    DOCTEST_CHECK((error.says("no CUDA device") || error.says("NCCL library not found")));
  }
  DOCTEST_CHECK(error.says("\"gloo\""));
}

DOCTEST_TEST_CASE("an exception on one rank frees the others and the group forms again, on NCCL") {
  on_nccl(2, [](const troupe::TrainerOptions& options) {
    TestTrainer trainer(options);
    const auto run = [&](bool fails) {
      return trainer->run(
          [](const troupe::Config& config) {
            auto tensor = at::ones({1000}, troupe::train::torch::get_device());
            troupe::train::torch::all_reduce(tensor);
            if (config["fails"].get<bool>() && troupe::train::world_rank() == 1) throw std::runtime_error("bad batch");
            return troupe::train::torch::all_reduce(tensor).sum().item<double>();
          },
          {.config = {{"fails", fails}}});
    };
    DOCTEST_CHECK(error_of([&] { run(true); }).says("bad batch"));
    for (const auto& sum : run(false)) DOCTEST_CHECK(sum == 4000);
  });
}

#ifdef TROUPE_WITH_NCCL
#include "backends/torch/nccl_communicator.hpp"

namespace {

// A library whose calls never end, or end as told: what a machine without GPU cannot show.
ncclResult_t next_state = ncclInProgress;
int aborts = 0;

troupe::NcclApi slow_api() {
  troupe::NcclApi api;
  api.get_version = [](int* version) {
    *version = 22809;
    return ncclSuccess;
  };
  api.comm_init_rank_config = [](ncclComm_t* communicator, int, ncclUniqueId, int, ncclConfig_t* config) {
    *communicator = reinterpret_cast<ncclComm_t>(&next_state);
    return config->blocking == 0 ? ncclInProgress : ncclInternalError;
  };
  api.comm_get_async_error = [](ncclComm_t, ncclResult_t* state) {
    *state = next_state;
    return ncclSuccess;
  };
  api.comm_abort = [](ncclComm_t) {
    aborts += 1;
    return ncclSuccess;
  };
  api.get_error_string = [](ncclResult_t) { return "unhandled cuda error"; };
  api.get_last_error = [](ncclComm_t) { return "no device"; };
  return api;
}

}  // namespace

DOCTEST_TEST_CASE("an NCCL library that is missing, or is none, is named") {
  const auto missing = error_of([] { troupe::NcclApi::load("/nowhere/libnccl.so.2"); });
  DOCTEST_CHECK(missing.code == ErrorCode::start_failed);
  DOCTEST_CHECK(missing.says("NCCL library not found: /nowhere/libnccl.so.2"));
  DOCTEST_CHECK(missing.says("nvidia-nccl"));
  DOCTEST_CHECK(error_of([] { troupe::NcclApi::load("libc.so.6"); }).says("has no ncclGetVersion"));
}

DOCTEST_TEST_CASE("workers load the NCCL library that TROUPE_NCCL_LIBRARY names") {
  const EnvironmentGuard chosen("TROUPE_NCCL_LIBRARY", "/nowhere/x.so");
  TestTrainer trainer({.backend = troupe::TorchConfig{.backend = "nccl"}, .num_workers = 1});
  const auto error = error_of([&] { trainer->start(); });
  DOCTEST_CAPTURE(error.text);
  DOCTEST_CHECK(error.says("NCCL library not found: /nowhere/x.so"));
}

DOCTEST_TEST_CASE("NCCL is loaded at run time, tells its version, and fails with its own words without a GPU") {
  try {
    DOCTEST_CHECK(troupe::load_nccl().starts_with("2."));
  } catch (const troupe::Error& error) {
    return skip(error.what());
  }
  const auto& api = troupe::NcclApi::instance();
  ncclUniqueId id{};
  DOCTEST_CHECK(api.get_unique_id(&id) == ncclSuccess);
  if (troupe::detail::gpu_count() > 0) return skip("the errors of a machine without GPUs: this one has some");
  troupe::NcclCommunicator communicator(api, 0, std::chrono::seconds(5));
  const auto error = error_of([&] { communicator.init(id, 0, 1); });
  DOCTEST_CAPTURE(error.text);
  DOCTEST_CHECK(error.says("ncclCommInitRankConfig failed on rank 0"));
}

DOCTEST_TEST_CASE("forming over NCCL ends at the deadline, with its error, or when another thread aborts") {
  const auto api = slow_api();
  const ncclUniqueId id{};
  next_state = ncclInProgress;
  {
    troupe::NcclCommunicator late(api, 3, std::chrono::milliseconds(20));
    const auto error = error_of([&] { late.init(id, 0, 2); });
    DOCTEST_CHECK(error.code == ErrorCode::deadline);
    DOCTEST_CHECK(error.says("20 ms"));
    DOCTEST_CHECK(error.rank == 3);
  }
  DOCTEST_CHECK(aborts == 1);  // the communicator is not leaked
  next_state = ncclUnhandledCudaError;
  {
    troupe::NcclCommunicator broken(api, 3, patience);
    DOCTEST_CHECK(error_of([&] { broken.init(id, 0, 2); }).says("unhandled cuda error: no device"));
  }
  next_state = ncclSystemError;  // as in a container without shared memory: nobody is gone
  {
    troupe::NcclCommunicator misplaced(api, 3, patience);
    DOCTEST_CHECK(error_of([&] { misplaced.init(id, 0, 2); }).code == ErrorCode::start_failed);
    next_state = ncclSuccess;
    misplaced.init(id, 0, 2);
    next_state = ncclSystemError;
    DOCTEST_CHECK(error_of([&] { misplaced.check("a test"); }).code == ErrorCode::group_lost);
  }
  {
    troupe::NcclCommunicator bereft(api, 3, patience);  // what older releases say of a peer that died meanwhile
    std::thread told([&] { bereft.abort(); });
    const auto code = error_of([&] { bereft.init(id, 0, 2); }).code;
    told.join();
    DOCTEST_CHECK(code == ErrorCode::group_lost);
  }
  next_state = ncclRemoteError;
  {
    troupe::NcclCommunicator lost(api, 3, patience);
    DOCTEST_CHECK(error_of([&] { lost.init(id, 0, 2); }).code == ErrorCode::group_lost);
  }
  next_state = ncclSuccess;
  troupe::NcclCommunicator aborted(api, 3, patience);
  aborted.init(id, 0, 2);
  std::thread other;
  const auto error = error_of([&] {
    aborted.wait("a test", [&] {
      if (!other.joinable()) other = std::thread([&] { aborted.abort(); });
      return false;
    });
  });
  other.join();
  DOCTEST_CHECK(error.code == ErrorCode::group_lost);
  // An abort ends what runs on the GPU, which looks as if it were done.
  troupe::NcclCommunicator ended(api, 3, patience);
  ended.init(id, 0, 2);
  const auto is_done = [&] {
    ended.abort();
    return true;
  };
  DOCTEST_CHECK(error_of([&] { ended.wait("a test", is_done); }).code == ErrorCode::group_lost);
  DOCTEST_CHECK(error_of([&] { aborted.run("a test", [](ncclComm_t) { return ncclSuccess; }); }).code ==
                ErrorCode::group_lost);
}
#else
DOCTEST_TEST_CASE("NCCL's own tests are skipped in a build without it") {
  DOCTEST_CHECK(!troupe::nccl_is_compiled_in());
  skip(why_not_nccl(1));
}
#endif
