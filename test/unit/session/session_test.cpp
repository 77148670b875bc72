// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/session.hpp"

#include <unistd.h>

#include <doctest/doctest.h>

#include <cmath>
#include <ctime>
#include <thread>
#include <troupe/error.hpp>
#include <troupe/train.hpp>

namespace train = troupe::train;
using troupe::Error;
using troupe::ErrorCode;
using troupe::Json;
using troupe::detail::RankInfo;
using troupe::detail::ReportChannel;
using troupe::detail::Session;

namespace {

/// A session of a run, and what it reported.
struct Fixture {
  explicit Fixture(bool detailed = false)
      : channel(std::make_shared<ReportChannel>(troupe::detail::ReportWindow{}, [] {})),
        session(std::make_shared<Session>(RankInfo{3, 1, 1, 4, 2}, channel, detailed)) {}

  Json report(const Json& metrics) {
    session->report(metrics);
    return troupe::detail::unpack(channel->take().bytes);
  }

  std::shared_ptr<ReportChannel> channel;
  std::shared_ptr<Session> session;
};

template <class Body>
ErrorCode code_of(Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::internal;
}

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys;
}

}  // namespace

DOCTEST_TEST_CASE("the time of a round is that since the last one, or since the function began") {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto seconds = [](auto time) { return std::chrono::duration<double>(time).count(); };
  constexpr std::chrono::milliseconds busy(20);
  Fixture fixture;
  std::this_thread::sleep_for(busy);  // with something before the function
  const auto begun = now();
  fixture.session->begin();
  const auto first = fixture.report({})["_time_this_iter_s"].get<double>();
  const auto reported = now();
  DOCTEST_CHECK(first <= seconds(reported - begun));
  std::this_thread::sleep_for(busy);
  const auto second = fixture.report({})["_time_this_iter_s"].get<double>();
  DOCTEST_CHECK(second >= seconds(busy));
  DOCTEST_CHECK(first + second <= seconds(now() - begun));
}

DOCTEST_TEST_CASE("a report carries the user's keys first, then time stamp, iteration time and counter") {
  Fixture fixture;
  const auto before = std::time(nullptr);
  const auto first = fixture.report({{"loss", 0.5}, {"epoch", 0}});
  DOCTEST_CHECK(keys_of(first) ==
                std::vector<std::string>{"loss", "epoch", "_timestamp", "_time_this_iter_s", "_training_iteration"});
  DOCTEST_CHECK(first["_timestamp"] >= before);
  DOCTEST_CHECK(first["_timestamp"].is_number_integer());
  DOCTEST_CHECK(first["_time_this_iter_s"].is_number_float());
  DOCTEST_CHECK(first["_training_iteration"] == 1);
  DOCTEST_CHECK(fixture.report({{"loss", 0.4}})["_training_iteration"] == 2);
}

DOCTEST_TEST_CASE("a null report counts and has the autofilled metrics alone") {
  Fixture fixture;
  DOCTEST_CHECK(fixture.report(nullptr).size() == 3);
  DOCTEST_CHECK(fixture.report(Json::object())["_training_iteration"] == 2);
}

DOCTEST_TEST_CASE("a user's own value under an autofilled key wins") {
  Fixture fixture;
  const auto report = fixture.report({{"_timestamp", "mine"}, {"_training_iteration", -1}});
  DOCTEST_CHECK(report["_timestamp"] == "mine");
  DOCTEST_CHECK(report["_training_iteration"] == -1);
  DOCTEST_CHECK(report.size() == 3);
}

DOCTEST_TEST_CASE("detailed metrics tell date, host, address, pid and total time") {
  Fixture fixture(true);
  const auto first = fixture.report({{"a", 1}});
  DOCTEST_CHECK(first.size() == 9);
  DOCTEST_CHECK(first["_pid"] == ::getpid());
  DOCTEST_CHECK(first["_date"].get<std::string>().size() == std::string("2021-09-01_12-00-00").size());
  DOCTEST_CHECK_FALSE(first["_hostname"].get<std::string>().empty());
  DOCTEST_CHECK(first["_node_ip"].get<std::string>().find('.') != std::string::npos);
  const auto second = fixture.report({{"a", 1}});
  DOCTEST_CHECK(second["_time_total_s"].get<double>() ==
                doctest::Approx(first["_time_this_iter_s"].get<double>() + second["_time_this_iter_s"].get<double>()));
}

DOCTEST_TEST_CASE("objects of every header form keep all their entries") {
  const auto of_size = [](std::size_t count) {
    Json metrics = Json::object();
    auto& entries = metrics.get_ref<Json::object_t&>();
    for (std::size_t i = 0; i < count; ++i) entries.emplace_back("k" + std::to_string(i), i);
    return metrics;
  };
  for (std::size_t count : {0, 1, 12, 13, 15, 16, 17, 300})
    DOCTEST_CHECK(Fixture().report(of_size(count)).size() == count + 3);
  // Reading so many keys back takes seconds; the header alone tells whether it fits its form.
  for (auto [count, form] : {std::pair{65532, '\xde'}, std::pair{65533, '\xdf'}}) {
    Fixture fixture;
    fixture.session->report(of_size(static_cast<std::size_t>(count)));
    const auto bytes = fixture.channel->take().bytes;
    DOCTEST_CHECK(bytes[0] == form);
    const auto stored = static_cast<unsigned char>(bytes[form == '\xde' ? 1 : 3]) * 256 +
                        static_cast<unsigned char>(bytes[form == '\xde' ? 2 : 4]);
    DOCTEST_CHECK(stored == ((count + 3) & 0xffff));
  }
}

