// SPDX-License-Identifier: Apache-2.0
// What a train function sees of its rank. Every function here works on the thread that runs the train function, on
// threads bound with a ContextGuard and, in process placement, on every thread of the worker.
#pragma once

#include <chrono>
#include <memory>

#include <troupe/json.hpp>

namespace troupe {
namespace detail {
class Session;
}

namespace train {

/// Sends one round of metrics (a JSON object; null counts as no metrics) to the driver. All ranks report equally often.
/// Returns at once while credit is left, waits for a slow consumer otherwise. Throws Stopped when the run is being
/// stopped, invalid_argument for anything but an object, too_large above 16 MiB.
void report(const Json& metrics);

/// Rank among all workers, among those of this host, and the number of this host.
int world_rank();
int local_rank();
int node_rank();
/// Number of workers, and of those on this host.
int world_size();
int local_world_size();
/// True inside a worker (or in local mode's function), false in the driver.
bool in_worker();
/// True once the run is being stopped: return soon.
bool should_stop();
/// Waits until the run is being stopped, without end or for this long at most; true when it is.
void wait_for_stop();
bool wait_for_stop(std::chrono::milliseconds timeout);

/// The rank this thread works for, as a value that can be handed to other threads.
class Context {
public:
  Context() = default;
  explicit Context(std::shared_ptr<detail::Session> session) : session_(std::move(session)) {}
  explicit operator bool() const { return session_ != nullptr; }
  const std::shared_ptr<detail::Session>& session() const { return session_; }

private:
  std::shared_ptr<detail::Session> session_;
};

/// The calling thread's rank; throws not_in_worker where there is none.
Context context();

/// Binds a rank to the calling thread for the guard's life.
class ContextGuard {
public:
  explicit ContextGuard(Context context);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

private:
  std::shared_ptr<detail::Session> previous_;
};

/// The names of Ray AIR's session module.
namespace session {
using train::report;
inline int get_world_size() { return world_size(); }
inline int get_world_rank() { return world_rank(); }
inline int get_local_rank() { return local_rank(); }
inline int get_node_rank() { return node_rank(); }
inline int get_local_world_size() { return local_world_size(); }
}  // namespace session

}  // namespace train
}  // namespace troupe
