// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <troupe/error.hpp>

#include "checkpoint/interop/mapped_file.hpp"
#include "checkpoint/interop/pickle.hpp"
#include "checkpoint/interop/torch_file.hpp"
#include "checkpoint/interop/torch_types.hpp"
#include "checkpoint/interop/zip_archive.hpp"
#include "checkpoint/record_limits.hpp"

namespace troupe::detail {
namespace {

constexpr std::uint64_t longest_pickle = 64 << 20;
/// The first pickle of files from before 1.6: an integer that says so.
constexpr std::string_view legacy_magic("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("the file is refused: {}", why));
}

struct StorageBytes {
  const char* data = nullptr;
  std::uint64_t size = 0;
  std::shared_ptr<const void> owner;
};
using LoadStorage = std::function<StorageBytes(const std::string& key)>;

bool is_contiguous(const PickleTensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.sizes.size(); i-- > 0;) {
    if (tensor.sizes[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.sizes[i];
  }
  return true;
}

/// Elements of the storage that the tensor reaches, counted from its offset; nothing if that does not fit 63 bits.
std::optional<std::uint64_t> reach(const PickleTensor& tensor) {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    if (tensor.sizes[i] == 0) return 0;
    std::int64_t step = 0;
    if (__builtin_mul_overflow(tensor.sizes[i] - 1, tensor.strides[i], &step) ||
        __builtin_add_overflow(last, step, &last))
      return std::nullopt;
  }
  return static_cast<std::uint64_t>(last) + 1;
}

void copy_strided(const PickleTensor& tensor, std::size_t element, const char* from, char* to,
                  std::size_t dimension = 0) {
  if (dimension == tensor.sizes.size()) {
    std::memcpy(to, from, element);
    return;
  }
  std::size_t inner = element;
  for (std::size_t i = dimension + 1; i < tensor.sizes.size(); ++i) inner *= static_cast<std::size_t>(tensor.sizes[i]);
  for (std::int64_t i = 0; i < tensor.sizes[dimension]; ++i)
    copy_strided(tensor, element, from + i * tensor.strides[dimension] * static_cast<std::int64_t>(element),
                 to + static_cast<std::size_t>(i) * inner, dimension + 1);
}

/// Makes checkpoint items of what the pickle holds.
class Converter {
public:
  Converter(LoadStorage load, std::uint64_t file_size, std::uint64_t pickle_size)
      : load_(std::move(load)), copied_left_(8 * file_size + (16 << 20)), items_left_(8 * pickle_size + 1024) {}

  Checkpoint convert_top(const PickleValue& top) {
    if (top.as<PickleDict>() == nullptr)
      refuse(fmt::format("it holds {}, not a dict; save {{\"name\": value}} instead", top.describe()));
    return convert(top).as<Checkpoint>();
  }

private:
  // Values may hold each other in circles, and one may be held often.
  CheckpointItem convert(const PickleValue& value) {
    if (depth_ >= deepest_nesting) refuse(fmt::format("it is nested more than {} deep", deepest_nesting));
    if (items_left_-- == 0) refuse("it repeats its values too often");
    ++depth_;
    auto item = std::visit([this](const auto& data) { return make(data); }, value.data);
    --depth_;
    return item;
  }

  CheckpointItem make(std::monostate) { return {}; }
  CheckpointItem make(bool value) { return value; }
  CheckpointItem make(std::int64_t value) { return value; }
  CheckpointItem make(std::uint64_t value) { return value; }
  CheckpointItem make(double value) { return value; }
  CheckpointItem make(const std::string& value) { return value; }
  CheckpointItem make(const PickleGlobal& global) {
    if (const auto dtype = torch_dtype(global.name)) return std::string(to_string(*dtype));
    refuse(fmt::format("it holds the object {}", global.name));
  }
  CheckpointItem make(const PickleStorage&) { refuse("it holds a bare storage; save the tensor"); }
  CheckpointItem make(const PickleList& list) {
    std::vector<CheckpointItem> elements;
    for (const auto* item : list.items) elements.push_back(convert(*item));
    return CheckpointItem::of_list(std::move(elements));
  }
  CheckpointItem make(const PickleDict& dict) {
    std::map<std::string, std::size_t> places;  // the last value of a key counts, as in Python
    std::vector<CheckpointEntry> entries;
    for (const auto& [key, value] : dict.items) {
      auto name = key_text(*key);
      const auto [place, added] = places.emplace(name, entries.size());
      if (added)
        entries.emplace_back(std::move(name), convert(*value));
      else
        entries[place->second].second = convert(*value);
    }
    return CheckpointItem::of_entries(std::move(entries));
  }
  static std::string key_text(const PickleValue& key) {
    if (const auto* text = key.as<std::string>()) return *text;
    if (const auto* number = key.as<std::int64_t>()) return std::to_string(*number);  // as in an optimizer's state
    refuse(fmt::format("{} is a key of a dict; keys must be strings or ints", key.describe()));
  }

  CheckpointItem make(const PickleTensor& tensor) {
    const auto known = tensors_.find(&tensor);
    if (known != tensors_.end()) return known->second;
    return tensors_.emplace(&tensor, make_tensor(tensor)).first->second;
  }

