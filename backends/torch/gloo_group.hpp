// SPDX-License-Identifier: Apache-2.0
// A c10d process group over Gloo, formed through the group's Store, that can be aborted. Gloo itself is
// known here and in torch_compat.hpp only.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <troupe/store.hpp>

namespace troupe {

struct GlooGroupOptions {
  int rank = 0;                         ///< among the members
  std::vector<int> members;             ///< their world ranks
  std::string prefix;                   ///< of our keys in the store: one a group and epoch
  std::string interface = "127.0.0.1";  ///< address, or name of an interface
  std::chrono::milliseconds timeout{60000};
  bool own_process = true;  ///< false: other ranks live in this process
  bool for_gpus = false;    ///< tensors of GPUs too
};

class GlooGroup {
public:
  GlooGroup(GlooGroupOptions options, std::shared_ptr<Store> store);
  ~GlooGroup();

  /// Forms the group at the first call, which is collective. Throws deadline that names the missing ranks, GroupLost
  /// after an abort.
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group();
  int rank() const { return options_.rank; }
  int size() const { return static_cast<int>(options_.members.size()); }
  const std::vector<int>& members() const { return options_.members; }
  int world_rank() const { return members()[static_cast<std::size_t>(rank())]; }

  /// Waits for an operation of this group. Throws GroupLost once a peer has gone or the group was aborted, deadline
  /// when it takes too long. An operation that does not end after an abort is left behind: tensors must own their
  /// memory.
  void finish(const c10::intrusive_ptr<c10d::Work>& work);

  /// From any thread, while the group forms too. Gloo has no abort: its sockets are shut down, and what waits on them
  /// fails.
  void abort() noexcept;
  /// A connection to another rank has ended.
  bool has_lost_peers() const;

private:
  struct Making;
  void form();
  std::set<std::string> gather_listeners();
  c10::intrusive_ptr<c10d::ProcessGroup> make(const c10::intrusive_ptr<c10d::Store>& store);

  const GlooGroupOptions options_;
  const std::shared_ptr<Store> store_;
  const std::shared_ptr<Making> making_;
  std::mutex forming_;
  c10::intrusive_ptr<c10d::ProcessGroup> group_;  // null until it is formed
};

}  // namespace troupe
