// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace troupe::detail {

/// Adds `export` and `import` to `troupe checkpoint`; `run` becomes what was chosen.
void add_convert_commands(CLI::App& checkpoint, std::function<int()>& run);

}  // namespace troupe::detail
