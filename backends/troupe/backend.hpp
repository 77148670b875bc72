// SPDX-License-Identifier: Apache-2.0
// Backends set the workers of a group up before the first run and take them down after the last.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <troupe/json.hpp>
#include <troupe/options.hpp>
#include <troupe/store.hpp>

namespace troupe {

/// What a backend knows of the worker it runs on.
struct BackendContext {
  int world_rank = 0;
  int local_rank = 0;
  int node_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int threads = 1;                         ///< CPU threads this worker should use
  bool own_process = true;                 ///< false in thread placement and local mode: the environment is everybody's
  std::uint64_t epoch = 0;                 ///< a new one each time the group is formed
  std::shared_ptr<Store> store = nullptr;  ///< of the group; null in local mode
  std::shared_ptr<DescriptorExchange> descriptors = nullptr;  ///< to other ranks of this host; null in local mode
};

/// Hooks of one worker; called on the thread that also runs the train function. An exception in on_start() fails
/// start() with its text and rank.
class Backend {
public:
  virtual ~Backend() = default;
  /// Once in each worker, before any user code runs there. There is no group yet: neither `store` nor `descriptors` is
  /// set, and an elastic group may give the worker another rank later.
  virtual void on_setup(const BackendContext& /*context*/) {}
  /// On all workers at once: at the start, and again (after on_shutdown()) when a worker was replaced.
  virtual void on_start(const BackendContext& context) = 0;
  virtual void on_shutdown() {}
  /// On another thread, while the function or on_start() may be waiting for other ranks: end those waits with
  /// GroupLost. The group is not used any more; on_shutdown() follows. It must return at once: its thread answers the
  /// driver meanwhile, in thread placement for all workers.
  virtual void on_abort() {}
  /// The function has thrown something that is no error of troupe's. True: because other ranks are gone, so it counts
  /// as GroupLost.
  virtual bool has_lost_peers() { return false; }
};

using BackendFactory = std::function<std::unique_ptr<Backend>(const Json& options)>;
/// Throws for options that the factory would refuse.
using BackendCheck = std::function<void(const Json& options)>;

/// Makes `name` usable as TrainerOptions::backend. Call it before main() or before troupe::init(): workers must know
/// it too. The factory is called in workers; the check, if there is one, already in the Trainer's constructor. Returns
/// true, so that it can initialize a global.
bool register_backend(const std::string& name, BackendFactory factory, BackendCheck check = {});
/// Names that can be used now, sorted.
std::vector<std::string> backend_names();
/// Throws invalid_option with the list of names for an unknown one.
std::unique_ptr<Backend> make_backend(const std::string& name, const Json& options);
/// Throws what make_backend would throw for the name, and what the backend's check throws for the options, without
/// making one. The empty name (no backend) is fine.
void require_backend(const BackendConfig& backend);

}  // namespace troupe
