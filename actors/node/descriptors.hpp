// SPDX-License-Identifier: Apache-2.0
// File descriptors: an owning handle, and messages over SOCK_SEQPACKET sockets that carry descriptors (SCM_RIGHTS).
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace troupe::node {

/// Owns one descriptor.
class UniqueFd {
public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1);
  explicit operator bool() const { return fd_ >= 0; }

private:
  int fd_ = -1;
};

/// What `receive_message` got.
struct Received {
  ssize_t size = -1;          ///< bytes; 0: the other side is gone; -1: see errno
  std::vector<UniqueFd> fds;  ///< fewer than sent when this process is out of descriptors
};

/// Sends one message with copies of `fds` (at most 8). False: see errno. Never raises SIGPIPE.
bool send_message(int socket, std::span<const std::byte> data, std::span<const int> fds, int flags);
/// Receives one message; received descriptors are close-on-exec.
Received receive_message(int socket, std::span<std::byte> data, int flags);

template <class T>
bool send_message(int socket, const T& value, std::span<const int> fds = {}, int flags = 0) {
  return send_message(socket, std::as_bytes(std::span(&value, 1)), fds, flags);
}
template <class T>
Received receive_message(int socket, T& value, int flags = 0) {
  return receive_message(socket, std::as_writable_bytes(std::span(&value, 1)), flags);
}

/// Two ends that belong together; both close-on-exec, both empty when the system refused (see errno).
struct FdPair {
  UniqueFd first;
  UniqueFd second;
  explicit operator bool() const { return static_cast<bool>(first); }
};
FdPair make_socketpair(int type);
/// first: the read end, non-blocking; second: the write end, which blocks.
FdPair make_log_pipe();

UniqueFd open_pidfd(pid_t pid);
void signal_pidfd(int pidfd, int signal_number);

}  // namespace troupe::node
