// SPDX-License-Identifier: Apache-2.0
// The one file that knows which CAF is underneath: 0.17.6 (Debian) or 1.x. Everything else goes through these names.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include <caf/all.hpp>
#include <caf/io/all.hpp>
#include <caf/io/basp_broker.hpp>

#include "runtime/base/thread_turns.hpp"

// 1.x only. CAF_VERSION cannot be compared: in 1.x it is a literal with a leading zero.
#ifdef CAF_VERSION_MAJOR
#define TROUPE_CAF_LEGACY 0
#include <caf/init_global_meta_objects.hpp>
#else
#define TROUPE_CAF_LEGACY 1
#endif

namespace troupe::compat {

/// One signature of a typed actor: `on<A, B>::no_reply` takes (A, B) and answers nothing.
template <class... In>
struct on {  // NOLINT(readability-identifier-naming): reads like CAF's own
#if TROUPE_CAF_LEGACY
  using no_reply = caf::reacts_to<In...>;
#else
  using no_reply = caf::result<void>(In...);
#endif
};

template <class T>
struct FieldRef {
  const char* name;
  T& value;
};
template <class T>
FieldRef<T> field(const char* name, T& value) {
  return {name, value};
}

/// The body of an inspect() function.
template <class Inspector, class T, class... Fields>
auto describe(Inspector& f, [[maybe_unused]] T& object, const char* type, FieldRef<Fields>... fields) {
#if TROUPE_CAF_LEGACY
  return f(caf::meta::type_name(type), fields.value...);
#else
  return f.object(object).pretty_name(type).fields(f.field(fields.name, fields.value)...);
#endif
}

template <class Self>
auto& state_of(Self* self) {
#if TROUPE_CAF_LEGACY
  return self->state;
#else
  return self->state();
#endif
}

/// The argument of an actor that takes none: CAF 0.17 would bind a reference to null when it spawns it.
struct NoArgument {};

#if TROUPE_CAF_LEGACY
/// An actor on the thread that serves connections, as CAF's brokers are.
template <class Handle, class State>
class IoActor : public caf::stateful_actor<State, typename Handle::base> {
public:
  template <class... Ts>
  explicit IoActor(caf::actor_config& config, const Ts&... arguments)
      : caf::stateful_actor<State, typename Handle::base>(config),
        begin_([this, arguments...] { return this->state.run(this, arguments...); }),
        io_(&this->home_system().middleman().backend()) {}

