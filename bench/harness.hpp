// SPDX-License-Identifier: Apache-2.0
// What all cases share: figures and how they are printed, time, a folder for the runs' files, and probes: fresh copies
// of this program that measure one thing and print one number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <troupe/options.hpp>

namespace troupe::bench {

/// One line of the result.
struct Figure {
  std::string name;
  double value = 0;
  std::string unit;
  std::size_t n = 0;  ///< how many samples `value` is the median (or percentile) of
  double floor = 0;   ///< what must be reached
  enum class Better { lower, higher } better = Better::lower;

  bool reached() const { return better == Better::lower ? value <= floor : value >= floor; }
};

class Output {
public:
  explicit Output(bool json) : json_(json) {}
  /// Prints at once: a long list of cases shows its progress.
  void add(const Figure& figure) const;

private:
  bool json_;
};

/// The value below which `share` of the samples lie; 0.5 is the median.
double percentile(std::vector<double> samples, double share);
inline double median(std::vector<double> samples) { return percentile(std::move(samples), 0.5); }

/// What `measure()` gives, `times` times.
template <class Measure>
std::vector<double> repeat(int times, Measure&& measure) {
  std::vector<double> samples(static_cast<std::size_t>(times));
  for (auto& sample : samples) sample = measure();
  return samples;
}

/// Nanoseconds of CLOCK_MONOTONIC, which all processes of a host share.
std::int64_t now_ns();
inline double ms_since(std::int64_t begin_ns) { return static_cast<double>(now_ns() - begin_ns) / 1e6; }

/// Removed at the end of the program.
std::filesystem::path scratch_folder();

/// `workers` processes, with libtorch and its backend when this program has them.
TrainerOptions trainer_options(int workers);

/// What a fresh copy of this program is to measure.
struct ProbeRequest {
  std::string name;
  int workers = 2;
  std::int64_t since_ns = 0;  ///< taken before the copy was started
};

/// Starts a copy of this program for the probe and gives the number that it prints. Throws when it fails.
double run_probe(const std::string& name, int workers);

}  // namespace troupe::bench
