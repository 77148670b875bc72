// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/s3_settings.hpp"

#include <curl/urlapi.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include <troupe/error.hpp>

#include "checkpoint/storage/aws_files.hpp"
#include "checkpoint/storage/storage.hpp"

namespace troupe::storage {
namespace {

[[noreturn]] void refuse(const std::string& location, const std::string& why) {
  throw Error(ErrorCode::invalid_option,
              fmt::format("storage \"{}\" is refused: {}; valid is for example "
                          "s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1",
                          location, why));
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string value_of(const AwsProfile& profile, const char* name) {
  const auto found = profile.find(name);
  return found != profile.end() ? found->second : "";
}

/// The first that is not empty.
template <class... Strings>
std::string first_of(Strings&&... values) {
  std::string result;
  ((result = result.empty() ? std::string(std::forward<Strings>(values)) : std::move(result)), ...);
  return result;
}

class Url {
public:
  explicit Url(const std::string& text) : handle_(curl_url(), curl_url_cleanup) {
    valid_ = curl_url_set(handle_.get(), CURLUPART_URL, text.c_str(), 0) == CURLUE_OK;
  }
  bool valid() const { return valid_; }
  std::string part(CURLUPart which) const {
    char* text = nullptr;
    if (curl_url_get(handle_.get(), which, &text, 0) != CURLUE_OK) return {};
    const std::unique_ptr<char, decltype(&curl_free)> owner(text, curl_free);
    return text;
  }

private:
  std::unique_ptr<CURLU, decltype(&curl_url_cleanup)> handle_;
  bool valid_;
};

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<std::string> unescape(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain += text[i];
      continue;
    }
    if (i + 2 >= text.size() || hex_value(text[i + 1]) < 0 || hex_value(text[i + 2]) < 0) return std::nullopt;
    plain += static_cast<char>(hex_value(text[i + 1]) * 16 + hex_value(text[i + 2]));
    i += 2;
  }
  return plain;
}

using Query = std::map<std::string, std::string>;

Query parse_query(const std::string& location, std::string_view text) {
  Query query;
  while (!text.empty()) {
    const auto pair = text.substr(0, text.find('&'));
    text.remove_prefix(std::min(text.size(), pair.size() + 1));
    const auto equals = pair.find('=');
    const auto name = std::string(pair.substr(0, equals));
    const auto value = equals == std::string_view::npos ? std::nullopt : unescape(pair.substr(equals + 1));
    if (name != "endpoint" && name != "region")
      refuse(location, fmt::format("\"{}\" is not known after '?'; known are endpoint and region", name));
    if (!value || value->empty()) refuse(location, fmt::format("{} has no value", name));
    if (!query.emplace(name, *value).second) refuse(location, fmt::format("{} stands there twice", name));
  }
  return query;
}

bool is_plain(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; }

/// S3's own rule. Older buckets with capitals or '_' are not served.
bool is_bucket_name(std::string_view name) {
  return name.size() >= 3 && name.size() <= 63 && name.front() != '.' && name.front() != '-' &&
         std::all_of(name.begin(), name.end(), [](char c) { return is_plain(c) || c == '.'; });
}

std::string check_endpoint(const std::string& location, std::string endpoint) {
  while (endpoint.ends_with('/')) endpoint.pop_back();
  const Url url(endpoint);
  const auto scheme = url.part(CURLUPART_SCHEME);
  if (!url.valid() || (scheme != "http" && scheme != "https"))
    refuse(location, fmt::format("the endpoint \"{}\" is not http://host:port or https://host:port", endpoint));
  if (!url.part(CURLUPART_USER).empty() || !url.part(CURLUPART_PASSWORD).empty())
    refuse(location,
           "credentials do not belong into the endpoint; they come from AWS_ACCESS_KEY_ID and "
           "AWS_SECRET_ACCESS_KEY, or from ~/.aws/credentials");
  if (url.part(CURLUPART_PATH) != "/" || !url.part(CURLUPART_QUERY).empty() || !url.part(CURLUPART_FRAGMENT).empty())
    refuse(location, fmt::format("the endpoint \"{}\" has more than a host and a port", endpoint));
  return endpoint;
}

void resolve_credentials(const AwsProfile& profile, S3Settings& settings) {
  settings.access_key = variable("AWS_ACCESS_KEY_ID");
  settings.secret_key = variable("AWS_SECRET_ACCESS_KEY");
  settings.session_token = variable("AWS_SESSION_TOKEN");
  if (settings.access_key.empty() && settings.secret_key.empty()) {
    settings.access_key = value_of(profile, "aws_access_key_id");
    settings.secret_key = value_of(profile, "aws_secret_access_key");
    settings.session_token = value_of(profile, "aws_session_token");
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) <= 0x20; };
  for (const auto* part : {&settings.access_key, &settings.secret_key, &settings.session_token})
    if (std::any_of(part->begin(), part->end(), is_control))
      throw Error(ErrorCode::invalid_option,
                  "an AWS key or token has a blank or a line end in it: it was copied wrongly");
  if (!settings.access_key.empty() && !settings.secret_key.empty()) return;
  std::string hint;
  for (const auto* other : {"role_arn", "sso_session", "sso_start_url", "credential_process", "source_profile"})
    if (profile.contains(other))
      hint = fmt::format(
          " The profile's {} is not understood: make keys of it first (aws configure "
          "export-credentials --format env).",
          other);
  throw Error(
      ErrorCode::invalid_option,
      fmt::format("no credentials for {}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (both), or write them "
                  "into ~/.aws/credentials and choose them with AWS_PROFILE.{}",
                  settings.name(), hint));
}

}  // namespace

S3Settings resolve_s3_settings(const std::string& location) {
  S3Settings settings;
  std::string_view rest(location);
  rest.remove_prefix(std::string_view("s3://").size());
  const auto question = rest.find('?');
  auto query = parse_query(location, question == std::string_view::npos ? "" : rest.substr(question + 1));
  rest = rest.substr(0, question);
  if (rest.find('#') != std::string_view::npos) refuse(location, "'#' has no meaning there");
  const auto slash = rest.find('/');
  settings.bucket = rest.substr(0, slash);
  if (!is_bucket_name(settings.bucket))
    refuse(location,
           fmt::format("\"{}\" is not the name of a bucket (3 to 63 of a-z, 0-9, '-', '.')", settings.bucket));
  auto prefix = slash == std::string_view::npos ? std::string_view() : rest.substr(slash + 1);
  while (prefix.ends_with('/')) prefix.remove_suffix(1);
  settings.prefix = prefix;
  if (!settings.prefix.empty()) check_key(settings.prefix);

  const auto profile = read_aws_profile();
  settings.region = first_of(query["region"], variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"),
                             value_of(profile, "region"), "us-east-1");
  if (!std::all_of(settings.region.begin(), settings.region.end(), is_plain))
    refuse(location, fmt::format("\"{}\" is not the name of a region", settings.region));
  settings.endpoint = first_of(query["endpoint"], variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL"),
                               value_of(profile, "endpoint_url"));
  if (settings.endpoint.empty()) {
    // AWS itself wants the bucket in the host's name; its certificate covers no bucket with dots.
    settings.bucket_in_host = settings.bucket.find('.') == std::string::npos;
    settings.endpoint = fmt::format("https://{}s3.{}.amazonaws.com",
                                    settings.bucket_in_host ? settings.bucket + "." : "", settings.region);
  }
  settings.endpoint = check_endpoint(location, settings.endpoint);
  resolve_credentials(profile, settings);
  return settings;
}

}  // namespace troupe::storage
