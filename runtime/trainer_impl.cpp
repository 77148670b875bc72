// SPDX-License-Identifier: Apache-2.0
#include "runtime/trainer_impl.hpp"

#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <functional>
#include <future>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <troupe/backend.hpp>
#include <troupe/error.hpp>
#include <troupe/init.hpp>

#include "actors/run_journal.hpp"
#include "actors/system.hpp"
#include "checkpoint/file.hpp"
#include "checkpoint/keeper.hpp"
#include "checkpoint/storage/mirror.hpp"
#include "runtime/actor_calls.hpp"
#include "runtime/base/host.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/log_directory.hpp"
#include "runtime/base/make_thread.hpp"
#include "runtime/base/own_process.hpp"
#include "runtime/base/table.hpp"
#include "runtime/callback_thread.hpp"
#include "runtime/driver_environment.hpp"
#include "runtime/engine/group_machine.hpp"
#include "runtime/interrupts.hpp"
#include "runtime/run_errors.hpp"

namespace troupe::detail {
namespace {

double ms_since(engine::Time begin) {
  return std::chrono::duration<double, std::milli>(engine::Clock::now() - begin).count();
}

Settings checked_settings(const TrainerOptions& options) {
  auto settings = resolve_settings(options);
  require_backend(settings.backend);
  return settings;
}

std::vector<local::GroupView::Row> local_rows() { return {{::getpid(), "local", 0}}; }

class ActorRunControl : public RunControl {
public:
  ActorRunControl(TrainerActor trainer, const std::shared_ptr<Run>& run) : trainer_(std::move(trainer)), run_(run) {}

