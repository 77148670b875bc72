// SPDX-License-Identifier: Apache-2.0
// The program `troupe`. Exit codes: 0, 1 when something is damaged, missing or failed, 2 for a wrong command line.
#include <filesystem>
#include <functional>
#include <iostream>

#include <CLI/CLI.hpp>
#include <troupe/error.hpp>
#include <troupe/version.hpp>

#include "checkpoint/inspect.hpp"
#include "runtime/command_line/convert.hpp"

namespace {

/// `troupe checkpoint ...`; `run` becomes what was chosen.
void add_checkpoint_commands(CLI::App& app, std::function<int()>& run) {
  using Inspect = int (*)(const std::filesystem::path&, std::ostream&);
  auto* checkpoint =
      app.add_subcommand("checkpoint", "Looks at checkpoints on disk and converts them")->require_subcommand(1);
  const auto add = [&](const char* name, const char* help, Inspect inspect) {
    auto* command = checkpoint->add_subcommand(name, help);
    auto path = std::make_shared<std::string>();
    command->add_option("PATH", *path, "A checkpoint's folder, or for ls and verify one that holds several")
        ->required();
    command->callback([&run, path, inspect] { run = [path, inspect] { return inspect(*path, std::cout); }; });
  };
  add("ls", "Lists the checkpoints in a folder, the newest first", troupe::detail::list_checkpoints);
  add("show", "Shows what is in a checkpoint", troupe::detail::show_checkpoint);
  add("verify", "Compares every byte with its checksum", troupe::detail::verify_checkpoints);
  troupe::detail::add_convert_commands(*checkpoint, run);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("troupe trains models on many workers; this program looks at what it leaves behind");
  app.set_version_flag("--version", TROUPE_VERSION);
  app.require_subcommand(1);
  std::function<int()> run;
  add_checkpoint_commands(app, run);
  try {
    app.parse(argc, argv);
    return run();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::cerr << "troupe: " << error.what() << '\n';
    return 1;
  }
}
