// SPDX-License-Identifier: Apache-2.0
#include "actors/node/node.hpp"

#include <cstdlib>
#include <troupe/error.hpp>

#include "actors/node/node_impl.hpp"
#include "actors/node/process_state.hpp"
#include "runtime/base/own_process.hpp"

namespace troupe::node {

namespace {

void check_state() {
  if (process_state().is_worker) {
    throw Error(ErrorCode::invalid_state,
                "a worker process cannot start workers of its own. Start all of them from the host program, or use "
                "thread placement inside the worker.");
  }
  if (!process_state().initialized) {
    throw Error(
        ErrorCode::invalid_state,
        "worker processes need troupe::init(argc, argv) in the first line of main(), which was not called. Call "
        "it, or use thread placement.");
  }
}

}  // namespace

Node::Node() : impl_(std::make_unique<Impl>()) {}

Node& Node::only() {
  static Node* const node = [] {
    auto* made = new Node;  // never destroyed: its threads run until the process is gone
    std::atexit([] {
      if (auto& impl = *only().impl_; detail::is_this_process(impl.owner())) {
        impl.at_exit();
      }
    });
    return made;
  }();
  return *node;
}

Node& Node::instance() {
  check_state();
  auto& node = only();
  detail::require_process(node.impl_->owner());
  return node;
}

Launched Node::launch(LaunchRequest request) { return impl_->launch(std::move(request)); }
void Node::signal(Token token, int signal_number) { impl_->signal(token, signal_number); }
pid_t Node::pid_of(Token token) { return impl_->pid_of(token); }
void Node::set_rank(Token token, int rank) { impl_->set_rank(token, rank); }
void Node::set_log_file(Token token, const std::filesystem::path& log_file) { impl_->set_log_file(token, log_file); }
void Node::drain(Token token, std::function<void()> done) { impl_->drain(token, std::move(done)); }
std::vector<std::string> Node::last_lines(Token token) { return impl_->last_lines(token); }
void Node::forget_last_lines(Token token) { impl_->forget_last_lines(token); }
pid_t Node::fork_server_pid() { return impl_->fork_server_pid(); }

}  // namespace troupe::node
