// SPDX-License-Identifier: Apache-2.0
// A worker's side of the group's store: calls of user threads become messages, answers wake the callers.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <troupe/store.hpp>

#include "actors/messages.hpp"
#include "runtime/engine/store_table.hpp"

namespace troupe {

class WorkerStore : public Store {
public:
  /// `wake` makes the Worker actor call take_requests().
  WorkerStore(std::uint64_t token, std::function<void()> wake) : token_(token), wake_(std::move(wake)) {}

  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, Timeout timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  bool check(const std::vector<std::string>& keys) override;
  bool erase(const std::string& key) override;
  std::int64_t count() override;
  void wait(const std::vector<std::string>& keys, Timeout timeout) override;

  // ---- for the Worker actor
  std::vector<wire::StoreRequest> take_requests();
  void answer(const wire::StoreAnswer& answer);
  /// Every call, under way or later, throws GroupLost until reset().
  void abort();
  void reset();

private:
  wire::StoreAnswer ask(engine::StoreOperation operation, std::vector<std::string> keys, std::string value = {},
                        std::int64_t amount = 0, Timeout timeout = std::chrono::seconds(30));

  const std::uint64_t token_;
  const std::function<void()> wake_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_id_ = 1;
  std::vector<wire::StoreRequest> outgoing_;
  std::map<std::uint64_t, std::optional<wire::StoreAnswer>> pending_;
  bool aborted_ = false;
};

}  // namespace troupe
