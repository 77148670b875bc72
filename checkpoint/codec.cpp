// SPDX-License-Identifier: Apache-2.0
// Records in cereal's portable binary form, and whole small checkpoints as bytes.
#include <fmt/format.h>

#include <array>
#include <istream>
#include <sstream>

#include <troupe/cereal.hpp>
#include <troupe/checkpoint.hpp>

#include "checkpoint/record_limits.hpp"
#include "checkpoint/records.hpp"

namespace troupe::detail {
namespace {

using Kind = CheckpointItem::Kind;

/// "TRPC" and the version of the form.
constexpr std::uint32_t form_magic = 0x43505254;
constexpr std::uint32_t form_version = 1;
/// Bytes that the smallest record takes: kind, length of the key, and one length more.
constexpr std::size_t smallest_record = 1 + 8 + 8;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("these bytes are not a checkpoint ({}): they were cut or changed, or another version of "
                          "troupe wrote them",
                          why));
}

template <class Archive>
void write_record(Archive& archive, const Record& record) {
  archive(static_cast<std::uint8_t>(record.kind), record.key);
  switch (record.kind) {
    case Kind::value:
      archive(record.bytes);
      break;
    case Kind::packed:
      archive(record.type, record.version, record.bytes);
      break;
    case Kind::tensor: {
      archive(static_cast<std::uint8_t>(record.dtype), record.shape, record.offset, record.length,
              record.shard.has_value());
      if (record.shard) archive(record.shard->global_shape, record.shard->row_offset);
      break;
    }
    case Kind::dictionary:
    case Kind::list:
      archive(record.count);
      break;
  }
}

class RecordReader {
public:
  explicit RecordReader(std::string_view bytes) : buffer_(bytes), stream_(&buffer_), archive_(stream_) {}

  std::vector<Record> records() {
    if (number<std::uint32_t>() != form_magic) refuse("they begin otherwise");
    if (const auto version = number<std::uint32_t>(); version != form_version)
      refuse(fmt::format("form {}, known is {}", version, form_version));
    std::vector<Record> result(length(SIZE_MAX, smallest_record));
    for (auto& one : result) read(one);
    return result;
  }
  std::size_t left() const { return buffer_.left(); }

private:
  template <class T>
  T number() {
    T value{};
    archive_(value);
    return value;
  }
  /// A count of things of `size` bytes; so many must be there.
  std::size_t length(std::size_t most, std::size_t size) {
    cereal::size_type count = 0;
    archive_(cereal::make_size_tag(count));
    if (count > most || count > buffer_.left() / size) refuse(fmt::format("a length of {}", count));
    return static_cast<std::size_t>(count);
  }
  std::string text(std::size_t longest) {
    std::string result(length(longest, 1), '\0');
    archive_(cereal::binary_data(result.data(), result.size()));
    return result;
  }
  std::vector<std::int64_t> shape() {
    std::vector<std::int64_t> result(length(most_dimensions, sizeof(std::int64_t)));
    archive_(cereal::binary_data(result.data(), result.size() * sizeof(std::int64_t)));
    return result;
  }

  void read(Record& record) {
    const auto kind = number<std::uint8_t>();
    if (kind > static_cast<std::uint8_t>(Kind::packed)) refuse(fmt::format("a record of kind {}", kind));
    record.kind = static_cast<Kind>(kind);
    record.key = text(longest_key);
    switch (record.kind) {
      case Kind::value:
        record.bytes = text(SIZE_MAX);
        break;
      case Kind::packed:
        record.type = text(SIZE_MAX);
        record.version = number<std::uint32_t>();
        record.bytes = text(SIZE_MAX);
        break;
      case Kind::tensor:
        read_tensor(record);
        break;
      case Kind::dictionary:
      case Kind::list:
        record.count = number<std::uint64_t>();
        break;
    }
  }
  void read_tensor(Record& record) {
    const auto dtype = number<std::uint8_t>();
    if (dtype >= dtype_count) refuse(fmt::format("a tensor of type {}", dtype));
    record.dtype = static_cast<DType>(dtype);
    record.shape = shape();
    record.offset = number<std::uint64_t>();
    record.length = number<std::uint64_t>();
    const auto is_shard = number<std::uint8_t>();
    if (is_shard > 1) refuse("a flag that is neither 0 nor 1");
    if (is_shard == 0) return;
    record.shard.emplace();
    record.shard->global_shape = shape();
    record.shard->row_offset = number<std::int64_t>();
  }

  ViewBuffer buffer_;
  std::istream stream_;
  cereal::PortableBinaryInputArchive archive_;
};

}  // namespace

std::string write_records(const std::vector<Record>& records) {
  std::ostringstream out(std::ios::binary);
  {
    // Little-endian always: a form with two faces would need twice the tests.
    cereal::PortableBinaryOutputArchive archive(out, cereal::PortableBinaryOutputArchive::Options::LittleEndian());
    archive(form_magic, form_version, cereal::make_size_tag(static_cast<cereal::size_type>(records.size())));
    for (const auto& record : records) write_record(archive, record);
  }
  return std::move(out).str();
}

std::vector<Record> read_records(std::string_view& bytes) {
  if (bytes.empty() || bytes[0] != 1) refuse("they begin otherwise");
  try {
    RecordReader reader(bytes);
    auto records = reader.records();
    bytes.remove_prefix(bytes.size() - reader.left());
    return records;
  } catch (const cereal::Exception& error) {
    refuse(error.what());
  }
}

std::string encode(const Checkpoint& checkpoint) {
  const auto flat = flatten(checkpoint);
  auto out = write_records(flat.records);
  const auto start = out.size();
  out.resize(start + flat.size);
  std::size_t place = 0;
  for (const auto& record : flat.records)
    if (record.kind == Kind::tensor) flat.tensors[place++].copy_to(out.data() + start + record.offset);
  return out;
}

Checkpoint decode(std::string_view bytes) {
  auto records = read_records(bytes);
  return unflatten(std::move(records), bytes.size(), [bytes](const Record& record) {
    if (record.offset > bytes.size() || record.length > bytes.size() - record.offset)
      refuse("a tensor lies beyond the end");
    return TensorData::copy_of(record.dtype, record.shape, bytes.data() + record.offset);
  });
}

}  // namespace troupe::detail
