// SPDX-License-Identifier: Apache-2.0
// What differs between libtorch 1.13 (Debian) and 2.x (wheel).
#pragma once

#include <arpa/inet.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <torch/version.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#define TROUPE_TORCH_VERSION (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR)

// Store::clone() is pure virtual from 2.8 on, and absent before.
#if TROUPE_TORCH_VERSION >= 208
#define TROUPE_TORCH_STORE_CLONE_OVERRIDE override
#else
#define TROUPE_TORCH_STORE_CLONE_OVERRIDE
#endif

// c10::Allocator: allocate() was const until 2.2, copy_data() has been there since.
#if TROUPE_TORCH_VERSION >= 203
#define TROUPE_TORCH_ALLOCATE_CONST
#define TROUPE_TORCH_COPY_DATA_OVERRIDE override
#else
#define TROUPE_TORCH_ALLOCATE_CONST const
#define TROUPE_TORCH_COPY_DATA_OVERRIDE
#endif

namespace troupe::torch_compat {

inline constexpr bool gloo_sums_bfloat16 = TROUPE_TORCH_VERSION >= 206;
/// Before, each connection had a listening socket of its own, which was closed once it was there.
inline constexpr bool gloo_keeps_listening = TROUPE_TORCH_VERSION >= 200;
inline constexpr bool has_half_on_cpu = TROUPE_TORCH_VERSION >= 200;

/// Autocast of the calling thread.
struct AutocastState {
  bool enabled;
  c10::ScalarType dtype;
};
AutocastState get_autocast(c10::DeviceType device);
void enter_autocast(c10::DeviceType device, AutocastState state);
/// The end of what enter_autocast() began; the outermost one forgets all casts.
void leave_autocast(c10::DeviceType device, AutocastState previous);
void clear_autocast_cache();

/// Which backward() the calling thread computes gradients for; 0 where libtorch does not tell.
int current_backward();

/// Multiplies tensors of one device and type in place; true if one holds what is not finite.
bool scale_and_check(const std::vector<at::Tensor>& tensors, double factor);

#if TROUPE_TORCH_VERSION >= 200
using Gloo = c10d::ProcessGroupGloo;
/// In a file that does not see Gloo's headers: Debian's are older than the Gloo in the wheel, so no inline function
/// that touches an object of Gloo may be compiled into troupe, as the one behind this virtual call would be here.
void set_timeout(c10d::Backend& backend, std::chrono::milliseconds timeout);
#else
class Gloo : public c10d::ProcessGroupGloo {
public:
  using c10d::ProcessGroupGloo::ProcessGroupGloo;
  friend void set_timeout(Gloo& gloo, std::chrono::milliseconds timeout) {
    for (auto& context : gloo.contexts_) context->setTimeout(timeout);
  }
};
#endif

using GlooDevice = std::shared_ptr<::gloo::transport::Device>;

/// `interface`: an address or the name of an interface; never a host name, whose look-up may be slow or wrong.
inline GlooDevice make_gloo_device(const std::string& interface) {
  in6_addr address{};
  const bool is_address =
      ::inet_pton(AF_INET, interface.c_str(), &address) == 1 || ::inet_pton(AF_INET6, interface.c_str(), &address) == 1;
  return is_address ? c10d::ProcessGroupGloo::createDeviceForHostname(interface)
                    : c10d::ProcessGroupGloo::createDeviceForInterface(interface);
}

/// Connects to all others. `for_gpus`: takes tensors of GPUs too, which it stages through the CPU (1.13 takes them
/// anyway).
inline c10::intrusive_ptr<c10d::ProcessGroup> make_gloo(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                        int size, const GlooDevice& device,
                                                        std::chrono::milliseconds timeout,
                                                        [[maybe_unused]] bool for_gpus) {
  constexpr std::chrono::milliseconds longest_connect(20'000);  // whoever is left behind in it ends then
  auto options = c10d::ProcessGroupGloo::Options::create(std::min(timeout, longest_connect));
  options->devices.push_back(device);
  options->threads = 2;
  auto gloo = c10::make_intrusive<Gloo>(store, rank, size, options);
  // Gloo waits up to five times the timeout for a peer that has died after it gave its address, so it connects with a
  // short one and works with the user's.
  set_timeout(*gloo, timeout);
#if TROUPE_TORCH_VERSION < 200
  return gloo;
#else
  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, size);
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  const auto backend = c10::static_intrusive_pointer_cast<c10d::Backend>(gloo);
  group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO, backend);
  if (for_gpus) group->setBackend(c10::kCUDA, c10d::ProcessGroup::BackendType::GLOO, backend);
  return group;
#endif
}

}  // namespace troupe::torch_compat
