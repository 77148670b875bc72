// SPDX-License-Identifier: Apache-2.0
#include <troupe/train.hpp>

#include <utility>

#include <troupe/error.hpp>

#include "runtime/session/session.hpp"

namespace troupe::train {

using detail::Session;

void report(const Json& metrics) { Session::require("train::report()")->report(metrics); }

namespace {

void check_options(const Checkpoint& state, const SaveOptions& options) {
  if (options.files && !state.has_files())
    throw Error(ErrorCode::invalid_argument,
                "save_checkpoint(): with files = true the state is a folder of files: pass its path, or "
                "Checkpoint::from_directory(path)");
  if (options.sharded && state.has_files())
    throw Error(ErrorCode::invalid_argument,
                "save_checkpoint(): a folder of files cannot be sharded: rank 0's is kept");
}

}  // namespace

void save_checkpoint(const Checkpoint& state, SaveOptions options) {
  auto session = Session::require("train::save_checkpoint()");
  check_options(state, options);
  session->save_checkpoint(state, options.sharded, nullptr);
}

void report(const Json& metrics, const Checkpoint& checkpoint, SaveOptions options) {
  auto session = Session::require("train::report()");
  check_options(checkpoint, options);
  session->report(metrics);
  session->save_checkpoint(checkpoint, options.sharded, metrics);
}

std::optional<Checkpoint> load_checkpoint() { return Session::require("train::load_checkpoint()")->load_checkpoint(); }

void flush_checkpoints() { Session::require("train::flush_checkpoints()")->checkpoints("flush_checkpoints()").flush(); }

int world_rank() { return Session::require("train::world_rank()")->ranks().world_rank; }
int local_rank() { return Session::require("train::local_rank()")->ranks().local_rank; }
int node_rank() { return Session::require("train::node_rank()")->ranks().node_rank; }
int world_size() { return Session::require("train::world_size()")->ranks().world_size; }
int local_world_size() { return Session::require("train::local_world_size()")->ranks().local_world_size; }
bool in_worker() { return Session::current() != nullptr; }
bool should_stop() { return Session::require("train::should_stop()")->should_stop(); }
void wait_for_stop() { Session::require("train::wait_for_stop()")->wait_for_stop(); }
bool wait_for_stop(std::chrono::milliseconds timeout) {
  return Session::require("train::wait_for_stop()")->wait_for_stop(timeout);
}

std::optional<PreemptionNotice> preemption_notice() {
  return Session::require("train::preemption_notice()")->preemption_notice();
}

Context context() { return Context(Session::require("train::context()")); }

ContextGuard::ContextGuard(const Context& context) : previous_(Session::bind(context.session())) {}
ContextGuard::~ContextGuard() { Session::bind(std::move(previous_)); }

}  // namespace troupe::train

namespace troupe::detail {

void save_folder(const std::filesystem::path& folder, train::SaveOptions options) {
  auto session = Session::require("train::save_checkpoint()");
  // Only what is kept must be there: other ranks may be here before rank 0 has made its files.
  if (options.sharded || session->ranks().world_rank == 0)
    train::save_checkpoint(Checkpoint::from_directory(folder), options);
  else
    session->save_checkpoint({}, false, nullptr);
}

}  // namespace troupe::detail
