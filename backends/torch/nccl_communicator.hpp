// SPDX-License-Identifier: Apache-2.0
// A communicator of NCCL that never blocks for good: every call returns at once or is watched until a deadline, and
// another thread can abort it at any time. No torch here.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>

#include "backends/torch/nccl_api.hpp"

namespace troupe {

class NcclCommunicator {
public:
  NcclCommunicator(const NcclApi& api, int world_rank, std::chrono::milliseconds timeout)
      : api_(api), world_rank_(world_rank), timeout_(timeout) {}
  ~NcclCommunicator() { abort(); }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  /// Collective. The calling thread's CUDA device is the one it works on.
  void init(const ncclUniqueId& id, int rank, int size);
  /// Begins an operation: `call` gets the communicator. `what` is for errors.
  void run(const char* what, const std::function<ncclResult_t(ncclComm_t)>& call);
  /// Waits until `is_done`, looking less and less often, and after errors of the communicator meanwhile. Throws them,
  /// and GroupLost after an abort, also when it is done.
  void wait(const char* what, const std::function<bool()>& is_done);
  /// Throws what has gone wrong since the last call, if anything.
  void check(const char* what);
  bool aborted() const;

  void abort() noexcept;

private:
  ncclResult_t state(const char* what);
  void wait_for_abort(const char* why) const;
  [[noreturn]] void fail(const char* what, ncclResult_t result);

  const NcclApi& api_;
  const int world_rank_;
  const std::chrono::milliseconds timeout_;
  mutable std::mutex mutex_;  // an abort frees the communicator, so it must not come in the middle of a call
  ncclComm_t communicator_ = nullptr;
  bool aborted_ = false;
  bool formed_ = false;
};

}  // namespace troupe
