// SPDX-License-Identifier: Apache-2.0
// Which device a worker computes on. CUDA is reached through libtorch's own, device-independent interface.
#pragma once

#include <c10/core/Device.h>

namespace troupe {

/// The device of a worker with so many GPUs: the first of its share of the host's, so with one each it is number
/// local_rank. Without any it is the CPU. Throws start_failed where libtorch has no CUDA, or too few devices.
c10::Device device_of_worker(int local_rank, double gpus_per_worker);

/// Makes it the one that the calling thread's code means by "cuda".
void use_device(c10::Device device);

}  // namespace troupe
