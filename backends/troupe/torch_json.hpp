// SPDX-License-Identifier: Apache-2.0
// What troupe knows of libtorch's types: a tensor is not a metric (refused at compile time, with the fix in the text),
// a scalar is one. Includes nothing of torch.
#pragma once

#include <type_traits>

#include <troupe/error.hpp>
#include <troupe/json.hpp>

namespace at {
class Tensor;
}
namespace c10 {
class Scalar;
}

namespace troupe::detail {
template <class>
inline constexpr bool is_never_a_metric = false;

template <class Scalar>
void scalar_to_json(Json& json, const Scalar& scalar) {
  if (scalar.isBoolean())
    json = scalar.toBool();
  else if (scalar.isIntegral(false))
    json = scalar.toLong();
  else if (scalar.isFloatingPoint())
    json = scalar.toDouble();
  else
    throw Error(ErrorCode::invalid_argument, "a complex scalar is not a JSON value: report its parts");
}

}  // namespace troupe::detail

template <>
struct nlohmann::adl_serializer<at::Tensor> {
  template <class BasicJson>
  static void to_json(BasicJson& /*json*/, const at::Tensor& /*tensor*/) {
    static_assert(
        troupe::detail::is_never_a_metric<BasicJson>,
        "troupe: a tensor is not a JSON value; for a metric take its number out with "
        "tensor.item<double>(), or .item<int64_t>(); all of it goes into a troupe::Checkpoint (a whole model: "
        "train::torch::state_dict(model))");
  }
  template <class BasicJson>
  static void from_json(const BasicJson& /*json*/, at::Tensor& /*tensor*/) {
    static_assert(troupe::detail::is_never_a_metric<BasicJson>,
                  "troupe: a tensor cannot be read from a JSON value; read numbers and make the tensor with "
                  "torch::tensor(...)");
  }
};

template <>
struct nlohmann::adl_serializer<c10::Scalar> {
  // The second parameter is a template's, so that the class need not be complete here.
  template <class Scalar>
    requires std::is_same_v<Scalar, c10::Scalar>
  static void to_json(troupe::Json& json, const Scalar& scalar) {
    troupe::detail::scalar_to_json(json, scalar);
  }
};
