// SPDX-License-Identifier: Apache-2.0
// Trainers inside a program's own actor system.
#include <unistd.h>

#include <thread>

#include <caf/all.hpp>
#include <caf/io/all.hpp>

#include <troupe/embed.hpp>

#include "actors/caf_compat.hpp"
#include "test/integration/support.hpp"

namespace troupe::test {

/// A message of the program's own.
struct Question {
  int factor = 0;
};
template <class Inspector>
auto inspect(Inspector& f, Question& x) {
  return compat::describe(f, x, "troupe::test::Question", compat::field("factor", x.factor));
}

}  // namespace troupe::test

// Where every program begins its own.
CAF_BEGIN_TYPE_ID_BLOCK(troupe_test_app, caf::first_custom_type_id)
CAF_ADD_TYPE_ID(troupe_test_app, (troupe::test::Question))
CAF_END_TYPE_ID_BLOCK(troupe_test_app)

namespace troupe::test {
namespace {

Json rank() { return train::world_rank(); }

caf::behavior multiplier(caf::event_based_actor* /*self*/, int value) {
  return {[value](const Question& question) { return question.factor * value; }};
}

TrainerOptions options_in(const TempFolder& folder, Placement placement, int workers = 2) {
  return {.num_workers = workers, .logdir = folder.path() / "results", .placement = placement};
}

}  // namespace

DOCTEST_TEST_CASE("trainers live in the program's own actor system") {
  on_both_placements([](Placement placement) {
    TempFolder folder;
    TempFolder other_folder;
    caf::actor_system_config config;
    configure(config);
    compat::add_types<caf::id_block::troupe_test_app>(config);
    caf::actor_system system(config);
    {
      auto first = make_trainer(system, options_in(folder, placement));
      auto second = make_trainer(system, options_in(other_folder, placement, 3));
      DOCTEST_CHECK(Json(first.run(fn<rank>)).dump() == "[0,1]");
      DOCTEST_CHECK(Json(second.run(fn<rank>)).dump() == "[0,1,2]");
      // The program's own actors work beside them.
      caf::scoped_actor self(system);
      int answer = 0;
      self->request(system.spawn(multiplier, 2), std::chrono::seconds(10), Question{21})
          .receive([&](int value) { answer = value; }, [](const caf::error&) {});
      DOCTEST_CHECK(answer == 42);
      first.shutdown();
      DOCTEST_CHECK(Json(second.run(fn<rank>)).dump() == "[0,1,2]");
    }
    system.registry().await_running_count_equal(0);  // hangs if an actor of ours is left
    DOCTEST_CHECK(system.registry().running() == 0);
  });
}

DOCTEST_TEST_CASE("workers that are silent stay connected to a system with heartbeats") {
  TempFolder folder;
  caf::actor_system_config config;
  configure(config);
#if TROUPE_CAF_LEGACY
  const std::string prefix = "middleman.";
#else
  const std::string prefix = "caf.middleman.";
#endif
  config.set(prefix + "heartbeat-interval", caf::timespan{std::chrono::milliseconds(100)});
  config.set(prefix + "connection-timeout", caf::timespan{std::chrono::seconds(1)});
  caf::actor_system system(config);
  auto options = options_in(folder, Placement::process);
  options.ping_interval = std::chrono::seconds(10);
  options.ping_deadline = std::chrono::seconds(60);
  auto trainer = make_trainer(system, options);
  trainer.start();
  const auto pids = trainer.worker_pids();
  const auto after_silence = [] {
    std::this_thread::sleep_for(std::chrono::seconds(3));  // three times as long as a connection may be silent
    return static_cast<int>(::getpid());
  };
  DOCTEST_CHECK(Json(trainer.run(after_silence)) == Json(pids));
}

DOCTEST_TEST_CASE("configure leaves scheduler and heartbeats of the program alone") {
  caf::actor_system_config plain;
  plain.load<caf::io::middleman>();  // CAF 1.x adds its own settings with it
  caf::actor_system_config config;
  configure(config);
  DOCTEST_CHECK(content(config) == content(plain));
}

DOCTEST_TEST_CASE("an actor system that was not configured is refused at once") {
  TempFolder folder;
#if !TROUPE_CAF_LEGACY
  caf::core::init_global_meta_objects();  // without these CAF makes no system at all
#endif
  caf::actor_system_config config;
  caf::actor_system system(config);
  const auto error = error_of([&] { make_trainer(system, options_in(folder, Placement::thread)); });
  DOCTEST_CHECK(error.code == ErrorCode::invalid_option);
  DOCTEST_CHECK(error.says("troupe::configure(config)"));
#if TROUPE_CAF_LEGACY  // 1.x has one list of types for the whole process
  caf::actor_system_config with_middleman;
  with_middleman.load<caf::io::middleman>();
  caf::actor_system half(with_middleman);
  const auto types = error_of([&] { make_trainer(half, options_in(folder, Placement::thread)); });
  DOCTEST_CHECK(types.says("message types"));
#endif
}

}  // namespace troupe::test
