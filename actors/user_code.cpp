// SPDX-License-Identifier: Apache-2.0
#include "actors/user_code.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "runtime/base/log.hpp"
#include "runtime/base/timed_out.hpp"

namespace troupe {
namespace {

/// What user code printed is in the pipes before anybody hears of its end.
void flush_output() {
  for (auto* stream : {&std::cout, &std::cerr}) {
    try {
      stream->flush();
    } catch (const std::ios_base::failure& error) {  // the program wants its streams to throw; this is not its code
      log_debug("what was printed cannot be flushed: {}", error.what());
    }
  }
  // Not fflush(nullptr): it waits for every stream, also for one that another thread reads from.
  std::fflush(stdout);
  std::fflush(stderr);
}

/// Somebody may put a whole file into an exception; nobody reads it.
constexpr std::size_t longest_text = std::size_t{64} << 10;

UserOutcome failure(ErrorCode code, std::string text) {
  if (text.size() > longest_text) text = text.substr(0, longest_text) + "...";
  return {true, false, code, std::move(text)};
}

void apply_environment(const std::vector<std::string>& entries) {
  for (const auto& entry : entries) {
    const auto equals = entry.find('=');
    if (equals == std::string::npos)
      ::unsetenv(entry.c_str());
    else
      ::setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
  }
}

std::vector<std::string> rank_environment(const detail::RankInfo& ranks) {
  return {fmt::format("RANK={}", ranks.world_rank), fmt::format("LOCAL_RANK={}", ranks.local_rank),
          fmt::format("NODE_RANK={}", ranks.node_rank), fmt::format("WORLD_SIZE={}", ranks.world_size),
          fmt::format("LOCAL_WORLD_SIZE={}", ranks.local_world_size)};
}

}  // namespace

UserOutcome run_user_code(const std::function<std::string()>& body) {
  UserOutcome outcome;
  try {
    outcome.payload = body();
    if (outcome.payload.size() > detail::max_payload_bytes)
      outcome = failure(ErrorCode::too_large,
                        fmt::format("the result has {} bytes, above the limit of {}: write large results to a file "
                                    "and return its path",
                                    outcome.payload.size(), detail::max_payload_bytes));
  } catch (const Stopped&) {
    outcome.stopped = true;
  } catch (const GroupLost& error) {
    // Another rank's end is the reason, and the driver knows it; this text is for a forming that fails, and for those
    // who want to know why the function was left.
    outcome = failure(error.code(), error.what());
    outcome.stopped = true;
  } catch (const Error& error) {
    outcome = failure(error.code(), error.what());
  } catch (const std::exception& error) {
    outcome = failure(ErrorCode::user_code, error.what());
  } catch (...) {
    outcome = failure(ErrorCode::user_code, "an exception that is not a std::exception");
  }
  flush_output();
  return outcome;
}

void Outbox::put(const std::function<void(Contents&)>& change) {
  bool was_empty = false;
  {
    std::lock_guard lock(mutex_);
    change(contents_);
    was_empty = std::exchange(empty_, false);
  }
  if (was_empty) wake_();
}

Outbox::Contents Outbox::take() {
  std::lock_guard lock(mutex_);
  empty_ = true;
  return std::exchange(contents_, {});
}

UserCode::~UserCode() { drop_object(); }

void UserCode::bind(std::shared_ptr<detail::Session> session) {
  if (setup_.own_process) detail::Session::bind_process(session);
  detail::Session::bind(std::move(session));
}

void UserCode::set_up(UserSetup setup) {
  setup_ = std::move(setup);
  if (setup_.own_process) {
    apply_environment(setup_.environment);
    std::error_code ignored;  // a folder that is gone by now is no reason to fail
    if (!setup_.working_directory.empty()) std::filesystem::current_path(setup_.working_directory, ignored);
  }
  idle_session_ = std::make_shared<detail::Session>(setup_.ranks);
  take_place(setup_.ranks);
  bind(idle_session_);
  if (!setup_.backend.empty()) new_backend()->on_setup(context());
  if (!setup_.hook.build.empty()) {
    auto hook = reinterpret_cast<detail::TrainEntry>(detail::resolve(setup_.hook, detail::EntryKind::train));
    hook(Config());
  }
  if (setup_.backend.empty()) make_object();
}

/// This rank's number and the size of the world may change between two groups.
void UserCode::take_place(const detail::RankInfo& ranks) {
  setup_.ranks = ranks;
  idle_session_->set_ranks(ranks);
  if (setup_.own_process) apply_environment(rank_environment(ranks));
}

void UserCode::form(std::uint64_t epoch, const detail::RankInfo& place, std::shared_ptr<Store> store,
                    std::shared_ptr<DescriptorExchange> descriptors) {
  leave_group();
  take_place(place);
  const auto backend = new_backend();
  {
    std::lock_guard lock(backend_mutex_);
    backend_ = backend;
  }
  auto formed = context();
  formed.epoch = epoch;
  formed.store = std::move(store);
  formed.descriptors = std::move(descriptors);
  backend->on_start(formed);
  if (!object_) make_object();
}

std::shared_ptr<Backend> UserCode::new_backend() const {
  return make_backend(setup_.backend, detail::unpack(setup_.backend_options));
}

/// Of no group yet.
BackendContext UserCode::context() const {
  const auto& ranks = setup_.ranks;
  return {ranks.world_rank,       ranks.local_rank, ranks.node_rank,   ranks.world_size,
          ranks.local_world_size, setup_.threads,   setup_.own_process};
}

std::shared_ptr<Backend> UserCode::backend() {
  std::lock_guard lock(backend_mutex_);
  return backend_;
}

void UserCode::abort() {
  const auto formed = backend();
  if (!formed) return;
  try {
    formed->on_abort();
  } catch (const std::exception& error) {
    log_warning("on_abort() of the backend threw: {}", error.what());
  } catch (...) {
    log_warning("on_abort() of the backend threw");
  }
}

bool UserCode::has_lost_peers() {
  const auto formed = backend();
  return formed && formed->has_lost_peers();
}

void UserCode::leave_group() {
  std::shared_ptr<Backend> backend;
  {
    std::lock_guard lock(backend_mutex_);
    backend = std::move(backend_);
  }
  if (backend) backend->on_shutdown();
}

void UserCode::make_object() {
  if (setup_.object.build.empty()) return;
  auto make = reinterpret_cast<detail::MakeEntry>(detail::resolve(setup_.object, detail::EntryKind::make));
  object_.reset(static_cast<detail::ObjectBox*>(make(setup_.object_arguments)));
}

std::string UserCode::run(const std::shared_ptr<detail::Session>& session, const detail::FunctionId& function,
                          std::string_view config) {
  struct Rebind {
    UserCode& code;
    detail::Session& session;
    ~Rebind() {
      session.finish();
      session.stop();  // threads of the function that are left would wait for ever
      code.bind(code.idle_session_);
    }
  } rebind{*this, *session};
  take_place(session->ranks());
  session->share_data(*idle_session_);
  session->drop_returned();  // the driver has taken it
  bind(session);
  auto entry = reinterpret_cast<detail::TrainEntry>(detail::resolve(function, detail::EntryKind::train));
  session->begin();
  try {
    return detail::pack(entry(Config(detail::unpack(config))));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    if (!detail::says_timed_out(error) && has_lost_peers()) throw GroupLost(error.what());
    throw;
  }
}

std::string UserCode::call(const detail::FunctionId& function, std::string_view arguments) {
  bind(idle_session_);          // in local mode the thread is the driver's between calls
  if (!object_) make_object();  // a replacement whose group has not been formed yet
  auto entry = reinterpret_cast<detail::CallEntry>(detail::resolve(function, detail::EntryKind::call));
  return entry(object_.get(), arguments);
}

void UserCode::tear_down() noexcept {
  try {
    drop_object();
    leave_group();
  } catch (const std::exception& error) {
    log_warning("shutdown hook threw: {}", error.what());
  } catch (...) {
    log_warning("shutdown hook threw");
  }
  bind(nullptr);
  flush_output();
}

void UserCode::drop_object() {
  if (auto box = std::move(object_)) box->drop(box->object);
}

}  // namespace troupe
