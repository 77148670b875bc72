// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/gloo_group.hpp"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <set>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/lost_group.hpp"
#include "backends/rendezvous.hpp"
#include "backends/torch/torch_compat.hpp"
#include "runtime/base/log.hpp"
#include "runtime/base/make_thread.hpp"
#include "runtime/base/timed_out.hpp"

namespace troupe {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// Our Store as c10d knows one.
class StoreAdapter : public c10d::Store {
public:
  StoreAdapter(std::shared_ptr<troupe::Store> store, std::string prefix, std::chrono::milliseconds timeout)
      : c10d::Store(timeout), store_(std::move(store)), prefix_(std::move(prefix)) {}

  c10::intrusive_ptr<c10d::Store> clone() TROUPE_TORCH_STORE_CLONE_OVERRIDE {
    return c10::make_intrusive<StoreAdapter>(store_, prefix_, timeout_);
  }
  void set(const std::string& key, const Bytes& value) override {
    store_->set(prefix_ + key, std::string(value.begin(), value.end()));
  }
  Bytes get(const std::string& key) override {
    const auto value = store_->get(prefix_ + key, timeout_);
    return Bytes(value.begin(), value.end());
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override { return store_->add(prefix_ + key, amount); }
  bool deleteKey(const std::string& key) override { return store_->erase(prefix_ + key); }
  bool check(const std::vector<std::string>& keys) override { return store_->check(prefixed(keys)); }
  std::int64_t getNumKeys() override { return store_->count(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    store_->wait(prefixed(keys), timeout);
  }

private:
  std::vector<std::string> prefixed(const std::vector<std::string>& keys) const {
    std::vector<std::string> full;
    for (const auto& key : keys) full.push_back(prefix_ + key);
    return full;
  }

  std::shared_ptr<troupe::Store> store_;
  std::string prefix_;
};

/// Calls `visit(fd, inode, is_listening)` for every TCP socket of this process.
template <class Visit>
void for_each_tcp_socket(Visit&& visit) {
  DIR* folder = ::opendir("/proc/self/fd");
  if (!folder) return;
  while (const auto* entry = ::readdir(folder)) {
    const int fd = std::atoi(entry->d_name);
    struct stat status{};
    if (fd < 3 || ::fstat(fd, &status) != 0 || !S_ISSOCK(status.st_mode)) continue;
    int domain = 0;
    int listening = 0;
    socklen_t length = sizeof domain;
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0) continue;
    if (domain != AF_INET && domain != AF_INET6) continue;
    length = sizeof listening;
    ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &length);
    visit(fd, status.st_ino, listening != 0);
  }
  ::closedir(folder);
}

/// Address and port as text; empty for other families.
std::string endpoint_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = "";
  in_port_t port = 0;
  if (address.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &four.sin_addr, text, sizeof text);
    port = four.sin_port;
  } else if (address.ss_family == AF_INET6) {
    const auto& six = reinterpret_cast<const sockaddr_in6&>(address);
    ::inet_ntop(AF_INET6, &six.sin6_addr, text, sizeof text);
    port = six.sin6_port;
  }
  return *text ? fmt::format("{} {}", text, ntohs(port)) : std::string();
}

/// `get`: getsockname for this end, getpeername for the other one.
std::string endpoint_of(int socket, decltype(&::getsockname) get) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  return get(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0 ? endpoint_of(address) : std::string();
}

using Endpoints = std::set<std::string>;

using Inodes = std::set<unsigned long>;

Inodes tcp_sockets() {
  Inodes inodes;
  for_each_tcp_socket([&](int, unsigned long inode, bool) { inodes.insert(inode); });
  return inodes;
}