  TensorData make_tensor(const PickleTensor& tensor) {
    const auto& storage = *tensor.storage;
    const auto element = size_of(tensor.dtype);
    const auto bytes = tensor_size(tensor.dtype, tensor.sizes);
    const auto count = reach(tensor);
    const auto source = load_once(storage.key);
    const auto available = source.size / size_of(storage.dtype);
    if (storage.offset > available || storage.count > available - storage.offset)
      refuse(fmt::format("storage {} has {} bytes, which is too few", storage.key, source.size));
    const auto room = storage.count * size_of(storage.dtype) / element;
    const auto offset = static_cast<std::uint64_t>(tensor.offset);
    if (!bytes || !count || offset > room || *count > room - offset)
      refuse(fmt::format("a tensor reaches beyond its storage {}", storage.key));
    const auto* first = source.data + storage.offset * size_of(storage.dtype) + offset * element;
    const bool aligned = reinterpret_cast<std::uintptr_t>(first) % element == 0;
    if (*bytes == 0) return {tensor.dtype, tensor.sizes, "", nullptr};
    if (is_contiguous(tensor) && aligned) return {tensor.dtype, tensor.sizes, first, source.owner};
    if (*bytes > copied_left_) refuse("its views of storages are far larger than the file");
    copied_left_ -= *bytes;
    const std::shared_ptr<char[]> copy(new char[*bytes]);
    copy_strided(tensor, element, first, copy.get());
    return {tensor.dtype, tensor.sizes, copy.get(), copy};
  }

  const StorageBytes& load_once(const std::string& key) {
    const auto known = storages_.find(key);
    if (known != storages_.end()) return known->second;
    return storages_.emplace(key, load_(key)).first->second;
  }

  LoadStorage load_;
  std::uint64_t copied_left_;
  std::uint64_t items_left_;
  int depth_ = 0;
  std::map<std::string, StorageBytes> storages_;
  std::map<const PickleTensor*, TensorData> tensors_;
};

Checkpoint read_zip(const std::filesystem::path& path, std::uint64_t file_size) {
  const ZipReader zip(path);
  const auto folder = zip.folder_with("data.pkl");
  if (zip.size(folder + "constants.pkl")) refuse("it is a TorchScript archive; save the module's state_dict() instead");
  if (zip.size(folder + "byteorder") && zip.read(folder + "byteorder", 16) != "little")
    refuse("it was written on a big-endian machine");
  const auto pickle = zip.read(folder + "data.pkl", longest_pickle);
  std::string_view rest(pickle);
  PickleReader reader;
  const auto& top = *reader.read(rest);
  const auto load = [&](const std::string& key) {
    const auto name = folder + "data/" + key;
    const auto size = zip.size(name);
    if (!size) refuse(fmt::format("the archive has no {}", name));
    const std::shared_ptr<char[]> bytes(new char[*size]);
    zip.read(name, bytes.get(), *size);
    return StorageBytes{bytes.get(), *size, bytes};
  };
  return Converter(load, file_size, pickle.size()).convert_top(top);
}

/// After the magic: protocol, facts about the writer, the object, the keys of its storages; then each storage, as a
/// count of elements and raw bytes.
Checkpoint read_legacy(const std::shared_ptr<const MappedFile>& file) {
  auto rest = std::string_view(file->data(), file->size()).substr(legacy_magic.size());
  PickleReader reader;
  const auto* protocol = reader.read(rest)->as<std::int64_t>();
  if (protocol == nullptr || *protocol != 1001) refuse("it is of an unknown version");
  const auto* facts = reader.read(rest)->as<PickleDict>();
  for (const auto& [key, value] : facts != nullptr ? facts->items : PickleDict{}.items)
    if (key->as<std::string>() != nullptr && *key->as<std::string>() == "little_endian" &&
        value->as<bool>() != nullptr && !*value->as<bool>())
      refuse("it was written on a big-endian machine");
  const auto before = rest.size();
  const auto& top = *reader.read(rest);
  const auto pickle_size = before - rest.size();
  const auto* keys = reader.read(rest)->as<PickleList>();
  if (keys == nullptr) refuse("it does not say which storages it holds");
  std::map<std::string, std::uint64_t> element_sizes;
  for (const auto& [key, size] : reader.storage_sizes()) element_sizes.emplace(key, size);
  std::map<std::string, StorageBytes> storages;
  for (const auto* item : keys->items) {
    const auto* key = item->as<std::string>();
    if (key == nullptr || !element_sizes.contains(*key)) refuse("it holds a storage that nothing uses");
    std::uint64_t count = 0;
    if (rest.size() < sizeof count) refuse("it ends before its storages do");
    std::memcpy(&count, rest.data(), sizeof count);
    rest.remove_prefix(sizeof count);
    const auto element = element_sizes.at(*key);
    if (count > rest.size() / element) refuse("it ends before its storages do");
    storages[*key] = {rest.data(), count * element, file};
    rest.remove_prefix(count * element);
  }
  const auto load = [&](const std::string& key) {
    const auto found = storages.find(key);
    if (found == storages.end()) refuse(fmt::format("it has no storage {}", key));
    return found->second;
  };
  return Converter(load, file->size(), pickle_size).convert_top(top);
}

}  // namespace

Checkpoint read_torch_file(const std::filesystem::path& path) {
  try {
    const auto file = std::make_shared<const MappedFile>(path);
    const std::string_view bytes(file->data(), file->size());
    if (bytes.starts_with(legacy_magic)) return read_legacy(file);
    if (!bytes.starts_with("PK\x03\x04")) refuse("it was not made by torch.save()");
    return read_zip(path, file->size());
  } catch (const Error& error) {
    if (error.code() == ErrorCode::io) throw;
    throw Error(error.code(), fmt::format("cannot import {}: {}", path.string(), error.what()));
  }
}

}  // namespace troupe::detail
