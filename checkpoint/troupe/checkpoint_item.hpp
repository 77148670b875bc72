// SPDX-License-Identifier: Apache-2.0
// One value of a checkpoint: a JSON value, a tensor, a dictionary, a list, or a user's type in binary form.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>

#include <troupe/codec.hpp>
#include <troupe/error.hpp>
#include <troupe/json.hpp>
#include <troupe/tensor_data.hpp>

namespace troupe {

class Checkpoint;
class CheckpointItem;

/// Name and value of an entry of a dictionary.
using CheckpointEntry = std::pair<std::string, CheckpointItem>;

/// Teaches checkpoints a type that is not JSON, such as a tensor library's tensor. Specialize with
/// `static CheckpointItem to_item(const T&)` and `static T from_item(const CheckpointItem&)`; from_item() throws
/// CheckpointItem::mismatch() when the item is something else. Vectors and maps of such a type then work by themselves.
template <class T>
struct CheckpointTraits {};

namespace detail {

class Dictionary;
class CheckpointBrace;
struct PackedValue;

template <class T>
concept ToItem = requires(const T& value) {
  { CheckpointTraits<T>::to_item(value) } -> std::same_as<CheckpointItem>;
};
template <class T>
concept FromItem = requires(const CheckpointItem& item) {
  { CheckpointTraits<T>::from_item(item) } -> std::same_as<T>;
};
/// What a checkpoint takes as it is.
template <class T>
concept ItemSource =
    !std::same_as<std::remove_cvref_t<T>, CheckpointItem> && !std::same_as<std::remove_cvref_t<T>, CheckpointBrace> &&
    (ToItem<std::remove_cvref_t<T>> || std::is_constructible_v<Json, T>);

/// The name of a type as people write it.
std::string type_name(const std::type_info& type);

/// An item is not what is read from it; whoever knows the item's key adds it.
class ItemMismatch : public Error {
public:
  ItemMismatch(const std::string& is, const std::string& is_not)
      : Error(ErrorCode::invalid_argument, "the item is " + is + ", which cannot be read as " + is_not),
        holds(is),
        wanted(is_not) {}
  std::string holds;
  std::string wanted;
};

}  // namespace detail

/// A value of a checkpoint. Cheap to copy: tensors, dictionaries and lists are shared. Nested braces build one, as with
/// nlohmann's: braces of pairs that start with a string (and empty ones) are a dictionary, all others a list.
class CheckpointItem {
public:
  enum class Kind : std::uint8_t {
    value = 0,       ///< null, bool, number, string, or a list of only these
    tensor = 1,      ///< TensorData
    dictionary = 2,  ///< Checkpoint
    list = 3,        ///< a list that holds something else than JSON values
    packed = 4,      ///< a user's type in binary form
  };

  CheckpointItem() = default;  ///< null
  template <detail::ItemSource T>
  CheckpointItem(T&& value) : CheckpointItem(convert(std::forward<T>(value))) {}
  CheckpointItem(std::initializer_list<detail::CheckpointBrace> braces);
  static CheckpointItem of_tensor(TensorData tensor);
  static CheckpointItem of_dictionary(const Checkpoint& dictionary);
  static CheckpointItem of_list(std::vector<CheckpointItem> elements);
  /// A dictionary; throws invalid_argument when a key stands there twice.
  static CheckpointItem of_entries(std::vector<CheckpointEntry> entries);
  /// JSON objects become dictionaries.
  static CheckpointItem of_json(const Json& json);
  /// Bytes of a user's type; Checkpoint::pack() makes them.
  static CheckpointItem of_packed(std::string type, std::uint32_t version, std::string bytes);

  Kind kind() const { return static_cast<Kind>(storage_.index()); }
  bool is_null() const { return kind() == Kind::value && std::get<Json>(storage_).is_null(); }
  bool is_string() const { return kind() == Kind::value && std::get<Json>(storage_).is_string(); }
  bool is_number() const { return kind() == Kind::value && std::get<Json>(storage_).is_number(); }
  bool is_tensor() const { return kind() == Kind::tensor; }
  bool is_dictionary() const { return kind() == Kind::dictionary; }
  bool is_list() const {
    return kind() == Kind::list || (kind() == Kind::value && std::get<Json>(storage_).is_array());
  }
  bool is_packed() const { return kind() == Kind::packed; }

  /// The value as a T: a number, string, bool, vector ... (anything JSON can give), Json, TensorData, Checkpoint, or a
  /// type that CheckpointTraits knows. Throws invalid_argument when it is something else, and rather than change a
  /// number (3.5 or 300 read as a signed char).
  template <class T>
  T as() const;

  /// Elements of a list or dictionary, 1 for anything else.
  std::size_t size() const;
  /// The element of a list; throws invalid_argument when there is none.
  CheckpointItem at(std::size_t index) const;
  /// The entries of a dictionary, in their order; throws invalid_argument for anything else.
  std::span<const CheckpointEntry> entries() const;
  /// A value of a dictionary; throws invalid_argument when it is missing.
  const CheckpointItem& operator[](std::string_view key) const;

  /// The user's value that was packed, and the version it was packed with. `type` is what pack() was given.
  template <class T>
  T unpack(std::uint32_t& version, std::string_view type = {}) const {
    version = packed_version();
    return unpack<T>(type);
  }
  template <class T>
  T unpack(std::string_view type = {}) const {
    return detail::Codec<T>::decode(packed_bytes(type.empty() ? detail::type_name(typeid(T)) : std::string(type)));
  }
  std::uint32_t packed_version() const;
  const std::string& packed_type() const;
  /// The binary form; throws invalid_argument when it is of another type (an empty name fits all).
  const std::string& packed_bytes(std::string_view type) const;