  void consumed(std::uint64_t generation, std::uint32_t rounds) override {
    compat::post(trainer_, local::Consumed{generation, rounds});
  }
  void stop(engine::StopReason reason, std::optional<engine::Failure> failure) override {
    if (auto run = run_.lock()) compat::post(trainer_, local::StopRun{run, reason, std::move(failure)});
  }

private:
  TrainerActor trainer_;
  std::weak_ptr<Run> run_;
};

/// A run that nobody will carry out.
void give_up(Run& run, const Error& error) {
  run.finish(failed_run(error.code(), error.what()));
  run.conclude();
}

/// Behind the patience of the workers.
constexpr std::chrono::seconds longest_end{30};

void set_unless_set(const std::function<void()>& set) {
  try {
    set();
  } catch (const std::future_error&) {  // there was an answer before the end
  }
}

/// The ranks that do not stop; none if the actor has ended in another way.
std::future<std::vector<int>> ask_to_end(const TrainerActor& trainer, std::chrono::milliseconds patience) {
  auto gone = std::make_shared<std::promise<std::vector<int>>>();
  compat::at_end_of(trainer, [gone](const std::string&) { set_unless_set([&] { gone->set_value({}); }); });
  compat::post(trainer, local::ShutDown{patience, gone});
  return gone->get_future();
}

/// Gives the ranks that do not stop.
std::vector<int> end_actors(const TrainerActor& trainer, std::chrono::milliseconds patience) {
  auto result = ask_to_end(trainer, patience);
  if (result.wait_for(patience + longest_end) != std::future_status::ready)
    throw Error(ErrorCode::internal, "the worker group did not end");
  return result.get();
}

void throw_if_stuck(const std::vector<int>& ranks, std::chrono::milliseconds patience) {
  if (ranks.empty()) return;
  throw Error(ErrorCode::deadline,
              fmt::format("thread rank {} did not stop within {} ms (shutdown_deadline) and is left behind: let the "
                          "function call train::report() or check train::should_stop(), or use placement process",
                          fmt::join(ranks, ", "), patience.count()),
              ranks.front());
}

/// The group keeps the deadlines, a new one for each phase of each try; this one is for a group that fails to.
std::chrono::milliseconds longest_start(const Settings& settings) {
  constexpr int phases = 2;  // workers are set up, and form a group
  return settings.worker_start_deadline * (phases * engine::GroupLimits{}.start_attempts) + std::chrono::seconds(30);
}

constexpr const char* shut_down_early_text = "the trainer was shut down before the run began";

/// The program exits: statics are destroyed next.
thread_local bool thread_locals_gone = false;

void watch_thread_locals() {
  struct Watch {
    ~Watch() { thread_locals_gone = true; }
  };
  thread_local const Watch watch;
  static_cast<void>(watch);
}

caf::actor_system* configured(caf::actor_system* system) {
  if (system) require_configured(*system);
  return system;
}

}  // namespace

TrainerImpl::TrainerImpl(const TrainerOptions& options, caf::actor_system* system)
    : settings_(checked_settings(options)), host_system_(configured(system)), logdir_(make_logdir(options.logdir)) {
  if (host_system_) used_in_ = ::getpid();
  watch_thread_locals();
}

TrainerImpl::~TrainerImpl() {
  if (!is_own_process()) {
    // Whatever ends these would wait for threads that are not here.
    leave_behind(std::move(group_));
    leave_behind(std::move(system_));
    leave_behind(std::move(local_thread_));
    leave_behind(std::move(keeper_));
    return;
  }
  const auto end = [this] {
    try {
      shutdown();
    } catch (const std::exception& error) {
      log_error("{}", error.what());
    }
  };
  if (!thread_locals_gone) {
    end();
    return;
  }
  // It has static storage. CAF keeps memory for messages in thread_local objects, so another thread sends them, and
  // the system, which holds some from before, stays.
  try {
    make_thread("that ends a trainer with the program", end).join();
  } catch (const Error& error) {
    log_error("{}", error.what());
    leave_behind(std::move(group_));
  }
  leave_behind(std::move(system_));
}

std::unique_ptr<TrainerImpl> TrainerImpl::restore(const std::filesystem::path& run_dir, TrainerOptions options) {
  const auto folder = std::filesystem::absolute(run_dir).lexically_normal();
  const auto file = read_run_file(folder);
  options.logdir = folder.parent_path();
  if (!options.num_workers && !options.workers)
    options.num_workers = {file.value("min_workers", file.at("num_workers").get<int>()),
                           file.value("max_workers", file.at("num_workers").get<int>())};
  if (options.backend.name.empty() && !options.backend_args)
    options.backend = BackendConfig(file.at("backend").get<std::string>(), file.at("backend_options"));
  auto impl = std::make_unique<TrainerImpl>(options, nullptr);
  impl->restored_ = folder;
  return impl;
}

// ---- start and shutdown ---------------------------------------------------------------------------------------------

bool TrainerImpl::is_own_process() const { return used_in_ == -1 || is_this_process(used_in_); }

void TrainerImpl::require_own_process() const {
  if (used_in_ != -1) require_process(used_in_);
}

std::shared_ptr<TrainerImpl::Group> TrainerImpl::group() const {
  std::lock_guard lock(mutex_);
  return group_;
}

std::shared_ptr<TrainerImpl::Group> TrainerImpl::require_group() {
  require_own_process();
  if (auto current = group()) return current;
  throw Error(ErrorCode::invalid_state, "the trainer is not started: call start() first");
}

std::shared_ptr<TrainerImpl::Group> TrainerImpl::start_unless_started() {
  require_own_process();
  if (auto current = group()) return current;
  start({}, {});
  if (auto current = group()) return current;
  throw Error(ErrorCode::invalid_state, shut_down_early_text);
}

void TrainerImpl::check_gpus() const {
  const double wanted = settings_.resources.at("GPU") * std::max(settings_.min_workers, 1);
  if (wanted > gpu_count())
    throw Error(ErrorCode::start_failed,
                fmt::format("the workers need {} GPUs, but this host has {}: use fewer workers, or use_gpu = false",
                            wanted, gpu_count()));
  if (wanted == 0 && !settings_.local_mode() && gpu_count() > 0)
    log_warning("this host has {} GPUs that the workers do not use: use_gpu = true gives each of them one",
                gpu_count());
}

/// As far as GPUs go: each worker needs its own.
int TrainerImpl::most_workers() const {
  const double gpus = settings_.resources.at("GPU");
  return gpus > 0 ? static_cast<int>(std::min<double>(gpu_count() / gpus, settings_.max_workers))
                  : settings_.max_workers;
}

void TrainerImpl::start(const Fn& hook, const ObjectSpec& object) {
  require_own_process();
  if (started()) throw Error(ErrorCode::invalid_state, "the trainer is started already: call shutdown() first");
  check_gpus();
  if (object.arguments.size() > max_payload_bytes)
    throw Error(
        ErrorCode::too_large,
        fmt::format("the object's arguments of {} bytes are above the limit of {}: pass the path of a file instead",
                    object.arguments.size(), max_payload_bytes));
  auto made = std::make_shared<Group>();
  used_in_ = ::getpid();
  {
    std::lock_guard lock(mutex_);
    if (starting_) throw Error(ErrorCode::invalid_state, "the trainer is being started on another thread: wait for it");
    starting_ = made;
  }
  std::exception_ptr failure;
  try {
    make_group(hook, object, *made);
  } catch (...) {
    failure = std::current_exception();
  }
  bool is_wanted = false;
  {
    std::lock_guard lock(mutex_);
    is_wanted = starting_ == made;
    if (is_wanted) starting_ = nullptr;
    if (is_wanted && !failure) {
      group_ = std::move(made);
      return;
    }
  }
  if (is_wanted) std::rethrow_exception(failure);
  if (!failure) end(*made);
  throw Error(ErrorCode::invalid_state, "the trainer was shut down while it started");
}

void TrainerImpl::make_group(const Fn& hook, const ObjectSpec& object, Group& group) {
  if (settings_.local_mode()) {
    UserSetup setup;
    setup.threads = settings_.threads_per_worker;
    setup.own_process = false;
    setup.backend = settings_.backend.name;
    setup.backend_options = pack(settings_.backend.options);
    if (hook) setup.hook = identify(reinterpret_cast<AnyEntry>(hook.entry()));
    setup.object = object.make;
    setup.object_arguments = object.arguments;
    group.local = std::make_shared<LocalWorkers>(setup, shut_down_later());
  } else {
    start_actors(hook, object, group);
  }
}

/// One that did not come to be group_.
void TrainerImpl::end(Group& group) const {
  if (group.local) return group.local->end();
  if (group.calls) group.calls->close();
  ask_to_end(group.trainer, settings_.shutdown_deadline).wait_for(settings_.shutdown_deadline + longest_end);
}

std::function<void(std::chrono::milliseconds)> TrainerImpl::shut_down_later() {
  return [weak = weak_from_this()](std::chrono::milliseconds patience) {
    if (auto trainer = weak.lock()) trainer->shutdown(patience);
  };
}

void TrainerImpl::start_actors(const Fn& hook, const ObjectSpec& object, Group& group) {
  if (settings_.placement == Placement::process && !initialized())
    throw Error(
        ErrorCode::invalid_state,
        "worker processes need `troupe::init(argc, argv);` as the first line of main(): they are made from this "
        "program before it does anything else. (placement = thread needs no init)");
  auto begin = engine::Clock::now();
  if (settings_.placement == Placement::process)
    node::Node::instance();  // what forbids it is told before anything is made
  if (!host_system_ && !system_) system_ = shared_system();
  auto& system = host_system_ ? *host_system_ : *system_;
  group.timings.actor_system_ms = ms_since(begin);

  begin = engine::Clock::now();
  auto spec = std::make_shared<local::GroupSpec>();
  spec->settings = settings_;
  spec->cpus = CpuLedger::instance()->open(
      {settings_.resources.at("CPU"), settings_.min_workers, std::max(settings_.min_workers, most_workers())});
  spec->settings.world_size = spec->cpus->workers();
  if (const auto silence = compat::longest_silence(system); silence.count() > 0)
    spec->settings.ping_interval =
        std::min(spec->settings.ping_interval,
                 std::max(std::chrono::floor<std::chrono::milliseconds>(silence) / 3, std::chrono::milliseconds(1)));
  spec->log_folder = logdir_ / "logs";
  if (settings_.placement == Placement::process) {
    spec->environment = environment_for_workers(settings_.threads_per_worker);
    spec->working_directory = current_directory();
  }
  if (hook) spec->hook = identify(reinterpret_cast<AnyEntry>(hook.entry()));
  spec->object = object.make;
  spec->object_arguments = object.arguments;
  group.view = std::make_shared<local::GroupView>(spec->settings.world_size, settings_.max_workers);
  auto trainer = spawn_trainer(system);
  {
    std::lock_guard lock(mutex_);
    group.trainer = std::move(trainer);
  }
  auto queue = std::make_shared<local::CallQueue>();
  group.calls = std::make_shared<ActorCallTarget>(group.view, queue, shut_down_later());
  auto started = std::make_shared<std::promise<void>>();
  auto result = started->get_future();
  // Whatever ends the actor: nobody waits for it any longer.
  compat::at_end_of(group.trainer, [calls = group.calls, started](const std::string& why) {
    const Error error(ErrorCode::internal, "the trainer ended: " + why);
    set_unless_set([&] { started->set_exception(std::make_exception_ptr(error)); });
    calls->trainer_ended(error);
  });
  compat::post(group.trainer, local::StartGroup{spec, group.view, queue, started});
  try {
    if (result.wait_for(longest_start(settings_)) != std::future_status::ready)
      throw Error(ErrorCode::internal, "the worker group did not answer");
    result.get();
  } catch (...) {
    end(group);
    throw;
  }
  group.timings.workers_ms = ms_since(begin);
}

void TrainerImpl::shutdown(std::chrono::milliseconds patience) {
  require_own_process();
  patience = bounded(patience);
  std::shared_ptr<Group> ended;
  TrainerActor starting;
  std::shared_ptr<Run> run;
  {
    std::lock_guard lock(mutex_);
    ended = std::move(group_);
    if (const auto unfinished = std::exchange(starting_, nullptr)) starting = unfinished->trainer;
    run = active_run_.lock();
  }
  // start(), on another thread, throws then.
  if (starting) throw_if_stuck(end_actors(starting, patience), patience);
  if (!ended) return;
  if (ended->local) {
    ended->local->forget_trainer();  // handles may outlive it, whatever its function does
    if (run) {
      const auto result = failed_run(ErrorCode::invalid_state, shut_down_text);
      run->stop(engine::StopReason::failure, result.outcome.failure);
      run->finish_unless_begun(result);
    }
    if (!run || run->wait_for(patience)) return ended->local->end();
    throw Error(ErrorCode::deadline,
                fmt::format("the function did not stop within {} ms (shutdown_deadline): let it call train::report() "
                            "or check train::should_stop(), or use a worker process (num_workers = 1)",
                            patience.count()),
                0);
  }
  ended->calls->close();
  const auto stuck = end_actors(ended->trainer, patience);
  // It may not have begun yet: then nobody else ends it.
  if (run) run->finish(failed_run(ErrorCode::invalid_state, shut_down_text));
  throw_if_stuck(stuck, patience);
}

// ---- runs -----------------------------------------------------------------------------------------------------------

std::shared_ptr<Run> TrainerImpl::prepare_run(const Fn& function, RunOptions& options, const Group& group) {
  if (!function) throw Error(ErrorCode::invalid_argument, "run() was given no function: pass troupe::fn<train_func>");
  options.config = require_object(std::move(options.config), "config");
  RunSpec spec;
  spec.function = identify(reinterpret_cast<AnyEntry>(function.entry()));
  spec.function_name = name_of(reinterpret_cast<AnyEntry>(function.entry()));
  spec.config = pack(options.config);
  if (spec.config.size() > max_payload_bytes)
    throw Error(ErrorCode::too_large,
                fmt::format("a config of {} bytes is above the limit of {}: pass the path of a file instead",
                            spec.config.size(), max_payload_bytes));
  spec.detailed_metrics = wants_detailed_metrics();
  spec.patience = settings_.shutdown_deadline * 2 + std::chrono::seconds(5);
  spec.shown_after_interrupt = settings_.shutdown_deadline;
  spec.can_end_at_once = !settings_.local_mode();

  // Not under the lock: it may read checkpoints, and ask a store for them.
  const auto preparing = reserve_run(group);
  const auto [directory, resume] = next_run_dir(options.resume, options.storage_path);
  // First: nobody else has the run from here on.
  auto journal = std::make_shared<RunJournal>(directory, resume,
                                              Json{{"function", spec.function_name},
                                                   {"num_workers", group.view ? group.view->rows().size() : 0},
                                                   {"run", directory.string()}});
  auto keeper = std::make_shared<CheckpointKeeper>(
      KeeperOptions{directory, options.checkpoint_strategy, std::move(options.checkpoint), resume, options.storage_path,
                    [journal] { return journal->why_lost(); },
                    [journal](std::uint64_t generation, std::uint64_t id, std::int64_t round) {
                      journal->committed(generation, id, round);
                    }});
  spec.directory = directory;
  spec.keeper = keeper;
  spec.journal = journal;
  const auto rows = group.view ? group.view->begin_run() : local_rows();
  auto file = std::make_shared<RunFile>(spec.directory, settings_, spec, options.config, rows, group.timings);
  spec.on_end = [file, view = group.view, keeper, journal, before = this->keeper(),
                 is_ours = std::optional<bool>()](const RunResult& result) mutable {
    const auto status = result.outcome.status;
    const bool ended_well = status == engine::RunStatus::succeeded || status == engine::RunStatus::stopped;
    // After a failure one may want to go back to it; a resumed run has it as its own.
    if (before && ended_well && keeper->committed() > 0 && before->folder() != keeper->folder())
      before->drop_spare_latest();
    // Another program's file is not ours to write.
    if (!is_ours) is_ours = journal->why_lost().empty();
    if (*is_ours) file->finish(result, view ? view->ran() : local_rows(), *keeper);
    journal->ended(status_name(result.outcome.status));
  };
  auto run = std::make_shared<Run>(std::move(spec));
  bool is_wanted = false;
  {
    std::lock_guard lock(mutex_);
    latest_run_dir_ = run->spec.directory;
    keeper_ = keeper;
    is_wanted = group_.get() == &group;
    if (is_wanted) {
      active_run_ = run;
      run_view_ = run->view;
    }
  }
  try {
    if (!is_wanted) throw Error(ErrorCode::invalid_state, shut_down_early_text);
    run->while_active = stop_on_interrupt(run);
  } catch (const Error& error) {
    give_up(*run, error);
    throw;
  }
  return run;
}

/// No other run is prepared while the result lives.
std::shared_ptr<void> TrainerImpl::reserve_run(const Group& group) {
  std::lock_guard lock(mutex_);
  if (group_.get() != &group) throw Error(ErrorCode::invalid_state, shut_down_early_text);
  const auto active = active_run_.lock();
  if (preparing_ || (active && !active->finished()))
    throw Error(ErrorCode::invalid_state,
                "a run of this trainer is active already: let it end, or use a second Trainer beside it");
  preparing_ = true;
  return {this, [this](void*) {
            std::lock_guard again(mutex_);
            preparing_ = false;
          }};
}

std::pair<std::filesystem::path, bool> TrainerImpl::next_run_dir(bool resume, const std::string& storage_path) {
  if (auto restored = std::exchange(restored_, {}); !restored.empty()) return {restored, true};
  if (resume)
    if (auto latest = detail::latest_run_dir(logdir_); !latest.empty()) return {latest, true};
  if (resume && !storage_path.empty())  // another machine's run
    if (const auto run =
            storage::latest_stored_run(*storage::open_storage(storage_path), logdir_.filename().string())) {
      make_folder(logdir_ / *run / "logs");
      return {logdir_ / *run, true};
    }
  return {make_run_dir(logdir_), false};
}

void TrainerImpl::begin(const std::shared_ptr<Run>& run, const Group& group) {
  run->attach(std::make_shared<ActorRunControl>(group.trainer, run));
  group.calls->run_begins(run);
  compat::post(group.trainer, local::BeginRun{run});
}

RunResults TrainerImpl::run(const Fn& function, RunOptions options) {
  for (const auto& callback : options.callbacks)
    if (!callback) throw Error(ErrorCode::invalid_argument, "a callback is null: pass std::make_shared<...>()");
  const auto current = start_unless_started();
  auto run = prepare_run(function, options, *current);
  TrainingInfo info{run->spec.directory, std::move(options.config), std::max(num_workers(), 1)};
  std::optional<CallbackThread> callbacks;
  try {
    callbacks.emplace(std::move(options.callbacks), run, std::move(info));
  } catch (const Error& error) {
    give_up(*run, error);
    throw;
  }
  if (callbacks->wait_started()) {
    if (current->local)
      current->local->run(run, engine::retry_limits(settings_));
    else
      begin(run, *current);
  }
  callbacks->join();
  const auto& result = run->conclude();
  throw_if_failed(*run, result);
  return RunResults(result.results);
}

std::shared_ptr<Run> TrainerImpl::run_iterator(const Fn& function, RunOptions options) {
  if (!options.callbacks.empty())
    throw Error(ErrorCode::invalid_option,
                "run_iterator() takes no callbacks: handle each round in your loop, or use run()");
  const auto current = start_unless_started();
  const auto thread = current->local ? std::make_shared<UserThread>() : nullptr;  // before there is a run to fail
  auto run = prepare_run(function, options, *current);
  if (!current->local) {
    begin(run, *current);
    return run;
  }
  current->local->reserve();
  local_thread_ = thread;
  local_thread_->post(
      [run, local = current->local, limits = engine::retry_limits(settings_)] { local->run(run, limits); });
  return run;
}

// ---- what it looks like ---------------------------------------------------------------------------------------------

WorkerGroup TrainerImpl::workers() {
  auto current = require_group();
  if (current->local) return WorkerGroup(current->local);
  return WorkerGroup(current->calls);
}

bool TrainerImpl::started() const { return group() != nullptr; }

int TrainerImpl::num_workers() const {
  const auto current = group();
  return current && current->view ? static_cast<int>(current->view->rows().size()) : settings_.world_size;
}

void TrainerImpl::resize(int num_workers) {
  if (num_workers < settings_.min_workers || num_workers > settings_.max_workers || settings_.local_mode())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("resize({}) is refused; valid: {} to {}, the range that num_workers = {{min, max}} gave",
                            num_workers, settings_.min_workers, settings_.max_workers));
  compat::post(require_group()->trainer, local::Resize{num_workers});
}