  typename Handle::behavior_type make_behavior() override { return std::exchange(begin_, nullptr)(); }
  caf::resumable::subtype_t subtype() const override { return caf::resumable::io_actor; }
  void enqueue(caf::mailbox_element_ptr message, caf::execution_unit*) override {
    Handle::base::enqueue(std::move(message), io_);
  }
  void launch(caf::execution_unit*, bool lazy, bool hide) override { Handle::base::launch(io_, lazy, hide); }

private:
  std::function<typename Handle::behavior_type()> begin_;
  caf::execution_unit* const io_;  // looked up once: late messages may come when the middleman is gone
};
#endif

/// Spawns an actor whose behavior is `State::run(self, arguments...)`. It shares the thread that serves connections, so
/// a message from or to another process costs it no wake-up; it must never block. (On CAF 1.x an ordinary actor.)
template <class Handle, class State, class... Ts>
Handle spawn_beside_io(caf::actor_system& system, Ts... arguments) {
#if TROUPE_CAF_LEGACY
  return system.spawn<IoActor<Handle, State>>(std::move(arguments)...);
#else
  const auto begin = [](typename Handle::template stateful_pointer<State> self, Ts... given) {
    return self->state().run(self, std::move(given)...);
  };
  return system.spawn(begin, std::move(arguments)...);
#endif
}

/// Sends from an actor; a message to nobody is dropped.
template <class Self, class Handle, class... Ts>
void tell(Self* self, const Handle& to, Ts&&... values) {
#if TROUPE_CAF_LEGACY
  self->send(to, std::forward<Ts>(values)...);
#else
  self->mail(std::forward<Ts>(values)...).send(to);
#endif
}

/// Sends from outside any actor.
template <class Handle, class... Ts>
void post(const Handle& to, Ts&&... values) {
#if TROUPE_CAF_LEGACY
  caf::anon_send(to, std::forward<Ts>(values)...);
#else
  caf::anon_mail(std::forward<Ts>(values)...).send(to);
#endif
}

/// Ends an actor in good order.
template <class Handle>
void end(const Handle& who) {
  caf::anon_send_exit(who, caf::exit_reason::user_shutdown);
}

/// Sends to the actor itself after a while.
template <class Self, class... Ts>
void remind(Self* self, std::chrono::nanoseconds delay, Ts&&... values) {
#if TROUPE_CAF_LEGACY
  self->delayed_send(self, delay, std::forward<Ts>(values)...);
#else
  self->mail(std::forward<Ts>(values)...).delay(delay).send(self);
#endif
}

// 1.x keeps these and marks them deprecated.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
/// Learns of the end of `handle` through the down handler.
template <class Self, class Handle>
void watch(Self* self, const Handle& handle) {
  self->monitor(handle);
}
template <class Self, class Function>
void on_down(Self* self, Function function) {
  self->set_down_handler(std::move(function));
}
template <class Self, class Function>
void on_exit(Self* self, Function function) {
  self->set_exit_handler(std::move(function));
}
#pragma GCC diagnostic pop

/// An exception in a handler ends the actor; CAF 0.17 would drop its text.
template <class Self, class Function>
void on_exception(Self* self, Function tell_text) {
  self->set_exception_handler([tell_text](const std::exception_ptr& thrown) -> caf::error {
    std::string text;
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& e) {
      text = e.what();
    } catch (...) {
      text = "unknown exception";
    }
    tell_text(text.c_str());
    return caf::make_error(caf::sec::runtime_error, std::move(text));
  });
}

inline std::string render(const caf::actor_system& system, const caf::error& error) {
#if TROUPE_CAF_LEGACY
  return system.render(error);
#else
  static_cast<void>(system);
  return to_string(error);
#endif
}

/// Calls `tell` with the reason when the actor ends; at once if it has.
template <class Handle, class Function>
void at_end_of(const Handle& who, Function tell) {
  caf::actor_cast<caf::strong_actor_ptr>(who)->get()->attach_functor(
      [tell = std::move(tell), system = &who->home_system()](const caf::error& reason) {
        tell(render(*system, reason));
      });
}

/// After so long without a message a connection of this system counts as broken; zero: never. Workers send none of
/// CAF's heartbeats.
inline std::chrono::nanoseconds longest_silence(const caf::actor_system& system) {
#if TROUPE_CAF_LEGACY
  constexpr char interval[] = "middleman.heartbeat-interval", timeout[] = "middleman.connection-timeout";
#else
  constexpr char interval[] = "caf.middleman.heartbeat-interval", timeout[] = "caf.middleman.connection-timeout";
#endif
  const auto& defaults = caf::defaults::middleman::heartbeat_interval;
  const bool on = caf::get_or(system.config(), interval, defaults).count() > 0;
  return on ? caf::get_or(system.config(), timeout, caf::defaults::middleman::connection_timeout) : caf::timespan{0};
}

template <class Block>
void add_types(caf::actor_system_config& config) {
#if TROUPE_CAF_LEGACY
  config.add_message_types<Block>();
#else
  // Process wide, and only once; before the first actor system.
  static const bool done = [] {
    caf::core::init_global_meta_objects();
    caf::io::middleman::init_global_meta_objects();
    caf::init_global_meta_objects<Block>();
    return true;
  }();
  static_cast<void>(done);
  static_cast<void>(config);
#endif
}

