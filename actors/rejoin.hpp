// SPDX-License-Identifier: Apache-2.0
// A function that stays where it is while the group is formed anew: its thread waits here, and meanwhile does what the
// Worker actor posts to the rank's user thread (forming the group, calls).
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "actors/user_code.hpp"
#include "actors/user_thread.hpp"
#include "runtime/session/session.hpp"

namespace troupe {

class WorkerRejoining : public detail::Rejoining {
public:
  WorkerRejoining(std::uint64_t generation, std::shared_ptr<Outbox> outbox, UserThread::Server server)
      : generation_(generation), outbox_(std::move(outbox)), server_(std::move(server)) {}

  /// Returns when the group knows it: whoever is lost from now on, this rank is asked to go on.
  void set_live(bool live) override;
  detail::RankInfo rejoin(const detail::Counters& counters, const detail::GroupEnd& end) override;
  void progressed(std::int64_t step) override;
  void stop() override;
  /// set_live() returns.
  void live_is_known(bool live);
  /// The group is formed: rejoin() returns.
  void resume(const detail::RankInfo& ranks);

private:
  void wait_for(const std::function<bool()>& done);

  const std::uint64_t generation_;
  const std::shared_ptr<Outbox> outbox_;
  const UserThread::Server server_;
  std::mutex mutex_;
  bool stopped_ = false;
  bool live_ = false;  // as the group knows it
  std::optional<detail::RankInfo> resumed_;
};

}  // namespace troupe
