// SPDX-License-Identifier: Apache-2.0
// Collectives on GPUs, through NCCL's own API. The library is loaded when a group wants it, so that programs start
// where it is missing. Whether NCCL is compiled in or not, this is what others see of it.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <troupe/store.hpp>

#include "backends/torch/collective.hpp"

namespace troupe {

struct NcclOptions {
  int rank = 0;
  std::vector<int> members;  ///< world ranks
  std::string prefix;        ///< of our keys in the store: one a group and epoch
  std::chrono::milliseconds timeout{60000};
  c10::Device device{c10::kCPU};
};

/// Whether troupe was built with it.
bool nccl_is_compiled_in();
/// Loads the library, once; throws start_failed that says what to install. Gives its version, such as "2.28.9".
std::string load_nccl();

/// A group that can be aborted while it forms.
class NcclGroup : public Collective {
public:
  /// Collective. Throws deadline that names missing ranks, GroupLost after an abort.
  virtual void form() = 0;
};
/// Throws start_failed where NCCL is missing, or the device is none.
std::shared_ptr<NcclGroup> make_nccl_group(NcclOptions options, std::shared_ptr<Store> store);

}  // namespace troupe