void TrainerImpl::preempt(int rank, std::optional<std::chrono::milliseconds> within) {
  const auto current = require_group();
  if (!current->view || rank < 0 || rank >= num_workers())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("preempt({}) is refused; valid: the rank of a worker, 0 to {}{}", rank, num_workers() - 1,
                            current->view ? "" : "; local mode has none"));
  const auto left = within.value_or(settings_.preemption_grace);
  compat::post(current->trainer, local::Preempt{rank, bounded(left)});
}

TrainerStatus TrainerImpl::status() const {
  TrainerStatus status;
  std::shared_ptr<Group> current;
  std::shared_ptr<RunView> run;
  {
    std::lock_guard lock(mutex_);
    current = group_;
    run = run_view_;
    const auto active = active_run_.lock();
    if (current) status.state = active && !active->finished() ? run->state().name : "idle";
  }
  const auto rows = worker_rows(current);
  status.world_size = static_cast<int>(rows.size());
  for (std::size_t rank = 0; rank < rows.size(); ++rank)
    status.workers.push_back({static_cast<int>(rank), rows[rank].pid, rows[rank].state, rows[rank].round,
                              rows[rank].step, rows[rank].slowdown});
  if (!run) return status;
  const auto state = run->state();
  status.attempt = state.attempt;
  status.round = run->round;
  status.generation = state.generation;
  status.restarts = {state.restarts.lost_workers, state.restarts.user_errors, state.restarts.preemptions};
  return status;
}

