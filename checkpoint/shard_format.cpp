// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/shard_format.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "checkpoint/crc32c.hpp"

namespace troupe::detail {
namespace {

constexpr std::string_view magic = "TRPSHARD";
constexpr std::uint32_t format_version = 1;
constexpr std::size_t crc_place = page_size - sizeof(std::uint32_t);

/// What stands at the start of the page, little-endian, without gaps.
struct Layout {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::uint32_t tail_crc;
  std::uint64_t block_size;
  std::uint64_t generation;
  std::uint64_t rank;
  std::uint64_t data_size;
  std::uint64_t tensors_size;
  std::uint64_t index_size;
  std::uint64_t tail_size;
};
static_assert(sizeof(Layout) == 72);

}  // namespace

Page write_header(const ShardHeader& header) {
  Layout layout{{},          format_version,   header.tail_crc,     block_size,        header.generation,
                header.rank, header.data_size, header.tensors_size, header.index_size, header.tail_size};
  std::copy(magic.begin(), magic.end(), layout.magic.begin());
  Page page{};
  std::memcpy(page.data(), &layout, sizeof(layout));
  const auto crc = crc32c(page.data(), crc_place);
  std::memcpy(page.data() + crc_place, &crc, sizeof(crc));
  return page;
}

std::uint32_t crc_of_header(const Page& page) {
  std::uint32_t crc = 0;
  std::memcpy(&crc, page.data() + crc_place, sizeof(crc));
  return crc;
}

ShardHeader read_header(const Page& page, std::uint64_t file_size, const std::filesystem::path& path) {
  Layout layout{};
  std::memcpy(&layout, page.data(), sizeof(layout));
  if (std::string_view(layout.magic.data(), layout.magic.size()) != magic)
    throw damaged(path, "it does not begin as one, so it is something else or its first bytes are wrong");
  if (crc_of_header(page) != crc32c(page.data(), crc_place))
    throw damaged(path, "its first page (bytes 0 to 4095) does not match its checksum");
  if (layout.version != format_version || layout.block_size != block_size)
    throw Error(ErrorCode::io, fmt::format("the checkpoint file {} has format {}, this program reads {}: use the "
                                           "version of troupe that wrote it",
                                           path.string(), layout.version, format_version));
  const ShardHeader header{layout.generation, layout.rank,      layout.data_size, layout.tensors_size,
                           layout.index_size, layout.tail_size, layout.tail_crc};
  const auto in_pages = [file_size](std::uint64_t size) { return size % page_size == 0 && size <= file_size; };
  const bool fits = in_pages(header.data_size) && in_pages(header.tail_size) &&
                    round_to_page(std::min(header.tensors_size, file_size)) == header.data_size &&
                    header.tensors_size <= header.data_size && header.index_size <= header.tail_size &&
                    blocks_of(header.data_size) * sizeof(std::uint32_t) <= header.tail_size - header.index_size;
  if (!fits) throw damaged(path, "its first page says what cannot be");
  if (header.file_size() != file_size)
    throw damaged(path, fmt::format("it has {} bytes instead of {}, so it was cut or something was added", file_size,
                                    header.file_size()));
  return header;
}

Error damaged(const std::filesystem::path& path, const std::string& why) {
  return {ErrorCode::io, fmt::format("the checkpoint file {} is damaged: {}. Nothing of it is used; take an older "
                                     "checkpoint, or bring the file back from a copy",
                                     path.string(), why)};
}

}  // namespace troupe::detail
