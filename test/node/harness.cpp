// SPDX-License-Identifier: Apache-2.0
#include "test/node/harness.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <future>
#include <iterator>

#include "test/node/lines.hpp"

namespace troupe::test {

TestWorker::TestWorker(int rank, const std::filesystem::path& log_file, std::uint64_t group)
    : log_(std::make_shared<Log>()) {
  const auto launched = node::Node::instance().launch(
      {.rank = rank, .group = group, .log_file = log_file, .on_event = [log = log_](auto, const auto& event) {
         std::lock_guard lock(log->mutex);
         log->events.push_back(event);
         log->changed.notify_all();
       }});
  token_ = launched.token;
  stream_.reset(launched.stream);
  const timeval limit{patience.count(), 0};
  ::setsockopt(stream_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
}

TestWorker::~TestWorker() {
  if (log_) {
    node::Node::instance().signal(token_, SIGKILL);
    std::unique_lock lock(log_->mutex);
    log_->changed.wait_for(lock, patience, [&] { return !log_->events.empty() && log_->events.back().is_end(); });
  }
}

std::string TestWorker::ask(const std::string& command) {
  tell(command);
  std::string answer;
  return read_line(stream_.get(), answer) ? answer : "(no answer)";
}

void TestWorker::tell(const std::string& command) { write_line(stream_.get(), command); }

node::ProcessEvent TestWorker::wait_for(Kind kind) {
  return wait_until([&](const auto& event) { return event.kind == kind; }, "an event");
}

node::ProcessEvent TestWorker::wait_end() {
  return wait_until([](const auto& event) { return event.is_end(); }, "the end of a worker");
}

node::ProcessEvent TestWorker::wait_first() {
  return wait_until([](const auto&) { return true; }, "any event");
}

std::vector<node::ProcessEvent> TestWorker::events() const {
  std::lock_guard lock(log_->mutex);
  return log_->events;
}

node::ProcessEvent TestWorker::wait_until(const std::function<bool(const node::ProcessEvent&)>& fits,
                                          const std::string& what) {
  std::unique_lock lock(log_->mutex);
  auto found = log_->events.end();
  const bool came = log_->changed.wait_for(lock, patience, [&] {
    found = std::find_if(log_->events.begin(), log_->events.end(), fits);
    return found != log_->events.end();
  });
  DOCTEST_REQUIRE_MESSAGE(came, "did not come: ", what);
  return *found;
}

void drain(node::Token token) {
  const auto done = std::make_shared<std::promise<void>>();
  node::Node::instance().drain(token, [done] { done->set_value(); });
  DOCTEST_REQUIRE(done->get_future().wait_for(patience) == std::future_status::ready);
}

StdoutTo::StdoutTo(int fd) {
  drain(0);  // lines of earlier workers go where they belong
  std::fflush(stdout);
  saved_.reset(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 10));
  ::dup2(fd, STDOUT_FILENO);
}

StdoutTo::~StdoutTo() {
  std::fflush(stdout);
  ::dup2(saved_.get(), STDOUT_FILENO);
}

TemporaryFolder::TemporaryFolder() {
  auto name = (std::filesystem::temp_directory_path() / "troupe_node_XXXXXX").native();
  DOCTEST_REQUIRE(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t count_entries(const std::filesystem::path& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

Program::Program(std::vector<std::string> arguments, std::vector<std::string> environment) {
  arguments.insert(arguments.begin(), "troupe_node_tests");
  for (const auto& entry : node::environment_at_init()) {
    environment.push_back(entry);
  }
  const auto pointers = [](std::vector<std::string>& strings) {
    std::vector<char*> result;
    std::transform(strings.begin(), strings.end(), std::back_inserter(result), [](auto& s) { return s.data(); });
    result.push_back(nullptr);
    return result;
  };
  int ends[2];
  DOCTEST_REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const node::UniqueFd writer(ends[1]);
  output_.reset(ends[0]);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, writer.get(), STDOUT_FILENO);
  const int error = ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, pointers(arguments).data(),
                                  pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  DOCTEST_REQUIRE(error == 0);
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    wait();
  }
}

std::string Program::read_line() {
  std::string line;
  test::read_line(output_.get(), line);
  return line;
}

std::string Program::read_all() {
  std::string text;
  char buffer[4096];
  for (ssize_t size = 0; (size = ::read(output_.get(), buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(size));
  }
  return text;
}

int Program::wait() {
  int status = -1;
  ::waitpid(std::exchange(pid_, -1), &status, 0);
  return status;
}

bool goes_away(const node::UniqueFd& pidfd) {
  if (!pidfd) {
    return true;
  }
  pollfd entry{pidfd.get(), POLLIN, 0};
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(patience);
  return ::poll(&entry, 1, static_cast<int>(limit.count())) > 0;
}

}  // namespace troupe::test
