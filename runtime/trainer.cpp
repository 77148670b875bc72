// SPDX-License-Identifier: Apache-2.0
#include <troupe/trainer.hpp>

#include <ostream>
#include <utility>

#include <troupe/embed.hpp>

#include "actors/system.hpp"
#include "checkpoint/keeper.hpp"
#include "runtime/trainer_impl.hpp"

namespace troupe {

Trainer::Trainer(const TrainerOptions& options) : impl_(std::make_unique<detail::TrainerImpl>(options, nullptr)) {}
Trainer::Trainer(std::unique_ptr<detail::TrainerImpl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer& Trainer::operator=(Trainer&&) noexcept = default;

void Trainer::start(Fn initialization_hook) { impl_->start(initialization_hook, {}); }
void Trainer::start_object(const detail::ObjectSpec& object) { impl_->start({}, object); }
RunResults Trainer::run(Fn function, RunOptions options) { return impl_->run(function, std::move(options)); }
RunIterator Trainer::run_iterator(Fn function, RunOptions options) {
  return RunIterator(impl_->run_iterator(function, std::move(options)));
}
WorkerGroup Trainer::workers() { return impl_->workers(); }
void Trainer::shutdown() { impl_->shutdown(); }
bool Trainer::started() const { return impl_->started(); }
int Trainer::num_workers() const { return impl_->num_workers(); }
void Trainer::resize(int num_workers) { impl_->resize(num_workers); }
void Trainer::preempt(int rank, std::optional<std::chrono::milliseconds> within) { impl_->preempt(rank, within); }
std::vector<int> Trainer::worker_pids() const { return impl_->worker_pids(); }
const std::filesystem::path& Trainer::logdir() const { return impl_->logdir(); }
std::filesystem::path Trainer::latest_run_dir() const { return impl_->latest_run_dir(); }
Trainer Trainer::restore(const std::filesystem::path& run_dir, TrainerOptions options) {
  return Trainer(detail::TrainerImpl::restore(run_dir, std::move(options)));
}
std::optional<Checkpoint> Trainer::latest_checkpoint() const {
  auto keeper = impl_->keeper();
  return keeper ? keeper->latest() : std::nullopt;
}
std::filesystem::path Trainer::latest_checkpoint_dir() const {
  auto keeper = impl_->keeper();
  return keeper ? keeper->folder() : std::filesystem::path();
}
std::filesystem::path Trainer::latest_checkpoint_path() const {
  auto keeper = impl_->keeper();
  return keeper ? keeper->latest_path() : std::filesystem::path();
}
std::filesystem::path Trainer::best_checkpoint_path() const {
  auto keeper = impl_->keeper();
  return keeper ? keeper->best_path() : std::filesystem::path();
}
std::vector<std::pair<Checkpoint, Json>> Trainer::best_checkpoints() const {
  auto keeper = impl_->keeper();
  return keeper ? keeper->best() : std::vector<std::pair<Checkpoint, Json>>();
}
std::vector<std::string> Trainer::checkpoint_errors() const {
  auto keeper = impl_->keeper();
  return keeper ? keeper->errors() : std::vector<std::string>();
}
TrainerStatus Trainer::status() const { return impl_->status(); }
std::string Trainer::to_string() const { return impl_->to_string(); }

std::ostream& operator<<(std::ostream& out, const Trainer& trainer) { return out << trainer.to_string(); }

void configure(caf::actor_system_config& config) { add_to_config(config); }

Trainer make_trainer(caf::actor_system& system, const TrainerOptions& options) {
  return Trainer(std::make_unique<detail::TrainerImpl>(options, &system));
}

}  // namespace troupe
