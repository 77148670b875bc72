// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/s3_client.hpp"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <random>
#include <utility>

#include <troupe/error.hpp>
#include <troupe/version.hpp>

#include "checkpoint/storage/s3_answer.hpp"
#include "runtime/base/log.hpp"

namespace troupe::storage {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds longest_backoff{10'000};
/// Of one attempt; it moves one part at most.
constexpr std::chrono::minutes attempt_limit{10};

std::string sha256_hex(std::string_view bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1)
    throw Error(ErrorCode::internal, "SHA-256 of the request could not be computed");
  std::string text;
  for (unsigned i = 0; i < size; ++i) fmt::format_to(std::back_inserter(text), "{:02x}", digest.at(i));
  return text;
}

/// As the signature wants it: everything but the unreserved characters.
std::string escape(std::string_view text, std::string_view also_plain = "") {
  std::string escaped;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       std::string_view("-._~").find(c) != std::string_view::npos ||
                       also_plain.find(c) != std::string_view::npos;
    if (plain)
      escaped += c;
    else
      fmt::format_to(std::back_inserter(escaped), "%{:02X}", static_cast<unsigned char>(c));
  }
  return escaped;
}

/// What curl's functions work on during one attempt.
struct Transfer {
  std::string_view body;
  std::size_t sent = 0;
  S3Response response;
  std::uint64_t largest_answer = 0;
  bool too_large = false;
  std::stop_token stop;

  static std::size_t on_read(char* out, std::size_t size, std::size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    const auto part = transfer.body.substr(transfer.sent, size * count);
    part.copy(out, part.size());
    transfer.sent += part.size();
    return part.size();
  }
  static int on_seek(void* self, curl_off_t offset, int) {
    static_cast<Transfer*>(self)->sent = static_cast<std::size_t>(offset);
    return CURL_SEEKFUNC_OK;
  }
  static std::size_t on_answer(char* bytes, std::size_t size, std::size_t count, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    auto& body = transfer.response.body;
    transfer.too_large = body.size() + size * count > transfer.largest_answer;
    if (transfer.too_large) return 0;  // ends the transfer
    body.append(bytes, size * count);
    return size * count;
  }
  static std::size_t on_header(char* bytes, std::size_t size, std::size_t count, void* self) {
    auto& response = static_cast<Transfer*>(self)->response;
    read_s3_header(std::string_view(bytes, size * count), response);
    return size * count;
  }
  static int on_progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Transfer*>(self)->stop.stop_requested() ? 1 : 0;
  }
};

class HeaderList {
public:
  void add(const std::string& header) { list_ = curl_slist_append(list_, header.c_str()); }
  HeaderList() = default;
  HeaderList(const HeaderList&) = delete;
  HeaderList& operator=(const HeaderList&) = delete;
  ~HeaderList() { curl_slist_free_all(list_); }
  curl_slist* get() const { return list_; }

private:
  curl_slist* list_ = nullptr;
};

void set_body(CURL* curl, const S3Request& request, Transfer& transfer) {
  if (request.method == "PUT") {
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, &Transfer::on_read);
    curl_easy_setopt(curl, CURLOPT_READDATA, &transfer);
    curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, &Transfer::on_seek);
    curl_easy_setopt(curl, CURLOPT_SEEKDATA, &transfer);
    // An "Expect:" header would be signed and never sent; so servers that do not answer it cost a moment.
    curl_easy_setopt(curl, CURLOPT_EXPECT_100_TIMEOUT_MS, 200L);
  } else if (request.method == "POST") {
    curl_easy_setopt(curl, CURLOPT_POST, 1L);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.body.data());
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
  } else if (request.method == "HEAD") {
    curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
  } else {
    curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
}

void set_limits(CURL* curl, const StorageOptions& options, Transfer& transfer) {
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(options.connect_timeout.count()));
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, static_cast<long>(options.stall_timeout.count()));
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(milliseconds(attempt_limit).count()));
  curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, &Transfer::on_progress);
  curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &transfer);
}

/// Whether trying again cannot help.
bool is_final(CURLcode code) {
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_OUT_OF_MEMORY:
      return true;
    default:
      return false;
  }
}

bool is_retried(const S3Response& response) {
  return (response.status >= 500 && response.status != 501) || response.status == 429 || response.status == 408 ||
         response.error_code == "RequestTimeout" || response.error_code == "InternalError" ||
         response.error_code == "SlowDown";
}

milliseconds jittered(milliseconds most) {
  static thread_local std::minstd_rand random(std::random_device{}());
  return milliseconds(std::uniform_int_distribution<milliseconds::rep>(most.count() / 2, most.count())(random));
}

}  // namespace

S3Client::S3Client(S3Settings settings, StorageOptions options)
    : settings_(std::move(settings)), options_(std::move(options)), retry_limit_(options_.retry_limit) {
  static const CURLcode started = curl_global_init(CURL_GLOBAL_DEFAULT);  // once, and thread-safe
  if (started != CURLE_OK) throw Error(ErrorCode::internal, "libcurl does not start");
}

