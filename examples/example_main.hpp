// SPDX-License-Identifier: Apache-2.0
// What every example does with flags and errors: --help explains, a wrong flag gives exit code 2, Ctrl-C 130, anything
// else 1.
#pragma once

#include <exception>
#include <iostream>

#include <CLI/CLI.hpp>
#include <troupe/error.hpp>

inline void parse_flags(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    throw;  // ends the program, through example_main()
  }
}

inline int example_main(int (*run)(int, char**), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return 0;
  } catch (const CLI::ParseError& error) {
    std::cerr << argv[0] << ": " << error.what() << " (see --help)\n";
    return 2;
  } catch (const troupe::Interrupted& error) {
    std::cerr << argv[0] << ": " << error.what() << "\n";
    return error.exit_code();
  } catch (const std::exception& error) {
    std::cerr << argv[0] << ": " << error.what() << "\n";
    return 1;
  }
}
