// SPDX-License-Identifier: Apache-2.0
#include "actors/system.hpp"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <troupe/error.hpp>

#include "actors/protocols.hpp"
#include "actors/termination_signal.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/make_thread.hpp"
#include "runtime/base/own_process.hpp"

namespace troupe {
namespace {

/// Never parsed: CAF would read a stray caf-application.ini of the working directory.
struct PrivateConfig : caf::actor_system_config {
  PrivateConfig() {
    add_to_config(*this);
    compat::set_scheduler(*this);
  }
};

/// Config and system together, destroyed in the right order.
struct PrivateSystem {
  PrivateConfig config;
  caf::actor_system system{config};
};

/// Scheduler, clock, middleman and what else CAF starts; with some to spare.
constexpr int threads_of_a_system = 8;

/// CAF says nothing that helps when it cannot have its threads, or ends the program.
void require_threads(int count) {
  std::promise<void> all_there;
  const std::shared_future<void> go_on(all_there.get_future());
  std::vector<std::thread> threads;
  const auto end = [&] {
    all_there.set_value();
    for (auto& thread : threads) thread.join();
  };
  try {
    while (static_cast<int>(threads.size()) < count)
      threads.push_back(detail::make_thread("of an actor system", [go_on] { go_on.wait(); }));
  } catch (const Error&) {
    end();
    throw;
  }
  end();
}

/// Whether `body` returned within a second.
bool ends_soon(const char* purpose, void (*body)()) {
  const auto done = std::make_shared<std::promise<void>>();
  const auto ended = done->get_future();
  detail::make_thread(purpose, [done, body] {
    body();
    done->set_value();
  }).detach();
  return ended.wait_for(std::chrono::seconds(1)) == std::future_status::ready;
}

/// What user code left in streams that it did not close is written, too. A stream that another thread sits in, reading,
/// is not waited for.
void flush_streams() {
  try {
    if (ends_soon("that flushes streams", [] { std::fflush(nullptr); })) return;
    ends_soon("that says what may be lost", [] {  // the stream may be stderr
      log_warning("a thread of this worker sits in a stream, so what others hold may be lost: flush them, or join it");
    });
  } catch (const Error& error) {
    log_warning("{}", error.what());
  }
}

}  // namespace

void add_to_config(caf::actor_system_config& config) {
  compat::add_types<caf::id_block::troupe>(config);
  config.load<caf::io::middleman>();
}

void require_configured(caf::actor_system& system) {
  const char* missing = nullptr;
  if (!system.has_middleman())
    missing = "it has no middleman";
  else if (!compat::knows_type(system, "troupe::wire::Registration"))
    missing = "it does not know troupe's message types";
  if (missing)
    throw Error(ErrorCode::invalid_option,
                std::string("the actor system cannot be used: ") + missing +
                    ". Call troupe::configure(config) before you make the system from its config");
}

std::shared_ptr<caf::actor_system> shared_system() {
  static std::mutex mutex;
  static std::weak_ptr<PrivateSystem> current;
  static pid_t made_in = -1;
  std::lock_guard lock(mutex);
  auto system = current.lock();
  if (system) {
    detail::require_process(made_in);
  } else {
    require_threads(threads_of_a_system);
    system = std::make_shared<PrivateSystem>();
    current = system;
    made_in = ::getpid();
  }
  return {system, &system->system};
}

void worker_process_main(const node::WorkerStart& start) {
  PrivateSystem local;
  // The driver keeps the deadline, and its end is seen at once; this one is for a program that is held in a debugger.
  auto [group, reason] = compat::connect_descriptor(local.system, start.stream, std::chrono::hours(24));
  if (!group) {
    log_error("this worker cannot reach its driver: {}", reason);
    ::_exit(71);
  }
  auto worker = spawn_worker(local.system, caf::actor_cast<WorkerGroupActor>(group), start.token, start.descriptors);
  group = nullptr;
  TerminationSignal::watch([worker] { compat::post(worker, atom::term_v); });
  caf::scoped_actor self{local.system};
  self->wait_for(worker);
  // Not through the destructors: the driver waits for this process, and the kernel tidies up faster.
  flush_streams();
  ::_exit(0);
}

}  // namespace troupe
