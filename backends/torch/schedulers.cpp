// SPDX-License-Identifier: Apache-2.0
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <troupe/torch_schedulers.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

namespace troupe::train::torch {
namespace {

void require(bool good, const char* option, const auto& value, const char* valid) {
  if (!good) throw Error(ErrorCode::invalid_option, fmt::format("{} = {} is refused; valid: {}", option, value, valid));
}

double cosine_between(double from, double to, double part) {
  return to + (from - to) / 2 * (1 + std::cos(std::numbers::pi * part));
}

double line_between(double from, double to, double part) { return from + (to - from) * part; }

/// A curve through values at given steps, as the phases of OneCycle.
struct Phases {
  struct Phase {
    double end;
    double from;
    double to;
  };
  std::vector<Phase> phases;
  bool cosine;
  std::int64_t total_steps;

  double at(std::int64_t step) const {
    if (step > total_steps)  // one more is fine: the step() behind the last batch
      throw Error(
          ErrorCode::invalid_state,
          fmt::format("OneCycleLR has total_steps = {}, and this would be step {}: make total_steps as large as "
                      "epochs times batches",
                      total_steps, step));
    double begin = 0;
    for (const auto& phase : phases) {
      const auto now = static_cast<double>(step);
      if (now <= phase.end || &phase == &phases.back()) {
        const auto part = phase.end > begin ? std::min(1.0, (now - begin) / (phase.end - begin)) : 1;
        return cosine ? cosine_between(phase.from, phase.to, part) : line_between(phase.from, phase.to, part);
      }
      begin = phase.end;
    }
    return 0;  // there is always a last phase
  }
};

/// From `low` to `high` and back, then to `end`.
Phases cycle(const OneCycleOptions& options, double low, double high, double end) {
  const auto total = static_cast<double>(options.total_steps);
  const auto top = options.pct_start * total - 1;
  Phases phases{{}, options.anneal_strategy == "cos", options.total_steps};
  if (options.three_phase)
    phases.phases = {{top, low, high}, {2 * options.pct_start * total - 2, high, low}, {total - 1, low, end}};
  else
    phases.phases = {{top, low, high}, {total - 1, high, end}};
  return phases;
}

bool set_momentum(::torch::optim::OptimizerOptions& options, double momentum) {
  const auto set_beta = [&](auto& adam) { adam.betas({momentum, std::get<1>(adam.betas())}); };
  if (auto* sgd = dynamic_cast<::torch::optim::SGDOptions*>(&options))
    sgd->momentum(momentum);
  else if (auto* rmsprop = dynamic_cast<::torch::optim::RMSpropOptions*>(&options))
    rmsprop->momentum(momentum);
  else if (auto* adam = dynamic_cast<::torch::optim::AdamOptions*>(&options))
    set_beta(*adam);
  else if (auto* adamw = dynamic_cast<::torch::optim::AdamWOptions*>(&options))
    set_beta(*adamw);
  else
    return false;
  return true;
}

Schedule one_cycle(const OneCycleOptions& options) {
  const auto positive = [](const char* option, double value) {
    require(value > 0 && std::isfinite(value), option, value, "above 0");
  };
  positive("OneCycleOptions.max_lr", options.max_lr);
  positive("OneCycleOptions.div_factor", options.div_factor);
  positive("OneCycleOptions.final_div_factor", options.final_div_factor);
  require(options.total_steps > 0, "OneCycleOptions.total_steps", options.total_steps, "above 0");
  require(options.pct_start >= 0 && options.pct_start <= 1, "OneCycleOptions.pct_start", options.pct_start, "0 to 1");
  require(options.anneal_strategy == "cos" || options.anneal_strategy == "linear", "OneCycleOptions.anneal_strategy",
          options.anneal_strategy, "\"cos\", \"linear\"");
  const auto low = options.max_lr / options.div_factor;
  const auto phases = cycle(options, low, options.max_lr, low / options.final_div_factor);
  return [phases](double /*base_lr*/, std::int64_t step) { return phases.at(step); };
}

}  // namespace

Schedule cosine_annealing(const CosineOptions& options) {
  require(options.t_max > 0, "CosineOptions.t_max", options.t_max, "above 0");
  return [options](double base_lr, std::int64_t step) {
    return cosine_between(base_lr, options.eta_min, static_cast<double>(step) / static_cast<double>(options.t_max));
  };
}

Schedule linear(const LinearOptions& options) {
  require(options.start_factor > 0 && options.start_factor <= 1, "LinearOptions.start_factor", options.start_factor,
          "above 0, up to 1");
  require(options.end_factor >= 0 && options.end_factor <= 1, "LinearOptions.end_factor", options.end_factor, "0 to 1");
  require(options.total_iters > 0, "LinearOptions.total_iters", options.total_iters, "above 0");
  return [options](double base_lr, std::int64_t step) {
    const auto part =
        static_cast<double>(std::min(step, options.total_iters)) / static_cast<double>(options.total_iters);
    return base_lr * line_between(options.start_factor, options.end_factor, part);
  };
}

Schedule sequential(std::vector<Schedule> schedules, std::vector<std::int64_t> milestones) {
  if (schedules.empty() || schedules.size() != milestones.size() + 1)
    throw Error(ErrorCode::invalid_option,
                fmt::format("{} schedules need {} milestones, one between each two; {} were given", schedules.size(),
                            schedules.empty() ? 0 : schedules.size() - 1, milestones.size()));
  if (!std::is_sorted(milestones.begin(), milestones.end(), std::less_equal<>()) ||
      (!milestones.empty() && milestones.front() < 1))
    throw Error(ErrorCode::invalid_option,
                fmt::format("milestones {} are refused: each must be above the one before, the first above 0",
                            fmt::join(milestones, ", ")));
  return [schedules = std::move(schedules), milestones = std::move(milestones)](double base_lr, std::int64_t step) {
    const auto which = std::upper_bound(milestones.begin(), milestones.end(), step) - milestones.begin();
    const auto begin = which == 0 ? 0 : milestones[static_cast<std::size_t>(which) - 1];
    return schedules[static_cast<std::size_t>(which)](base_lr, step - begin);
  };
}

ScheduleLR::ScheduleLR(::torch::optim::Optimizer& optimizer, Schedule schedule, Later)
    : LRScheduler(optimizer), schedule_(std::move(schedule)), base_lrs_(get_current_lrs()) {}

ScheduleLR::ScheduleLR(::torch::optim::Optimizer& optimizer, Schedule schedule)
    : ScheduleLR(optimizer, std::move(schedule), Later{}) {
  if (!schedule_) throw Error(ErrorCode::invalid_argument, "ScheduleLR was given an empty schedule");
  ScheduleLR::start();
}

std::vector<double> ScheduleLR::get_lrs() {
  std::vector<double> rates;
  rates.reserve(base_lrs_.size());
  for (const auto base_lr : base_lrs_) rates.push_back(schedule_(base_lr, step_count_));
  return rates;
}

Json ScheduleLR::state() const { return {{"step", step_count_ - 1}, {"base_lrs", base_lrs_}}; }

void ScheduleLR::load_state(const Json& state) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::invalid_argument, fmt::format("the scheduler's state is refused: {}; it is {}", why,
                                                         state.dump(-1, ' ', true, Json::error_handler_t::replace)));
  };
  if (!state.is_object() || !state.contains("step") || !state.contains("base_lrs"))
    refuse("it needs \"step\" and \"base_lrs\"");
  const auto& step_of = state["step"];
  const auto& rates = state["base_lrs"];
  if (!step_of.is_number_integer() || step_of < 0 || step_of >= std::numeric_limits<unsigned>::max())
    refuse("\"step\" must be a whole number of 0 or more");
  if (!rates.is_array() || rates.size() != base_lrs_.size() ||
      !std::all_of(rates.begin(), rates.end(), [](const Json& rate) { return rate.is_number(); }))
    refuse(fmt::format("\"base_lrs\" must be {} numbers, one a parameter group", base_lrs_.size()));
  base_lrs_ = rates.get<std::vector<double>>();
  step_count_ = step_of.get<unsigned>();
  step();  // sets the rates of this step; it counts up behind them
}

OneCycleLR::OneCycleLR(::torch::optim::Optimizer& optimizer, const OneCycleOptions& options)
    : ScheduleLR(optimizer, one_cycle(options), Later{}), optimizer_(optimizer) {
  if (options.cycle_momentum) {
    require(options.base_momentum >= 0 && options.base_momentum <= options.max_momentum && options.max_momentum < 1,
            "OneCycleOptions.base_momentum", options.base_momentum, "0 up to max_momentum, which is below 1");
    const auto phases = cycle(options, options.max_momentum, options.base_momentum, options.max_momentum);
    momentum_ = [phases](std::int64_t step) { return phases.at(step); };
  }
  start();
}

std::vector<double> OneCycleLR::get_lrs() {
  auto rates = ScheduleLR::get_lrs();
  if (!momentum_) return rates;
  for (auto& group : optimizer_.param_groups())
    if (!set_momentum(group.options(), momentum_(step_count_)))
      throw Error(ErrorCode::invalid_option,
                  "OneCycleOptions.cycle_momentum = true is refused: this optimizer has no momentum; give "
                  ".cycle_momentum = false");
  return rates;
}

}  // namespace troupe::train::torch
