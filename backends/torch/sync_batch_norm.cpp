// SPDX-License-Identifier: Apache-2.0
// Every rank sends mean, squared deviations and count of its batch; all combine them in rank order, so all normalize
// with the same bits. backward() needs two sums over all ranks: of the gradients, and of the gradients times
// deviations.
#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>
#include <troupe/torch_nn.hpp>

#include <fmt/format.h>
#include <troupe/error.hpp>

#include "backends/torch/torch_group.hpp"
#include "runtime/session/session.hpp"

namespace troupe::train::torch {
namespace {

namespace autograd = ::torch::autograd;

/// Of a whole batch, per channel, as doubles.
struct Moments {
  at::Tensor mean;
  at::Tensor squares;  // sum of squared deviations
  double count = 0;    // of values a channel
};

/// (N, C, ...) as (C, values).
at::Tensor by_channel(const at::Tensor& input) { return input.transpose(0, 1).flatten(1); }

/// One value a channel, in the shape that broadcasts over (N, C, ...).
at::Tensor over_channels(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = -1;
  return values.view(shape);
}

Moments local_moments(const at::Tensor& input) {
  const auto values = by_channel(input);
  const auto options = input.options().dtype(at::kDouble);
  if (values.size(1) == 0) return {at::zeros({input.size(1)}, options), at::zeros({input.size(1)}, options), 0};
  const auto [variance, mean] = at::var_mean(values, {1}, /*unbiased=*/false);
  const auto count = static_cast<double>(values.size(1));
  return {mean.to(at::kDouble), variance.to(at::kDouble) * count, count};
}

Moments combine(const Moments& mine, Collective& collective) {
  const auto channels = mine.mean.size(0);
  const auto packed = at::cat({mine.mean, mine.squares, at::full({1}, mine.count, mine.mean.options())});
  Moments all;
  for (const auto& other : collective.all_gather(packed)) {
    const auto count = other[2 * channels].item<double>();
    if (count == 0) continue;
    const auto mean = other.narrow(0, 0, channels);
    const auto squares = other.narrow(0, channels, channels);
    if (all.count == 0) {
      all = {mean, squares, count};
      continue;
    }
    const auto total = all.count + count;
    const auto delta = mean - all.mean;
    all = {all.mean + delta * (count / total), all.squares + squares + delta * delta * (all.count * count / total),
           total};
  }
  if (all.count < 2)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("SyncBatchNorm needs more than one value a channel over all workers, got {}", all.count),
                collective.rank());
  return all;
}

/// Null where there is no group, and a BatchNorm does. Throws while this rank joins a live run, and on a thread that
/// is bound to no rank though it may belong to one.
std::shared_ptr<TorchGroup> group_of_rank() {
  const auto session = troupe::detail::Session::current();
  const bool is_refused = session ? session->joining() : TorchGroup::any_on_threads();
  return is_refused ? TorchGroup::current("SyncBatchNorm") : TorchGroup::find();
}

/// Normalized input, without weight and bias, which autograd can do by itself.
class Normalize : public autograd::Function<Normalize> {
public:
  static at::Tensor forward(autograd::AutogradContext* context, const at::Tensor& input, const at::Tensor& mean,
                            const at::Tensor& inverse, double count, const std::shared_ptr<Collective>& collective) {
    const auto normalized = (input - over_channels(mean, input)) * over_channels(inverse, input);
    context->save_for_backward({normalized, inverse});
    context->saved_data["count"] = count;
    context->saved_data["collective"] = at::IValue::make_capsule(c10::make_intrusive<Holder>(collective));
    return normalized;
  }

