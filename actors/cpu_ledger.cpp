// SPDX-License-Identifier: Apache-2.0
#include "actors/cpu_ledger.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "runtime/base/host.hpp"

namespace troupe {

const std::shared_ptr<CpuLedger>& CpuLedger::instance() {
  static const auto ledger = std::make_shared<CpuLedger>(detail::core_count());
  return ledger;
}

std::unique_ptr<CpuAccount> CpuLedger::open(const Share& share) {
  auto account = std::make_unique<CpuAccount>(shared_from_this());
  std::lock_guard lock(mutex_);
  auto& group = groups_[account.get()] = {.share = share};
  group.workers = std::max(room_for(group), share.min_workers);
  account->workers_ = group.workers;
  return account;
}

/// Those that it has included; at most as many as it may have.
int CpuLedger::room_for(const Group& group) const {
  const auto& share = group.share;
  if (share.cpus_per_worker <= 0) return share.max_workers;
  double left = cores_;
  for (const auto& [account, other] : groups_)
    if (&other != &group) left -= other.workers * other.share.cpus_per_worker;
  constexpr double rounding = 1e-9;  // three times a third of a core is a core
  return static_cast<int>(std::clamp(left / share.cpus_per_worker + rounding, 0.0, double(share.max_workers)));
}

void CpuLedger::set_workers(CpuAccount& account, int workers, std::unique_lock<std::mutex> lock) {
  const bool fewer = workers < std::exchange(groups_.at(&account).workers, workers);
  account.workers_ = workers;
  std::vector<std::function<void()>> others;
  if (fewer)
    for (const auto& [other, group] : groups_)
      if (other != &account && group.share.min_workers < group.share.max_workers) others.push_back(group.tell);
  lock.unlock();
  for (const auto& tell : others) tell();
}

void CpuAccount::on_room(std::function<void()> tell) {
  std::lock_guard lock(ledger_->mutex_);
  ledger_->groups_.at(this).tell = std::move(tell);
}

void CpuAccount::hold(int workers) {
  if (ledger_ && workers != workers_) ledger_->set_workers(*this, workers, std::unique_lock(ledger_->mutex_));
}

void CpuAccount::use(const std::function<int(int)>& decide) {
  if (!ledger_) return void(decide(0));
  std::unique_lock lock(ledger_->mutex_);
  const int workers = decide(ledger_->room_for(ledger_->groups_.at(this)));
  ledger_->set_workers(*this, workers, std::move(lock));
}

void CpuAccount::close() {
  hold(0);
  const auto ledger = std::exchange(ledger_, nullptr);
  if (!ledger) return;
  std::lock_guard lock(ledger->mutex_);
  ledger->groups_.erase(this);
}

}  // namespace troupe
