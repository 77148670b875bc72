// SPDX-License-Identifier: Apache-2.0
// The backends of this program by name. Filled before main() by the objects that are linked in.
#include <fmt/format.h>

#include <map>
#include <mutex>

#include <troupe/backend.hpp>
#include <troupe/error.hpp>

namespace troupe {
namespace {

struct Entry {
  BackendFactory factory;
  BackendCheck check;
};

struct Registry {
  std::mutex mutex;
  std::map<std::string, Entry> entries;
};

/// Made at first use, since other files' globals register; never destroyed, since workers may outlive globals.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

std::string list_names() {
  auto names = backend_names();
  return names.empty() ? "none is registered" : fmt::format("valid: {}", fmt::join(names, ", "));
}

std::string hint_for(const std::string& name) {
  if (name == "torch") return "; this program does not contain it: link the CMake target troupe::torch";
  if (name == "tensorflow" || name == "horovod")
    return "; that one is for Python programs and not for libtorch: use \"torch\", or register a Backend of your own "
           "with troupe::register_backend()";
  return "; omit it for workers without a process group, or register a Backend of your own with "
         "troupe::register_backend() before troupe::init()";
}

Entry find_entry(const std::string& name) {
  {
    std::lock_guard lock(registry().mutex);
    auto found = registry().entries.find(name);
    if (found != registry().entries.end()) return found->second;
  }
  throw Error(ErrorCode::invalid_option,
              fmt::format("backend = \"{}\" is unknown; {}{}", name, list_names(), hint_for(name)));
}

}  // namespace

bool register_backend(const std::string& name, BackendFactory factory, BackendCheck check) {
  if (name.empty() || !factory)
    throw Error(
        ErrorCode::invalid_option,
        fmt::format("register_backend(\"{}\") needs a name and a factory: the empty name stands for no backend", name));
  std::lock_guard lock(registry().mutex);
  if (!registry().entries.emplace(name, Entry{std::move(factory), std::move(check)}).second)
    throw Error(ErrorCode::invalid_option,
                fmt::format("a backend named \"{}\" is registered already: choose another name", name));
  return true;
}

std::vector<std::string> backend_names() {
  std::lock_guard lock(registry().mutex);
  std::vector<std::string> names;
  for (const auto& [name, entry] : registry().entries) names.push_back(name);
  return names;
}

std::unique_ptr<Backend> make_backend(const std::string& name, const Json& options) {
  auto backend = find_entry(name).factory(options);  // user code: not under the lock
  if (!backend)
    throw Error(ErrorCode::invalid_option,
                fmt::format("the factory of backend \"{}\" made nothing: let it return a Backend or throw", name));
  return backend;
}

void require_backend(const BackendConfig& backend) {
  if (backend.name.empty()) return;
  const auto entry = find_entry(backend.name);
  if (entry.check) entry.check(backend.options);
}

}  // namespace troupe
