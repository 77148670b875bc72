// SPDX-License-Identifier: Apache-2.0
// libtorch's autocast as a guard.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace troupe::train::torch {

/// While it lives, operations of this thread that gain from it are done in `dtype`; with `enabled` false, none are.
/// Guards nest. Casts of parameters are kept until the outermost guard ends, so end it before parameters change.
class Autocast {
public:
  /// Does nothing.
  Autocast() = default;
  Autocast(c10::DeviceType device, c10::ScalarType dtype, bool enabled = true);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

private:
  c10::DeviceType device_ = c10::DeviceType::CPU;
  bool active_ = false;
  bool previous_enabled_ = false;
  c10::ScalarType previous_dtype_ = c10::ScalarType::Undefined;
};

}  // namespace troupe::train::torch
