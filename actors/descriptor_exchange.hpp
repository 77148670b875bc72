// SPDX-License-Identifier: Apache-2.0
// How a rank hands descriptors to others of its host: through the Node (processes), or through a table (threads).
#pragma once

#include <cstdint>
#include <memory>

#include <troupe/store.hpp>

namespace troupe {

/// Over the worker's own channel to the Node.
class ProcessDescriptors : public DescriptorExchange {
public:
  explicit ProcessDescriptors(int channel) : channel_(channel) {}
  void send(int to_rank, int descriptor) override;
  int receive(std::chrono::milliseconds timeout) override;

private:
  const int channel_;
};

/// Between thread ranks of one group.
class ThreadDescriptors : public DescriptorExchange {
public:
  struct Table;
  ThreadDescriptors(std::shared_ptr<Table> table, int rank) : table_(std::move(table)), rank_(rank) {}
  /// The exchange of the rank's group; `group` names it.
  static std::shared_ptr<DescriptorExchange> of(std::uint64_t group, int rank);
  void send(int to_rank, int descriptor) override;
  int receive(std::chrono::milliseconds timeout) override;

private:
  std::shared_ptr<Table> table_;
  const int rank_;
};

}  // namespace troupe
