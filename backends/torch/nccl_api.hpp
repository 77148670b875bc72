// SPDX-License-Identifier: Apache-2.0
// NCCL's functions, found at run time. The types are those of nccl.h; nothing is linked.
#pragma once

#include <nccl.h>

#include <string>

namespace troupe {

struct NcclApi {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&::ncclCommAbort) comm_abort = nullptr;
  decltype(&::ncclGetErrorString) get_error_string = nullptr;
  decltype(&::ncclGetLastError) get_last_error = nullptr;
  decltype(&::ncclAllReduce) all_reduce = nullptr;
  decltype(&::ncclBroadcast) broadcast = nullptr;
  decltype(&::ncclAllGather) all_gather = nullptr;
  decltype(&::ncclReduceScatter) reduce_scatter = nullptr;

  std::string version() const;

  /// From the library of that name or path; throws start_failed that says what to install.
  static NcclApi load(const std::string& library);
  /// Of this process: libnccl.so.2, or what TROUPE_NCCL_LIBRARY names. Loaded at the first call that succeeds.
  static const NcclApi& instance();
};

}  // namespace troupe
