// SPDX-License-Identifier: Apache-2.0
// A rank's user code: backend, hook, object, train function, calls. Everything here runs on the rank's user thread;
// what comes out waits in an Outbox for the Worker actor. No CAF.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <troupe/backend.hpp>
#include <troupe/call.hpp>
#include <troupe/error.hpp>
#include <troupe/fn.hpp>

#include "checkpoint/saved_part.hpp"
#include "runtime/engine/group_machine.hpp"
#include "runtime/session/session.hpp"

namespace troupe {

/// What became of a piece of user code: bytes of its value, or its exception.
struct UserOutcome {
  bool failed = false;
  bool stopped = false;  ///< unwound by Stopped
  ErrorCode code = ErrorCode::user_code;
  std::string payload;
};

/// Runs `body`, which gives bytes, and catches everything. A value above the payload limit is a failure.
UserOutcome run_user_code(const std::function<std::string()>& body);

/// What user code has produced and the Worker actor has not sent yet.
class Outbox {
public:
  struct Reply {
    std::uint64_t id = 0;
    UserOutcome outcome;
  };
  struct End {
    std::uint64_t generation = 0;
    UserOutcome outcome;
    bool saw_notice = false;  ///< of a preemption
  };
  struct Form {
    std::uint64_t epoch = 0;
    UserOutcome outcome;
  };
  struct Live {
    std::uint64_t generation = 0;
    bool live = false;
  };
  struct Held {
    std::uint64_t generation = 0;
    std::uint64_t saves = 0;
    detail::GroupEnd end;
  };
  struct Progress {
    std::uint64_t generation = 0;
    std::int64_t step = 0;
  };
  struct Awaits {
    std::uint64_t generation = 0;
    std::uint64_t save = 0;
  };
  struct Contents {
    std::optional<UserOutcome> setup;
    std::optional<Form> form;
    std::vector<Reply> replies;
    std::vector<detail::SavedPart> parts;
    std::optional<Awaits> awaits;
    std::optional<Live> live;
    std::optional<Progress> progress;
    std::optional<Held> held;
    std::optional<std::uint64_t> saving;  ///< the generation
    std::optional<End> end;
    bool left = false;
  };

  /// `wake` is called when the box stops being empty.
  explicit Outbox(std::function<void()> wake) : wake_(std::move(wake)) {}
  /// Changes the contents under the lock.
  void put(const std::function<void(Contents&)>& change);
  Contents take();

private:
  const std::function<void()> wake_;
  std::mutex mutex_;
  Contents contents_;
  bool empty_ = true;
};

/// What set_up() prepares.
struct UserSetup {
  detail::RankInfo ranks;
  int threads = 1;
  bool own_process = true;
  std::vector<std::string> environment;  ///< NAME=value to set, NAME to unset; own process only
  std::string working_directory;         ///< own process only
  std::string backend;
  std::string backend_options;
  detail::FunctionId hook;
  detail::FunctionId object;
  std::string object_arguments;
};

class UserCode {
public:
  ~UserCode();
  /// Environment and hook; the object too, if there is no group to form first.
  void set_up(UserSetup setup);
  /// Forms the group together with all other ranks (on_start), after leaving the one before.
  void form(std::uint64_t epoch, const detail::RankInfo& ranks, std::shared_ptr<Store> store,
            std::shared_ptr<DescriptorExchange> descriptors);
  /// From any thread: ends waits for other ranks.
  void abort();
  std::string run(const std::shared_ptr<detail::Session>& session, const detail::FunctionId& function,
                  std::string_view config);
  std::string call(const detail::FunctionId& function, std::string_view arguments);
  void tear_down() noexcept;

private:
  void take_place(const detail::RankInfo& ranks);
  void bind(std::shared_ptr<detail::Session> session);
  void make_object();
  void drop_object();
  void leave_group();
  std::shared_ptr<Backend> new_backend() const;
  BackendContext context() const;
  std::shared_ptr<Backend> backend();
  bool has_lost_peers();

  UserSetup setup_;
  std::shared_ptr<detail::Session> idle_session_;
  std::mutex backend_mutex_;
  std::shared_ptr<Backend> backend_;
  std::unique_ptr<detail::ObjectBox> object_;
};

}  // namespace troupe
