// SPDX-License-Identifier: Apache-2.0
// The calls on one worker: those that wait for it to come up, and those under way.
#pragma once

#include <cstdint>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "actors/blob.hpp"
#include "actors/protocols.hpp"

namespace troupe {

class RankCalls {
public:
  bool empty() const { return queued_.empty() && under_way_.empty(); }
  void add(local::PendingCall call) { queued_.push_back(std::move(call)); }

  /// Sends what is queued, many calls a message.
  template <class Self>
  void send(Self* self, const WorkerActor& worker, std::uint64_t token) {
    if (queued_.empty()) return;
    wire::Calls message;
    std::size_t bytes = 0;
    for (auto& call : std::exchange(queued_, {})) {
      const auto id = next_id_++;
      under_way_.emplace(id, std::move(call.done));
      auto arguments = send_blob(self, worker, token, std::move(call.arguments));
      bytes += arguments.bytes.size() + 128;
      message.calls.push_back({id, std::move(call.function), std::move(arguments)});
      if (bytes > wire::max_message_bytes / 4) {
        compat::tell(self, worker, std::exchange(message, {}));
        bytes = 0;
      }
    }
    if (!message.calls.empty()) compat::tell(self, worker, std::move(message));
  }

  void answer(int rank, const wire::Reply& reply, std::string payload) {
    auto found = under_way_.find(reply.id);
    if (found == under_way_.end()) return;
    auto done = std::move(found->second);
    under_way_.erase(found);
    if (reply.failed == 0) return done(std::move(payload), nullptr);
    done({}, std::make_exception_ptr(
                 Error(static_cast<ErrorCode>(reply.code), fmt::format("rank {}: {}", rank, payload), rank)));
  }

  /// Every call ends, one way or the other.
  void fail_all(int rank, const std::string& cause) {
    auto error = std::make_exception_ptr(
        Error(ErrorCode::worker_lost, fmt::format("rank {} did not answer the call: {}", rank, cause), rank));
    for (auto& [id, done] : std::exchange(under_way_, {})) done({}, error);
    for (auto& call : std::exchange(queued_, {})) call.done({}, error);
  }

private:
  std::uint64_t next_id_ = 1;
  std::vector<local::PendingCall> queued_;
  std::map<std::uint64_t, detail::CallDone> under_way_;
};

}  // namespace troupe
