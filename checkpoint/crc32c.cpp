// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/crc32c.hpp"

#include <array>
#include <bit>
#include <cstring>
#ifdef __x86_64__
#include <nmmintrin.h>
#endif

namespace troupe::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie in memory");

constexpr std::uint32_t polynomial = 0x82f63b78;

using Table = std::array<std::uint32_t, 256>;

/// tables[k][b]: what byte b does to the checksum when k more bytes follow it in the word.
constexpr std::array<Table, 8> make_tables() {
  std::array<Table, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? polynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 0xff];
  return tables;
}

constexpr auto tables = make_tables();

std::uint64_t load_word(const unsigned char* data) {
  std::uint64_t word = 0;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

#ifdef __x86_64__

/// A linear map of checksums: column i is what bit i becomes.
using Matrix = std::array<std::uint32_t, 32>;

constexpr std::uint32_t apply(const Matrix& matrix, std::uint32_t vector) {
  std::uint32_t sum = 0;
  for (std::size_t bit = 0; bit < 32; ++bit)
    if (((vector >> bit) & 1) != 0) sum ^= matrix[bit];
  return sum;
}

/// What 2^doublings zero bytes do to a checksum, as a table for each of its four bytes.
constexpr std::array<Table, 4> make_zeros(int doublings) {
  Matrix matrix{};  // one zero bit
  matrix[0] = polynomial;
  for (std::size_t bit = 1; bit < 32; ++bit) matrix[bit] = 1U << (bit - 1);
  for (int round = 0; round < doublings + 3; ++round) {
    Matrix square{};
    for (std::size_t bit = 0; bit < 32; ++bit) square[bit] = apply(matrix, matrix[bit]);
    matrix = square;
  }
  std::array<Table, 4> zeros{};
  for (std::uint32_t byte = 0; byte < 256; ++byte)
    for (std::uint32_t k = 0; k < 4; ++k) zeros[k][byte] = apply(matrix, byte << (8 * k));
  return zeros;
}

std::uint32_t skip_zeros(const std::array<Table, 4>& zeros, std::uint32_t crc) {
  return zeros[0][crc & 0xff] ^ zeros[1][(crc >> 8) & 0xff] ^ zeros[2][(crc >> 16) & 0xff] ^ zeros[3][crc >> 24];
}

constexpr int long_doublings = 13;
constexpr int short_doublings = 8;
const auto long_zeros = make_zeros(long_doublings);
const auto short_zeros = make_zeros(short_doublings);

/// Three neighbouring runs of equal length at once, since the instruction takes three cycles but one can start in each.
template <int Doublings>
__attribute__((target("sse4.2"))) const unsigned char* triple(const std::array<Table, 4>& zeros,
                                                              const unsigned char* data, std::size_t& size,
                                                              std::uint64_t& crc) {
  constexpr std::size_t run = std::size_t{1} << Doublings;
  while (size >= 3 * run) {
    std::uint64_t second = 0;
    std::uint64_t third = 0;
    for (const auto* end = data + run; data < end; data += 8) {
      crc = _mm_crc32_u64(crc, load_word(data));
      second = _mm_crc32_u64(second, load_word(data + run));
      third = _mm_crc32_u64(third, load_word(data + 2 * run));
    }
    crc = skip_zeros(zeros, static_cast<std::uint32_t>(crc)) ^ second;
    crc = skip_zeros(zeros, static_cast<std::uint32_t>(crc)) ^ third;
    data += 2 * run;
    size -= 3 * run;
  }
  return data;
}

__attribute__((target("sse4.2"))) std::uint32_t crc32c_hardware(const void* bytes, std::size_t size,
                                                                std::uint32_t previous) {
  const auto* data = static_cast<const unsigned char*>(bytes);
  std::uint64_t crc = ~previous;
  data = triple<long_doublings>(long_zeros, data, size, crc);
  data = triple<short_doublings>(short_zeros, data, size, crc);
  for (; size >= 8; size -= 8, data += 8) crc = _mm_crc32_u64(crc, load_word(data));
  for (; size > 0; --size, ++data) crc = _mm_crc32_u8(static_cast<std::uint32_t>(crc), *data);
  return ~static_cast<std::uint32_t>(crc);
}

#endif

}  // namespace

std::uint32_t crc32c_portable(const void* bytes, std::size_t size, std::uint32_t previous) {
  const auto* data = static_cast<const unsigned char*>(bytes);
  std::uint32_t crc = ~previous;
  for (; size >= 8; size -= 8, data += 8) {
    const auto word = load_word(data) ^ crc;
    crc = 0;
    for (std::size_t k = 0; k < 8; ++k) crc ^= tables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; size > 0; --size, ++data) crc = (crc >> 8) ^ tables[0][(crc ^ *data) & 0xff];
  return ~crc;
}

std::uint32_t crc32c(const void* data, std::size_t size, std::uint32_t previous) {
#ifdef __x86_64__
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc32c_hardware(data, size, previous);
#endif
  return crc32c_portable(data, size, previous);
}

}  // namespace troupe::detail
