// SPDX-License-Identifier: Apache-2.0
// A c10d process group over Gloo, formed through the group's Store, that can be aborted. Gloo itself is
// known here and in torch_compat.hpp only.
#pragma once

#include <atomic>
#include <memory>
#include <set>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <troupe/backend.hpp>
#include <troupe/torch_config.hpp>

namespace troupe {

class GlooGroup {
public:
  /// Collective. Throws deadline that names the missing ranks.
  GlooGroup(const TorchConfig& config, const BackendContext& context);
  ~GlooGroup();

  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const { return group_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  bool aborted() const { return aborted_; }

  /// Gloo has no abort: its sockets are shut down, and what waits on them fails.
  void abort() noexcept;

private:
  const int rank_;
  const int size_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::set<unsigned long> sockets_;  // inodes of the group's own
  std::atomic<bool> aborted_{false};
};

}  // namespace troupe
