// SPDX-License-Identifier: Apache-2.0
#include "backends/rendezvous.hpp"

#include <fmt/format.h>
#include <troupe/error.hpp>

namespace troupe {

void meet(Store& store, const std::string& point, int my_rank, const std::vector<int>& members,
          Store::Timeout timeout) {
  const auto key_of = [&](int rank) { return fmt::format("{}/rank {}", point, rank); };
  std::vector<std::string> keys;
  for (int rank : members) keys.push_back(key_of(rank));
  store.set(key_of(my_rank), "");
  try {
    store.wait(keys, timeout);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::deadline) throw;
    std::vector<int> missing;
    for (int rank : members)
      if (!store.check({key_of(rank)})) missing.push_back(rank);
    throw Error(ErrorCode::deadline,
                fmt::format("the group did not form within {} ms (TorchConfig.timeout_s): rank {} did not come. Do all "
                            "ranks call the same collective operations (prepare_model() is one)?",
                            timeout.count(), fmt::join(missing, ", ")),
                my_rank);
  }
}

}  // namespace troupe
