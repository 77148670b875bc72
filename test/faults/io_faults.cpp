// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program, it makes the n-th call that touches files below a folder fail, or cuts the power there.
//   IO_FAULTS_UNDER   the folder; only files below it count
//   IO_FAULTS_AT      which call fails, from 1
//   IO_FAULTS_KIND    EIO, ENOSPC, short (half a write, other calls EIO), exit_before, exit_after, or power_cut: ends
//   the
//                     program after it has undone everything that was not made durable
//   IO_FAULTS_FIRED   a file that is made when the fault happens
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <vector>

namespace {

constexpr int most_descriptors = 4096;
constexpr int exit_code = 77;

/// A change of a name that its folder has not made durable yet.
struct Change {
  enum Kind { made_file, made_folder, renamed } kind;
  std::string path;
  std::string from;
};

struct State {
  std::mutex mutex;
  std::string under = getenv_or("IO_FAULTS_UNDER");
  std::string kind = getenv_or("IO_FAULTS_KIND");
  std::string fired = getenv_or("IO_FAULTS_FIRED");
  long at = std::atol(getenv_or("IO_FAULTS_AT").c_str());
  long calls = 0;
  std::vector<std::string> paths = std::vector<std::string>(most_descriptors);
  std::vector<std::string> unsynced;  ///< files with bytes that no fsync covered
  std::vector<Change> changes;

  static std::string getenv_or(const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
  }
};

State& state() {
  static State* one = new State;  // never destroyed: calls come until the very end
  return *one;
}

template <class F>
F next(const char* name) {
  return reinterpret_cast<F>(::dlsym(RTLD_NEXT, name));
}

bool counts(const char* path) {
  return !state().under.empty() && path != nullptr && std::string(path).rfind(state().under, 0) == 0;
}
bool counts(int descriptor) {
  return descriptor >= 0 && descriptor < most_descriptors && !state().paths[descriptor].empty();
}

std::string folder_of(const std::string& path) { return path.substr(0, path.rfind('/')); }

/// What the disk holds when the power goes: only what was made durable.
void undo_unsynced() {
  for (const auto& path : state().unsynced) ::syscall(SYS_truncate, path.c_str(), 0L);
  for (auto change = state().changes.rbegin(); change != state().changes.rend(); ++change) {
    if (change->kind == Change::renamed)
      ::syscall(SYS_rename, change->path.c_str(), change->from.c_str());
    else if (change->kind == Change::made_file)
      ::syscall(SYS_unlink, change->path.c_str());
    else
      ::syscall(SYS_rmdir, change->path.c_str());
  }
}

/// Counts a call under the lock. True when it is the one to fail, and errno is set.
bool fails() {
  auto& s = state();
  if (++s.calls != s.at) return false;
  ::syscall(SYS_close, ::syscall(SYS_open, s.fired.c_str(), O_CREAT | O_WRONLY, 0600));
  if (s.kind == "power_cut") undo_unsynced();
  if (s.kind == "exit_before" || s.kind == "power_cut") ::_exit(exit_code);
  if (s.kind == "exit_after") return false;  // see after()
  errno = s.kind == "ENOSPC" ? ENOSPC : EIO;
  return true;
}

/// After a call that counted.
void after() {
  if (state().calls == state().at && state().kind == "exit_after") ::_exit(exit_code);
}

void forget(std::vector<std::string>& list, const std::string& path) {
  for (auto& one : list)
    if (one == path) one.clear();
}

ssize_t half(size_t size) { return static_cast<ssize_t>(size / 2); }

template <class Call>
int faulty_open(const char* path, int flags, Call call) {
  if (!counts(path)) return call();
  const std::lock_guard lock(state().mutex);
  if (fails()) return -1;
  const int descriptor = call();
  if (descriptor >= 0 && descriptor < most_descriptors) {
    state().paths[descriptor] = path;
    if ((flags & O_CREAT) != 0) state().changes.push_back({Change::made_file, path, {}});
  }
  after();
  return descriptor;
}

template <class Call>
ssize_t faulty_write(int descriptor, size_t size, Call call) {
  if (!counts(descriptor)) return call(size);
  const std::lock_guard lock(state().mutex);
  if (fails()) {
    if (state().kind != "short" || size < 2) return -1;
    size = static_cast<size_t>(half(size));
  }
  state().unsynced.push_back(state().paths[descriptor]);
  const auto written = call(size);
  after();
  return written;
}

template <class Call>
int faulty_reserve(int descriptor, Call call) {
  if (!counts(descriptor)) return call();
  const std::lock_guard lock(state().mutex);
  if (fails()) return -1;
  state().unsynced.push_back(state().paths[descriptor]);
  const int result = call();
  after();
  return result;
}

template <class Call>
int faulty_sync(int descriptor, Call call) {
  if (!counts(descriptor)) return call();
  const std::lock_guard lock(state().mutex);
  if (fails()) return -1;
  const int result = call();
  const auto& path = state().paths[descriptor];
  forget(state().unsynced, path);
  std::vector<Change> left;
  for (auto& change : state().changes)
    if (folder_of(change.path) != path) left.push_back(change);
  state().changes = left;
  after();
  return result;
}

mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = mode_of(flags, arguments);
  va_end(arguments);
  static const auto real = next<int (*)(const char*, int, ...)>("open");
  return faulty_open(path, flags, [&] { return real(path, flags, mode); });
}

