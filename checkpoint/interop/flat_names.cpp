// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/interop/flat_names.hpp"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>
#include <string_view>

#include <troupe/error.hpp>

#include "checkpoint/record_limits.hpp"

namespace troupe::detail {
namespace {

constexpr const char* tensor_mark = "__tensor__";
constexpr const char* float_mark = "__float__";  // JSON has no "nan" and "inf"

bool is_mark(std::string_view key) { return key == tensor_mark || key == float_mark; }

Json with_marks(const Json& value) {
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    return {{float_mark, fmt::format("{}", value.get<double>())}};
  if (!value.is_array()) return value;
  Json list = Json::array();
  for (const auto& element : value) list.push_back(with_marks(element));
  return list;
}

class Flattener {
public:
  Json add(const CheckpointItem& item, const std::string& name) {
    switch (item.kind()) {
      case CheckpointItem::Kind::tensor:
        if (!names_.insert(name).second)
          refuse(name, "two tensors would have this name; rename one of the keys it is made of");
        flat_.tensors.emplace_back(name, item.as<TensorData>());
        return {{tensor_mark, name}};
      case CheckpointItem::Kind::dictionary:
        return add_entries(item.entries(), name + ".");
      case CheckpointItem::Kind::list: {
        Json list = Json::array();
        for (std::size_t i = 0; i < item.size(); ++i) list.push_back(add(item.at(i), fmt::format("{}.{}", name, i)));
        return list;
      }
      case CheckpointItem::Kind::packed:
        refuse(name,
               fmt::format("a packed {} has no form outside C++; export a part of the checkpoint, or leave it out",
                           item.packed_type()));
      case CheckpointItem::Kind::value:
        return with_marks(item.to_json());
    }
    throw Error(ErrorCode::internal, "an item of a new kind");
  }

  Json add_entries(std::span<const CheckpointEntry> entries, const std::string& prefix) {
    Json object = Json::object();
    auto& members = object.get_ref<Json::object_t&>();  // object[key] would search all keys, which are different ones
    for (const auto& [key, item] : entries) {
      if (is_mark(key)) refuse(prefix + key, "this key is taken");
      members.emplace_back(key, add(item, prefix + key));
    }
    return object;
  }

  FlatCheckpoint take(Json values) {
    flat_.values = std::move(values);
    return std::move(flat_);
  }

private:
  [[noreturn]] static void refuse(const std::string& name, const std::string& why) {
    throw Error(ErrorCode::invalid_argument, fmt::format("\"{}\" cannot be exported: {}", name, why));
  }

  FlatCheckpoint flat_;
  std::set<std::string> names_;
};

class Builder {
public:
  explicit Builder(const FlatCheckpoint& flat) {
    for (const auto& [name, tensor] : flat.tensors) tensors_.emplace(name, &tensor);
  }

  CheckpointItem build(const Json& value, int depth = 0) {
    if (depth > deepest_nesting) refuse("it is nested too deeply");
    if (value.is_array()) {
      std::vector<CheckpointItem> elements;
      for (const auto& element : value) elements.push_back(build(element, depth + 1));
      return CheckpointItem::of_list(std::move(elements));
    }
    if (!value.is_object()) return CheckpointItem::of_json(value);
    if (value.size() == 1 && is_mark(value.begin().key()))
      return value.begin().key() == tensor_mark ? tensor(value.front()) : number(value.front());
    std::vector<CheckpointEntry> entries;
    for (const auto& [key, element] : value.items()) entries.emplace_back(key, build(element, depth + 1));
    return CheckpointItem::of_entries(std::move(entries));
  }

  void require_all_used(std::size_t count) const {
    if (used_.size() != count) refuse("tensors are there that it does not name");
  }

private:
  CheckpointItem tensor(const Json& name) {
    const auto found = name.is_string() ? tensors_.find(name.get<std::string>()) : tensors_.end();
    if (found == tensors_.end()) refuse(fmt::format("it names a tensor {} that is not there", name.dump()));
    used_.insert(found->first);
    return CheckpointItem::of_tensor(*found->second);
  }
  static CheckpointItem number(const Json& text) {
    for (const double value : {std::nan(""), HUGE_VAL, -HUGE_VAL})
      if (text == fmt::format("{}", value)) return value;
    if (text == "-nan") return -std::nan("");
    refuse(fmt::format("{} is not a number", text.dump()));
  }
  [[noreturn]] static void refuse(const std::string& why) {
    throw Error(ErrorCode::invalid_argument, fmt::format("the description of the checkpoint is wrong: {}", why));
  }

  std::map<std::string, const TensorData*> tensors_;
  std::set<std::string> used_;
};

}  // namespace

FlatCheckpoint to_flat_names(const Checkpoint& checkpoint) {
  Flattener flattener;
  auto values = flattener.add_entries({checkpoint.begin(), checkpoint.end()}, "");
  bool only_tensors = true;
  for (const auto& [key, item] : checkpoint) only_tensors = only_tensors && item.is_tensor();
  return flattener.take(only_tensors ? Json() : std::move(values));
}

Checkpoint from_flat_names(const FlatCheckpoint& flat) {
  if (flat.values.is_null()) {
    std::vector<CheckpointEntry> entries;
    for (const auto& [name, tensor] : flat.tensors) entries.emplace_back(name, tensor);
    return CheckpointItem::of_entries(std::move(entries)).as<Checkpoint>();
  }
  Builder builder(flat);
  auto item = builder.build(flat.values);
  builder.require_all_used(flat.tensors.size());
  return item.as<Checkpoint>();
}

}  // namespace troupe::detail