/// Ranks that are threads share their descriptors, so groups of one process are made one after the other: what begins
/// to listen during a group's turn is its own. All ranks of a group share its turn, which the first one begins.
class Turn {
public:
  explicit Turn(const std::string& group) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return holders == 0 || holder == group; });
    if (holders++ > 0) return;
    holder = group;
    before = tcp_sockets();
  }
  ~Turn() {
    std::lock_guard lock(mutex);
    if (--holders == 0) changed.notify_all();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  /// Where this process waits for connections since the turn began.
  static Endpoints listeners() {
    std::lock_guard lock(mutex);
    Endpoints found;
    for_each_tcp_socket([&](int fd, unsigned long inode, bool listening) {
      if (listening && !before.contains(inode)) found.insert(endpoint_of(fd, ::getsockname));
    });
    return found;
  }
  /// Connections to or from one of these since the turn began; other threads of the program may open some, too.
  static Inodes connections(const Endpoints& listeners) {
    std::lock_guard lock(mutex);
    Inodes found;
    for_each_tcp_socket([&](int fd, unsigned long inode, bool listening) {
      if (listening || before.contains(inode)) return;
      const auto other_end = endpoint_of(fd, ::getpeername);
      if (torch_compat::gloo_keeps_listening
              ? listeners.contains(other_end) || listeners.contains(endpoint_of(fd, ::getsockname))
              : !other_end.empty())
        found.insert(inode);
    });
    return found;
  }

private:
  static inline std::mutex mutex;
  static inline std::condition_variable changed;
  static inline std::string holder;
  static inline int holders = 0;
  static inline Inodes before;
};

/// Shutting a listener down would end the process.
void shut_down(const Inodes& sockets) noexcept {
  for_each_tcp_socket([&](int fd, unsigned long inode, bool listening) {
    if (!listening && sockets.contains(inode)) ::shutdown(fd, SHUT_RDWR);
  });
}

torch_compat::GlooDevice device_on(const std::string& interface) {
  try {
    return torch_compat::make_gloo_device(interface);
  } catch (const std::exception& error) {
    throw Error(ErrorCode::start_failed,
                fmt::format("Gloo cannot use \"{}\" (TorchConfig.interface: an address or the name of an interface of "
                            "this host): {}",
                            interface, error.what()));
  }
}

}  // namespace

/// What the thread that makes the group, the one that waits for it and the one that aborts it share.
struct GlooGroup::Making {
  std::mutex mutex;
  std::condition_variable changed;
  bool aborted = false;
  bool done = false;
  Inodes sockets;
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  std::exception_ptr error;
};

GlooGroup::GlooGroup(GlooGroupOptions options, std::shared_ptr<Store> store)
    : options_(std::move(options)), store_(std::move(store)), making_(std::make_shared<Making>()) {}

GlooGroup::~GlooGroup() {
  bool was_aborted = false;
  {
    std::lock_guard lock(making_->mutex);
    was_aborted = making_->aborted;
  }
  abort();
  // Its end waits for its operations, which may never end after an abort, and the caller must not.
  if (!was_aborted || !group_) return;
  auto* kept = new auto(std::move(group_));
  try {
    std::thread([kept] { delete kept; }).detach();
  } catch (const std::system_error& error) {
    log_warning("a Gloo group that was aborted stays in memory, since there is no thread to end it: {}", error.what());
  }
}

const c10::intrusive_ptr<c10d::ProcessGroup>& GlooGroup::process_group() {
  std::lock_guard lock(forming_);
  if (!group_) form();
  return group_;
}

void GlooGroup::form() {
  {
    std::lock_guard lock(making_->mutex);
    if (making_->aborted) throw GroupLost(lost_group);
  }
  // Everybody is there before Gloo begins: it would wait long for one who is not.
  meet(*store_, options_.prefix + "/here", world_rank(), members(), options_.timeout);
  std::string name;  // of the group, among those of this process
  if (!options_.own_process) {
    static std::atomic<int> groups{0};
    const auto key = options_.prefix + "/name";
    if (rank() == 0) store_->set(key, std::to_string(++groups));
    name = store_->get(key, options_.timeout);
  }
  const Turn turn(name);
  auto group = make(c10::make_intrusive<StoreAdapter>(store_, options_.prefix + "/", options_.timeout));
  // The sockets of all: they are aborted together anyway.
  if (!options_.own_process) meet(*store_, options_.prefix + "/formed", world_rank(), members(), options_.timeout);
  const auto listeners = gather_listeners();
  std::lock_guard lock(making_->mutex);
  making_->sockets = Turn::connections(listeners);
  if (making_->aborted) {
    shut_down(making_->sockets);
    throw GroupLost(lost_group);
  }
  group_ = std::move(group);
}

