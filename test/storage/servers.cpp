// SPDX-License-Identifier: Apache-2.0
#include "test/storage/servers.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <stdexcept>

#include "test/support/skip.hpp"

namespace troupe::test {

Server::Server(const std::vector<std::string>& command) {
  int to_child[2];
  int from_child[2];
  if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(from_child, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
  std::vector<char*> arguments;
  for (const auto& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(to_child[0], 0);
    ::dup2(from_child[1], 1);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  ::close(to_child[0]);
  ::close(from_child[1]);
  in_ = to_child[1];
  out_ = from_child[0];
}

Server::~Server() {
  ::close(in_);
  ::close(out_);
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
}

std::string Server::read_line() {
  std::string line;
  for (char c = 0;;) {
    if (::read(out_, &c, 1) != 1) throw std::runtime_error("the server ended");
    if (c == '\n') return line;
    line += c;
  }
}

void Server::write_line(const std::string& line) const {
  const auto text = line + "\n";
  if (::write(in_, text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    throw std::runtime_error("the server ended");
}

AwsEnvironment::AwsEnvironment(const std::map<std::string, std::string>& variables) {
  for (const char* name :
       {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION",
        "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_CONFIG_FILE", "http_proxy", "https_proxy", "all_proxy", "HTTPS_PROXY", "ALL_PROXY"}) {
    const auto given = variables.find(name);
    guards_.push_back(
        std::make_unique<EnvironmentGuard>(name, given == variables.end() ? nullptr : given->second.c_str()));
  }
  guards_.push_back(std::make_unique<EnvironmentGuard>("HOME", home_.path().c_str()));
}

StrictServer::StrictServer(const std::map<std::string, std::string>& variables)
    : server_({TROUPE_PYTHON, TROUPE_SOURCE_DIR "/test/support/s3_server.py"}),
      endpoint_("http://127.0.0.1:" + server_.read_line()),
      environment_(variables.empty() ? std::map<std::string, std::string>{{"AWS_ACCESS_KEY_ID", "TESTKEY"},
                                                                          {"AWS_SECRET_ACCESS_KEY", "test/secret+key"}}
                                     : variables) {}

storage::StorageOptions StrictServer::quick() {
  // A server that gets no processor for a while is not asked again: tests count requests.
  return {.stall_timeout = std::chrono::seconds(10),
          .retry_limit = std::chrono::seconds(30),
          .first_backoff = std::chrono::milliseconds(1),
          .part_size = 5 << 20};
}

std::unique_ptr<storage::Storage> StrictServer::open(const std::string& prefix, storage::StorageOptions options) {
  return storage::open_storage("s3://bucket" + prefix + "?endpoint=" + endpoint_ + "&region=eu-test-1",
                               std::move(options));
}

Json StrictServer::ask(const Json& command) {
  server_.write_line(command.dump());
  return Json::parse(server_.read_line());
}

MotoServer::MotoServer(const std::string& python, int port)
    : port_(port),
      environment_({{"AWS_ACCESS_KEY_ID", "any"}, {"AWS_SECRET_ACCESS_KEY", "any"}}),
      server_({python, TROUPE_SOURCE_DIR "/test/support/moto_server.py"}) {}

std::unique_ptr<MotoServer> MotoServer::start() {
  const std::string python = TROUPE_TEST_PYTHON;
  if (python.empty()) {
    skip("moto is not installed (./dev test does it)");
    return nullptr;
  }
  auto server = std::unique_ptr<MotoServer>(new MotoServer(python, 0));
  server->port_ = std::stoi(server->server_.read_line());
  return server;
}

std::string MotoServer::location(const std::string& prefix) const {
  return "s3://bucket/" + prefix + "?endpoint=http://127.0.0.1:" + std::to_string(port_);
}

std::string random_bytes(std::size_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (auto& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

}  // namespace troupe::test
