// SPDX-License-Identifier: Apache-2.0
#include "backends/torch/gloo_collective.hpp"

#include <ATen/Functions.h>

#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/reduce_loops.hpp"
#include "backends/torch/torch_compat.hpp"

namespace troupe {
namespace {

/// Waits for an operation; what Gloo throws after a peer has gone becomes GroupLost.
void finish_work(const GlooGroup& group, const c10::intrusive_ptr<c10d::Work>& work) {
  try {
    work->wait();
  } catch (const std::exception& error) {
    const std::string_view text = error.what();
    if (!group.aborted() && text.find("imed out") != std::string_view::npos)
      throw Error(ErrorCode::deadline, fmt::format("a collective operation took too long (timeout_s): {}", text),
                  group.rank());
    throw GroupLost(fmt::format("another rank is gone, or the run is being stopped ({})", text));
  }
}

/// As what Gloo sums it. Halves are summed as floats, as over shared memory; Gloo knows no short integers.
at::ScalarType sum_type(at::ScalarType type) {
  if (type == at::kHalf || type == at::kBFloat16) return at::kFloat;
  return type == at::kShort ? at::kInt : type;
}

/// As what gradients travel: half of the bytes is what half precision is for.
at::ScalarType wire_type(at::ScalarType type) {
  return type == at::kBFloat16 && !torch_compat::gloo_sums_bfloat16 ? at::kFloat : type;
}

/// The same memory as bytes, which Gloo moves whatever they are.
at::Tensor as_bytes(const at::Tensor& flat) {
  return at::from_blob(flat.data_ptr(), {static_cast<std::int64_t>(flat.nbytes())}, at::kByte);
}

/// Gloo's own threads carry it while backward() goes on.
class GlooBuffer : public ReduceBuffer {
public:
  GlooBuffer(std::shared_ptr<GlooGroup> group, std::int64_t elements, at::ScalarType type)
      : group_(std::move(group)), tensor_(at::zeros({elements}, at::TensorOptions(type))) {}
  at::Tensor tensor() const override { return tensor_; }
  void start(double scale) override {
    scale_ = scale;
    sent_ = {tensor_.to(wire_type(tensor_.scalar_type()))};  // the tensor itself, mostly
    work_ = group_->process_group()->allreduce(sent_);
  }
  void poke() override {}
  void finish() override {
    if (!work_) return;
    finish_work(*group_, work_);
    work_.reset();
    if (scale_ != 1.0) sent_.front().mul_(scale_);
    if (!sent_.front().is_same(tensor_)) tensor_.copy_(sent_.front());
  }

private:
  std::shared_ptr<GlooGroup> group_;
  at::Tensor tensor_;
  std::vector<at::Tensor> sent_;
  c10::intrusive_ptr<c10d::Work> work_;
  double scale_ = 1;
};

}  // namespace

std::unique_ptr<ReduceBuffer> GlooCollective::make_buffer(std::int64_t elements, at::ScalarType type) {
  wait_for_all(Operation(Operation::Kind::make_buffer, type, {elements}));
  return std::make_unique<GlooBuffer>(group_, elements, type);
}

void GlooCollective::gather(const at::Tensor& flat, const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> input{as_bytes(flat)};
  std::vector<std::vector<at::Tensor>> output(1);
  for (const auto& one : all) output.front().push_back(as_bytes(one));
  finish_work(*group_, group_->process_group()->allgather(output, input));
}

void GlooCollective::wait_for_all(const Operation& operation) {
  auto words = operation.words();
  const auto count = static_cast<std::int64_t>(words.size());
  std::vector<at::Tensor> all;
  for (int other = 0; other < size(); ++other) all.push_back(at::empty({count}, at::kLong));
  gather(at::from_blob(words.data(), {count}, at::kLong), all);
  std::vector<Operation::Words> notes(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) std::memcpy(notes[i].data(), all[i].data_ptr(), sizeof notes[i]);
  std::vector<int> ranks(all.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  Operation::require_equal(notes, ranks, rank());
}

void GlooCollective::reduce_flat(const at::Tensor& flat, Reduce reduce, double scale, const Operation& operation) {
  wait_for_all(operation);
  if (flat.numel() == 0) return;
  if (reduce == Reduce::sum) {
    std::vector<at::Tensor> sent{flat.to(sum_type(flat.scalar_type()))};
    finish_work(*group_, group_->process_group()->allreduce(sent));
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

void GlooCollective::broadcast_flat(const at::Tensor& flat, int root, const Operation& operation) {
  wait_for_all(operation);
  if (flat.numel() == 0) return;
  std::vector<at::Tensor> tensors{as_bytes(flat)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  finish_work(*group_, group_->process_group()->broadcast(tensors, options));
}

void GlooCollective::gather_flat(const at::Tensor& flat, const std::vector<at::Tensor>& all,
                                 const Operation& operation) {
  wait_for_all(operation);
  if (flat.numel() > 0) gather(flat, all);
}

}  // namespace troupe
