// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/cpu_memory.hpp"

#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "backends/block_cache.hpp"
#include "backends/torch/torch_compat.hpp"

namespace troupe {
namespace {

/// Never destroyed: tensors of static storage outlive everything.
BlockCache& blocks() {
  static auto* cache = new BlockCache;
  return *cache;
}

void give_back(void* data) { blocks().deallocate(data); }

class KeepingAllocator final : public c10::Allocator {
public:
  c10::DataPtr allocate(std::size_t bytes) TROUPE_TORCH_ALLOCATE_CONST override {
    void* data = bytes == 0 ? nullptr : blocks().allocate(bytes);
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t count) const TROUPE_TORCH_COPY_DATA_OVERRIDE {
    std::memcpy(to, from, count);
  }
};

}  // namespace

void keep_tensor_memory() {
#if defined(__SANITIZE_ADDRESS__)
  return;  // it could not see the use of a tensor that is gone
#endif
  static auto* allocator = new KeepingAllocator;
  c10::SetCPUAllocator(allocator, /*priority=*/1);
}

}  // namespace troupe
