// SPDX-License-Identifier: Apache-2.0
// Learning rate schedulers that C++ libtorch lacks, with PyTorch's names, formulas and defaults. As there, the making
// of a scheduler sets the rate of step 0, and each step() that of the next. All are functions of the step alone, so
// they go on from a saved state() to the bit.
#pragma once

#include <torch/optim/schedulers/lr_scheduler.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <troupe/json.hpp>

namespace troupe::train::torch {

/// The learning rate at a step (from 0), given the one that the optimizer was made with.
using Schedule = std::function<double(double base_lr, std::int64_t step)>;

struct CosineOptions {
  std::int64_t t_max = 0;  ///< steps from the first rate to eta_min; needed
  double eta_min = 0;
};
/// Half a cosine wave from the base rate down to eta_min (and up again, if it goes on).
Schedule cosine_annealing(const CosineOptions& options);

struct LinearOptions {
  double start_factor = 1.0 / 3;
  double end_factor = 1;
  std::int64_t total_iters = 5;
};
/// From start_factor times the base rate to end_factor times it, a straight line: a warm-up. Then it stays.
Schedule linear(const LinearOptions& options);

/// schedules[i] from step milestones[i - 1] on, each beginning with its step 0.
Schedule sequential(std::vector<Schedule> schedules, std::vector<std::int64_t> milestones);

/// Any schedule as a scheduler: for each parameter group of any optimizer, which must outlive it.
class ScheduleLR : public ::torch::optim::LRScheduler {
public:
  ScheduleLR(::torch::optim::Optimizer& optimizer, Schedule schedule);

  /// The rates that the parameter groups have now.
  std::vector<double> get_last_lr() const { return get_current_lrs(); }
  /// {"step", "base_lrs"}.
  Json state() const;
  /// Goes on there; throws invalid_argument for a state of an optimizer with other parameter groups.
  void load_state(const Json& state);

protected:
  /// For schedulers that set more than rates; they call start() when they are complete.
  struct Later {};
  ScheduleLR(::torch::optim::Optimizer& optimizer, Schedule schedule, Later);
  void start() { step(); }
  std::vector<double> get_lrs() override;

private:
  Schedule schedule_;
  std::vector<double> base_lrs_;
};

class CosineAnnealingLR : public ScheduleLR {
public:
  CosineAnnealingLR(::torch::optim::Optimizer& optimizer, const CosineOptions& options)
      : ScheduleLR(optimizer, cosine_annealing(options)) {}
};

class LinearLR : public ScheduleLR {
public:
  explicit LinearLR(::torch::optim::Optimizer& optimizer, const LinearOptions& options = {})
      : ScheduleLR(optimizer, linear(options)) {}
};

/// Warm-up and then something else: SequentialLR(optimizer, {linear({...}), cosine_annealing({...})}, {5}).
class SequentialLR : public ScheduleLR {
public:
  SequentialLR(::torch::optim::Optimizer& optimizer, std::vector<Schedule> schedules,
               std::vector<std::int64_t> milestones)
      : ScheduleLR(optimizer, sequential(std::move(schedules), std::move(milestones))) {}
};

struct OneCycleOptions {
  double max_lr = 0;             ///< needed
  std::int64_t total_steps = 0;  ///< needed; a step() beyond them throws
  double pct_start = 0.3;        ///< part of the steps in which the rate rises
  std::string anneal_strategy = "cos";
  bool cycle_momentum = true;  ///< momentum (SGD, RMSprop) or beta1 (Adam, AdamW) goes the other way
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;         ///< the first rate is max_lr / div_factor
  double final_div_factor = 1e4;  ///< the last rate is that / final_div_factor
  bool three_phase = false;
};

/// The 1cycle policy: up to max_lr, and down to almost nothing.
class OneCycleLR : public ScheduleLR {
public:
  OneCycleLR(::torch::optim::Optimizer& optimizer, const OneCycleOptions& options);

private:
  std::vector<double> get_lrs() override;

  ::torch::optim::Optimizer& optimizer_;
  std::function<double(std::int64_t)> momentum_;  ///< empty: stays
};

}  // namespace troupe::train::torch
