// SPDX-License-Identifier: Apache-2.0
// What the tests of the process layer share: workers under test, captured output, programs run in a process of their
// own.
#pragma once

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "actors/node/descriptors.hpp"
#include "actors/node/node.hpp"

namespace troupe::test {

using Kind = node::ProcessEvent::Kind;

/// Nothing takes this long; a test that waits for it has failed.
constexpr std::chrono::seconds patience{20};

/// A worker that obeys commands. Killed and awaited at the end of its scope.
class TestWorker {
public:
  explicit TestWorker(int rank = 0, const std::filesystem::path& log_file = {}, std::uint64_t group = 1);
  TestWorker(TestWorker&&) = default;
  ~TestWorker();

  node::Token token() const { return token_; }
  int stream() const { return stream_.get(); }
  /// Sends a command and gives the answer; "(no answer)" if the worker died of it.
  std::string ask(const std::string& command);
  void tell(const std::string& command);
  /// The first event of this kind; fails the test if it does not come.
  node::ProcessEvent wait_for(Kind kind);
  node::ProcessEvent wait_end();
  /// Whichever comes first.
  node::ProcessEvent wait_first();
  pid_t pid() { return wait_for(Kind::forked).pid; }
  std::vector<node::ProcessEvent> events() const;

private:
  struct Log {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<node::ProcessEvent> events;
  };
  node::ProcessEvent wait_until(const std::function<bool(const node::ProcessEvent&)>& fits, const std::string& what);

  std::shared_ptr<Log> log_;
  node::Token token_ = 0;
  node::UniqueFd stream_;
};

/// Waits for Node::drain.
void drain(node::Token token);

/// Sends this program's stdout to another descriptor while it lives.
class StdoutTo {
public:
  explicit StdoutTo(int fd);
  ~StdoutTo();

private:
  node::UniqueFd saved_;
};

/// A folder that vanishes with its scope.
class TemporaryFolder {
public:
  TemporaryFolder();
  ~TemporaryFolder();
  const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& path);
std::size_t count_entries(const std::filesystem::path& folder);

/// This program in a process of its own, with its stdout in our hands.
class Program {
public:
  Program(std::vector<std::string> arguments, std::vector<std::string> environment = {});
  ~Program();
  pid_t pid() const { return pid_; }
  std::string read_line();
  std::string read_all();
  /// The wait status.
  int wait();

private:
  pid_t pid_ = -1;
  node::UniqueFd output_;
};

/// Whether the process was gone (a zombie counts) or goes within `patience`.
bool goes_away(const node::UniqueFd& pidfd);

}  // namespace troupe::test