  /// This value as JSON; throws invalid_argument when there is a tensor or a packed value inside.
  Json to_json() const;
  /// Rough size in memory.
  std::size_t bytes() const;
  /// What it is, for messages: `the tensor float32[2,3]`, `the string "abc"`.
  std::string describe() const;
  /// The error for an item that is not a `wanted`.
  detail::ItemMismatch mismatch(std::string_view wanted) const;

  friend bool operator==(const CheckpointItem& left, const CheckpointItem& right);
  /// Compact, JSON-like; tensors as type and shape.
  friend std::ostream& operator<<(std::ostream& out, const CheckpointItem& item);

private:
  friend class Checkpoint;
  friend struct CheckpointTraits<TensorData>;
  friend struct CheckpointTraits<Checkpoint>;
  using List = std::vector<CheckpointItem>;
  using Storage = std::variant<Json, TensorData, std::shared_ptr<const detail::Dictionary>, std::shared_ptr<const List>,
                               std::shared_ptr<const detail::PackedValue>>;

  template <class T>
  static CheckpointItem convert(T&& value) {
    using Plain = std::remove_cvref_t<T>;
    if constexpr (detail::ToItem<Plain>)
      return CheckpointTraits<Plain>::to_item(value);
    else
      return of_json(Json(std::forward<T>(value)));
  }
  template <class T>
  static bool holds_exactly(const Json& json);

  Storage storage_;
};

namespace detail {

/// One element between braces. Knows whether it is a pair in braces of its own, and so may be an entry of a dictionary.
class CheckpointBrace {
public:
  template <ItemSource T>
  CheckpointBrace(T&& value) : item_(std::forward<T>(value)) {}
  CheckpointBrace(CheckpointItem item) : item_(std::move(item)) {}
  CheckpointBrace(std::initializer_list<CheckpointBrace> braces);

  bool is_pair() const { return is_pair_; }
  const CheckpointItem& item() const { return item_; }

private:
  CheckpointItem item_;
  bool is_pair_ = false;
};

}  // namespace detail

template <>
struct CheckpointTraits<TensorData> {
  static CheckpointItem to_item(const TensorData& tensor) { return CheckpointItem::of_tensor(tensor); }
  static TensorData from_item(const CheckpointItem& item);
};

template <>
struct CheckpointTraits<Checkpoint> {
  static CheckpointItem to_item(const Checkpoint& dictionary) { return CheckpointItem::of_dictionary(dictionary); }
  static Checkpoint from_item(const CheckpointItem& item);
};

template <>
struct CheckpointTraits<CheckpointItem> {
  static CheckpointItem to_item(const CheckpointItem& item) { return item; }
  static CheckpointItem from_item(const CheckpointItem& item) { return item; }
};

template <class T>
  requires detail::ToItem<T>
struct CheckpointTraits<std::vector<T>> {
  static CheckpointItem to_item(const std::vector<T>& elements) {
    std::vector<CheckpointItem> items;
    items.reserve(elements.size());
    for (const auto& element : elements) items.push_back(CheckpointTraits<T>::to_item(element));
    return CheckpointItem::of_list(std::move(items));
  }
  static std::vector<T> from_item(const CheckpointItem& item) {
    if (!item.is_list()) throw item.mismatch(detail::type_name(typeid(std::vector<T>)));
    std::vector<T> elements;
    for (std::size_t index = 0; index < item.size(); ++index) elements.push_back(item.at(index).as<T>());
    return elements;
  }
};

template <class T>
  requires detail::ToItem<T>
struct CheckpointTraits<std::map<std::string, T>> {
  static CheckpointItem to_item(const std::map<std::string, T>& values) {
    std::vector<CheckpointEntry> entries;
    for (const auto& [key, value] : values) entries.emplace_back(key, CheckpointTraits<T>::to_item(value));
    return CheckpointItem::of_entries(std::move(entries));
  }
  static std::map<std::string, T> from_item(const CheckpointItem& item) {
    if (!item.is_dictionary()) throw item.mismatch(detail::type_name(typeid(std::map<std::string, T>)));
    std::map<std::string, T> values;
    for (const auto& [key, value] : item.entries()) values.emplace(key, value.template as<T>());
    return values;
  }
};

template <class T>
bool CheckpointItem::holds_exactly(const Json& json) {
  if constexpr (std::is_same_v<T, bool>) {
    return json.is_boolean();
  } else if constexpr (std::is_integral_v<T>) {
    if (json.is_number_unsigned()) return std::in_range<T>(json.get<std::uint64_t>());
    return json.is_number_integer() && std::in_range<T>(json.get<std::int64_t>());
  } else if constexpr (std::is_floating_point_v<T>) {
    return json.is_number();
  } else {
    return true;  // nlohmann refuses what does not fit
  }
}

template <class T>
T CheckpointItem::as() const {
  if constexpr (detail::FromItem<T>) {
    return CheckpointTraits<T>::from_item(*this);
  } else if constexpr (std::is_same_v<T, Json>) {
    return to_json();
  } else {
    static_assert(
        requires(const Json& json) { json.template get<T>(); },
        "troupe: a checkpoint cannot give this type; read one that JSON can give, TensorData or Checkpoint, "
        "or pack() and unpack<T>() it; tensors need <troupe/torch_checkpoint.hpp>");
    const auto wanted = [] { return detail::type_name(typeid(T)); };
    if (kind() == Kind::tensor || kind() == Kind::packed) throw mismatch(wanted());
    const auto json = to_json();
    if (!holds_exactly<T>(json)) throw mismatch(wanted());
    try {
      return json.get<T>();
    } catch (const Json::exception&) {
      throw mismatch(wanted());
    }
  }
}

}  // namespace troupe
