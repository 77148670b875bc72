// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/s3_upload.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include <troupe/error.hpp>

#include "checkpoint/storage/parallel.hpp"
#include "checkpoint/storage/s3_answer.hpp"
#include "runtime/base/log.hpp"

namespace troupe::storage {
namespace {

constexpr std::uint64_t most_parts = 10'000;
constexpr std::uint64_t smallest_part = 5 << 20;

std::uint64_t part_size_for(std::uint64_t file_size, std::uint64_t wanted) {
  return std::max({wanted, smallest_part, (file_size + most_parts - 1) / most_parts});
}

/// Parts that nobody completes cost money until they are given up. Best effort: the first error is what counts.
void give_up(S3Client& client, const std::string& key, const std::string& id) {
  auto options = client.options();
  options.stop = {};  // also, and just then, after a stop request
  options.retry_limit = std::min<std::chrono::milliseconds>(options.retry_limit, std::chrono::seconds(5));
  try {
    S3Client(client.settings(), options).expect({.method = "DELETE", .key = key, .query = {{"uploadId", id}}});
  } catch (const Error& error) {
    log_warning("parts of an upload that failed stay in the bucket until its lifecycle rules remove them: {}",
                error.what());
  }
}

void complete(S3Client& client, const std::string& key, const std::string& id, const std::vector<std::string>& etags,
              std::uint64_t size) {
  const auto body = complete_upload_body(etags);
  const S3Request request{.method = "POST",
                          .key = key,
                          .query = {{"uploadId", id}},
                          .headers = {"Content-Type: application/xml"},
                          .body = body};
  const auto response = client.send(request);
  // NoSuchUpload: an attempt was carried out, but its answer was lost. The size below decides.
  if (!response.good() && response.error_code != "NoSuchUpload") client.refuse(request, response);
  const auto head = client.send({.method = "HEAD", .key = key});
  if (!head.good() || head.content_length != size) client.refuse(request, response.good() ? head : response);
}

}  // namespace

void upload_in_parts(S3Client& client, const std::string& key, const detail::File& file) {
  const auto size = file.size();
  const auto part_size = part_size_for(size, client.options().part_size);
  const auto id = read_upload_id(client
                                     .expect({.method = "POST",
                                              .key = key,
                                              .query = {{"uploads", ""}},
                                              .headers = {"Content-Type: application/octet-stream"}})
                                     .body);
  try {
    std::vector<std::string> etags(static_cast<std::size_t>((size + part_size - 1) / part_size));
    parallel_for(etags.size(), client.options().connections, [&](std::size_t i) {
      const auto offset = i * part_size;
      std::string bytes(std::min(part_size, size - offset), '\0');
      file.read_at(offset, bytes.data(), bytes.size());
      const S3Request request{.method = "PUT",
                              .key = key,
                              .query = {{"partNumber", std::to_string(i + 1)}, {"uploadId", id}},
                              .body = bytes};
      etags[i] = client.expect(request).etag;
    });
    complete(client, key, id, etags, size);
  } catch (...) {
    give_up(client, key, id);
    throw;
  }
}

}  // namespace troupe::storage
