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

namespace troupe {
namespace {

/// What user code printed is in the pipes before anybody hears of its end.
void flush_output() {
  std::cout.flush();
  std::cerr.flush();
  std::fflush(nullptr);
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
  if (own_process_) detail::Session::bind_process(session);
  detail::Session::bind(std::move(session));
}

void UserCode::set_up(const UserSetup& setup) {
  own_process_ = setup.own_process;
  if (own_process_) {
    apply_environment(setup.environment);
    std::error_code ignored;  // a folder that is gone by now is no reason to fail
    if (!setup.working_directory.empty()) std::filesystem::current_path(setup.working_directory, ignored);
  }
  idle_session_ = std::make_shared<detail::Session>(setup.ranks);
  bind(idle_session_);
  if (!setup.backend.empty()) {
    backend_ = make_backend(setup.backend, detail::unpack(setup.backend_options));
    backend_->on_start({setup.ranks.world_rank, setup.ranks.local_rank, setup.ranks.node_rank, setup.ranks.world_size,
                        setup.ranks.local_world_size, setup.threads, setup.own_process});
  }
  if (!setup.hook.build.empty()) {
    auto hook = reinterpret_cast<detail::TrainEntry>(detail::resolve(setup.hook, detail::EntryKind::train));
    hook(Config());
  }
  if (!setup.object.build.empty()) {
    auto make = reinterpret_cast<detail::MakeEntry>(detail::resolve(setup.object, detail::EntryKind::make));
    object_.reset(static_cast<detail::ObjectBox*>(make(setup.object_arguments)));
  }
}

std::string UserCode::run(const std::shared_ptr<detail::Session>& session, const detail::FunctionId& function,
                          std::string_view config) {
  struct Rebind {
    UserCode& code;
    ~Rebind() { code.bind(code.idle_session_); }
  } rebind{*this};
  bind(session);
  auto entry = reinterpret_cast<detail::TrainEntry>(detail::resolve(function, detail::EntryKind::train));
  return detail::pack(entry(Config(detail::unpack(config))));
}

std::string UserCode::call(const detail::FunctionId& function, std::string_view arguments) {
  bind(idle_session_);  // in local mode the thread is the driver's between calls
  auto entry = reinterpret_cast<detail::CallEntry>(detail::resolve(function, detail::EntryKind::call));
  return entry(object_.get(), arguments);
}

void UserCode::tear_down() noexcept {
  try {
    drop_object();
    if (backend_) backend_->on_shutdown();
  } catch (const std::exception& error) {
    log_warning("shutdown hook threw: {}", error.what());
  } catch (...) {
    log_warning("shutdown hook threw");
  }
  backend_.reset();
  bind(nullptr);
  flush_output();
}

void UserCode::drop_object() {
  if (auto box = std::move(object_)) box->drop(box->object);
}

}  // namespace troupe
