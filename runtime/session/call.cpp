// SPDX-License-Identifier: Apache-2.0
#include <troupe/call.hpp>

#include <troupe/error.hpp>

namespace troupe::detail {

void* require_object_of(const ObjectBox* box, const void* type) {
  if (!box)
    throw Error(ErrorCode::invalid_state,
                "the call takes an object, but the workers hold none: start them with trainer.start<Class>(args...)");
  if (box->type != type)
    throw Error(ErrorCode::invalid_state,
                "the call takes an object of another type than the one the workers were started with");
  return box->object;
}

}  // namespace troupe::detail
