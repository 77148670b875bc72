// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: everything that reads a checkpoint from bytes. Errors of ours are fine, all else is a find.
// The first byte chooses what is read. Checksums are put right, since random bytes would never pass them.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include <troupe/checkpoint.hpp>

#include "checkpoint/crc32c.hpp"
#include "checkpoint/manifest.hpp"
#include "checkpoint/shard_format.hpp"
#include "checkpoint/shard_reader.hpp"

using namespace troupe::detail;

namespace {

void read_file(const std::string& bytes) {
  File file(::memfd_create("fuzz", MFD_CLOEXEC), "fuzz");
  file.write_at(0, bytes.data(), bytes.size());
  const auto reader = ShardReader::open(std::move(file), std::nullopt);
  (void)reader->checkpoint().to_dict();
}

/// A shard whose sizes and index come from the input; its checksums are right.
void read_shard(std::string_view input) {
  std::uint64_t sizes[3] = {};
  if (input.size() < sizeof(sizes)) return;
  std::memcpy(sizes, input.data(), sizeof(sizes));
  input.remove_prefix(sizeof(sizes));
  ShardHeader header;
  header.tensors_size = sizes[0] % (std::uint64_t{3} << 20);
  header.data_size = round_to_page(header.tensors_size);
  header.index_size = sizes[1] % 2 == 0 ? input.size() : sizes[1];
  const auto blocks = blocks_of(header.data_size);
  std::string tail(input);
  const std::string data(header.data_size, '\0');
  for (std::uint64_t block = 0; block < blocks; ++block) {
    const auto crc = crc32c(data.data(), std::min(block_size, header.data_size - block * block_size));
    tail.append(reinterpret_cast<const char*>(&crc), sizeof(crc));
  }
  tail.resize(round_to_page(tail.size()));
  header.tail_size = sizes[2] % 4 != 1 ? tail.size() : sizes[2];
  header.tail_crc = crc32c(tail.data(), tail.size());
  const auto page = write_header(header);
  read_file(std::string(reinterpret_cast<const char*>(page.data()), page.size()) + data + tail);
}

void read_manifest_text(std::string_view input) {
  const auto crc = crc32c(input.data(), input.size());
  char opening[32];
  std::snprintf(opening, sizeof(opening), "{\"crc32c\":\"%08x\",", crc);
  (void)parse_manifest(opening + std::string(input), "fuzz");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    switch (data[0] % 4) {
      case 0: {
        const auto checkpoint = decode(input);
        if (decode(encode(checkpoint)) != checkpoint && encode(decode(encode(checkpoint))) != encode(checkpoint))
          __builtin_trap();  // what was read must come back (NaN is not equal to itself, but its bytes are)
        break;
      }
      case 1:
        read_file(std::string(input));
        break;
      case 2:
        read_shard(input);
        break;
      default:
        read_manifest_text(input);
    }
  } catch (const troupe::Error&) {
  }
  return 0;
}
