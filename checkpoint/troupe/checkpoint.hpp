// SPDX-License-Identifier: Apache-2.0
// What a training saves and loads: an ordered dictionary of JSON values, tensors, nested dictionaries and users' types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <troupe/checkpoint_item.hpp>

namespace troupe {

/// `Checkpoint c{{"epoch", 4}, {"model", {{"w", tensor}}}};` Cheap to copy: copies share everything until one of them
/// is changed. Reading from several threads is safe, changing one while another thread reads the same object is not.
class Checkpoint {
public:
  Checkpoint() = default;  ///< an empty one
  /// Throws invalid_argument when the braces are no dictionary, or a key stands there twice.
  Checkpoint(std::initializer_list<detail::CheckpointBrace> braces);
  /// From a JSON object (null counts as an empty one); throws invalid_argument for other JSON.
  template <class J>
    requires std::is_base_of_v<Json, std::remove_cvref_t<J>>
  Checkpoint(const J& object) : Checkpoint(of_json(object)) {}
  static Checkpoint from_dict(Checkpoint dictionary) { return dictionary; }

  /// A user's type in binary form: JSON if the type has it, else cereal's with <troupe/cereal.hpp>. `version` comes
  /// back with it; `type` (default: the type's name) must be equal when it is read, so a renamed type can keep its old
  /// name.
  template <class T>
  static CheckpointItem pack(const T& value, std::uint32_t version = 0, std::string type = {}) {
    if (type.empty()) type = detail::type_name(typeid(T));
    return CheckpointItem::of_packed(std::move(type), version, detail::Codec<T>::encode(value));
  }

  bool empty() const { return size() == 0; }
  std::size_t size() const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// The item under `key`, or null.
  const CheckpointItem* find(std::string_view key) const;
  /// The item under `key`; throws invalid_argument and names the keys that are there.
  const CheckpointItem& operator[](std::string_view key) const;
  const CheckpointItem& at(std::string_view key) const { return (*this)[key]; }
  /// The value under `key` as a T; throws invalid_argument that names the key, what is there and the type.
  template <class T>
  T at(std::string_view key) const {
    try {
      return (*this)[key].as<T>();
    } catch (const detail::ItemMismatch& error) {
      refuse(key, error);
    }
  }
  /// The value under `key`, or `fallback` when there is none; throws like at() when it is of another type.
  template <class T>
  std::conditional_t<std::is_convertible_v<T, std::string_view>, std::string, std::decay_t<T>> value(
      std::string_view key, T&& fallback) const {
    using Value = std::conditional_t<std::is_convertible_v<T, std::string_view>, std::string, std::decay_t<T>>;
    return contains(key) ? at<Value>(key) : Value(std::forward<T>(fallback));
  }
  /// The packed value under `key` and its version.
  template <class T>
  T unpack(std::string_view key, std::uint32_t& version) const {
    return (*this)[key].unpack<T>(version);
  }
  template <class T>
  T unpack(std::string_view key) const {
    return (*this)[key].unpack<T>();
  }

  /// Replaces the value under `key`, or appends it.
  void set(std::string key, CheckpointItem item);
  /// True if there was one.
  bool erase(std::string_view key);

  /// `for (const auto& [key, item] : checkpoint)`, in the order of the entries.
  const CheckpointEntry* begin() const;
  const CheckpointEntry* end() const;

  /// Throws invalid_argument when there is a tensor or a packed value inside.
  Json to_json() const;
  /// The dictionary with all tensors in memory: nothing is read from a file after that. Throws io for a file that does
  /// not verify.
  Checkpoint to_dict() const;
  /// Rough size in memory (of tensors on disk: what they will take).
  std::size_t bytes() const;

  /// Equal entries, whatever their order; tensors by type, shape and bytes.
  friend bool operator==(const Checkpoint& left, const Checkpoint& right);
  /// Compact, JSON-like: `{"epoch":4,"model":{"w":float32[2,3]}}`.
  friend std::ostream& operator<<(std::ostream& out, const Checkpoint& checkpoint);

private:
  friend class CheckpointItem;
  friend struct CheckpointTraits<Checkpoint>;
  explicit Checkpoint(std::shared_ptr<const detail::Dictionary> entries) : entries_(std::move(entries)) {}
  static Checkpoint of_json(const Json& object);
  [[noreturn]] void refuse(std::string_view key, const detail::ItemMismatch& error) const;

  /// Null for an empty one. Changed in place only while nobody shares it.
  std::shared_ptr<const detail::Dictionary> entries_;
};

namespace detail {

/// The checkpoint as bytes, for messages: flat records in cereal's portable binary form.
std::string encode(const Checkpoint& checkpoint);
/// Throws invalid_argument on bytes that encode() did not make; allocates no more than a small multiple of them.
Checkpoint decode(std::string_view bytes);

/// A checkpoint travels as itself in calls and results.
template <>
struct Codec<Checkpoint> {
  static std::string encode(const Checkpoint& checkpoint) { return detail::encode(checkpoint); }
  static Checkpoint decode(std::string_view bytes) { return detail::decode(bytes); }
};

}  // namespace detail
}  // namespace troupe
