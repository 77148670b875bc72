// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/interop/safetensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include <troupe/error.hpp>

#include "checkpoint/interop/mapped_file.hpp"
#include "checkpoint/new_file.hpp"
#include "checkpoint/record_limits.hpp"

namespace troupe::detail {
namespace {

/// Finds among ten thousand tensors faster than an ordered Json.
using SortedJson = nlohmann::json;

constexpr std::uint64_t longest_header = 100'000'000;  // the format's own limit
constexpr std::size_t length_size = 8;
constexpr const char* metadata_key = "__metadata__";

constexpr std::array<std::pair<DType, std::string_view>, 18> type_names{{
    {DType::boolean, "BOOL"},
    {DType::uint8, "U8"},
    {DType::int8, "I8"},
    {DType::int16, "I16"},
    {DType::uint16, "U16"},
    {DType::float16, "F16"},
    {DType::bfloat16, "BF16"},
    {DType::int32, "I32"},
    {DType::uint32, "U32"},
    {DType::float32, "F32"},
    {DType::int64, "I64"},
    {DType::uint64, "U64"},
    {DType::float64, "F64"},
    {DType::complex64, "C64"},
    {DType::float8_e4m3fn, "F8_E4M3"},
    {DType::float8_e5m2, "F8_E5M2"},
    {DType::float8_e4m3fnuz, "F8_E4M3FNUZ"},
    {DType::float8_e5m2fnuz, "F8_E5M2FNUZ"},
}};

std::uint64_t read_length(const char* bytes) {
  std::uint64_t length = 0;
  for (std::size_t i = length_size; i-- > 0;) length = length << 8 | static_cast<unsigned char>(bytes[i]);
  return length;
}

class Reader {
public:
  explicit Reader(const std::filesystem::path& path) : path_(path), file_(std::make_shared<MappedFile>(path)) {}

  Safetensors read() {
    if (file_->size() < length_size) refuse("it has less than 8 bytes");
    const auto length = read_length(file_->data());
    if (length > longest_header)
      refuse(fmt::format("its header would have {} bytes, more than the 100 MB allowed", length));
    if (length > file_->size() - length_size) refuse("it ends inside its header");
    const auto header = parse(std::string_view(file_->data() + length_size, length));
    begin_ = file_->data() + length_size + length;
    size_ = file_->size() - length_size - length;
    for (const auto& [name, entry] : header.items()) {
      if (name == metadata_key)
        read_metadata(entry);
      else
        read_tensor(name, entry);
    }
    put_in_order();
    return std::move(content_);
  }

private:
  struct Place {
    std::uint64_t begin;
    std::uint64_t end;
    std::string name;
    TensorData tensor;
  };

  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::io, fmt::format("{} is not a valid safetensors file: {}", path_.string(), why));
  }

