// SPDX-License-Identifier: Apache-2.0
#include <troupe/run_results.hpp>

#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "checkpoint/source.hpp"

namespace troupe {

RunResults::RunResults(std::vector<Json> results) : vector(std::move(results)), returned_(size()) {
  for (std::size_t rank = 0; rank < size(); ++rank) {
    auto& result = (*this)[rank];
    const auto source = detail::source_of_json(result);
    if (!source) continue;
    try {
      returned_[rank].checkpoint = detail::open_source(*source);
    } catch (const Error& error) {
      returned_[rank].error = error.what();  // told to whoever asks for it; the others' are fine
    }
    result = source->folder.empty() ? Json() : Json(source->folder);
  }
}

Checkpoint RunResults::checkpoint(int rank) const {
  if (rank < 0 || static_cast<std::size_t>(rank) >= returned_.size())
    throw Error(ErrorCode::invalid_argument, fmt::format("there is no rank {} among {}", rank, returned_.size()));
  const auto& returned = returned_[static_cast<std::size_t>(rank)];
  if (returned.checkpoint) return *returned.checkpoint;
  if (!returned.error.empty())
    throw Error(ErrorCode::io, fmt::format("what rank {} returned cannot be opened: {}", rank, returned.error), rank);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("rank {} returned no checkpoint: let the function return a troupe::Checkpoint", rank), rank);
}

}  // namespace troupe
