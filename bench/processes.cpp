// SPDX-License-Identifier: Apache-2.0
#include "bench/processes.hpp"

#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>

namespace troupe::bench {
namespace {

namespace fs = std::filesystem;

std::optional<int> to_pid(const std::string& text) {
  int pid = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), pid);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return pid;
}

/// The number behind `key` in a file of lines such as "Pss:   1234 kB"; 0 when it is not there.
double value_of(const fs::path& file, const std::string& key) {
  std::ifstream in(file);
  for (std::string word; in >> word;)
    if (double value = 0; word == key && in >> value) return value;
  return 0;
}

std::string name_of(const fs::path& process) {
  std::ifstream in(process / "comm");
  std::string name;
  std::getline(in, name);
  return name;
}

int entries_of(const fs::path& folder) {
  int count = 0;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator(); entry.increment(error))
    ++count;
  return count;
}

/// Parents of all processes.
std::map<int, int> all_parents() {
  std::map<int, int> parents;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error))
    if (const auto pid = to_pid(entry.path().filename().string()))
      parents[*pid] = static_cast<int>(value_of(entry.path() / "status", "PPid:"));
  return parents;
}

}  // namespace

std::map<int, ProcessMemory> memory_of_tree() {
  const auto parents = all_parents();
  std::set<int> tree{::getpid()};
  for (bool grew = true; grew;) {
    grew = false;
    for (const auto& [pid, parent] : parents)
      if (tree.contains(parent)) grew = tree.insert(pid).second || grew;
  }
  std::map<int, ProcessMemory> memory;
  for (int pid : tree) {
    const auto process = fs::path("/proc") / std::to_string(pid);
    memory[pid] = {name_of(process), value_of(process / "smaps_rollup", "Rss:") / 1024,
                   value_of(process / "smaps_rollup", "Pss:") / 1024, entries_of(process / "fd"),
                   entries_of(process / "task")};
  }
  return memory;
}

}  // namespace troupe::bench
