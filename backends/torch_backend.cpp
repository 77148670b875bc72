// SPDX-License-Identifier: Apache-2.0
// The backend "torch": gives each worker its share of the CPU threads and a group. What carries the group's collectives
// is made when something needs it.
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include <troupe/backend.hpp>

#include "backends/blas_check.hpp"
#include "backends/torch/cpu_memory.hpp"
#include "backends/torch/device.hpp"
#include "backends/torch/prepared_models.hpp"
#include "backends/torch/torch_group.hpp"
#include "runtime/base/host.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/versions.hpp"
#include "runtime/session/session.hpp"

/// Linkers drop an object that nobody refers to; naming this symbol keeps the registration below.
extern "C" {
extern char troupe_torch_backend_anchor;
char troupe_torch_backend_anchor = 0;
}

namespace troupe {
namespace {

/// OMP_NUM_THREADS, which wins: the user's own, or what the driver gave this worker. libgomp has read another before.
std::optional<int> chosen_threads() {
  const char* text = std::getenv("OMP_NUM_THREADS");
  if (!text) return std::nullopt;
  const std::string_view digits(text);
  int threads = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), threads);
  return error == std::errc() && threads > 0 ? std::optional(threads) : std::nullopt;
}

int threads_for(const BackendContext& context) { return std::max(1, chosen_threads().value_or(context.threads)); }

/// libgomp reads the policy when it is loaded: it is too late for this process.
void warn_of_spinning(int threads, int workers) {
  if (threads == 1 || threads * workers <= detail::core_count()) return;
  for (const char* chosen : {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"})
    if (std::getenv(chosen)) return;
  log_warning(
      "{} workers with {} threads each share {} cores, and OpenMP's threads spin while they wait: call "
      "troupe::init(argc, argv, {{.passive_threads = true}}), start the program with OMP_WAIT_POLICY=PASSIVE, or use "
      "fewer threads (OMP_NUM_THREADS, cpus_per_worker)",
      workers, threads, detail::core_count());
}

class TorchBackend : public Backend {
public:
  explicit TorchBackend(TorchConfig config) : config_(std::move(config)) {}

  /// What holds for hooks and for functions that join a run in progress too, which run before they are in a group.
  void on_setup(const BackendContext& context) override {
    if (!context.own_process) return;
    at::set_num_threads(threads_for(context));
    if (config_.keep_memory) keep_tensor_memory();
  }

  void on_start(const BackendContext& context) override {
    const int threads = threads_for(context);
    if (!context.own_process) {
      // The thread is the user's, so it gets its setting back.
      previous_threads_ = at::get_num_threads();
      at::set_num_threads(threads);
    }
    if (context.world_rank == 0) {
      warn_of_reference_blas();
      warn_of_spinning(threads, context.local_world_size);
    }
    auto group = std::make_shared<TorchGroup>(config_, context);
    use_device(group->device());
    {
      std::lock_guard lock(mutex_);
      group_ = group;
    }
    detail::Session::require("the torch backend")->data().set("torch", std::move(group));
  }

  void on_shutdown() override {
    if (auto session = detail::Session::current()) {
      // With their memory, before the next attempt builds its own: models of the last one may be gone by now.
      PreparedModels::instance().release(session->data());
      session->data().set("torch", nullptr);
    }
    {
      std::lock_guard lock(mutex_);
      group_.reset();
    }
    if (previous_threads_) at::set_num_threads(*previous_threads_);
    previous_threads_.reset();
  }

  void on_abort() override {
    std::lock_guard lock(mutex_);
    if (group_) group_->abort();
  }

  bool has_lost_peers() override {
    std::lock_guard lock(mutex_);
    return group_ && group_->has_lost_peers();
  }

private:
  const TorchConfig config_;
  std::optional<int> previous_threads_;
  std::mutex mutex_;  // on_abort() comes on another thread
  std::shared_ptr<TorchGroup> group_;
};

std::unique_ptr<Backend> make_torch_backend(const Json& options) {
  return std::make_unique<TorchBackend>(parse_torch_config(options));
}

void check_torch_options(const Json& options) { static_cast<void>(parse_torch_config(options)); }

[[maybe_unused]] const bool version_added = detail::add_version("libtorch", TORCH_VERSION);
[[maybe_unused]] const bool registered = register_backend("torch", make_torch_backend, check_torch_options);

}  // namespace
}  // namespace troupe
