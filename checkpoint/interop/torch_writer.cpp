// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <bit>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <troupe/error.hpp>

#include "checkpoint/interop/torch_file.hpp"
#include "checkpoint/interop/torch_types.hpp"
#include "checkpoint/interop/zip_archive.hpp"

namespace troupe::detail {
namespace {

/// Writes protocol 2 with plain dicts, which every torch.load() takes, weights_only or not.
class PickleWriter {
public:
  std::string take(const Checkpoint& checkpoint) {
    out_ = "\x80\x02";
    add_entries({checkpoint.begin(), checkpoint.end()}, "");
    out_ += '.';
    return std::move(out_);
  }
  /// Tensors by the number of their storage.
  const std::vector<TensorData>& storages() const { return storages_; }

private:
  void add(const CheckpointItem& item, const std::string& name) {
    switch (item.kind()) {
      case CheckpointItem::Kind::value:
        return add(item.to_json());
      case CheckpointItem::Kind::tensor:
        return add(item.as<TensorData>());
      case CheckpointItem::Kind::dictionary:
        return add_entries(item.entries(), name + ".");
      case CheckpointItem::Kind::list:
        out_ += "](";
        for (std::size_t i = 0; i < item.size(); ++i) add(item.at(i), fmt::format("{}.{}", name, i));
        out_ += 'e';
        return;
      case CheckpointItem::Kind::packed:
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("\"{}\" cannot be exported: a packed {} has no form outside C++; export a part of the "
                                "checkpoint, or leave it out",
                                name, item.packed_type()));
    }
  }

  void add_entries(std::span<const CheckpointEntry> entries, const std::string& prefix) {
    out_ += "}(";
    for (const auto& [key, item] : entries) {
      add(std::string_view(key));
      add(item, prefix + key);
    }
    out_ += 'u';
  }

  void add(const Json& value) {
    switch (value.type()) {
      case Json::value_t::null:
        out_ += 'N';
        return;
      case Json::value_t::boolean:
        out_ += value.get<bool>() ? '\x88' : '\x89';
        return;
      case Json::value_t::number_integer:
        return add_integer(value.get<std::int64_t>());
      case Json::value_t::number_unsigned:
        return add_unsigned(value.get<std::uint64_t>());
      case Json::value_t::number_float:
        return add_float(value.get<double>());
      case Json::value_t::string:
        return add(std::string_view(value.get_ref<const std::string&>()));
      case Json::value_t::array:
        out_ += "](";
        for (const auto& element : value) add(element);
        out_ += 'e';
        return;
      default:
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("a value of type {} cannot be exported", value.type_name()));
    }
  }

  void add_number(std::uint64_t value, int size) {
    for (int i = 0; i < size; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  void add_integer(std::int64_t value) {
    if (value >= INT32_MIN && value <= INT32_MAX) {
      out_ += 'J';
      add_number(static_cast<std::uint64_t>(value), 4);
    } else {
      out_ += "\x8a\x08";
      add_number(static_cast<std::uint64_t>(value), 8);
    }
  }
  void add_unsigned(std::uint64_t value) {
    if (value <= INT64_MAX) return add_integer(static_cast<std::int64_t>(value));
    out_ += "\x8a\x09";
    add_number(value, 8);
    out_ += '\0';  // else it would be negative
  }
  void add_float(double value) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    out_ += 'G';
    for (int i = 7; i >= 0; --i) out_ += static_cast<char>(bits >> (8 * i) & 0xff);
  }
  void add(std::string_view text) {
    if (text.size() > UINT32_MAX) throw Error(ErrorCode::too_large, "a string of more than 4 GiB cannot be exported");
    out_ += 'X';
    add_number(text.size(), 4);
    out_ += text;
  }
  void add_sizes(const std::vector<std::int64_t>& sizes) {
    out_ += '(';
    for (const auto size : sizes) add_integer(size);
    out_ += 't';
  }

  void add(const TensorData& tensor) {
    const auto storage = storage_class(tensor.dtype());
    std::vector<std::int64_t> strides(tensor.shape().size());
    std::int64_t stride = 1;
    for (std::size_t i = strides.size(); i-- > 0;) {
      strides[i] = stride;
      stride *= std::max<std::int64_t>(1, tensor.shape()[i]);
    }
    out_ += fmt::format("ctorch._utils\n_rebuild_tensor_v{}\n((", storage.empty() ? 3 : 2);
    add(std::string_view("storage"));
    out_ += storage.empty() ? "ctorch.storage\nUntypedStorage\n" : fmt::format("ctorch\n{}\n", storage);
    add(std::string_view(storage_key(tensor)));
    add(std::string_view("cpu"));
    add_unsigned(storage.empty() ? tensor.bytes() : tensor.numel());
    out_ += "tQ";
    add_integer(0);
    add_sizes(tensor.shape());
    add_sizes(strides);
    out_ +=
        "\x89"
        "ccollections\nOrderedDict\n)R";  // no gradient, no hooks
    if (storage.empty()) out_ += fmt::format("ctorch\n{}\n", to_string(tensor.dtype()));
    out_ += "tR";
  }

  /// Tensors that share their bytes share a storage, as tied weights do.
  std::string storage_key(const TensorData& tensor) {
    const auto place = std::tuple(tensor.bytes() > 0 ? tensor.data() : nullptr, tensor.bytes(), tensor.dtype());
    const auto [found, added] = keys_.emplace(place, storages_.size());
    if (added) storages_.push_back(tensor);
    return std::to_string(found->second);
  }

  std::string out_;
  std::vector<TensorData> storages_;
  std::map<std::tuple<const std::byte*, std::size_t, DType>, std::size_t> keys_;
};

}  // namespace

void write_torch_file(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  PickleWriter pickle;
  const auto text = pickle.take(checkpoint);
  ZipWriter zip(path);
  zip.add("archive/data.pkl", text);
  zip.add("archive/byteorder", "little");
  for (std::size_t i = 0; i < pickle.storages().size(); ++i) {
    const auto& tensor = pickle.storages()[i];
    zip.add(fmt::format("archive/data/{}", i), {reinterpret_cast<const char*>(tensor.data()), tensor.bytes()});
  }
  zip.add("archive/version", "3\n");
  zip.finish();
}

}  // namespace troupe::detail
