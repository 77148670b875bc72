// SPDX-License-Identifier: Apache-2.0
// troupe_bench [CASE] [--json]: measures what the README of this folder lists.
#include <cstdint>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <troupe/init.hpp>

#include "bench/cases.hpp"

namespace troupe::bench {
namespace {

struct Flags {
  std::string name = "all";
  bool json = false;
  std::int64_t reports = 10'000'000;
  ProbeRequest probe;
};

const std::vector<std::pair<std::string, std::function<void(const Output&)>>>& cases() {
  static const std::vector<std::pair<std::string, std::function<void(const Output&)>>> all = {
      {"startup", bench_startup},     {"report", bench_report},     {"calls", bench_calls},
      {"memory", bench_memory},       {"teardown", bench_teardown}, {"checkpoint", bench_checkpoint},
#ifdef TROUPE_BENCH_TORCH
      {"allreduce", bench_allreduce}, {"ddp", bench_ddp},
#endif
  };
  return all;
}

std::vector<std::string> case_names() {
  std::vector<std::string> names{"all", "soak"};
  for (const auto& one : cases()) names.push_back(one.first);
  return names;
}

int run_cases(const Flags& flags) {
  const Output output(flags.json);
  for (const auto& [name, run] : cases())
    if (flags.name == "all" || flags.name == name) run(output);
  return 0;
}

int run_probe_here(const ProbeRequest& request) {
  std::cout << (request.name == "memory" ? probe_memory(request) : probe_startup(request)) << "\n";
  return 0;
}

int run(const Flags& flags) {
  if (!flags.probe.name.empty()) return run_probe_here(flags.probe);
  if (flags.name == "soak") return soak(flags.reports) ? 0 : 1;
  return run_cases(flags);
}

/// Which flags a copy of this program is started with; not for people.
void add_probe_flags(CLI::App& app, ProbeRequest& probe) {
  app.add_option("--probe", probe.name)->check(CLI::IsMember({"startup", "memory"}))->group("");
  app.add_option("--workers", probe.workers)->group("");
  app.add_option("--since", probe.since_ns)->group("");
}

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures troupe: medians, each with its count");
  app.add_option("case", flags.name, "What to measure; soak: many reports, memory must stay flat (not part of all)")
      ->check(CLI::IsMember(case_names()))
      ->capture_default_str();
  app.add_flag("--json", flags.json, "One JSON object a line: name, value, unit, n");
  app.add_option("--reports", flags.reports, "Reports of the soak")->check(CLI::PositiveNumber)->capture_default_str();
  add_probe_flags(app, flags.probe);
  try {
    app.parse(argc, argv);
    return run(flags);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  } catch (const std::exception& error) {
    std::cerr << "troupe_bench: " << error.what() << "\n";
    return 1;
  }
}

}  // namespace
}  // namespace troupe::bench

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  return troupe::bench::main(argc, argv);
}
