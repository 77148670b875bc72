// SPDX-License-Identifier: Apache-2.0
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <troupe/torch_reproducibility.hpp>

#include <cstdlib>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/mix.hpp"
#include "backends/torch/torch_group.hpp"
#include "runtime/session/session.hpp"

namespace troupe::train::torch {

void enable_reproducibility(std::uint64_t seed, const ReproducibilityOptions& options) {
  const auto session = troupe::detail::Session::require("enable_reproducibility()");
  // A rank that joins a live run has no group yet; only processes do that.
  const auto group = session->joining() ? nullptr : TorchGroup::current("enable_reproducibility()");
  if (group && !group->own_process() && group->size() > 1)
    throw Error(ErrorCode::invalid_state,
                fmt::format("enable_reproducibility() is refused: {} ranks share this process and with it libtorch's "
                            "generator, so which of them gets which numbers is chance. Use process placement",
                            group->size()),
                group->rank());
  if (options.threads < 0 || options.threads > 1024)
    throw Error(
        ErrorCode::invalid_option,
        fmt::format("ReproducibilityOptions.threads = {} is refused; valid: 0 (as they are) to 1024", options.threads));
  if (options.threads > 0) at::set_num_threads(options.threads);
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicCuDNN(true);
  context.setBenchmarkCuDNN(false);
  // cuBLAS is deterministic only with a workspace of its own, and reads this when it starts.
  if (at::hasCUDA() && (!group || group->own_process())) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  // Each rank has numbers of its own, so that ranks do not drop out the same units. A multiple of the rank would make
  // seeds of two runs meet.
  at::manual_seed(mix(mix(seed) + static_cast<std::uint64_t>(session->ranks().world_rank)));
}

}  // namespace troupe::train::torch