/// Every connection of the group has one of these at one of its ends.
std::set<std::string> GlooGroup::gather_listeners() {
  const auto key_of = [&](int member) { return fmt::format("{}/listeners of {}", options_.prefix, member); };
  store_->set(key_of(world_rank()), fmt::format("{}", fmt::join(Turn::listeners(), "\n")));
  Endpoints all;
  for (int member : members()) {
    std::istringstream lines(store_->get(key_of(member), options_.timeout));
    for (std::string line; std::getline(lines, line);) all.insert(line);
  }
  return all;
}

/// On a thread of its own, since nothing can end Gloo's wait for a peer that died while it connected; an abort leaves
/// it behind, where it ends by itself.
c10::intrusive_ptr<c10d::ProcessGroup> GlooGroup::make(const c10::intrusive_ptr<c10d::Store>& store) {
  ::troupe::detail::make_thread("that connects over Gloo", [making = making_, options = options_, store] {
    c10::intrusive_ptr<c10d::ProcessGroup> group;
    std::exception_ptr error;
    try {
      const auto device = device_on(options.interface);
      group = torch_compat::make_gloo(store, options.rank, static_cast<int>(options.members.size()), device,
                                      options.timeout, options.for_gpus);
    } catch (...) {
      error = std::current_exception();
    }
    std::lock_guard lock(making->mutex);
    making->done = true;
    making->error = error;
    if (!making->aborted) making->group = std::move(group);
    making->changed.notify_all();
  }).detach();
  std::unique_lock lock(making_->mutex);
  making_->changed.wait(lock, [&] { return making_->done || making_->aborted; });
  if (making_->aborted) throw GroupLost(lost_group);
  making_->done = false;  // for another try
  if (!making_->error) return std::move(making_->group);
  try {
    std::rethrow_exception(making_->error);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    // One that died just now is the usual reason, and may be known here before the driver knows it.
    throw GroupLost(fmt::format("rank {} could not connect to the others over Gloo on \"{}\": {}", world_rank(),
                                options_.interface, error.what()));
  }
}

void GlooGroup::finish(const c10::intrusive_ptr<c10d::Work>& work) {
  const auto done = std::make_shared<bool>(false);
  work->getFuture()->addCallback([making = making_, done](c10::ivalue::Future&) {
    std::lock_guard lock(making->mutex);
    *done = true;
    making->changed.notify_all();
  });
  bool aborted = false;
  bool left_behind = false;
  {
    std::unique_lock lock(making_->mutex);
    making_->changed.wait(lock, [&] { return *done || making_->aborted; });
    // Closed sockets end the operation within milliseconds, but for a rare case that Gloo never wakes from.
    if (!*done) left_behind = !making_->changed.wait_for(lock, std::chrono::milliseconds(50), [&] { return *done; });
    aborted = making_->aborted;
  }
  if (left_behind) throw GroupLost(lost_group);
  try {
    work->wait();
  } catch (const std::exception& error) {
    if (!aborted && detail::says_timed_out(error))
      throw Error(ErrorCode::deadline,
                  fmt::format("a collective operation took too long (timeout_s): {}", error.what()), world_rank());
    throw GroupLost(fmt::format("{} ({})", lost_group, error.what()));
  }
}

void GlooGroup::abort() noexcept {
  std::lock_guard lock(making_->mutex);
  if (std::exchange(making_->aborted, true)) return;
  making_->changed.notify_all();
  shut_down(making_->sockets);
}

bool GlooGroup::has_lost_peers() const {
  std::lock_guard lock(making_->mutex);
  auto ended = making_->sockets;  // also those that Gloo has closed since
  for_each_tcp_socket([&](int fd, unsigned long inode, bool listening) {
    tcp_info info{};
    socklen_t length = sizeof info;
    if (listening ||
        (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state == TCP_ESTABLISHED))
      ended.erase(inode);
  });
  return !ended.empty();
}

}  // namespace troupe