S3Client::Handle S3Client::take_handle() {
  const std::lock_guard lock(mutex_);
  if (idle_.empty()) {
    Handle handle(curl_easy_init(), curl_easy_cleanup);
    if (!handle) throw Error(ErrorCode::internal, "libcurl does not start");
    return handle;
  }
  auto handle = std::move(idle_.back());
  idle_.pop_back();
  return handle;
}

std::string S3Client::url_of(const S3Request& request) const {
  auto url = settings_.endpoint + "/";
  if (!settings_.bucket_in_host) url += settings_.bucket + (request.key.empty() ? "" : "/");
  url += escape(request.key, "/");
  char separator = '?';
  for (const auto& [name, value] : request.query) {
    url += separator + escape(name) + "=" + escape(value);  // curl signs "name=" only if the '=' stands there
    separator = '&';
  }
  return url;
}

std::string S3Client::describe(const S3Request& request) const {
  return fmt::format("{} s3://{}/{} at {}", request.method, settings_.bucket, request.key, settings_.endpoint);
}

S3Client::Attempt S3Client::attempt(const S3Request& request, const std::string& digest) {
  auto handle = take_handle();
  auto* curl = handle.get();
  curl_easy_reset(curl);
  Transfer transfer{.body = request.body, .largest_answer = request.largest_answer, .stop = options_.stop};
  std::array<char, CURL_ERROR_SIZE> reason{};
  HeaderList headers;
  headers.add("x-amz-content-sha256: " + digest);
  if (!settings_.session_token.empty()) headers.add("x-amz-security-token: " + settings_.session_token);
  for (const auto& header : request.headers) headers.add(header);

  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason.data());
  curl_easy_setopt(curl, CURLOPT_URL, url_of(request).c_str());
  curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "troupe/" TROUPE_VERSION);
  curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, fmt::format("aws:amz:{}:s3", settings_.region).c_str());
  curl_easy_setopt(curl, CURLOPT_USERNAME, settings_.access_key.c_str());
  curl_easy_setopt(curl, CURLOPT_PASSWORD, settings_.secret_key.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, &Transfer::on_answer);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &transfer);
  curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, &Transfer::on_header);
  curl_easy_setopt(curl, CURLOPT_HEADERDATA, &transfer);
  std::string range;
  if (request.range) {
    range = fmt::format("{}-{}", request.range->offset, request.range->offset + *request.range->length - 1);
    curl_easy_setopt(curl, CURLOPT_RANGE, range.c_str());
  }
  set_limits(curl, options_, transfer);
  set_body(curl, request, transfer);

  const auto code = curl_easy_perform(curl);
  if (options_.stop.stop_requested()) throw Stopped();
  if (code != CURLE_OK) {
    const auto* text = reason.front() != '\0' ? reason.data() : curl_easy_strerror(code);
    if (transfer.too_large)
      throw Error(ErrorCode::io, fmt::format("{}: the answer is longer than the {} bytes that are there",
                                             describe(request), request.largest_answer));
    if (is_final(code)) throw Error(ErrorCode::io, fmt::format("{}: {}", describe(request), text));
    return {std::nullopt, text};  // the handle, and its connection, are dropped
  }
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &transfer.response.status);
  read_s3_error(transfer.response);
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(handle));
  return {std::move(transfer.response), ""};
}

void S3Client::wait(milliseconds time) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  never.wait_for(lock, options_.stop, time, [] { return false; });
  if (options_.stop.stop_requested()) throw Stopped();
}

S3Response S3Client::send(const S3Request& request) {
  if (options_.stop.stop_requested()) throw Stopped();
  const auto digest = sha256_hex(request.body);
  const auto begin = Clock::now();
  auto backoff = options_.first_backoff;
  for (int count = 1;; ++count) {
    auto result = attempt(request, digest);
    if (result.response && !is_retried(*result.response)) return std::move(*result.response);
    const auto pause = jittered(backoff);
    const auto why = result.response ? summary(*result.response) : result.failure;
    const auto limit = retry_limit_.load();
    if (Clock::now() + pause > begin + limit)
      throw Unavailable(
          ErrorCode::io,
          fmt::format("{}: {} (attempt {}, given up after {:.1f} s); is the endpoint right, and does it run?",
                      describe(request), why, count, std::chrono::duration<double>(limit).count()));
    log_info("{}: {} (attempt {}), next in {} ms", describe(request), why, count, pause.count());
    wait(pause);
    backoff = std::min(backoff * 2, longest_backoff);
  }
}

void S3Client::refuse(const S3Request& request, const S3Response& response) const {
  throw Error(ErrorCode::io,
              fmt::format("{}: {}{}", describe(request), summary(response), advice(response, settings_)));
}

S3Response S3Client::expect(const S3Request& request) {
  auto response = send(request);
  if (!response.good()) refuse(request, response);
  return response;
}

}  // namespace troupe::storage
