// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/operation.hpp"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <map>

#include <fmt/format.h>
#include <troupe/error.hpp>

namespace troupe {
namespace {

constexpr const char* kind_names[] = {"barrier",        "all_reduce",        "broadcast",      "all_gather",
                                      "reduce_scatter", "a gradient bucket", "prepare_model()"};
constexpr const char* reduce_names[] = {"sum", "mean", "min", "max"};
/// Sizes that have a word of their own; the last word holds the product of all others.
constexpr std::size_t own_sizes = 6;

}  // namespace

Operation::Operation(Kind kind, at::ScalarType type, at::IntArrayRef sizes, train::torch::Reduce reduce, int root) {
  words_[0] = static_cast<std::int64_t>(kind) | static_cast<std::int64_t>(reduce) << 8 |
              static_cast<std::int64_t>(type) << 16 | static_cast<std::int64_t>(sizes.size() & 0xff) << 24 |
              std::int64_t{root} << 32;
  words_.back() = 1;
  for (std::size_t i = 0; i < sizes.size(); ++i) i < own_sizes ? words_[i + 1] = sizes[i] : words_.back() *= sizes[i];
}

std::string Operation::describe(const Words& words) {
  const auto byte = [&](int at) { return static_cast<std::size_t>(words[0] >> at & 0xff); };
  const auto kind = static_cast<Kind>(byte(0));
  std::string text = kind_names[byte(0)];
  if (kind == Kind::barrier || kind == Kind::begin_buffers) return text;
  if (kind == Kind::all_reduce) text += fmt::format("({})", reduce_names[byte(8)]);
  if (kind == Kind::broadcast) text += fmt::format("(root {})", words[0] >> 32);
  const auto dims = byte(24);
  std::vector<std::int64_t> sizes(words.begin() + 1, words.begin() + 1 + static_cast<long>(std::min(dims, own_sizes)));
  return fmt::format("{} of {} [{}{}]", text, c10::toString(static_cast<at::ScalarType>(byte(16))),
                     fmt::join(sizes, ", "), dims > own_sizes ? ", ..." : "");
}

void Operation::require_equal(const std::vector<Words>& all, const std::vector<int>& ranks, int my_rank) {
  if (std::all_of(all.begin(), all.end(), [&](const auto& one) { return one == all.front(); })) return;
  std::map<std::string, std::vector<int>> callers;
  for (std::size_t i = 0; i < all.size(); ++i) callers[describe(all[i])].push_back(ranks[i]);
  std::string text;
  for (const auto& [what, who] : callers)
    text += fmt::format("\n  {} on rank{} {}", what, who.size() > 1 ? "s" : "", fmt::join(who, ", "));
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("the ranks called different collective operations:{}\nAll ranks must call the same ones, in the "
                  "same order, with tensors of the same type and shape",
                  text),
      my_rank);
}

}  // namespace troupe
