// SPDX-License-Identifier: Apache-2.0
// troupe_bench [CASE] [--json]: measures what the README of this folder lists.
#include <cstdint>
#include <functional>
#include <iostream>
#include <random>
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
  int seconds = 600;
  std::uint64_t seed = std::random_device()();
  ProbeRequest probe;
};

const std::vector<std::pair<std::string, std::function<void(const Output&)>>>& cases() {
  static const std::vector<std::pair<std::string, std::function<void(const Output&)>>> all = {
      {"startup", bench_startup},     {"report", bench_report},     {"calls", bench_calls},
      {"memory", bench_memory},       {"teardown", bench_teardown}, {"checkpoint", bench_checkpoint},
#ifdef TROUPE_BENCH_TORCH
      {"allreduce", bench_allreduce}, {"ddp", bench_ddp},           {"recovery", bench_recovery},
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

/// One after the other; a length of 0 leaves one out.
int run_soaks(const Flags& flags) {
  bool fine = flags.reports == 0 || soak(flags.reports);
#ifdef TROUPE_BENCH_TORCH
  if (flags.seconds > 0) fine = soak_kills(flags.seconds, flags.seed) && fine;
#else
  if (flags.seconds > 0) std::cerr << "the soak of kills is left out: it needs libtorch\n";
#endif
  return fine ? 0 : 1;
}

int run(const Flags& flags) {
  if (!flags.probe.name.empty()) return run_probe_here(flags.probe);
  if (flags.name == "soak") return run_soaks(flags);
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
  app.add_option("case", flags.name,
                 "What to measure; soak: many reports, then many kills; nothing may grow (not part of all)")
      ->check(CLI::IsMember(case_names()))
      ->capture_default_str();
  app.add_flag("--json", flags.json, "One JSON object a line: name, value, unit, n");
  app.add_option("--reports", flags.reports, "Reports of the soak; 0: none")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "How long the soak kills workers; 0: not at all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "When and whom it kills; random");
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
