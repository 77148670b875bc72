// SPDX-License-Identifier: Apache-2.0
#include "actors/rejoin.hpp"

#include <utility>

#include <troupe/error.hpp>

namespace troupe {

void WorkerRejoining::set_live(bool live) {
  {
    std::lock_guard lock(mutex_);
    live_ = false;  // until the group says so
  }
  outbox_->put([&](Outbox::Contents& contents) { contents.live = Outbox::Live{generation_, live}; });
  // A peer's death may be known before a message that was sent before it: there is no order between the two.
  if (live) wait_for([this] { return live_; });
}

void WorkerRejoining::progressed(std::int64_t step) {
  outbox_->put([&](Outbox::Contents& contents) { contents.progress = Outbox::Progress{generation_, step}; });
}

detail::RankInfo WorkerRejoining::rejoin(const detail::Counters& counters, const detail::GroupEnd& end) {
  outbox_->put([&](Outbox::Contents& contents) { contents.held = Outbox::Held{generation_, counters.saves, end}; });
  wait_for([this] { return resumed_.has_value(); });
  std::lock_guard lock(mutex_);
  return *std::exchange(resumed_, std::nullopt);
}

void WorkerRejoining::wait_for(const std::function<bool()>& done) {
  bool stopped = false;
  server_.serve([&] {
    std::lock_guard lock(mutex_);
    stopped = stopped_;
    return stopped || done();
  });
  if (stopped) throw Stopped();
}

void WorkerRejoining::stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  server_.poke();
}

void WorkerRejoining::live_is_known(bool live) {
  {
    std::lock_guard lock(mutex_);
    live_ = live;
  }
  server_.poke();
}

void WorkerRejoining::resume(const detail::RankInfo& ranks) {
  {
    std::lock_guard lock(mutex_);
    resumed_ = ranks;
  }
  server_.poke();
}

}  // namespace troupe
