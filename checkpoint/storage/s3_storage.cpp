// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/s3_storage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <troupe/error.hpp>

#include "checkpoint/new_file.hpp"
#include "checkpoint/storage/parallel.hpp"
#include "checkpoint/storage/s3_answer.hpp"
#include "checkpoint/storage/s3_client.hpp"
#include "checkpoint/storage/s3_upload.hpp"

namespace troupe::storage {
namespace {

/// Of bytes that are handed out in memory; files may have any size.
constexpr std::uint64_t largest_in_memory = std::uint64_t{1} << 30;

class S3Storage : public Storage {
public:
  S3Storage(S3Settings settings, StorageOptions options) : client_(std::move(settings), std::move(options)) {}

  std::string name() const override { return client_.settings().name(); }
  void put(const std::string& key, std::string_view bytes) override;
  void put_file(const std::string& key, const std::filesystem::path& file) override;
  std::string get(const std::string& key, const Range& range) override;
  void get_file(const std::string& key, const std::filesystem::path& file) override;
  std::vector<ObjectInfo> list(const std::string& prefix) override;
  std::optional<ObjectInfo> head(const std::string& key) override;
  void remove(const std::string& key) override;
  void give_up_after(std::chrono::milliseconds limit) override { client_.give_up_after(limit); }

private:
  struct Head {
    std::uint64_t size = 0;
    std::string etag;
  };

  std::string full_key(const std::string& key) const;
  /// `key` with the location's prefix before it.
  std::string with_prefix(const std::string& key) const;
  std::optional<Head> find(const std::string& full_key);
  Head require(const std::string& full_key);
  std::string get_range(const std::string& full_key, const Head& head, std::uint64_t offset, std::uint64_t length);

  S3Client client_;
};

std::string S3Storage::with_prefix(const std::string& key) const {
  const auto& prefix = client_.settings().prefix;
  return prefix.empty() ? key : prefix + "/" + key;
}

std::string S3Storage::full_key(const std::string& key) const {
  check_key(key);
  auto full = with_prefix(key);
  check_key(full);  // together they may be too long
  return full;
}

void S3Storage::put(const std::string& key, std::string_view bytes) {
  client_.expect({.method = "PUT", .key = full_key(key), .body = bytes});
}

void S3Storage::put_file(const std::string& key, const std::filesystem::path& path) {
  const auto full = full_key(key);
  const auto file = detail::File::open(path);
  const auto size = file.size();
  if (size > client_.options().part_size) return upload_in_parts(client_, full, file);
  std::string bytes(size, '\0');
  file.read_at(0, bytes.data(), bytes.size());
  client_.expect({.method = "PUT", .key = full, .body = bytes});
}

std::optional<S3Storage::Head> S3Storage::find(const std::string& full_key) {
  const S3Request request{.method = "HEAD", .key = full_key};
  const auto response = client_.send(request);
  if (response.status == 404) return std::nullopt;
  if (!response.good()) client_.refuse(request, response);
  if (!response.content_length)
    throw Error(ErrorCode::io, fmt::format("the storage endpoint does not say how long {} is", full_key));
  return Head{*response.content_length, response.etag};
}

S3Storage::Head S3Storage::require(const std::string& full_key) {
  if (auto head = find(full_key)) return *std::move(head);
  throw Error(ErrorCode::io,
              fmt::format("there is no object s3://{}/{} (or no such bucket)", client_.settings().bucket, full_key));
}

std::string S3Storage::get_range(const std::string& full_key, const Head& head, std::uint64_t offset,
                                 std::uint64_t length) {
  if (length == 0) return {};
  // Room for an error's text too.
  S3Request request{
      .method = "GET", .key = full_key, .range = Range{offset, length}, .largest_answer = length + (64 << 10)};
  // All parts must be of the object that was looked at; it may be replaced meanwhile.
  if (!head.etag.empty()) request.headers.push_back("If-Match: " + head.etag);
  auto response = client_.expect(request);
  if (response.body.size() != length || (response.status != 206 && length != head.size))
    throw Error(ErrorCode::io, fmt::format("s3://{}/{}: {} bytes from byte {} on were asked for, {} came",
                                           client_.settings().bucket, full_key, length, offset, response.body.size()));
  return std::move(response.body);
}

std::string S3Storage::get(const std::string& key, const Range& range) {
  const auto full = full_key(key);
  const auto head = require(full);
  const auto length = range.length.value_or(head.size - std::min(head.size, range.offset));
  if (range.offset > head.size || length > head.size - range.offset)
    throw Error(ErrorCode::io, fmt::format("s3://{}/{} has {} bytes; {} bytes from byte {} on were asked for",
                                           client_.settings().bucket, full, head.size, length, range.offset));
  if (length > largest_in_memory)
    throw Error(ErrorCode::too_large, fmt::format("s3://{}/{}: {} bytes at once are refused, at most {}: get a file",
                                                  client_.settings().bucket, full, length, largest_in_memory));
  return get_range(full, head, range.offset, length);
}

void S3Storage::get_file(const std::string& key, const std::filesystem::path& path) {
  const auto full = full_key(key);
  const auto head = require(full);
  detail::NewFile file(path);
  const auto part = client_.options().part_size;
  parallel_for(static_cast<std::size_t>((head.size + part - 1) / part), client_.options().connections,
               [&](std::size_t i) {
                 const auto offset = i * part;
                 file.write(get_range(full, head, offset, std::min(part, head.size - offset)), offset);
               });
  file.commit();
}

std::vector<ObjectInfo> S3Storage::list(const std::string& prefix) {
  const auto skipped = with_prefix("").size();
  std::vector<ObjectInfo> found;
  S3Request request{.method = "GET", .query = {{"list-type", "2"}, {"prefix", with_prefix(prefix)}}};
  for (;;) {
    auto page = read_list_page(client_.expect(request).body);
    for (auto& object : page.objects) {
      if (object.key.size() <= skipped) continue;  // "prefix/" itself, which some tools make
      found.push_back({object.key.substr(skipped), object.size});
    }
    if (page.next.empty()) break;
    request.query["continuation-token"] = page.next;
  }
  std::sort(found.begin(), found.end(), [](const ObjectInfo& a, const ObjectInfo& b) { return a.key < b.key; });
  return found;
}

std::optional<ObjectInfo> S3Storage::head(const std::string& key) {
  const auto found = find(full_key(key));
  if (!found) return std::nullopt;
  return ObjectInfo{key, found->size};
}

void S3Storage::remove(const std::string& key) {
  const S3Request request{.method = "DELETE", .key = full_key(key)};
  const auto response = client_.send(request);
  if (!response.good() && response.error_code != "NoSuchKey") client_.refuse(request, response);
}

}  // namespace

std::unique_ptr<Storage> open_s3(const std::string& location, StorageOptions options) {
  return std::make_unique<S3Storage>(resolve_s3_settings(location), std::move(options));
}

}  // namespace troupe::storage
