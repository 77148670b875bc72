// SPDX-License-Identifier: Apache-2.0
// What a training saves and loads: an ordered dictionary of JSON values, tensors, nested dictionaries and users' types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <troupe/checkpoint_item.hpp>

namespace troupe {

namespace detail {
class CheckpointFolder;
}

/// A folder that lives as long as this object, if it is a temporary one.
class CheckpointDirectory {
public:
  CheckpointDirectory(std::filesystem::path path, bool is_temporary)
      : path_(std::move(path)), is_temporary_(is_temporary) {}
  CheckpointDirectory(CheckpointDirectory&& other) noexcept
      : path_(std::move(other.path_)), is_temporary_(std::exchange(other.is_temporary_, false)) {}
  CheckpointDirectory& operator=(CheckpointDirectory&&) = delete;
  ~CheckpointDirectory();

  const std::filesystem::path& path() const { return path_; }

private:
  std::filesystem::path path_;
  bool is_temporary_;
};

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
  /// Opens a committed checkpoint on disk without reading its tensors. Of one that every rank saved its part of, it is
  /// the whole: rows of sharded tensors put together. Throws io when there is none, or it is damaged.
  static Checkpoint from_path(const std::filesystem::path& folder);
  /// Like from_path(); a folder without a manifest is taken as one of the user's own files.
  static Checkpoint from_directory(const std::filesystem::path& folder);

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

  /// Where it was opened; empty for one in memory, and after a change.
  std::filesystem::path path() const;
  /// True for a folder of the user's files instead of a dictionary.
  bool has_files() const;
  /// How many ranks saved their part of it; 1 for one in memory.
  int world_size() const;
  /// What `rank` of `world_size` loads. If as many ranks saved it, exactly that rank's part. Otherwise rows of sharded
  /// tensors are shared out anew (rank r of n gets rows r*rows/n to (r+1)*rows/n), and all else comes from the part of
  /// rank modulo the number of parts; keys that only other parts have are added.
  Checkpoint part(int rank, int world_size) const;
  /// Writes it so that from_path() reads it; of one with files, the files. `folder` must not exist or be empty. Checks
  /// every byte it copies.
  void to_directory(const std::filesystem::path& folder) const;
  /// A folder with its content, checked: where it lies already, or a temporary one that goes with the result.
  CheckpointDirectory as_directory() const;

  /// Rough size in memory (of tensors on disk: what they will take).
  std::size_t bytes() const;

  /// For Python: what torch.load(path, weights_only=True) reads, and state dicts that torch.save() wrote (dicts of
  /// tensors, numbers, strings, lists; nothing in the file is executed). Tuples come back as lists, ints as keys as
  /// strings. Throw invalid_argument for what the other side cannot hold, io for files.
  void export_torch(const std::filesystem::path& path) const;
  static Checkpoint import_torch(const std::filesystem::path& path);
  /// safetensors: tensors under their keys joined by dots; everything else goes into the metadata and comes back from
  /// there. Imported tensors are mapped, and read when they are touched.
  void export_safetensors(const std::filesystem::path& path) const;
  static Checkpoint import_safetensors(const std::filesystem::path& path,
                                       std::map<std::string, std::string>* metadata = nullptr);

  /// Equal entries, whatever their order; tensors by type, shape and bytes.
  friend bool operator==(const Checkpoint& left, const Checkpoint& right);
  /// Compact, JSON-like: `{"epoch":4,"model":{"w":float32[2,3]}}`.
  friend std::ostream& operator<<(std::ostream& out, const Checkpoint& checkpoint);

private:
  friend class CheckpointItem;
  friend class detail::CheckpointFolder;
  friend struct CheckpointTraits<Checkpoint>;
  explicit Checkpoint(std::shared_ptr<const detail::Dictionary> entries) : entries_(std::move(entries)) {}
  static Checkpoint of_json(const Json& object);
  [[noreturn]] void refuse(std::string_view key, const detail::ItemMismatch& error) const;

  /// Null for an empty one. Changed in place only while nobody shares it.
  std::shared_ptr<const detail::Dictionary> entries_;
  /// Where it was opened, if it was.
  std::shared_ptr<const detail::CheckpointFolder> folder_;
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
