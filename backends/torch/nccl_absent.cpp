// SPDX-License-Identifier: Apache-2.0
// What takes the place of NCCL in builds without it.
#include <troupe/error.hpp>

#include "backends/torch/nccl.hpp"

namespace troupe {

bool nccl_is_compiled_in() { return false; }

std::string load_nccl() {
  throw Error(
      ErrorCode::start_failed,
      "this troupe was built without NCCL: build it with -DTROUPE_WITH_NCCL=ON (./dev build --nccl, or the Conan "
      "option with_nccl), which needs nccl.h, or choose TorchConfig.backend = \"gloo\"");
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): the other make_nccl_group() keeps both
std::shared_ptr<NcclGroup> make_nccl_group(NcclOptions, std::shared_ptr<Store>) {
  load_nccl();
  return nullptr;
}

}  // namespace troupe
