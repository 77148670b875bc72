// SPDX-License-Identifier: Apache-2.0
// A Recoverable from inside. Parameters change in optimizer.step() alone, after the last exchange of a step, so ranks
// that are left when one is lost stand before the same step or one apart: the newest state wins, and nobody needs a
// copy of the parameters.
//   recoverable_loop.cpp     steps, and what is kept of a step until it has ended
//   recoverable_meeting.cpp  the ranks of a new group agree where to go on
//   recoverable_state.cpp    what it is made of, as a dictionary
#pragma once

#include <ATen/core/Tensor.h>
#include <troupe/torch_recoverable.hpp>

#include <compare>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backends/torch/rank_replicas.hpp"
#include "backends/torch/recoverable_parts.hpp"
#include "backends/torch/torch_group.hpp"
#include "runtime/session/session.hpp"

namespace troupe::train {

class Recoverable::Impl {
public:
  explicit Impl(ElasticBatch batch) : batch_(batch) {}

  using Part = train::torch::detail::RecoverablePart;
  using PartPtr = train::torch::detail::RecoverablePartPtr;

  void add(const std::string& name, const PartPtr& part);
  void add_own(const std::string& name, const PartPtr& part);
  std::int64_t step() const { return here_.step; }
  std::int64_t epoch() const;

  Checkpoint checkpoint();
  void load(const Checkpoint& state);

  void start(bool by_hand);
  void run(const std::function<void()>& body);
  void advance();
  void finish();
  /// The others, whose state this rank has taken over, are in a later loop: up to there it has no steps to make.
  bool is_passing() const { return session_ && here_.loop < at_.loop; }
  /// The loop is behind, maybe not through its end.
  void leave() noexcept;
  void abandon() noexcept;

  /// A step of a loop without run() has ended.
  void commit();
  /// Of a loop without run(): it is where all stand now.
  void settle();
  /// After a loss, or what the function threw: all ranks meet in a new group.
  void recover(::troupe::detail::GroupEnd end = {});

private:
  using Parts = std::vector<std::pair<std::string, PartPtr>>;

  /// A place in the function: a loop (the first is 1), a step, and how many run()s of it are done.
  struct Position {
    std::int64_t loop = 0;
    std::int64_t step = 0;
    std::int64_t run = 0;
    auto operator<=>(const Position&) const = default;
  };

  /// What a rank tells the others after the group was formed anew.
  struct Standing;

  // ---- what it is made of

  void check_new(const std::string& name, const PartPtr& part) const;
  static Checkpoint states_of(const Parts& parts);
  static void load_states(const Parts& parts, const Checkpoint& state);
  at::Tensor own_random() const { return shares_generator_ ? at::Tensor() : random_state(); }
  OwnState own_state() const;
  /// What each rank has of its own, by rank: "rng" and "own".
  void put_own(Checkpoint& state, const std::vector<OwnState>& all) const;
  /// The name of the first that is like this; null: none is.
  const std::string* find_part(const std::function<bool(const Part&)>& is_like_this) const;

  // ---- the loop

  void require_started(const char* caller) const;
  void enter();
  /// The loop has come to where the state stands that was taken over. What the function did on its way here, others had
  /// done before they handed it over.
  void arrive();
  void begin_run();
  void end_run();
  void keep();
  void restore();

  // ---- the others

  /// Back to the beginning of the step that did not end, if that is possible.
  void leave_step();
  /// All ranks are in the new group: to the newest state that one of them has.
  void meet_others();
  Standing standing() const;
  /// The lowest rank that has the newest state.
  static std::size_t newest(const std::vector<Standing>& all);
  Checkpoint hand_over() const;
  /// What hand_over() of another rank will replace.
  Checkpoint to_replace() const;
  void take_over(const Checkpoint& state, const TorchGroup& group, const std::vector<Standing>& all);
  void look_at(const std::shared_ptr<TorchGroup>& group);
  /// A new group begins: what each rank has of its own is at all others when this returns.
  void exchange_own(const std::shared_ptr<TorchGroup>& group);

  const ElasticBatch batch_;
  Parts parts_;                                         // the same on all ranks
  Parts own_;                                           // each rank has its own
  std::shared_ptr<::troupe::detail::Session> session_;  // while in the loop
  std::shared_ptr<RankReplicas> replicas_;

  Position here_;  // where the loop stands, up to at_: what lies between is done already
  Position at_;    // where the state stands
  bool has_state_ = true;
  bool newcomer_ = false;   // has joined a run in progress, and made no step of its own yet
  bool took_over_ = false;  // another rank's state, and the loop has not come to at_ yet
  bool by_hand_ = false;    // a loop without run()
  bool warned_ = false;
  bool shares_generator_ = false;  // with other ranks

  // Of the beginning of the present run().
  bool kept_ = false;
  at::Tensor random_;
  ::troupe::detail::Counters counters_;

  int replica_ = -1;  // this rank's number when what ranks have of their own was exchanged last
};

/// Going on in place is not possible: the function is started again.
[[noreturn]] void cannot_go_on(const std::string& why);

}  // namespace troupe::train
