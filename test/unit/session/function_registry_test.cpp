// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <troupe/error.hpp>
#include <troupe/fn.hpp>

namespace troupe::test {
namespace {

using detail::AnyEntry;
using detail::EntryKind;

int train_func() { return 1; }

ErrorCode refusal_of(const detail::FunctionId& id, EntryKind kind) {
  try {
    detail::resolve(id, kind);
  } catch (const Error& error) {
    return error.code();
  }
  return ErrorCode::internal;
}

}  // namespace

DOCTEST_TEST_CASE("a worker runs what its own program has registered, and nothing else") {
  const auto entry = reinterpret_cast<AnyEntry>(fn<train_func>.entry());
  const auto id = detail::identify(entry);
  DOCTEST_CHECK((detail::resolve(id, EntryKind::train) == entry));
  auto other_build = id;
  other_build.build.back() = other_build.build.back() == '0' ? '1' : '0';
  auto other_place = id;
  other_place.offset += 1;
  DOCTEST_CHECK(refusal_of(other_build, EntryKind::train) == ErrorCode::invalid_argument);
  DOCTEST_CHECK(refusal_of(other_place, EntryKind::train) == ErrorCode::invalid_argument);
  DOCTEST_CHECK(refusal_of(id, EntryKind::call) == ErrorCode::invalid_argument);
  DOCTEST_CHECK(refusal_of({}, EntryKind::train) == ErrorCode::invalid_argument);
}

}  // namespace troupe::test
