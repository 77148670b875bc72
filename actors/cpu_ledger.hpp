// SPDX-License-Identifier: Apache-2.0
// The processor cores that the worker groups of this program use, so that elastic groups know how many workers find
// room. Nobody is refused anything: a group that needs its workers has them, the ledger only says what is left.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace troupe {

class CpuAccount;

class CpuLedger : public std::enable_shared_from_this<CpuLedger> {
public:
  explicit CpuLedger(double cores) : cores_(cores) {}
  /// That of this process, with all cores it may use.
  static const std::shared_ptr<CpuLedger>& instance();

  struct Share {
    double cpus_per_worker = 1;
    int min_workers = 1;
    int max_workers = 1;
  };
  /// For a group that begins with as many workers as there is room for, within its range.
  std::unique_ptr<CpuAccount> open(const Share& share);

private:
  friend class CpuAccount;
  struct Group {
    Share share;
    int workers = 0;
    std::function<void()> tell = [] {};
  };
  int room_for(const Group& group) const;
  void set_workers(CpuAccount& account, int workers, std::unique_lock<std::mutex> lock);

  const double cores_;
  std::mutex mutex_;
  std::map<const CpuAccount*, Group> groups_;
};

/// What one group holds; gives it back when it is closed. Used by one thread at a time.
class CpuAccount {
public:
  explicit CpuAccount(std::shared_ptr<CpuLedger> ledger) : ledger_(std::move(ledger)) {}
  CpuAccount(const CpuAccount&) = delete;
  CpuAccount& operator=(const CpuAccount&) = delete;
  ~CpuAccount() { close(); }

  int workers() const { return workers_; }
  /// `tell` is called, on any thread, when another group has given something back. Not for groups of a fixed size.
  void on_room(std::function<void()> tell);
  /// The group has so many workers now.
  void hold(int workers);
  /// `decide(room)` hears for how many workers there is room, those that the group has included, and says how many it
  /// has then. No other group can take that room meanwhile.
  void use(const std::function<int(int)>& decide);
  void close();

private:
  friend class CpuLedger;
  std::shared_ptr<CpuLedger> ledger_;  // null: closed
  int workers_ = 0;
};

}  // namespace troupe
