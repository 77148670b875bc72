// SPDX-License-Identifier: Apache-2.0
// The file of one rank's part of a checkpoint: header page, tensors, index and checksums. checkpoint/README.md draws
// it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <troupe/error.hpp>

namespace troupe::detail {

/// Everything in the file lies at a multiple of this, so that it can be written past the page cache.
inline constexpr std::uint64_t page_size = 4096;
/// One checksum for so many bytes of tensors.
inline constexpr std::uint64_t block_size = std::uint64_t{1} << 20;
inline constexpr std::uint64_t data_offset = page_size;

constexpr std::uint64_t round_to_page(std::uint64_t size) { return (size + page_size - 1) / page_size * page_size; }
constexpr std::uint64_t blocks_of(std::uint64_t size) { return (size + block_size - 1) / block_size; }

using Page = std::array<std::byte, page_size>;

struct ShardHeader {
  std::uint64_t generation = 0;
  std::uint64_t rank = 0;
  std::uint64_t data_size = 0;     ///< of the tensors' area, in whole pages
  std::uint64_t tensors_size = 0;  ///< of it, up to the end of the last tensor
  std::uint64_t index_size = 0;    ///< bytes of records at the start of the tail
  std::uint64_t tail_size = 0;     ///< records, checksums of the blocks, zeros: whole pages
  std::uint32_t tail_crc = 0;

  std::uint64_t tail_offset() const { return data_offset + data_size; }
  std::uint64_t file_size() const { return tail_offset() + tail_size; }
};

/// The page, with its own checksum at its end. That checksum stands for the whole file: it covers the tail's, which
/// covers those of all blocks.
Page write_header(const ShardHeader& header);
std::uint32_t crc_of_header(const Page& page);
/// Throws io unless the page is right and fits a file of `file_size` bytes.
ShardHeader read_header(const Page& page, std::uint64_t file_size, const std::filesystem::path& path);

/// "the checkpoint file X is damaged: why".
Error damaged(const std::filesystem::path& path, const std::string& why);

}  // namespace troupe::detail
