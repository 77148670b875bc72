// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/gloo_collective.hpp"

#include <ATen/Functions.h>

#include <cstring>
#include <utility>

#include "backends/torch/reduce_loops.hpp"
#include "backends/torch/torch_compat.hpp"

namespace troupe {
namespace {

/// As what Gloo sums it. Halves are summed as floats, as over shared memory; Gloo knows no short integers.
at::ScalarType sum_type(at::ScalarType type) {
  if (is_half(type)) return at::kFloat;
  return type == at::kShort ? at::kInt : type;
}

/// As what gradients travel: half of the bytes is what half precision is for.
at::ScalarType wire_type(at::ScalarType type) {
  return type == at::kBFloat16 && !torch_compat::gloo_sums_bfloat16 ? at::kFloat : type;
}

/// The same memory as bytes, which Gloo moves whatever they are.
at::Tensor as_bytes(const at::Tensor& flat) {
  return at::from_blob(flat.data_ptr(), {static_cast<std::int64_t>(flat.nbytes())}, [flat](void*) {}, at::kByte);
}

}  // namespace

void GlooBuffer::start(double scale) {
  scale_ = scale_before_sum(tensor_, scale);
  sent_ = {tensor_.to(wire_type(tensor_.scalar_type()))};  // the tensor itself, mostly
  work_ = group_->process_group()->allreduce(sent_);
}

void GlooBuffer::finish() {
  if (!work_) return;
  group_->finish(work_);
  work_.reset();
  if (scale_ != 1.0) sent_.front().mul_(scale_);
  if (!sent_.front().is_same(tensor_)) tensor_.copy_(sent_.front());
}

GlooCollective::GlooCollective(std::shared_ptr<GlooGroup> operations, MakeGroup make_group)
    : group_(std::move(operations)), make_group_(std::move(make_group)), buffers_{make_group_(0)} {}

void GlooCollective::abort() noexcept {
  group_->abort();
  std::lock_guard lock(mutex_);
  aborted_ = true;
  for (const auto& group : buffers_) group->abort();
}

void GlooCollective::separate_buffers() {
  agree(Operation(Operation::Kind::begin_buffers));
  change_group();
}

void GlooCollective::change_group() {
  auto group = make_group_(++groups_);
  std::lock_guard lock(mutex_);
  std::erase_if(buffers_, [](const auto& old) {
    const bool unused = old.use_count() == 1;
    if (unused) old->abort();  // a backward() that failed may have left operations that nobody else takes part in
    return unused;
  });
  if (aborted_) group->abort();
  buffers_.push_back(std::move(group));
}

std::unique_ptr<ReduceBuffer> GlooCollective::make_buffer(std::int64_t elements, at::ScalarType type) {
  wait_for_all(Operation(Operation::Kind::make_buffer, type, {elements}));
  return make_buffer_over(at::zeros({elements}, at::TensorOptions(type)));
}

std::unique_ptr<GlooBuffer> GlooCollective::make_buffer_over(at::Tensor flat) {
  const auto& group = buffers_.back();
  group->process_group();  // now, not in the middle of a backward()
  return std::make_unique<GlooBuffer>(group, std::move(flat));
}

void GlooCollective::gather(const at::Tensor& flat, const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> input{as_bytes(flat)};
  std::vector<std::vector<at::Tensor>> output(1);
  for (const auto& one : all) output.front().push_back(as_bytes(one));
  group_->finish(group_->process_group()->allgather(output, input));
}

/// One small message a rank: Gloo would end the process of a rank whose tensor is too small for what it is sent.
void GlooCollective::agree(const Operation& operation) {
  const auto& words = operation.words();
  const auto count = static_cast<std::int64_t>(words.size());
  const auto mine = at::empty({count}, at::kLong);
  std::memcpy(mine.data_ptr(), words.data(), sizeof words);
  std::vector<at::Tensor> all;
  for (int other = 0; other < size(); ++other) all.push_back(at::empty({count}, at::kLong));
  gather(mine, all);
  std::vector<Operation::Words> notes(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) std::memcpy(notes[i].data(), all[i].data_ptr(), sizeof notes[i]);
  Operation::require_equal(notes, group_->members(), group_->world_rank());
}

void GlooCollective::reduce(const at::Tensor& flat, Reduce reduce, double scale) {
  if (reduce == Reduce::sum) {
    std::vector<at::Tensor> sent{flat.to(sum_type(flat.scalar_type()))};
    group_->finish(group_->process_group()->allreduce(sent));
    if (scale != 1.0) sent.front().mul_(scale);
    if (!sent.front().is_same(flat)) flat.copy_(sent.front());
    return;
  }
  // Gloo's own min and max lose a NaN, or keep it, depending on its rank.
  std::vector<at::Tensor> all;
  for (int other = 0; other < size(); ++other) all.push_back(at::empty_like(flat));
  gather(flat, all);
  with_type(flat.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    std::vector<const T*> from;
    for (const auto& one : all) from.push_back(static_cast<const T*>(one.data_ptr()));
    reduce_in_order(static_cast<T*>(flat.data_ptr()), from, 0, static_cast<std::size_t>(flat.numel()), reduce, 1.0);
  });
}

void GlooCollective::send_to_all(const at::Tensor& flat, int root) {
  std::vector<at::Tensor> tensors{as_bytes(flat)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  group_->finish(group_->process_group()->broadcast(tensors, options));
}

void GlooCollective::reduce_flat(const at::Tensor& flat, Reduce how, double scale, const Operation& operation) {
  agree(operation);
  if (flat.numel() > 0) reduce(flat, how, scale);
}

void GlooCollective::broadcast_flat(const at::Tensor& flat, int root, const Operation& operation) {
  agree(operation);
  if (flat.numel() > 0) send_to_all(flat, root);
}

void GlooCollective::gather_flat(const at::Tensor& flat, const std::vector<at::Tensor>& all,
                                 const Operation& operation) {
  agree(operation);
  if (flat.numel() > 0) gather(flat, all);
}

}  // namespace troupe
