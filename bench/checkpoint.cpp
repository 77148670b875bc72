// SPDX-License-Identifier: Apache-2.0
// Checkpoints: what a save costs the training thread, what disk and memory give at most, and what others need.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <troupe/background_saver.hpp>
#include <troupe/checkpoint.hpp>
#include <troupe/json.hpp>

#include "bench/cases.hpp"

namespace troupe::bench {
namespace {

constexpr std::size_t megabytes = 1024;
constexpr std::size_t size = megabytes << 20;
constexpr std::size_t tensors = 64;
constexpr int small_tensors = 10'000;
constexpr int rounds = 5;
constexpr int disk_rounds = 9;  // disks vary more

/// Figures of the others by name, such as "checkpoint.load.dcp".
using Peers = std::map<std::string, double>;

/// The value to beat: the best of the peers' figures that begin so, in GB/s or ms; nothing without peers.
std::optional<double> best_peer(const Peers& peers, const std::string& name, Figure::Better better) {
  std::optional<double> best;
  for (const auto& [peer, value] : peers) {
    if (!peer.starts_with(name)) continue;
    const bool is_better = better == Figure::Better::higher ? value > best.value_or(0) : !best || value < *best;
    if (is_better) best = value;
  }
  return best;
}

double gb_per_s(double ms) { return static_cast<double>(size) / 1e6 / ms; }

Checkpoint make_state(std::size_t count, std::size_t values) {
  Checkpoint state;
  for (std::size_t i = 0; i < count; ++i)
    state.set("layer." + std::to_string(i) + ".weight",
              TensorData::of(std::vector<float>(values, static_cast<float>(i))));
  return state;
}

/// Milliseconds of `action()`, `times` times.
template <class Action>
std::vector<double> time_each(int times, Action&& action) {
  return repeat(times, [&] {
    const auto begin = now_ns();
    action();
    return ms_since(begin);
  });
}

/// Memory of whole pages, touched.
class Pages {
public:
  Pages() : memory_(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    if (memory_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap");
    ::madvise(memory_, size, MADV_HUGEPAGE);
    std::memset(memory_, 1, size);
  }
  ~Pages() { ::munmap(memory_, size); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  char* data() const { return static_cast<char*>(memory_); }

private:
  void* memory_;
};

/// One memcpy of the bytes, in ms.
double measure_memcpy(const Output& output) {
  const Pages from;
  const Pages to;
  const auto samples = time_each(rounds, [&] { std::memcpy(to.data(), from.data(), size); });
  const auto ms = median(samples);
  output.add({"checkpoint.memcpy", gb_per_s(ms), "GB/s", samples.size(), 0, Figure::Better::higher});
  return ms;
}

/// A way to write to the disk.
struct RawWrite {
  int flags = 0;
  bool reserve = false;  ///< room for all of it first
  std::vector<double> ms = {};
};

/// Writes the bytes and makes them durable, with nothing around it.
void write_raw(const std::filesystem::path& path, const char* data, const RawWrite& way) {
  constexpr std::size_t chunk = std::size_t{16} << 20;
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | way.flags, 0600);
  bool ok = file >= 0 && (!way.reserve || ::fallocate(file, 0, 0, static_cast<off_t>(size)) == 0);
  for (std::size_t offset = 0; ok && offset < size; offset += chunk)
    ok = ::pwrite(file, data + offset, chunk, static_cast<off_t>(offset)) == static_cast<ssize_t>(chunk);
  ok = ok && ::fsync(file) == 0;
  const int error = errno;
  if (file >= 0) ::close(file);
  if (!ok) throw std::system_error(error, std::generic_category(), "writing " + path.string());
}

/// Removes it, and waits until the disk has done so: what is measured next does not pay for it.
void remove_quietly(const std::filesystem::path& path) {
  std::filesystem::remove_all(path);
  const int folder = ::open(path.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  ::fsync(folder);
  ::close(folder);
}

/// What the disk gives at most, and what a save that is durable when it returns makes of it. They take turns, so that a
/// busy machine slows all alike. The last checkpoint stays in `path`.
void measure_saves(const Output& output, const Checkpoint& state, const std::filesystem::path& path,
                   const Peers& peers) {
  const Pages pages;
  std::vector<RawWrite> ways{{}, {.flags = O_DIRECT}, {.flags = O_DIRECT, .reserve = true}};
  std::vector<double> saves;
  const auto raw = path.parent_path() / "raw";
  for (int round = 0; round < disk_rounds; ++round) {
    for (auto& way : ways) {
      const auto begin = now_ns();
      try {
        write_raw(raw, pages.data(), way);
        way.ms.push_back(ms_since(begin));
      } catch (const std::system_error&) {
        if (way.flags == 0) throw;  // not every file system writes past the page cache
      }
      remove_quietly(raw);
    }
    remove_quietly(path);
    const auto begin = now_ns();
    state.to_directory(path);
    saves.push_back(ms_since(begin));
  }
  double disk = 0;
  for (const auto& way : ways)
    if (!way.ms.empty()) disk = std::max(disk, gb_per_s(median(way.ms)));
  output.add({"checkpoint.disk", disk, "GB/s", disk_rounds, 0, Figure::Better::higher});
  const auto floor =
      std::max(0.85 * disk, best_peer(peers, "checkpoint.save.fsync.", Figure::Better::higher).value_or(0));
  output.add({"checkpoint.save.fsync", gb_per_s(median(saves)), "GB/s", saves.size(), floor, Figure::Better::higher});
}

void measure_blocked(const Output& output, const Checkpoint& state, const std::filesystem::path& folder,
                     double memcpy_ms) {
  BackgroundSaver saver;
  int number = 0;
  const auto save = [&] {
    const auto path = folder / ("blocked" + std::to_string(number++));
    const auto begin = now_ns();
    saver.save(state, path);
    const auto ms = ms_since(begin);
    saver.flush();
    std::filesystem::remove_all(path);
    return ms;
  };
  save();  // the first one gets the memory
  const auto samples = repeat(rounds, save);
  output.add({"checkpoint.blocked", median(samples), "ms", samples.size(), 1.3 * memcpy_ms});
}

/// Median ms of a save that is durable when it returns; the last one stays in `folder`.
std::vector<double> time_saves(const Checkpoint& state, const std::filesystem::path& folder) {
  return repeat(rounds, [&] {
    std::filesystem::remove_all(folder);
    const auto begin = now_ns();
    state.to_directory(folder);
    return ms_since(begin);
  });
}

void measure_large(const Output& output, const std::filesystem::path& folder, const Peers& peers) {
  const auto memcpy_ms = measure_memcpy(output);
  const auto state = make_state(tensors, size / tensors / sizeof(float));
  measure_blocked(output, state, folder, memcpy_ms);
  const auto path = folder / "large";
  measure_saves(output, state, path, peers);
  const auto opens = time_each(rounds, [&] { Checkpoint::from_path(path); });
  output.add({"checkpoint.open", median(opens), "ms", opens.size(), 5});
  const auto loads = time_each(rounds, [&] { Checkpoint::from_path(path).to_dict(); });
  // Of the others, only DCP's is compared: torch.load() checks nothing.
  const auto floor = std::max(4.0, best_peer(peers, "checkpoint.load.dcp", Figure::Better::higher).value_or(0));
  output.add({"checkpoint.load", gb_per_s(median(loads)), "GB/s", loads.size(), floor, Figure::Better::higher});
  std::filesystem::remove_all(path);
}

/// No floor of their own: they must be ahead of the peers'.
void measure_small(const Output& output, const std::filesystem::path& folder, const Peers& peers) {
  const auto add = [&](const std::string& name, const std::vector<double>& samples) {
    const auto floor = best_peer(peers, name + ".", Figure::Better::lower);
    output.add({name, median(samples), "ms", samples.size(), floor.value_or(0),
                floor ? Figure::Better::lower : Figure::Better::higher});  // without peers any value will do
  };
  const auto state = make_state(small_tensors, 256);
  const auto path = folder / "small";
  add("checkpoint.small.save", time_saves(state, path));
  add("checkpoint.small.load", time_each(rounds, [&] { Checkpoint::from_path(path).to_dict(); }));
}

/// torch.save, DCP and safetensors, if there is a Python that has them.
Peers measure_peers(const Output& output, const std::filesystem::path& folder) {
  const char* python = std::getenv("TROUPE_BENCH_PYTHON");
  const auto command = std::string(python != nullptr ? python : "python3") +
                       " '" TROUPE_BENCH_PEERS "/checkpoint.py' '" + folder.string() + "' " +
                       std::to_string(megabytes) + " " + std::to_string(small_tensors);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "re"), &::pclose);
  if (!pipe) throw std::system_error(errno, std::generic_category(), command);
  std::array<char, 1024> line{};
  Peers peers;
  while (std::fgets(line.data(), static_cast<int>(line.size()), pipe.get()) != nullptr) {
    const auto figure = Json::parse(line.data());
    output.add({figure.at("name"), figure.at("value"), figure.at("unit"), figure.at("n"), 0, Figure::Better::higher});
    peers.emplace(figure.at("name").get<std::string>(), figure.at("value").get<double>());
  }
  return peers;
}

}  // namespace

void bench_checkpoint(const Output& output) {
  const auto folder = scratch_folder() / "checkpoint";
  std::filesystem::create_directories(folder);
  const auto peers = measure_peers(output, folder);  // first: what they need is what we must beat
  measure_large(output, folder, peers);
  measure_small(output, folder, peers);
  measure_step_slowdown(output, folder / "steps");
  std::filesystem::remove_all(folder);
}

}  // namespace troupe::bench
