// SPDX-License-Identifier: Apache-2.0
#include "test/integration/support.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <stdexcept>

#include <fmt/format.h>

namespace troupe::test {
namespace {

namespace fs = std::filesystem;

void require(bool good, const std::string& what) {
  if (!good) throw std::runtime_error(what + ": " + std::generic_category().message(errno));
}

std::string read_until_end(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t count = 0; (count = ::read(fd, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(count));
  return text;
}

/// Field of /proc/<pid>/status; empty when the process is gone.
std::string status_field(pid_t pid, const std::string& name) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name + ":")) return line.substr(name.size() + 1);
  return {};
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  std::error_code error;
  for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", parent), error)) {
    std::ifstream in(task.path() / "children");
    children.insert(children.end(), std::istream_iterator<pid_t>(in), {});
  }
  return children;
}

std::size_t entries_of(const fs::path& folder) {
  std::error_code error;
  const fs::directory_iterator begin(folder, error);
  return error ? 0 : static_cast<std::size_t>(std::distance(begin, fs::directory_iterator{}));
}

}  // namespace

bool is_first(const fs::path& folder, const std::string& name) {
  const int fd = ::open((folder / name).c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

Fifo::Fifo(fs::path path) : path_(std::move(path)) { require(::mkfifo(path_.c_str(), 0666) == 0, "mkfifo"); }

std::string Fifo::read() const {
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  require(fd >= 0, "open of a fifo");
  auto text = read_until_end(fd);
  ::close(fd);
  return text;
}

void write_fifo(const fs::path& path, const std::string& text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
  require(fd >= 0, "open of a fifo");
  require(::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()), "write to a fifo");
  ::close(fd);
}

void wait_for_fifo(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  require(fd >= 0, "open of a fifo");
  read_until_end(fd);
  ::close(fd);
}

// ---- programs -------------------------------------------------------------------------------------------------------

Program::Program(const std::string& host, const std::string& argument, std::vector<std::string> environment) {
  int ends[2] = {-1, -1};
  require(::pipe2(ends, O_CLOEXEC) == 0, "pipe");
  output_ = ends[0];
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<std::string> words = {"/proc/self/exe", "--host=" + host, argument};
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  for (char** entry = environ; *entry; ++entry) environment.emplace_back(*entry);
  std::vector<char*> variables;
  for (auto& entry : environment) variables.push_back(entry.data());
  variables.push_back(nullptr);
  errno = ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments.data(), variables.data());
  posix_spawn_file_actions_destroy(&actions);
  ::close(ends[1]);
  require(errno == 0, "spawn");
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  ::close(output_);
}

void Program::signal(int number) const { ::kill(pid_, number); }

std::string Program::read_line() {
  std::string line;
  for (char one = 0; ::read(output_, &one, 1) == 1 && one != '\n';) line.push_back(one);
  return line;
}

std::string Program::read_all() { return read_until_end(output_); }

int Program::wait() {
  int status = 0;
  require(::waitpid(std::exchange(pid_, -1), &status, 0) > 0, "waitpid");
  return status;
}

std::string Program::wait_text() {
  const int status = wait();
  if (WIFEXITED(status)) return fmt::format("exit {}", WEXITSTATUS(status));
  return fmt::format("signal {}", WTERMSIG(status));
}

void say(const std::string& line) {
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

// ---- processes ------------------------------------------------------------------------------------------------------

ProcessWatch::ProcessWatch(pid_t pid) : fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}

ProcessWatch::~ProcessWatch() {
  if (fd_ >= 0) ::close(fd_);
}

bool ProcessWatch::ends_within(std::chrono::milliseconds limit) const {
  if (fd_ < 0) return true;  // gone before we looked
  pollfd entry{fd_, POLLIN, 0};
  return ::poll(&entry, 1, static_cast<int>(limit.count())) == 1;
}

std::vector<pid_t> process_tree(pid_t root) {
  std::vector<pid_t> tree = {root};
  for (std::size_t i = 0; i < tree.size(); ++i)
    for (auto child : children_of(tree[i])) tree.push_back(child);
  return tree;
}

int zombies_of(pid_t parent) {
  int count = 0;
  for (auto child : children_of(parent)) count += status_field(child, "State").find("Z") != std::string::npos ? 1 : 0;
  return count;
}

std::size_t open_descriptors(pid_t pid) { return entries_of(fmt::format("/proc/{}/fd", pid)); }
std::size_t thread_count(pid_t pid) { return entries_of(fmt::format("/proc/{}/task", pid)); }

double resident_mb(pid_t pid) {
  const auto text = status_field(pid, "VmRSS");
  return text.empty() ? 0 : std::stod(text) / 1024;
}

namespace {

/// Inodes of all sockets that a process holds.
std::set<std::string> socket_inodes(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", pid), error)) {
    const auto target = fs::read_symlink(entry.path(), error).string();
    if (target.starts_with("socket:[")) inodes.insert(target.substr(8, target.size() - 9));
  }
  return inodes;
}

/// "0100007F:1267" as "127.0.0.1:4711".
std::string readable(const std::string& address) {
  const in_addr host{static_cast<in_addr_t>(std::stoul(address.substr(0, 8), nullptr, 16))};
  char text[INET_ADDRSTRLEN];
  ::inet_ntop(AF_INET, &host, text, sizeof text);
  return fmt::format("{}:{}", text, std::stoul(address.substr(9), nullptr, 16));
}

}  // namespace

std::vector<std::string> listening_addresses(pid_t pid) {
  const auto inodes = socket_inodes(pid);
  std::vector<std::string> addresses;
  const auto each_line = [](const char* table, auto&& see) {
    std::ifstream in(table);
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      see(std::vector<std::string>{std::istream_iterator<std::string>(words), {}});
    }
  };
  const auto listens = [&](const auto& fields, std::size_t state, const char* listening, std::size_t inode) {
    return fields.size() > inode && fields[state] == listening && inodes.contains(fields[inode]);
  };
  each_line("/proc/net/tcp", [&](const auto& fields) {
    if (listens(fields, 3, "0A", 9)) addresses.push_back(readable(fields[1]));
  });
  each_line("/proc/net/tcp6", [&](const auto& fields) {
    if (listens(fields, 3, "0A", 9)) addresses.push_back("tcp6 " + fields[1]);
  });
  each_line("/proc/net/unix", [&](const auto& fields) {
    if (listens(fields, 3, "00010000", 6)) addresses.push_back("unix");
  });
  return addresses;
}

// ---- output ---------------------------------------------------------------------------------------------------------

CapturedOutput::CapturedOutput(int fd) : fd_(fd) {
  std::fflush(nullptr);
  saved_ = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
  const int file = ::open((folder_.path() / "output").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0666);
  require(file >= 0, "capture");
  ::dup2(file, fd);
  ::close(file);
}

CapturedOutput::~CapturedOutput() {
  std::fflush(nullptr);
  ::dup2(saved_, fd_);
  ::close(saved_);
}

std::string CapturedOutput::text() const {
  std::fflush(nullptr);
  return read_file(folder_.path() / "output");
}

}  // namespace troupe::test