  static autograd::variable_list backward(autograd::AutogradContext* context, autograd::variable_list gradients) {
    if (at::GradMode::is_enabled())
      throw Error(ErrorCode::invalid_state, "SyncBatchNorm has no second derivative: backward() without create_graph");
    const auto saved = context->get_saved_variables();
    const auto& normalized = saved[0];
    const auto& inverse = saved[1];
    const auto& gradient = gradients[0];
    auto sums = at::stack({by_channel(gradient).sum(1), by_channel(gradient * normalized).sum(1)});
    const auto holder = context->saved_data["collective"].toCapsule();
    static_cast<Holder*>(holder.get())->collective->all_reduce(sums);
    sums.div_(context->saved_data["count"].toDouble());
    const auto result = (gradient - over_channels(sums[0], gradient) - normalized * over_channels(sums[1], gradient)) *
                        over_channels(inverse, gradient);
    return {result, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }

private:
  struct Holder : ::torch::CustomClassHolder {
    explicit Holder(std::shared_ptr<Collective> given) : collective(std::move(given)) {}
    std::shared_ptr<Collective> collective;
  };
};

}  // namespace

SyncBatchNormImpl::SyncBatchNormImpl(const ::torch::nn::BatchNormOptions& batch_norm_options)
    : options(batch_norm_options) {
  SyncBatchNormImpl::reset();
}

void SyncBatchNormImpl::reset() {
  const auto features = options.num_features();
  const bool affine = options.affine();
  weight = register_parameter("weight", affine ? at::empty({features}) : at::Tensor(), affine);
  bias = register_parameter("bias", affine ? at::empty({features}) : at::Tensor(), affine);
  const bool tracked = options.track_running_stats();
  running_mean = register_buffer("running_mean", tracked ? at::zeros({features}) : at::Tensor());
  running_var = register_buffer("running_var", tracked ? at::ones({features}) : at::Tensor());
  num_batches_tracked = register_buffer("num_batches_tracked", tracked ? at::zeros({}, at::kLong) : at::Tensor());
  reset_parameters();
}

void SyncBatchNormImpl::reset_running_stats() {
  if (!options.track_running_stats()) return;
  running_mean.zero_();
  running_var.fill_(1);
  num_batches_tracked.zero_();
}

void SyncBatchNormImpl::reset_parameters() {
  reset_running_stats();
  if (!options.affine()) return;
  at::NoGradGuard no_grad;
  weight.fill_(1);
  bias.zero_();
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << "troupe::train::torch::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats() << ")";
}

/// The weight of this batch in the running statistics.
double SyncBatchNormImpl::next_momentum() {
  if (!is_training() || !options.track_running_stats()) return 0;
  num_batches_tracked.add_(1);
  return options.momentum() ? *options.momentum() : 1.0 / num_batches_tracked.item<double>();
}

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  if (input.dim() < 2 || input.size(1) != options.num_features())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("SyncBatchNorm of {} features got an input of shape [{}]: expected (N, {}, ...)",
                            options.num_features(), fmt::join(input.sizes(), ", "), options.num_features()));
  const double momentum = next_momentum();
  std::shared_ptr<Collective> collective;
  if (is_training())
    if (auto group = group_of_rank(); group && group->size() > 1) collective = group->collective();
  if (!collective)
    return at::batch_norm(input, weight, bias, running_mean, running_var,
                          is_training() || !options.track_running_stats(), momentum, options.eps(), false);

  // Halves are normalized as floats, like the statistics of libtorch's own.
  const auto type = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto values = input.to(type);
  const auto moments = [&] {
    at::NoGradGuard no_grad;
    return combine(local_moments(values.detach()), *collective);
  }();
  const auto variance = moments.squares / moments.count;
  if (options.track_running_stats()) {
    at::NoGradGuard no_grad;
    running_mean.mul_(1 - momentum).add_(moments.mean.to(running_mean.scalar_type()), momentum);
    running_var.mul_(1 - momentum)
        .add_((moments.squares / (moments.count - 1)).to(running_var.scalar_type()), momentum);
  }
  auto output = Normalize::apply(values, moments.mean.to(type), (variance + options.eps()).rsqrt().to(type),
                                 moments.count, collective);
  if (weight.defined()) output = output * over_channels(weight, input) + over_channels(bias, input);
  return output.to(input.scalar_type());
}

}  // namespace troupe::train::torch
