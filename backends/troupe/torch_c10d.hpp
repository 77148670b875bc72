// SPDX-License-Identifier: Apache-2.0
// The group as libtorch's own c10d type, for loops that are written against it.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace troupe::train::torch {

/// The workers as a c10d process group (Gloo), made at the first call, which is collective.
c10::intrusive_ptr<c10d::ProcessGroup> process_group();

}  // namespace troupe::train::torch
