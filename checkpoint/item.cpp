// SPDX-License-Identifier: Apache-2.0
#include <troupe/checkpoint_item.hpp>

#include <cxxabi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ostream>

#include <troupe/checkpoint.hpp>

#include "checkpoint/dictionary.hpp"
#include "checkpoint/packed_value.hpp"

namespace troupe {
namespace {

constexpr std::size_t shown_value_length = 80;

std::string shorten(std::string text) {
  if (text.size() > shown_value_length) text = text.substr(0, shown_value_length) + "...";
  return text;
}

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// A list that holds nothing but JSON is itself a JSON value; any other list is one of items.
bool is_plain(const CheckpointItem& item) { return item.kind() == CheckpointItem::Kind::value; }

bool holds_object(const Json& json) {
  return json.is_object() || (json.is_array() && std::any_of(json.begin(), json.end(), holds_object));
}

std::size_t json_size(const Json& json) {
  std::size_t size = sizeof(Json);
  if (json.is_string()) size += json.get_ref<const std::string&>().size();
  if (json.is_array())
    for (const auto& element : json) size += json_size(element);
  return size;
}

std::string_view kind_of_json(const Json& json) {
  return json.is_array() ? "list" : json.is_boolean() ? "bool" : json.is_number() ? "number" : json.type_name();
}

}  // namespace

CheckpointItem::CheckpointItem(std::initializer_list<detail::CheckpointBrace> braces)
    : CheckpointItem(detail::CheckpointBrace(braces).item()) {}

CheckpointItem CheckpointItem::of_tensor(TensorData tensor) {
  CheckpointItem item;
  item.storage_ = std::move(tensor);
  return item;
}

CheckpointItem CheckpointItem::of_dictionary(const Checkpoint& dictionary) {
  static const auto empty = std::make_shared<const detail::Dictionary>();
  CheckpointItem item;
  item.storage_ = dictionary.entries_ ? dictionary.entries_ : empty;
  return item;
}

CheckpointItem CheckpointItem::of_list(std::vector<CheckpointItem> elements) {
  CheckpointItem item;
  if (std::all_of(elements.begin(), elements.end(), is_plain)) {
    auto array = Json::array();
    for (auto& element : elements) array.push_back(std::get<Json>(std::move(element.storage_)));
    item.storage_ = std::move(array);
  } else {
    item.storage_ = std::make_shared<const List>(std::move(elements));
  }
  return item;
}

CheckpointItem CheckpointItem::of_entries(std::vector<CheckpointEntry> entries) {
  auto dictionary = std::make_shared<detail::Dictionary>();
  for (auto& [key, value] : entries) {
    if (dictionary->find(key) < dictionary->entries().size())
      throw Error(ErrorCode::invalid_argument, fmt::format("the key \"{}\" stands twice in a dictionary", key));
    dictionary->set(std::move(key), std::move(value));
  }
  CheckpointItem item;
  item.storage_ = std::shared_ptr<const detail::Dictionary>(std::move(dictionary));
  return item;
}

CheckpointItem CheckpointItem::of_json(const Json& json) {
  if (json.is_object()) {
    Checkpoint dictionary;
    for (const auto& [key, value] : json.items()) dictionary.set(key, of_json(value));
    return of_dictionary(dictionary);
  }
  if (json.is_array() && holds_object(json)) {
    List elements;
    for (const auto& element : json) elements.push_back(of_json(element));
    return of_list(std::move(elements));
  }
  CheckpointItem item;
  item.storage_ = json;
  return item;
}

CheckpointItem CheckpointItem::of_packed(std::string type, std::uint32_t version, std::string bytes) {
  CheckpointItem item;
  item.storage_ =
      std::make_shared<const detail::PackedValue>(detail::PackedValue{std::move(type), version, std::move(bytes)});
  return item;
}

std::size_t CheckpointItem::size() const {
  switch (kind()) {
    case Kind::value: {
      const auto& json = std::get<Json>(storage_);
      return json.is_array() ? json.size() : 1;
    }
    case Kind::dictionary:
      return std::get<2>(storage_)->entries().size();
    case Kind::list:
      return std::get<3>(storage_)->size();
    default:
      return 1;
  }
}

CheckpointItem CheckpointItem::at(std::size_t index) const {
  if (!is_list()) throw mismatch("a list");
  if (index >= size())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the list has {} elements, so none at index {} (the first is 0)", size(), index));
  return kind() == Kind::list ? (*std::get<3>(storage_))[index] : of_json(std::get<Json>(storage_)[index]);
}

std::span<const CheckpointEntry> CheckpointItem::entries() const {
  if (!is_dictionary()) throw mismatch("a dictionary");
  return std::get<2>(storage_)->entries();
}

const CheckpointItem& CheckpointItem::operator[](std::string_view key) const {
  if (!is_dictionary()) throw mismatch("a dictionary");
  const auto& dictionary = *std::get<2>(storage_);
  const auto place = dictionary.find(key);
  if (place < dictionary.entries().size()) return dictionary.entries()[place].second;
  return as<Checkpoint>()[key];  // throws the error with the keys
}

std::uint32_t CheckpointItem::packed_version() const {
  if (!is_packed()) throw mismatch("a packed value");
  return std::get<4>(storage_)->version;
}

const std::string& CheckpointItem::packed_type() const {
  if (!is_packed()) throw mismatch("a packed value");
  return std::get<4>(storage_)->type;
}

const std::string& CheckpointItem::packed_bytes(std::string_view type) const {
  if (!is_packed()) throw mismatch(fmt::format("a packed {}", type));
  const auto& packed = *std::get<4>(storage_);
  if (!type.empty() && packed.type != type)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the item is a packed {}, which cannot be unpacked as {}. If the type was only renamed, "
                            "unpack it under its old name: unpack<T>(version, \"{}\")",
                            packed.type, type, packed.type));
  return packed.bytes;
}

