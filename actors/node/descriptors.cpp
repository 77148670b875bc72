// SPDX-License-Identifier: Apache-2.0
#include "actors/node/descriptors.hpp"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace troupe::node {

namespace {

constexpr std::size_t max_fds = 8;

std::vector<UniqueFd> take_fds(msghdr& message) {
  std::vector<UniqueFd> result;
  for (auto* control = CMSG_FIRSTHDR(&message); control != nullptr; control = CMSG_NXTHDR(&message, control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    const auto count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof fd);
      result.emplace_back(fd);
    }
  }
  return result;
}

}  // namespace

void UniqueFd::reset(int fd) {
  if (fd_ >= 0) {
    const int saved = errno;  // so that an error path may clean up before it reads errno
    ::close(fd_);
    errno = saved;
  }
  fd_ = fd;
}

bool send_message(int socket, std::span<const std::byte> data, std::span<const int> fds, int flags) {
  if (fds.size() > max_fds) {
    errno = EINVAL;
    return false;
  }
  iovec bytes{const_cast<std::byte*>(data.data()), data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(max_fds * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size_bytes());
    auto* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size_bytes());
  }
  for (;;) {
    const auto sent = ::sendmsg(socket, &message, flags | MSG_NOSIGNAL);
    if (sent >= 0 || errno != EINTR) {
      return sent == static_cast<ssize_t>(data.size());
    }
  }
}

Received receive_message(int socket, std::span<std::byte> data, int flags) {
  iovec bytes{data.data(), data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(max_fds * sizeof(int))];
  for (;;) {
    msghdr message{};
    message.msg_iov = &bytes;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    Received result;
    result.size = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
    if (result.size >= 0) {
      result.fds = take_fds(message);
      return result;
    }
    // ECONNRESET comes once when the peer died with unread input; what it sent before can still be read after it.
    if (errno != EINTR && errno != ECONNRESET) {
      return result;
    }
  }
}

FdPair make_socketpair(int type) {
  int ends[2];
  if (::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) != 0) {
    return {};
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

FdPair make_log_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return {};
  }
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);  // of this end only: the ends of a pipe have flags of their own
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

UniqueFd open_pidfd(pid_t pid) { return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))); }

void signal_pidfd(int pidfd, int signal_number) {
  ::syscall(SYS_pidfd_send_signal, pidfd, signal_number, nullptr, 0);  // ESRCH: it is gone, as said
}

}  // namespace troupe::node
