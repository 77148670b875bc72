// SPDX-License-Identifier: Apache-2.0
// The parameters of a model, each once: named_parameters() names those of a module that is registered twice twice.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace troupe {

/// Under the first of its names each.
inline std::vector<std::pair<std::string, at::Tensor>> distinct_parameters(const ::torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> found;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters())
    if (seen.insert(item.value().unsafeGetTensorImpl()).second) found.emplace_back(item.key(), item.value());
  return found;
}

}  // namespace troupe