DOCTEST_TEST_CASE("NaN and infinity survive") {
  Fixture fixture;
  const auto report = fixture.report({{"nan", std::nan("")}, {"inf", -INFINITY}});
  DOCTEST_CHECK(std::isnan(report["nan"].get<double>()));
  DOCTEST_CHECK(report["inf"].get<double>() == -INFINITY);
}

DOCTEST_TEST_CASE("anything but an object is refused with a hint about braces") {
  Fixture fixture;
  DOCTEST_CHECK(code_of([&] { fixture.report(Json::array({1, 2})); }) == ErrorCode::invalid_argument);
  DOCTEST_CHECK(code_of([&] { fixture.report(3.5); }) == ErrorCode::invalid_argument);
  DOCTEST_CHECK(code_of([&] { fixture.report({{"blob", std::string(17 << 20, 'x')}}); }) == ErrorCode::too_large);
  DOCTEST_CHECK(fixture.report({{"a", 1}})["_training_iteration"] == 1);
}

DOCTEST_TEST_CASE("train functions outside a worker give a clear error") {
  DOCTEST_CHECK_FALSE(train::in_worker());
  for (auto function :
       {&train::world_rank, &train::local_rank, &train::node_rank, &train::world_size, &train::local_world_size})
    DOCTEST_CHECK(code_of([&] { function(); }) == ErrorCode::not_in_worker);
  DOCTEST_CHECK(code_of([] { train::report({{"a", 1}}); }) == ErrorCode::not_in_worker);
  DOCTEST_CHECK(code_of([] { train::should_stop(); }) == ErrorCode::not_in_worker);
  DOCTEST_CHECK(code_of([] { train::wait_for_stop(); }) == ErrorCode::not_in_worker);
  DOCTEST_CHECK(code_of([] { train::context(); }) == ErrorCode::not_in_worker);
}

DOCTEST_TEST_CASE("a guard binds a rank to a thread and restores what was there") {
  Fixture fixture;
  {
    train::ContextGuard guard{train::Context(fixture.session)};
    DOCTEST_CHECK(train::world_rank() == 3);
    DOCTEST_CHECK(train::local_rank() == 1);
    DOCTEST_CHECK(train::node_rank() == 1);
    DOCTEST_CHECK(train::world_size() == 4);
    DOCTEST_CHECK(train::local_world_size() == 2);
    const auto context = train::context();
    int rank = -1;
    std::thread([&] {
      train::ContextGuard inner(context);
      rank = train::session::get_world_rank();
    }).join();
    DOCTEST_CHECK(rank == 3);
  }
  DOCTEST_CHECK_FALSE(train::in_worker());
}

DOCTEST_TEST_CASE("a stopped session unwinds at the next report") {
  Fixture fixture;
  DOCTEST_CHECK_FALSE(fixture.session->should_stop());
  fixture.session->stop();
  DOCTEST_CHECK(fixture.session->should_stop());
  DOCTEST_CHECK_THROWS_AS(fixture.session->report({{"a", 1}}), troupe::Stopped);
}

DOCTEST_TEST_CASE("a stop ends the waits for it, and no wait is longer than asked") {
  Fixture fixture;
  DOCTEST_CHECK_FALSE(fixture.session->wait_for_stop(std::chrono::milliseconds(0)));
  DOCTEST_CHECK_FALSE(fixture.session->wait_for_stop(std::chrono::milliseconds(-1)));
  bool stopped = false;
  std::thread waiting([&] {
    train::ContextGuard guard{train::Context(fixture.session)};
    train::wait_for_stop();
    stopped = train::wait_for_stop(std::chrono::milliseconds::max()) && train::wait_for_stop(std::chrono::seconds(0));
  });
  std::thread also_waiting([&] { fixture.session->wait_for_stop(std::chrono::milliseconds::max()); });
  fixture.session->stop();
  waiting.join();
  also_waiting.join();
  DOCTEST_CHECK(stopped);
}

DOCTEST_TEST_CASE("a rank outside a run knows itself but cannot report") {
  Session idle(RankInfo{1, 1, 0, 2, 2});
  DOCTEST_CHECK(idle.ranks().world_rank == 1);
  DOCTEST_CHECK(code_of([&] { idle.report({{"a", 1}}); }) == ErrorCode::invalid_state);
}

DOCTEST_TEST_CASE("a stop counts for the function's end only if it came before that") {
  Fixture before;
  before.session->stop();
  before.session->finish();
  DOCTEST_CHECK(before.session->stopped_inside());
  Fixture after;
  after.session->finish();
  after.session->stop();
  DOCTEST_CHECK_FALSE(after.session->stopped_inside());
}
