// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/nccl_communicator.hpp"

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/lost_group.hpp"

namespace troupe {

void NcclCommunicator::fail(const char* what, ncclResult_t result) {
  const char* last = communicator_ ? api_.get_last_error(communicator_) : nullptr;
  const auto text =
      fmt::format("{} failed on rank {}: {}{}{} (NCCL {}; NCCL_DEBUG=INFO says more)", what, world_rank_,
                  api_.get_error_string(result), last && *last ? ": " : "", last ? last : "", api_.version());
  // A peer that is gone. While the group forms, an error of the system is this host's own: no shared memory, no
  // network.
  if (result == ncclRemoteError || (result == ncclSystemError && formed_)) throw GroupLost(text);
  throw Error(ErrorCode::start_failed, text, world_rank_);
}

void NcclCommunicator::init(const ncclUniqueId& id, int rank, int size) {
  {
    std::lock_guard lock(mutex_);
    if (aborted_) throw GroupLost(lost_group);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const auto result = api_.comm_init_rank_config(&communicator_, size, id, rank, &config);
    if (result != ncclSuccess && result != ncclInProgress) fail("ncclCommInitRankConfig", result);
  }
  try {
    wait("forming the NCCL group", [this] { return state("ncclCommInitRankConfig") == ncclSuccess; });
  } catch (const Error& error) {
    if (error.code() == ErrorCode::start_failed) wait_for_abort(error.what());
    throw;
  }
  formed_ = true;
}

/// Older releases call a peer that died while the group formed an error of this host's system. The news of it comes
/// within moments then.
void NcclCommunicator::wait_for_abort(const char* why) const {
  using namespace std::chrono;
  for (const auto end = steady_clock::now() + std::min<milliseconds>(timeout_, 500ms); steady_clock::now() < end;) {
    if (aborted()) throw GroupLost(why);
    std::this_thread::sleep_for(5ms);
  }
}

void NcclCommunicator::run(const char* what, const std::function<ncclResult_t(ncclComm_t)>& call) {
  {
    std::lock_guard lock(mutex_);
    if (aborted_) throw GroupLost(lost_group);
    const auto result = call(communicator_);
    if (result == ncclSuccess) return;
    if (result != ncclInProgress) fail(what, result);
  }
  wait(what, [&] { return state(what) == ncclSuccess; });
}

/// ncclSuccess or ncclInProgress; throws everything else.
ncclResult_t NcclCommunicator::state(const char* what) {
  std::lock_guard lock(mutex_);
  if (aborted_) throw GroupLost(lost_group);
  ncclResult_t now = ncclSuccess;
  if (const auto result = api_.comm_get_async_error(communicator_, &now); result != ncclSuccess) fail(what, result);
  if (now != ncclSuccess && now != ncclInProgress) fail(what, now);
  return now;
}

void NcclCommunicator::check(const char* what) { state(what); }

void NcclCommunicator::wait(const char* what, const std::function<bool()>& is_done) {
  using namespace std::chrono;
  const auto deadline = steady_clock::now() + timeout_;
  for (auto pause = microseconds(10);; pause = std::min(pause * 2, microseconds(2000))) {
    const bool done = is_done();
    check(what);  // an aborted operation is done as well, and leaves anything
    if (done) return;
    if (steady_clock::now() >= deadline)
      throw Error(
          ErrorCode::deadline,
          fmt::format("{} waited {} ms (timeout_s) for other ranks: do all ranks call the same operations in the "
                      "same order?",
                      what, timeout_.count()),
          world_rank_);
    std::this_thread::sleep_for(pause);
  }
}

bool NcclCommunicator::aborted() const {
  std::lock_guard lock(mutex_);
  return aborted_;
}

void NcclCommunicator::abort() noexcept {
  std::lock_guard lock(mutex_);
  aborted_ = true;
  if (auto communicator = std::exchange(communicator_, nullptr)) api_.comm_abort(communicator);
}

}  // namespace troupe
