// SPDX-License-Identifier: Apache-2.0
// Operations over all workers of the group. Every worker calls the same ones in the same order with tensors of the same
// type and shape; on the CPU, what differs is an error that says who called what. All throw GroupLost when a worker is
// gone. With one worker they give what they were given.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include <troupe/json.hpp>

namespace troupe::train::torch {

enum class Reduce { sum, mean, min, max };

/// The sum, mean, smallest or largest over all workers, element by element, in place and returned. Every worker gets
/// the same bits. Means are of float types; truth values have min (all) and max (any). On the CPU, NaN wins over every
/// number.
at::Tensor all_reduce(at::Tensor tensor, Reduce reduce = Reduce::sum);
/// The values of `root`, in place and returned.
at::Tensor broadcast(at::Tensor tensor, int root = 0);
/// One tensor a worker, in rank order; all workers pass the same shape and type.
std::vector<at::Tensor> all_gather(const at::Tensor& tensor);
/// This worker's piece of the sum; the first dimension is cut into equal pieces, one a worker.
at::Tensor reduce_scatter(const at::Tensor& tensor);
/// Returns when all workers have called it.
void barrier();

/// JSON values of all workers, in rank order, and the one of `root`.
std::vector<Json> all_gather_json(const Json& value);
Json broadcast_json(const Json& value, int root = 0);

}  // namespace troupe::train::torch