  SortedJson parse(std::string_view text) const {
    if (!text.starts_with('{')) refuse("its header does not begin with '{'");
    std::vector<std::set<std::string>> keys;
    const auto check = [&](int depth, SortedJson::parse_event_t event, SortedJson& value) {
      if (depth > 4) refuse("its header is nested too deeply");
      if (event == SortedJson::parse_event_t::object_start) keys.emplace_back();
      if (event == SortedJson::parse_event_t::object_end) keys.pop_back();
      if (event == SortedJson::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
        refuse(fmt::format("\"{}\" stands twice in its header", value.get<std::string>()));
      return true;
    };
    try {
      return SortedJson::parse(text.begin(), text.end(), check);
    } catch (const SortedJson::exception& error) {
      refuse(fmt::format("its header is not JSON ({})", error.what()));
    }
  }

  void read_metadata(const SortedJson& entry) {
    if (!entry.is_object()) refuse("__metadata__ is not an object");
    for (const auto& [key, value] : entry.items()) {
      if (!value.is_string()) refuse(fmt::format("__metadata__ holds \"{}\", which is not a string", key));
      content_.metadata.emplace(key, value.get<std::string>());
    }
  }

  std::vector<std::uint64_t> numbers(const std::string& name, const SortedJson& entry, const char* key) const {
    const auto found = entry.is_object() ? entry.find(key) : entry.end();
    if (found == entry.end() || !found->is_array()) refuse(fmt::format("the tensor \"{}\" has no list {}", name, key));
    std::vector<std::uint64_t> values;
    for (const auto& value : *found) {
      if (!value.is_number_unsigned()) refuse(fmt::format("{} of the tensor \"{}\" is not made of sizes", key, name));
      values.push_back(value.get<std::uint64_t>());
    }
    return values;
  }

  void read_tensor(const std::string& name, const SortedJson& entry) {
    const auto sizes = numbers(name, entry, "shape");
    const auto offsets = numbers(name, entry, "data_offsets");
    if (entry.size() != 3 || !entry.contains("dtype") || !entry["dtype"].is_string() || offsets.size() != 2)
      refuse(fmt::format("the tensor \"{}\" needs dtype, shape and two data_offsets, and nothing else", name));
    const auto dtype_name = entry["dtype"].get<std::string>();
    const auto* type =
        std::find_if(type_names.begin(), type_names.end(), [&](const auto& t) { return t.second == dtype_name; });
    if (type == type_names.end()) refuse(fmt::format("the tensor \"{}\" is of the unknown type {}", name, dtype_name));
    if (sizes.size() > most_dimensions) refuse(fmt::format("the tensor \"{}\" has {} dimensions", name, sizes.size()));
    std::vector<std::int64_t> shape;
    for (const auto size : sizes) shape.push_back(size > INT64_MAX ? -1 : static_cast<std::int64_t>(size));
    const auto bytes = tensor_size(type->first, shape);
    if (!bytes || offsets[0] > offsets[1] || offsets[1] > size_ || offsets[1] - offsets[0] != *bytes)
      refuse(fmt::format("the tensor \"{}\" does not fit its place: bytes {} to {} of {}", name, offsets[0], offsets[1],
                         size_));
    places_.push_back({offsets[0], offsets[1], name, {type->first, std::move(shape), begin_ + offsets[0], file_}});
  }

  /// Tensors must follow each other without gap or overlap, to the end of the file.
  void put_in_order() {
    std::sort(places_.begin(), places_.end(),
              [](const Place& a, const Place& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    std::uint64_t end = 0;
    for (const auto& place : places_) {
      if (place.begin != end)
        refuse(fmt::format("the tensor \"{}\" begins at byte {}, but the one before it ends at byte {}", place.name,
                           place.begin, end));
      end = place.end;
      content_.tensors.emplace_back(place.name, place.tensor);
    }
    if (end != size_) refuse(fmt::format("its tensors end at byte {}, its bytes at {}", end, size_));
  }

  std::filesystem::path path_;
  std::shared_ptr<const MappedFile> file_;
  const char* begin_ = nullptr;
  std::uint64_t size_ = 0;
  Safetensors content_;
  std::vector<Place> places_;
};

std::string_view type_name(const std::string& name, DType dtype) {
  for (const auto& [type, text] : type_names)
    if (type == dtype) return text;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the tensor \"{}\" is {}, which safetensors have no name for: convert it, "
                          "or write a .pt file",
                          name, to_string(dtype)));
}

std::string dump(const SortedJson& value) { return value.dump(-1, ' ', false, SortedJson::error_handler_t::replace); }

}  // namespace

Safetensors read_safetensors(const std::filesystem::path& path) { return Reader(path).read(); }

void write_safetensors(const std::filesystem::path& path, const Safetensors& content) {
  // Wide types first, as others write them: then each tensor is aligned for its type.
  std::vector<std::size_t> order(content.tensors.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return size_of(content.tensors[a].second.dtype()) > size_of(content.tensors[b].second.dtype());
  });
  std::vector<std::uint64_t> offsets(order.size());
  std::uint64_t end = 0;
  for (const auto i : order) {
    offsets[i] = end;
    end += content.tensors[i].second.bytes();
  }

  std::vector<std::string> entries;
  if (!content.metadata.empty()) entries.push_back(fmt::format("\"{}\":{}", metadata_key, dump(content.metadata)));
  std::set<std::string> names{metadata_key};
  for (const auto i : order) {
    const auto& [name, tensor] = content.tensors[i];
    if (!names.insert(name).second)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("a tensor cannot be called \"{}\": the name is taken", name));
    entries.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", dump(name),
                                  type_name(name, tensor.dtype()), fmt::join(tensor.shape(), ","), offsets[i],
                                  offsets[i] + tensor.bytes()));
  }
  auto text = fmt::format("{{{}}}", fmt::join(entries, ","));
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > longest_header)
    throw Error(ErrorCode::too_large,
                fmt::format("the names of {} tensors do not fit a safetensors header", order.size()));

  NewFile file(path);
  std::string length(length_size, '\0');
  for (std::size_t i = 0; i < length_size; ++i) length[i] = static_cast<char>(text.size() >> (8 * i) & 0xff);
  file.write(length + text, 0);
  for (const auto i : order) {
    const auto& tensor = content.tensors[i].second;
    file.write({reinterpret_cast<const char*>(tensor.data()), tensor.bytes()}, length_size + text.size() + offsets[i]);
  }
  file.commit();
}

}  // namespace troupe::detail
