// SPDX-License-Identifier: Apache-2.0
// One signed request to S3, repeated until it is answered or its time is up.
#pragma once

#include <curl/curl.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/storage/s3_settings.hpp"
#include "checkpoint/storage/storage.hpp"

namespace troupe::storage {

struct S3Request {
  std::string method;
  std::string key;                           ///< as S3 knows it; empty: the bucket itself
  std::map<std::string, std::string> query;  ///< ordered by name, which is what curl's signature needs
  std::vector<std::string> headers;
  std::string_view body;
  std::optional<Range> range;               ///< with a length
  std::uint64_t largest_answer = 64 << 20;  ///< more than that is refused
};

struct S3Response {
  long status = 0;
  std::string body;
  std::string etag;
  std::optional<std::uint64_t> content_length;
  std::string error_code;  ///< S3's own, such as "NoSuchBucket"; empty for success
  std::string error_text;
  std::string error_region;  ///< where the bucket is, if S3 says so

  bool good() const { return status >= 200 && status < 300 && error_code.empty(); }
};

class S3Client {
public:
  S3Client(S3Settings settings, StorageOptions options);

  const S3Settings& settings() const { return settings_; }
  const StorageOptions& options() const { return options_; }

  /// Of requests from now on, and of those under way.
  void give_up_after(std::chrono::milliseconds limit) { retry_limit_ = limit; }

  /// The answer; throws Unavailable when there was none in time (with the last reason) or a server kept failing, and
  /// stopped.
  S3Response send(const S3Request& request);
  /// Throws the error that the answer is: what was tried, S3's code and text, what to change.
  [[noreturn]] void refuse(const S3Request& request, const S3Response& response) const;
  /// send(), and refuse() unless good.
  S3Response expect(const S3Request& request);

private:
  using Handle = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;
  struct Attempt {
    std::optional<S3Response> response;
    std::string failure;  ///< why there is no response
  };

  Attempt attempt(const S3Request& request, const std::string& digest);
  Handle take_handle();
  std::string url_of(const S3Request& request) const;
  std::string describe(const S3Request& request) const;
  /// Sleeps; throws stopped.
  void wait(std::chrono::milliseconds time);

  S3Settings settings_;
  StorageOptions options_;
  std::atomic<std::chrono::milliseconds> retry_limit_;
  std::mutex mutex_;
  std::vector<Handle> idle_;  ///< a handle keeps its connection alive
};

}  // namespace troupe::storage
