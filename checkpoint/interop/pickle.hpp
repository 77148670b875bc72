// SPDX-License-Identifier: Apache-2.0
// The part of Python's pickle that state dicts need, read as data: nothing is imported or called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <troupe/tensor_data.hpp>

namespace troupe::detail {

struct PickleValue;

struct PickleList {
  std::vector<PickleValue*> items;
  bool is_tuple = false;
};
struct PickleDict {
  std::vector<std::pair<PickleValue*, PickleValue*>> items;
};
/// A name such as "collections.OrderedDict".
struct PickleGlobal {
  std::string name;
};
/// Bytes that lie elsewhere in the file.
struct PickleStorage {
  DType dtype = DType::uint8;
  std::string key;
  std::uint64_t count = 0;   ///< elements
  std::uint64_t offset = 0;  ///< of a view (legacy files), in elements
};
struct PickleTensor {
  const PickleStorage* storage = nullptr;
  DType dtype = DType::uint8;
  std::int64_t offset = 0;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> strides;
};

struct PickleValue {
  /// An int is unsigned only if it does not fit otherwise.
  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, PickleList, PickleDict,
               PickleGlobal, PickleStorage, PickleTensor>
      data;

  template <class T>
  const T* as() const {
    return std::get_if<T>(&data);
  }
  /// "a list", "the class x.y".
  std::string describe() const;
};

/// Reads one pickle from the front of `bytes` and removes it. Values live as long as the reader; they may hold each
/// other in circles. Throws invalid_argument: for operations and globals that are not known to be harmless, and for
/// bytes that no pickler writes.
class PickleReader {
public:
  PickleValue* read(std::string_view& bytes);
  /// Key and bytes of an element of every storage that was met.
  std::vector<std::pair<std::string, std::size_t>> storage_sizes() const;

private:
  friend struct PickleOperations;
  PickleValue* add(PickleValue value);

  std::deque<PickleValue> values_;  ///< in one place: destroying deep nesting must not recurse
};

/// What the globals and persistent ids of torch.save() stand for. Throw invalid_argument that names what is refused.
void require_known_global(const std::string& name);
PickleValue call_global(const std::string& name, const PickleList& arguments);
PickleValue load_persistent(const PickleValue& id);

}  // namespace troupe::detail