int open64(const char* path, int flags, ...) {
  va_list arguments;
  va_start(arguments, flags);
  const auto mode = mode_of(flags, arguments);
  va_end(arguments);
  static const auto real = next<int (*)(const char*, int, ...)>("open64");
  return faulty_open(path, flags, [&] { return real(path, flags, mode); });
}

ssize_t write(int descriptor, const void* data, size_t size) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  return faulty_write(descriptor, size, [&](size_t part) { return real(descriptor, data, part); });
}

ssize_t pwrite(int descriptor, const void* data, size_t size, off_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return faulty_write(descriptor, size, [&](size_t part) { return real(descriptor, data, part, offset); });
}

ssize_t pwrite64(int descriptor, const void* data, size_t size, off64_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  return faulty_write(descriptor, size, [&](size_t part) { return real(descriptor, data, part, offset); });
}

int fallocate(int descriptor, int mode, off_t offset, off_t size) {
  static const auto real = next<int (*)(int, int, off_t, off_t)>("fallocate");
  return faulty_reserve(descriptor, [&] { return real(descriptor, mode, offset, size); });
}

int fallocate64(int descriptor, int mode, off64_t offset, off64_t size) {
  static const auto real = next<int (*)(int, int, off64_t, off64_t)>("fallocate64");
  return faulty_reserve(descriptor, [&] { return real(descriptor, mode, offset, size); });
}

int fsync(int descriptor) {
  static const auto real = next<int (*)(int)>("fsync");
  return faulty_sync(descriptor, [&] { return real(descriptor); });
}

int fdatasync(int descriptor) {
  static const auto real = next<int (*)(int)>("fdatasync");
  return faulty_sync(descriptor, [&] { return real(descriptor); });
}

int close(int descriptor) {
  static const auto real = next<int (*)(int)>("close");
  if (!counts(descriptor)) return real(descriptor);
  const std::lock_guard lock(state().mutex);
  const bool is_bad = fails();
  const int error = errno;
  state().paths[descriptor].clear();
  const int result = real(descriptor);
  after();
  if (is_bad) errno = error;
  return is_bad ? -1 : result;
}

int rename(const char* from, const char* to) noexcept {
  static const auto real = next<int (*)(const char*, const char*)>("rename");
  if (!counts(to)) return real(from, to);
  const std::lock_guard lock(state().mutex);
  if (fails()) return -1;
  const int result = real(from, to);
  if (result == 0) {
    // The old name goes with the change; a file made durable under it stays made.
    state().changes.push_back({Change::renamed, to, from});
  }
  after();
  return result;
}

int mkdir(const char* path, mode_t mode) noexcept {
  static const auto real = next<int (*)(const char*, mode_t)>("mkdir");
  if (!counts(path)) return real(path, mode);
  const std::lock_guard lock(state().mutex);
  if (fails()) return -1;
  const int result = real(path, mode);
  if (result == 0) state().changes.push_back({Change::made_folder, path, {}});
  after();
  return result;
}

int unlink(const char* path) noexcept {
  static const auto real = next<int (*)(const char*)>("unlink");
  if (!counts(path)) return real(path);
  const std::lock_guard lock(state().mutex);
  if (fails()) return -1;
  const int result = real(path);
  after();
  return result;
}

}  // extern "C"
