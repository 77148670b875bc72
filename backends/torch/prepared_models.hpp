// SPDX-License-Identifier: Apache-2.0
// The models that prepare_model() has prepared, and their reducers. A reducer belongs to one group: when a group is
// lost and another is formed, each model gets a new one, and what the old one was in the middle of goes with it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <troupe/torch_model.hpp>

#include "backends/torch/collective.hpp"
#include "runtime/session/session.hpp"

namespace troupe {

class Reducer;
using Module = ::torch::nn::Module;

/// What must be the same on all ranks, as text.
std::string describe_model(const Module& module, const train::torch::PrepareModelOptions& options);

/// Of all ranks of this process. Each entry goes with its model, at the latest when another is prepared; reducers and
/// the memory they hold go with their group.
class PreparedModels {
public:
  static PreparedModels& instance();

  /// Makes the reducer if there is a collective, which is collective then.
  void add(detail::RankData& rank, const std::shared_ptr<Module>& module,
           const train::torch::PrepareModelOptions& options, const std::shared_ptr<Collective>& collective);
  /// That model, and those that are no more: before another needs the room.
  void forget(const Module* module);
  /// Null if there is none, or nobody to reduce with.
  std::shared_ptr<Reducer> find(const Module* module);

  /// The group of a rank is left: its models go on alone, with the gradients they have.
  void release(const detail::RankData& rank);
  /// The group of a rank is lost in the middle of something: its models keep no reducer and no gradients.
  void detach(const detail::RankData& rank);
  /// New reducers for all models of a rank, in the order in which they were prepared; null: none are needed.
  /// Collective.
  void attach(detail::RankData& rank, const std::shared_ptr<Collective>& collective);
  /// Of the models of a rank, in that order: ranks that attach theirs together must agree.
  std::vector<std::string> descriptions(const detail::RankData& rank);
  /// Those of all models of the rank whose gradients are averaged.
  std::set<const at::TensorImpl*> averaged_parameters(const detail::RankData& rank);
  /// Whether a model of the rank has buffers that each rank changes for itself.
  bool has_own_buffers(const detail::RankData& rank);
  /// Whether a model of the rank was prepared with check_gradients.
  bool checks_gradients(const detail::RankData& rank);

private:
  struct Entry {
    std::weak_ptr<Module> module;
    const detail::RankData* rank = nullptr;
    std::uint64_t number = 0;  // counts up in the order of preparation
    train::torch::PrepareModelOptions options;
    std::shared_ptr<Reducer> reducer;
  };
  std::vector<std::pair<std::shared_ptr<Module>, Entry>> of(const detail::RankData& rank);
  void check_not_shared(const detail::RankData& rank, const Module& module);
  void set_reducer(const Module* module, std::shared_ptr<Reducer> reducer);

  std::mutex mutex_;
  std::uint64_t next_number_ = 0;
  std::map<const Module*, Entry> entries_;
};

}  // namespace troupe
