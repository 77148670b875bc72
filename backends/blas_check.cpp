// SPDX-License-Identifier: Apache-2.0
#include "backends/blas_check.hpp"

#include <atomic>
#include <fstream>
#include <sstream>

#include "runtime/base/log.hpp"

namespace troupe {
namespace {

/// Debian's alternatives lead every libblas.so.3 to a file in a folder of its vendor: openblas-openmp, atlas, blis,
/// mkl.
bool is_reference(std::string_view path) {
  const auto slash = path.rfind('/');
  if (slash == std::string_view::npos || !path.substr(slash + 1).starts_with("libblas.so")) return false;
  for (const char* vendor : {"openblas", "atlas", "blis", "mkl", "flexiblas", "armpl", "nvpl"})
    if (path.find(vendor) != std::string_view::npos) return false;
  return true;
}

}  // namespace

std::optional<std::string> find_reference_blas(std::string_view maps) {
  while (!maps.empty()) {
    const auto line = maps.substr(0, maps.find('\n'));
    maps.remove_prefix(std::min(maps.size(), line.size() + 1));
    const auto path = line.find('/');
    if (path != std::string_view::npos && is_reference(line.substr(path))) return std::string(line.substr(path));
  }
  return std::nullopt;
}

void warn_of_reference_blas() {
  static std::atomic<bool> looked{false};
  if (looked.exchange(true)) return;
  std::ostringstream maps;
  maps << std::ifstream("/proc/self/maps").rdbuf();
  if (const auto path = find_reference_blas(maps.str()))
    log_warning(
        "libtorch multiplies matrices with the reference BLAS ({}), 30 times slower than need be: install "
        "libopenblas0-openmp",
        *path);
}

}  // namespace troupe
