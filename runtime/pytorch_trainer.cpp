// SPDX-License-Identifier: Apache-2.0
#include <troupe/pytorch_trainer.hpp>

#include <fcntl.h>

#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "checkpoint/file.hpp"
#include "checkpoint/manifest.hpp"
#include "runtime/base/settings.hpp"

namespace troupe {
namespace {

/// Numbers become their mean over the workers; what is not a number (NaN arrives as null) is left out. Everything else
/// is the first worker's.
Json mean_of(const std::vector<Json>& results) {
  if (results.empty()) return Json::object();
  Json means = results.front();
  for (const auto& item : results.front().items()) {
    double sum = 0;
    int count = 0;
    bool equal = true;  // stays a whole number then
    for (const auto& result : results) {
      const auto found = result.find(item.key());
      if (found == result.end() || !found->is_number() || std::isnan(found->get<double>())) continue;
      equal = equal && *found == item.value();
      sum += found->get<double>();
      count += 1;
    }
    if (count > 0 && !equal) means[item.key()] = sum / count;
  }
  return means;
}

/// Written beside it and swapped in: whenever this is cut off, a whole one is there.
void save_in_place_of(const std::filesystem::path& given, const Checkpoint& state) {
  namespace fs = std::filesystem;
  const auto absolute = fs::absolute(given).lexically_normal();
  const auto folder = absolute.has_filename() ? absolute : absolute.parent_path();
  const bool taken = fs::exists(folder) && !(fs::is_directory(folder) && fs::is_empty(folder));
  if (taken && !fs::exists(folder / detail::manifest_name))
    throw Error(ErrorCode::io,
                fmt::format("\"{}\" is refused as the place of a checkpoint: something else is there. Choose a folder "
                            "that does not exist, is empty, or holds a checkpoint (which is replaced)",
                            folder.string()));
  const auto beside = folder.parent_path() / fmt::format(".{}.new", folder.filename().string());
  fs::remove_all(beside);  // of a save that was cut off
  state.to_directory(beside);
  if (taken && ::renameat2(AT_FDCWD, beside.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) == 0) {
    detail::sync_folder(folder.parent_path());
    fs::remove_all(beside);
    return;
  }
  // On file systems that cannot exchange two, the old one has another name for a moment.
  const auto old = folder.parent_path() / fmt::format(".{}.old", folder.filename().string());
  fs::remove_all(old);
  if (taken) detail::rename_durably(folder, old);
  detail::rename_durably(beside, folder);
  fs::remove_all(old);
}

}  // namespace

PyTorchTrainer::PyTorchTrainer(TrainingPass pass, PyTorchTrainerOptions options)
    : pass_(pass), options_(std::move(options)) {
  if (!pass_.train || !pass_.validate)
    throw Error(ErrorCode::invalid_option, "PyTorchTrainer needs creators: train::torch::creators<...>()");
  if (options_.batch_size < 1)
    throw Error(ErrorCode::invalid_option,
                fmt::format("PyTorchTrainerOptions.batch_size = {} is refused: at least 1", options_.batch_size));
  options_.config = detail::require_object(std::move(options_.config), "config");
}

PyTorchTrainer::~PyTorchTrainer() = default;

/// Workers stay from one pass to the next, unless the number of retries changes.
Trainer& PyTorchTrainer::trainer(int max_retries) {
  if (trainer_ && max_retries != max_retries_) shutdown();
  if (!trainer_) {
    max_retries_ = max_retries;
    trainer_ = std::make_unique<Trainer>(TrainerOptions{.backend = options_.backend,
                                                        .num_workers = options_.num_replicas,
                                                        .use_gpu = options_.use_gpu,
                                                        .resources_per_worker = options_.resources_per_worker,
                                                        .logdir = options_.logdir,
                                                        .max_retries = max_retries});
    trainer_->start();
  }
  return *trainer_;
}

/// An attempt that fails behind its last save is followed by one that finds the pass done already.
std::int64_t PyTorchTrainer::next_pass() const {
  return state_ ? state_->at<Json>("loader").at("position").at("epoch").get<std::int64_t>() : 0;
}

Json PyTorchTrainer::run(const Fn& function, int max_retries) {
  RunOptions options{
      .config = {{"config", options_.config}, {"batch_size", options_.batch_size}, {"pass", next_pass()}}};
  if (state_) options.checkpoint = *state_;
  return mean_of(trainer(max_retries).run(function, std::move(options)));
}

Json PyTorchTrainer::train(const PassOptions& options) {
  if (options.max_retries != 0 && options.checkpoint.empty())
    throw Error(ErrorCode::invalid_option,
                fmt::format("PassOptions.max_retries = {} needs a checkpoint to begin again from: give .checkpoint = "
                            "\"auto\" or a path",
                            options.max_retries));
  if (options.checkpoint != "auto" && !options.checkpoint.empty() && state_) save(options.checkpoint);
  const auto pass = next_pass();
  auto statistics = run(pass_.train, options.max_retries);
  if (const auto saved = trainer_->latest_checkpoint()) {
    state_ = saved->to_dict();
    // When and as which of a run's checkpoints it was saved is no state: equal training gives equal states.
    for (const auto* key : {"_timestamp", "_current_checkpoint_id"}) state_->erase(key);
  }
  if (next_pass() == pass)
    throw Error(
        ErrorCode::io,
        fmt::format("pass {} was trained, but its state could not be saved and is lost; the next train() makes it "
                    "again. {}",
                    pass + 1, fmt::join(trainer_->checkpoint_errors(), "; ")));
  return statistics;
}

Json PyTorchTrainer::validate() { return run(pass_.validate, trainer_ ? max_retries_ : 0); }

void PyTorchTrainer::save(const std::filesystem::path& folder) const {
  if (!state_) throw Error(ErrorCode::invalid_state, "PyTorchTrainer::save(): there is no state before the first pass");
  detail::as_io_errors([&] { save_in_place_of(folder, *state_); });
}

void PyTorchTrainer::load(const std::filesystem::path& folder) { state_ = Checkpoint::from_path(folder).to_dict(); }

void PyTorchTrainer::shutdown() {
  if (trainer_) trainer_->shutdown();
  trainer_.reset();
}

}  // namespace troupe