Json CheckpointItem::to_json() const {
  switch (kind()) {
    case Kind::value:
      return std::get<Json>(storage_);
    case Kind::dictionary:
      return as<Checkpoint>().to_json();
    case Kind::list: {
      auto array = Json::array();
      for (const auto& element : *std::get<3>(storage_)) array.push_back(element.to_json());
      return array;
    }
    default:
      throw mismatch("JSON");
  }
}

std::size_t CheckpointItem::bytes() const {
  switch (kind()) {
    case Kind::value:
      return sizeof(CheckpointItem) + json_size(std::get<Json>(storage_));
    case Kind::tensor:
      return sizeof(CheckpointItem) + std::get<TensorData>(storage_).bytes();
    case Kind::dictionary:
      return sizeof(CheckpointItem) + as<Checkpoint>().bytes();
    case Kind::packed:
      return sizeof(CheckpointItem) + std::get<4>(storage_)->bytes.size();
    case Kind::list:
      break;
  }
  std::size_t sum = sizeof(CheckpointItem);
  for (const auto& element : *std::get<3>(storage_)) sum += element.bytes();
  return sum;
}

std::string CheckpointItem::describe() const {
  switch (kind()) {
    case Kind::value: {
      const auto& json = std::get<Json>(storage_);
      return json.is_null() ? "null" : fmt::format("the {} {}", kind_of_json(json), shorten(dump(json)));
    }
    case Kind::tensor:
      return fmt::format("the tensor {}", std::get<TensorData>(storage_).describe());
    case Kind::dictionary:
      return fmt::format("a dictionary of {} entries", size());
    case Kind::list:
      return fmt::format("a list of {} elements", size());
    case Kind::packed:
      break;
  }
  return fmt::format("a packed {}", packed_type());
}

detail::ItemMismatch CheckpointItem::mismatch(std::string_view wanted) const {
  return {describe(), std::string(wanted)};
}

bool operator==(const CheckpointItem& left, const CheckpointItem& right) {
  using Kind = CheckpointItem::Kind;
  if (left.kind() != right.kind()) return false;
  switch (left.kind()) {
    case Kind::value:
      return std::get<Json>(left.storage_) == std::get<Json>(right.storage_);
    case Kind::tensor:
      return std::get<TensorData>(left.storage_) == std::get<TensorData>(right.storage_);
    case Kind::dictionary:
      return left.as<Checkpoint>() == right.as<Checkpoint>();
    case Kind::list:
      return *std::get<3>(left.storage_) == *std::get<3>(right.storage_);
    case Kind::packed:
      break;
  }
  return *std::get<4>(left.storage_) == *std::get<4>(right.storage_);
}

std::ostream& operator<<(std::ostream& out, const CheckpointItem& item) {
  switch (item.kind()) {
    case CheckpointItem::Kind::value:
      return out << dump(std::get<Json>(item.storage_));
    case CheckpointItem::Kind::tensor:
      return out << std::get<TensorData>(item.storage_).describe();
    case CheckpointItem::Kind::dictionary:
      return out << item.as<Checkpoint>();
    case CheckpointItem::Kind::packed: {
      const auto& packed = *std::get<4>(item.storage_);
      return out << fmt::format("<{} version {}, {} bytes>", packed.type, packed.version, packed.bytes.size());
    }
    case CheckpointItem::Kind::list:
      break;
  }
  const char* separator = "[";
  for (const auto& element : *std::get<3>(item.storage_)) {
    out << separator << element;
    separator = ",";
  }
  return out << ']';
}

TensorData CheckpointTraits<TensorData>::from_item(const CheckpointItem& item) {
  if (!item.is_tensor()) throw item.mismatch("a tensor");
  return std::get<TensorData>(item.storage_);
}

Checkpoint CheckpointTraits<Checkpoint>::from_item(const CheckpointItem& item) {
  if (!item.is_dictionary()) throw item.mismatch("a dictionary");
  return Checkpoint(std::get<2>(item.storage_));
}

namespace detail {

CheckpointBrace::CheckpointBrace(std::initializer_list<CheckpointBrace> braces)
    : is_pair_(braces.size() == 2 && braces.begin()->item_.is_string()) {
  if (std::all_of(braces.begin(), braces.end(), [](const CheckpointBrace& brace) { return brace.is_pair(); })) {
    item_ = CheckpointItem::of_dictionary(Checkpoint(braces));
    return;
  }
  std::vector<CheckpointItem> elements;
  for (const auto& brace : braces) elements.push_back(brace.item_);
  item_ = CheckpointItem::of_list(std::move(elements));
}

std::string type_name(const std::type_info& type) {
  if (type == typeid(std::string)) return "std::string";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? name.get() : type.name();
}

}  // namespace detail
}  // namespace troupe
