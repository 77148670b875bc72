// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/device.hpp"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <troupe/torch_model.hpp>

#include <cmath>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/torch_group.hpp"
#include "runtime/session/session.hpp"

namespace troupe {
namespace {

/// Programs link libtorch's CPU part alone; its CUDA part registers itself when it is loaded.
void load_cuda() {
  if (c10::impl::hasDeviceGuardImpl(c10::kCUDA)) return;
  if (!::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL))
    throw Error(
        ErrorCode::start_failed,
        fmt::format("use_gpu needs a libtorch with CUDA, but its CUDA part cannot be loaded: {}. Install the whole "
                    "torch wheel with its dependencies (pip install torch), or set use_gpu = false",
                    ::dlerror()));
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA))
    throw Error(ErrorCode::start_failed, "libtorch_cuda.so was loaded, but has registered no CUDA devices");
}

}  // namespace

c10::Device device_of_worker(int local_rank, double gpus_per_worker) {
  if (gpus_per_worker <= 0) return c10::Device(c10::kCPU);
  load_cuda();
  const auto index = static_cast<int>(std::floor(local_rank * gpus_per_worker));
  const int count = c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount();
  if (index >= count)
    throw Error(
        ErrorCode::start_failed,
        fmt::format("no CUDA device {} for local rank {}: libtorch sees {}. Check nvidia-smi, the driver's version and "
                    "CUDA_VISIBLE_DEVICES, or set use_gpu = false",
                    index, local_rank, count));
  return c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index));
}

void use_device(c10::Device device) {
  if (device.is_cuda()) c10::impl::getDeviceGuardImpl(c10::kCUDA)->setDevice(device);
}

}  // namespace troupe

namespace troupe::train::torch {

c10::Device get_device() {
  if (auto session = troupe::detail::Session::current())
    if (auto group = session->data().get<TorchGroup>("torch")) return group->device();
  return c10::Device(c10::kCPU);
}

}  // namespace troupe::train::torch
