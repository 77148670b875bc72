// SPDX-License-Identifier: Apache-2.0
// The keys behind the Store actor, and who waits for which. Pure: requests in, answers out, time as an argument.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/failure.hpp"

namespace troupe::engine {

enum class StoreOperation : std::uint8_t { set, get, add, check, erase, count, wait };

struct StoreRequest {
  std::uint64_t client = 0;
  std::uint64_t id = 0;
  StoreOperation operation = StoreOperation::get;
  std::vector<std::string> keys;
  std::string value;
  std::int64_t amount = 0;
  Duration timeout{0};
};

struct StoreAnswer {
  std::uint64_t client = 0;
  std::uint64_t id = 0;
  bool failed = false;
  std::string value;  ///< or what is missing
  std::int64_t number = 0;
};

class StoreTable {
public:
  /// Answers that are due now: to this request, or to others that waited for it.
  std::vector<StoreAnswer> handle(const StoreRequest& request, Time now);
  /// Answers to those who waited too long.
  std::vector<StoreAnswer> tick(Time now);
  std::optional<Time> deadline() const;
  /// A client is gone; nobody waits on its behalf any more.
  void forget(std::uint64_t client);

private:
  struct Waiting {
    StoreRequest request;
    Time deadline;
  };
  bool has_all(const std::vector<std::string>& keys) const;
  StoreAnswer found(const StoreRequest& request) const;
  std::vector<StoreAnswer> wake();

  std::map<std::string, std::string> values_;
  std::vector<Waiting> waiting_;
};

}  // namespace troupe::engine
