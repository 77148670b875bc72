// SPDX-License-Identifier: Apache-2.0
// The table of functions that workers may run, and how they are named across processes.
#include <link.h>

#include <cstring>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

#include <fmt/format.h>
#include <troupe/error.hpp>
#include <troupe/fn.hpp>

namespace troupe::detail {
namespace {

struct Known {
  AnyEntry entry;
  EntryKind kind;
  const char* name;
};

// Function-local: other files register before this one's globals are initialized. Modules loaded later register while
// threads run, hence the lock.
struct Table {
  std::mutex mutex;
  std::vector<Known> functions;
};

Table& table() {
  static Table instance;
  return instance;
}

/// The GNU build id among a module's notes, in hex; empty if it has none.
std::string build_id_of(const dl_phdr_info& module) {
  std::string hex;
  for (int i = 0; i < module.dlpi_phnum; ++i) {
    const auto& segment = module.dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const char* note = reinterpret_cast<const char*>(module.dlpi_addr + segment.p_vaddr);
    const char* end = note + segment.p_memsz;
    while (note + sizeof(ElfW(Nhdr)) <= end) {
      ElfW(Nhdr) header;
      std::memcpy(&header, note, sizeof header);
      const char* name = note + sizeof header;
      const char* content = name + ((header.n_namesz + 3) & ~3U);
      if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
        for (unsigned k = 0; k < header.n_descsz; ++k)
          hex += fmt::format("{:02x}", static_cast<unsigned char>(content[k]));
        return hex;
      }
      note = content + ((header.n_descsz + 3) & ~3U);
    }
  }
  return hex;
}

struct Search {
  std::uintptr_t address;
  bool found = false;
  FunctionId id;
};

int look_into(dl_phdr_info* module, std::size_t, void* argument) {
  auto& search = *static_cast<Search*>(argument);
  for (int i = 0; i < module->dlpi_phnum; ++i) {
    const auto& segment = module->dlpi_phdr[i];
    // Unsigned wrap-around makes an address below the segment a huge offset.
    if (segment.p_type != PT_LOAD || search.address - module->dlpi_addr - segment.p_vaddr >= segment.p_memsz) continue;
    search.found = true;
    search.id = {build_id_of(*module), search.address - module->dlpi_addr};
    return 1;
  }
  return 0;
}

/// "[with Trampoline = OfFunction<train_func>; ...]" says more to people than the whole signature.
std::string shorten(std::string_view signature) {
  const auto from = signature.find("Trampoline = ");
  const auto to = signature.find("; troupe::detail::EntryKind");
  if (from == std::string_view::npos || to == std::string_view::npos || to < from) return std::string(signature);
  auto name = signature.substr(from + 13, to - from - 13);
  for (std::string_view prefix : {"troupe::detail::OfFunction<", "troupe::detail::OfLambda<"})
    if (name.starts_with(prefix)) name = name.substr(prefix.size(), name.size() - prefix.size() - 1);
  return std::string(name);
}

}  // namespace

bool register_entry(AnyEntry entry, EntryKind kind, const char* name) {
  std::lock_guard lock(table().mutex);
  table().functions.push_back({entry, kind, name});
  return true;
}

FunctionId identify(AnyEntry entry) {
  // Walking the modules costs microseconds, a call's budget; the answer never changes.
  static std::mutex mutex;
  static std::map<AnyEntry, FunctionId> known;
  std::lock_guard lock(mutex);
  if (auto found = known.find(entry); found != known.end()) return found->second;
  Search search{reinterpret_cast<std::uintptr_t>(entry), false, {}};
  dl_iterate_phdr(look_into, &search);
  if (!search.found)
    throw Error(ErrorCode::invalid_argument, "a function that belongs to no loaded module cannot be sent to a worker");
  return known.emplace(entry, search.id).first->second;
}

AnyEntry resolve(const FunctionId& id, EntryKind kind) {
  // Found functions are remembered: a call on a worker is answered in microseconds.
  static std::mutex mutex;
  static std::map<std::tuple<std::uint64_t, std::string, EntryKind>, AnyEntry> resolved;
  std::lock_guard lock(mutex);
  const auto key = std::make_tuple(id.offset, id.build, kind);
  if (auto found = resolved.find(key); found != resolved.end()) return found->second;

  std::lock_guard table_lock(table().mutex);
  for (const auto& known : table().functions) {
    if (known.kind != kind) continue;
    const auto candidate = identify(known.entry);
    if (candidate.offset == id.offset && candidate.build == id.build)
      return resolved.emplace(key, known.entry).first->second;
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("this worker does not know function {}+{:#x}: it is not registered in its program. Functions "
                          "of a library that was loaded after troupe::init() cannot be run; link the library instead",
                          id.build, id.offset));
}

std::string name_of(AnyEntry entry) {
  std::lock_guard lock(table().mutex);
  for (const auto& known : table().functions)
    if (known.entry == entry) return shorten(known.name);
  return "?";
}

const std::string& build_id() {
  static const std::string id = identify(reinterpret_cast<AnyEntry>(&build_id)).build;
  return id;
}

}  // namespace troupe::detail