std::vector<local::GroupView::Row> TrainerImpl::worker_rows(const std::shared_ptr<Group>& current) {
  if (!current) return {};
  if (current->local) return local_rows();
  return current->view->rows();
}

std::vector<int> TrainerImpl::worker_pids() const {
  std::vector<int> pids;
  for (const auto& row : worker_rows(group())) pids.push_back(row.pid);
  return pids;
}

std::filesystem::path TrainerImpl::latest_run_dir() const {
  std::lock_guard lock(mutex_);
  return latest_run_dir_;
}

std::shared_ptr<CheckpointKeeper> TrainerImpl::keeper() const {
  std::lock_guard lock(mutex_);
  return keeper_;
}

std::string TrainerImpl::to_string() const {
  const int workers = std::max(num_workers(), 1);
  std::string text = fmt::format("Trainer: {}, backend {}, {}\nlogdir: {}\n\n",
                                 settings_.local_mode()
                                     ? "local mode"
                                     : fmt::format("{} worker{} ({})", workers, workers == 1 ? "" : "s",
                                                   settings_.placement == Placement::process ? "process" : "thread"),
                                 settings_.backend.name.empty() ? "none" : settings_.backend.name,
                                 started() ? "started" : "not started", logdir_.string());
  std::vector<std::vector<std::string>> resources;
  for (const auto& [name, amount] : settings_.resources) {
    std::string available = "-";
    if (name == "CPU") available = std::to_string(core_count());
    if (name == "GPU") available = std::to_string(gpu_count());
    resources.push_back({name, fmt::format("{}", amount), fmt::format("{}", amount * workers), available});
  }
  text += format_table({"resource", "per worker", "all workers", "this host"}, std::move(resources));
  std::vector<std::vector<std::string>> rows;
  const auto workers_now = worker_rows(group());
  for (std::size_t rank = 0; rank < workers_now.size(); ++rank)
    rows.push_back({std::to_string(rank), std::to_string(workers_now[rank].pid), host_name(), workers_now[rank].state});
  if (!rows.empty()) text += "\n" + format_table({"rank", "pid", "host", "state"}, std::move(rows));
  return text;
}

}  // namespace troupe::detail
