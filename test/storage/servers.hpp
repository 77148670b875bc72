// SPDX-License-Identifier: Apache-2.0
// S3 servers in processes of their own, ended with their scope.
#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <troupe/json.hpp>

#include "checkpoint/storage/storage.hpp"
#include "test/unit/temp_folder.hpp"

namespace troupe::test {

/// A program whose stdin and stdout are ours.
class Server {
public:
  explicit Server(const std::vector<std::string>& command);
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server();

  /// Without its line end; throws when the program ended.
  std::string read_line();
  void write_line(const std::string& line) const;

private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
};

/// Environment of a test that must not see the credentials of who runs it.
class AwsEnvironment {
public:
  explicit AwsEnvironment(const std::map<std::string, std::string>& variables);
  const std::filesystem::path& home() const { return home_.path(); }

private:
  TempFolder home_;
  std::vector<std::unique_ptr<EnvironmentGuard>> guards_;
};

/// test/support/s3_server.py, with the variables that its clients need.
class StrictServer {
public:
  explicit StrictServer(const std::map<std::string, std::string>& variables = {});
  const std::string& endpoint() const { return endpoint_; }
  std::unique_ptr<storage::Storage> open(const std::string& prefix = "/runs",
                                         storage::StorageOptions options = quick());
  void fault(const Json& fault) { ask(fault); }
  Json ask(const Json& command);

  /// Short pauses, so that tests of faults are quick.
  static storage::StorageOptions quick();

private:
  Server server_;
  std::string endpoint_;
  AwsEnvironment environment_;
};

/// moto, an S3 server that others wrote, with a bucket "bucket". Null when it is not installed: the test is skipped.
class MotoServer {
public:
  static std::unique_ptr<MotoServer> start();
  std::string location(const std::string& prefix) const;

private:
  MotoServer(const std::string& python, int port);
  int port_;
  AwsEnvironment environment_;
  Server server_;
};

/// `size` bytes that do not repeat.
std::string random_bytes(std::size_t size, unsigned seed = 1);

}  // namespace troupe::test
