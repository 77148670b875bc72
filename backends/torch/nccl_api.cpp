// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/nccl_api.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <mutex>
#include <optional>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/nccl.hpp"

namespace troupe {

NcclApi NcclApi::load(const std::string& library) {
  // Never closed: its threads may run until the process ends.
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle)
    throw Error(
        ErrorCode::start_failed,
        fmt::format("NCCL library not found: {}. Install it (Debian: libnccl2 of NVIDIA's repository; PyPI: "
                    "nvidia-nccl-cu13) where the dynamic linker looks, or name the file in TROUPE_NCCL_LIBRARY, "
                    "or choose TorchConfig.backend = \"gloo\"",
                    ::dlerror()));
  NcclApi api;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, name));
    if (!function)
      throw Error(ErrorCode::start_failed, fmt::format("{} has no {}: NCCL 2.14 or newer is needed", library, name));
  };
  find(api.get_version, "ncclGetVersion");
  find(api.get_unique_id, "ncclGetUniqueId");
  find(api.comm_init_rank_config, "ncclCommInitRankConfig");
  find(api.comm_get_async_error, "ncclCommGetAsyncError");
  find(api.comm_abort, "ncclCommAbort");
  find(api.get_error_string, "ncclGetErrorString");
  find(api.get_last_error, "ncclGetLastError");
  find(api.all_reduce, "ncclAllReduce");
  find(api.broadcast, "ncclBroadcast");
  find(api.all_gather, "ncclAllGather");
  find(api.reduce_scatter, "ncclReduceScatter");
  return api;
}

const NcclApi& NcclApi::instance() {
  static std::mutex mutex;
  static std::optional<NcclApi> api;
  std::lock_guard lock(mutex);
  if (!api) {
    const char* chosen = std::getenv("TROUPE_NCCL_LIBRARY");
    api = load(chosen ? chosen : "libnccl.so.2");
  }
  return *api;
}

std::string NcclApi::version() const {
  int code = 0;
  if (get_version(&code) != ncclSuccess) return "unknown";
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

bool nccl_is_compiled_in() { return true; }

std::string load_nccl() { return NcclApi::instance().version(); }

}  // namespace troupe
