// SPDX-License-Identifier: Apache-2.0
// How a data loader asks a data set for a batch. For <troupe/torch_data.hpp>.
#pragma once

#include <torch/data/example.h>

#include <concepts>
#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

#include <troupe/error.hpp>

namespace troupe::train::torch::detail {

template <class Data>
concept HasGetBatch = requires(Data& data, at::ArrayRef<std::size_t> indices) { data.get_batch(indices); };
template <class Data>
concept HasGet = requires(Data& data, std::size_t index) { data.get(index); };
/// What prepare_data_loader() takes: a data set whose samples have numbers. (A stream has none.)
template <class Data>
concept BatchSource = requires(const Data& data) { data.size(); } && (HasGetBatch<Data> || HasGet<Data>);

/// Where batches go: get_device() of the calling worker.
c10::Device loader_device();

template <class Data>
std::size_t size_of(const Data& data) {
  if constexpr (requires { data.size().has_value(); }) {
    const auto size = data.size();
    if (!size.has_value())
      throw Error(ErrorCode::invalid_argument,
                  "the data set does not know its size(): samples of a stream cannot be dealt to workers by number");
    return *size;
  } else {
    return static_cast<std::size_t>(data.size());
  }
}

/// Types of the user's own stay where they are.
template <class Other>
Other to_device(Other other, c10::Device /*device*/) {
  return other;
}
inline at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  return tensor.defined() ? tensor.to(device, /*non_blocking=*/true) : tensor;
}
template <class Data, class Target>
::torch::data::Example<Data, Target> to_device(::torch::data::Example<Data, Target> example, c10::Device device) {
  example.data = to_device(std::move(example.data), device);
  if constexpr (!std::is_void_v<Target>) example.target = to_device(std::move(example.target), device);
  return example;
}

/// One batch of many samples.
inline at::Tensor collate(const std::vector<at::Tensor>& samples) { return at::stack(samples); }
inline ::torch::data::Example<> collate(const std::vector<::torch::data::Example<>>& samples) {
  std::vector<at::Tensor> data;
  std::vector<at::Tensor> targets;
  data.reserve(samples.size());
  targets.reserve(samples.size());
  for (const auto& sample : samples) {
    data.push_back(sample.data);
    targets.push_back(sample.target);
  }
  return {at::stack(data), at::stack(targets)};
}
inline ::torch::data::TensorExample collate(const std::vector<::torch::data::TensorExample>& samples) {
  std::vector<at::Tensor> data;
  data.reserve(samples.size());
  for (const auto& sample : samples) data.push_back(sample.data);
  return at::stack(data);
}
/// Other batches are what the data set made of them.
template <class Batch>
Batch collate(Batch batch) {
  return batch;
}

template <class Data>
auto make_batch(Data& data, const std::vector<std::size_t>& indices, c10::Device device) {
  if constexpr (HasGetBatch<Data>) {
    return to_device(collate(data.get_batch(indices)), device);
  } else {
    std::vector<decltype(data.get(indices[0]))> samples;
    samples.reserve(indices.size());
    for (const auto index : indices) samples.push_back(data.get(index));
    return to_device(collate(std::move(samples)), device);
  }
}

}  // namespace troupe::train::torch::detail
