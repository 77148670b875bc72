// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/gloo_group.hpp"

#include <dirent.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <cmath>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/torch_compat.hpp"

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

std::set<unsigned long> tcp_sockets() {
  std::set<unsigned long> inodes;
  for_each_tcp_socket([&](int, unsigned long inode, bool) { inodes.insert(inode); });
  return inodes;
}

}  // namespace

GlooGroup::GlooGroup(const TorchConfig& config, const BackendContext& context)
    : rank_(context.world_rank), size_(context.world_size) {
  if (!context.store)
    throw Error(ErrorCode::invalid_state, "local mode has no process group: use num_workers = 1 for a group of one");
  const auto timeout = std::chrono::milliseconds(std::llround(config.timeout_s * 1000));
  const auto prefix = fmt::format("gloo/{}/", context.epoch);
  const auto meet = [&](const char* where) {
    context.store->set(fmt::format("{}{}/rank {}", prefix, where, rank_), "");
    std::vector<std::string> all;
    for (int rank = 0; rank < size_; ++rank) all.push_back(fmt::format("{}{}/rank {}", prefix, where, rank));
    context.store->wait(all, timeout);
  };
  const auto before = tcp_sockets();
  // Everybody is there before Gloo begins: it would wait five times the timeout for one who is not.
  meet("here");

  const auto address = config.interface.empty() ? std::string("127.0.0.1") : config.interface;
  auto store = c10::make_intrusive<StoreAdapter>(context.store, prefix, timeout);
  group_ = torch_compat::make_gloo(store, rank_, size_, address, timeout);
  // Thread ranks share their descriptors: each takes the sockets of all, which are aborted together anyway.
  if (!context.own_process) meet("formed");
  for (auto inode : tcp_sockets())
    if (!before.contains(inode)) sockets_.insert(inode);
}

GlooGroup::~GlooGroup() { abort(); }

void GlooGroup::abort() noexcept {
  if (aborted_.exchange(true)) return;
  // Shutting a listener down would end the process.
  for_each_tcp_socket([this](int fd, unsigned long inode, bool listening) {
    if (!listening && sockets_.contains(inode)) ::shutdown(fd, SHUT_RDWR);
  });
}

}  // namespace troupe
