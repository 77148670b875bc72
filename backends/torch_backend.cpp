// SPDX-License-Identifier: Apache-2.0
// The backend "torch": gives each worker its share of the CPU threads. Workers form no process group.
#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>
#include <optional>

#include <troupe/backend.hpp>
#include <troupe/error.hpp>

/// Linkers drop an object that nobody refers to; naming this symbol keeps the registration below.
extern "C" {
extern char troupe_torch_backend_anchor;
char troupe_torch_backend_anchor = 0;
}

namespace troupe {
namespace {

class TorchBackend : public Backend {
public:
  void on_start(const BackendContext& context) override {
    // Without an own process the thread is the user's, so it gets its setting back.
    if (!context.own_process) previous_threads_ = at::get_num_threads();
    at::set_num_threads(std::max(1, context.threads));
  }
  void on_shutdown() override {
    if (previous_threads_) at::set_num_threads(*previous_threads_);
    previous_threads_.reset();
  }

private:
  std::optional<int> previous_threads_;
};

std::unique_ptr<Backend> make_torch_backend(const Json& options) {
  if (!options.empty())
    throw Error(ErrorCode::invalid_option, "backend \"torch\" has no options, but was given " +
                                               options.dump(-1, ' ', true, Json::error_handler_t::replace) +
                                               ": remove them");
  return std::make_unique<TorchBackend>();
}

[[maybe_unused]] const bool registered = register_backend("torch", make_torch_backend);

}  // namespace
}  // namespace troupe
