// SPDX-License-Identifier: Apache-2.0
// The key-value store through which the workers of one group find each other.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

/// Shared by all workers of a group; lives in the driver. Every call is thread safe, waits for an answer, and throws
/// GroupLost once the group is being torn down.
class Store {
public:
  using Timeout = std::chrono::milliseconds;

  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits for the key; throws Error(deadline) when it does not come.
  virtual std::string get(const std::string& key, Timeout timeout) = 0;
  /// Adds to a number (0 if absent, stored as text) and gives the sum.
  virtual std::int64_t add(const std::string& key, std::int64_t amount) = 0;
  /// Whether all keys are there.
  virtual bool check(const std::vector<std::string>& keys) = 0;
  virtual bool erase(const std::string& key) = 0;
  virtual std::int64_t count() = 0;
  /// Waits for all keys; throws Error(deadline) that names the missing ones.
  virtual void wait(const std::vector<std::string>& keys, Timeout timeout) = 0;
};

/// Hands file descriptors to other workers of the same host.
class DescriptorExchange {
public:
  virtual ~DescriptorExchange() = default;
  /// The receiver gets a copy; the caller keeps its own.
  virtual void send(int to_rank, int descriptor) = 0;
  /// The next descriptor sent to this rank, or -1 when none came in time; the caller owns it.
  virtual int receive(std::chrono::milliseconds timeout) = 0;
};

}  // namespace troupe
