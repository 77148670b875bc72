// SPDX-License-Identifier: Apache-2.0
#include <troupe/torch_trainer.hpp>

#include <utility>

#include <fmt/format.h>
#include <troupe/backend.hpp>

#include "checkpoint/retention.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/log_directory.hpp"
#include "runtime/base/settings.hpp"

namespace troupe {
namespace {

/// Keeps where the run is, and what rank 0 reported last.
class KeepResult : public TrainingCallback {
public:
  explicit KeepResult(Result& result) : result_(result) {}
  void start_training(const TrainingInfo& info) override { result_.path = info.logdir; }
  void handle_result(const std::vector<Json>& results, const ResultInfo& /*info*/) override {
    if (!results.empty()) result_.metrics = results.front();
  }

private:
  Result& result_;
};

/// Object storage gets copies of checkpoints; files of the run stay local.
bool is_bucket(const std::string& storage_path) { return storage_path.starts_with("s3://"); }

std::filesystem::path logdir_of(const RunConfig& config) {
  if (config.resume && config.name.empty())
    throw Error(
        ErrorCode::invalid_option,
        "RunConfig.resume = true is refused without RunConfig.name: the run to go on with is found by its name");
  std::filesystem::path name = config.name;
  if (name.has_parent_path() || name == "." || name == "..")
    throw Error(ErrorCode::invalid_option,
                fmt::format("RunConfig.name = \"{}\" is refused: it is the name of one folder; the way to it is "
                            "RunConfig.storage_path",
                            config.name));
  if (is_bucket(config.storage_path)) return name;
  if (!name.empty()) return config.storage_path / name;
  return config.storage_path.empty() ? std::filesystem::path() : detail::make_dated_logdir(config.storage_path);
}

TrainerOptions trainer_options(const TorchTrainerOptions& options) {
  const auto& scaling = options.scaling_config;
  const auto& failure = options.run_config.failure_config;
  const int max_failures = failure.max_failures;
  if (max_failures < -1)
    throw Error(
        ErrorCode::invalid_option,
        fmt::format("FailureConfig.max_failures = {} is refused; valid: 0 or more, or -1 for no limit", max_failures));
  TrainerOptions made{.backend = options.torch_config,
                      .num_workers = scaling.num_workers,
                      .use_gpu = scaling.use_gpu,
                      .resources_per_worker = scaling.resources_per_worker,
                      .max_retries = max_failures,
                      .placement = scaling.placement,
                      .retry_user_errors = max_failures != 0,
                      .spares = failure.spares,
                      .retry_policy = failure.retry_policy,
                      .progress_deadline = failure.progress_deadline};
  require_backend(detail::resolve_settings(made).backend);  // refused options leave no folder behind
  detail::check_strategy(options.run_config.checkpoint_config);
  made.logdir = logdir_of(options.run_config);
  return made;
}

Fn require_function(Fn function) {
  if (!function)
    throw Error(ErrorCode::invalid_option, "TorchTrainer needs a function: troupe::fn<train_func> or a lambda");
  return function;
}

/// What goes wrong after the training is only logged: its metrics, or the error that ended it, are what counts.
template <class Call>
void in_spite_of_failure(Call&& call) {
  try {
    call();
  } catch (const std::exception& error) {
    log_error("{}", error.what());
  }
}

}  // namespace

TorchTrainer::TorchTrainer(Fn train_loop, TorchTrainerOptions options)
    : train_loop_(require_function(train_loop)),
      run_options_{.config = detail::require_object(std::move(options.train_loop_config), "train_loop_config"),
                   .callbacks = std::move(options.run_config.callbacks),
                   .checkpoint = std::move(options.resume_from_checkpoint),
                   .checkpoint_strategy = options.run_config.checkpoint_config,
                   .resume = options.run_config.resume},
      trainer_(trainer_options(options)) {
  if (is_bucket(options.run_config.storage_path)) run_options_.storage_path = options.run_config.storage_path;
}

void TorchTrainer::run(Result& result) {
  // First of all: a callback of the user that throws ends the run, and the metrics it threw at are still the last.
  auto options = run_options_;
  options.callbacks.insert(options.callbacks.begin(), std::make_shared<KeepResult>(result));
  const auto note_files = [&] {
    if (result.path.empty()) return;  // it never began
    result.checkpoint_errors = trainer_.checkpoint_errors();
    result.checkpoint = trainer_.latest_checkpoint();
    result.best_checkpoints = trainer_.best_checkpoints();
  };
  try {
    trainer_.start();
    result.returns = trainer_.run(train_loop_, std::move(options));
  } catch (...) {
    in_spite_of_failure(note_files);
    in_spite_of_failure([&] { trainer_.shutdown(); });
    throw;
  }
  in_spite_of_failure(note_files);
  trainer_.shutdown();
}

Result TorchTrainer::fit() {
  Result result;
  run(result);
  return result;
}

Result TorchTrainer::fit(std::nothrow_t) {
  Result result;
  try {
    run(result);
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    result.error = error;
  }
  return result;
}

}  // namespace troupe