/// What a system of our own does others wait for: it runs before what they compute.
struct ShortTurns : caf::thread_hook {
  void init(caf::actor_system& /*system*/) override {}
#if TROUPE_CAF_LEGACY
  void thread_started() override { detail::take_short_turns(); }
#else
  void thread_started(caf::thread_owner /*owner*/) override { detail::take_short_turns(); }
#endif
  void thread_terminates() override {}
};

/// Two threads that sleep when idle: 0.44 x the round trip of the default policy, no wake-ups. What comes over a
/// connection is decoded by the thread that reads it: handing it to another costs a wake-up a message.
inline void set_scheduler(caf::actor_system_config& config) {
  config.add_thread_hook<ShortTurns>();
#if TROUPE_CAF_LEGACY
  config.set("middleman.workers", std::size_t{0});
  config.set("scheduler.policy", caf::atom("sharing"));
  config.set("scheduler.max-threads", std::size_t{2});
#else
  config.set("caf.middleman.workers", std::size_t{0});
  config.set("caf.scheduler.policy", "sharing");
  config.set("caf.scheduler.max-threads", std::size_t{2});
#endif
}

inline caf::actor basp_broker(caf::actor_system& system) {
#if TROUPE_CAF_LEGACY
  return system.middleman().named_broker<caf::io::basp_broker>(caf::atom("BASP"));
#else
  return system.middleman().named_broker<caf::io::basp_broker>("BASP");
#endif
}

/// CAF knows a connection by the number of its socket, and forgets a broken one a moment after it closed it. A new
/// socket that got the same number meanwhile would be taken for the old one: numbers go round instead.
inline int with_fresh_number(int descriptor) {
  constexpr unsigned first = 128;
  constexpr unsigned count = 512;
  static std::atomic<unsigned> next{0};
  const int moved = ::fcntl(descriptor, F_DUPFD_CLOEXEC, static_cast<int>(first + next++ % count));
  if (moved < 0) return descriptor;  // few descriptors are allowed here
  ::close(descriptor);
  return moved;
}

/// Speaks BASP over a connected stream socket, and hands `who` to the peer. No port is ever listened on.
inline void serve_descriptor(caf::actor_system& system, int descriptor, caf::strong_actor_ptr who) {
  descriptor = with_fresh_number(descriptor);
  post(basp_broker(system), caf::publish_atom_v, system.middleman().backend().new_scribe(descriptor), std::uint16_t{0},
       std::move(who), std::set<std::string>{});
}

/// The other end: the actor that the peer serves, or null and the reason.
inline std::pair<caf::strong_actor_ptr, std::string> connect_descriptor(caf::actor_system& system, int descriptor,
                                                                        std::chrono::seconds deadline) {
  caf::scoped_actor self{system};
  std::pair<caf::strong_actor_ptr, std::string> result;
  auto scribe = system.middleman().backend().new_scribe(descriptor);
  const auto connected = [&](caf::node_id&, caf::strong_actor_ptr& who, std::set<std::string>&) {
    result.first = std::move(who);
  };
  const auto failed = [&](caf::error& error) { result.second = render(system, error); };
#if TROUPE_CAF_LEGACY
  self->request(basp_broker(system), deadline, caf::connect_atom_v, std::move(scribe), std::uint16_t{0})
      .receive(connected, failed);
#else
  self->mail(caf::connect_atom_v, std::move(scribe), std::uint16_t{0})
      .request(basp_broker(system), deadline)
      .receive(connected, failed);
#endif
  return result;
}

/// Whether a config was prepared with add_types().
inline bool knows_type(caf::actor_system& system, const char* type_name) {
#if TROUPE_CAF_LEGACY
  return system.types().make_value(type_name) != nullptr;
#else
  static_cast<void>(system);
  return caf::query_type_id(type_name) != caf::invalid_type_id;
#endif
}

}  // namespace troupe::compat
