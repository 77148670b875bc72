// SPDX-License-Identifier: Apache-2.0
// A file of its own, without Gloo's headers: see torch_compat.hpp.
#include <torch/version.h>

#include <chrono>

#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace troupe::torch_compat {

void set_timeout(c10d::Backend& backend, std::chrono::milliseconds timeout) { backend.setTimeout(timeout); }

}  // namespace troupe::torch_compat
#endif
