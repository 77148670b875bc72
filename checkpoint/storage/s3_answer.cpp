// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/storage/s3_answer.hpp"

#include <fmt/format.h>
#include <strings.h>

#include <charconv>
#include <pugixml.hpp>
#include <sstream>

#include <troupe/error.hpp>

namespace troupe::storage {
namespace {

bool is_header(std::string_view line, std::string_view name) {
  return line.size() > name.size() && line[name.size()] == ':' &&
         strncasecmp(line.data(), name.data(), name.size()) == 0;
}

std::string_view header_value(std::string_view line) {
  line.remove_prefix(line.find(':') + 1);
  const auto first = line.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(" \t\r\n") - first + 1);
}

pugi::xml_node parse(const std::string& body, const char* root, pugi::xml_document& document) {
  const bool parsed = document.load_buffer(body.data(), body.size());
  const auto node = parsed ? document.child(root) : pugi::xml_node();
  if (!node)
    throw Error(ErrorCode::io,
                fmt::format("the storage endpoint answered something that is not an S3 {} ({} bytes): is "
                            "it an S3 server?",
                            root, body.size()));
  return node;
}

}  // namespace

void read_s3_header(std::string_view line, S3Response& response) {
  if (line.starts_with("HTTP/")) {
    response.etag.clear();
    response.content_length.reset();
  } else if (is_header(line, "etag")) {
    response.etag = header_value(line);
  } else if (is_header(line, "content-length")) {
    const auto text = header_value(line);
    std::uint64_t value = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (failure == std::errc() && end == text.data() + text.size()) response.content_length = value;
  }
}

void read_s3_error(S3Response& response) {
  // Objects are never parsed: their answers are 200 or 206 with an ETag, and an error has none.
  const bool success = response.status >= 200 && response.status < 300;
  if (success && (response.body.size() > 64 << 10 || !response.etag.empty())) return;
  pugi::xml_document document;
  if (document.load_buffer(response.body.data(), response.body.size())) {
    const auto error = document.child("Error");
    response.error_code = error.child_value("Code");
    response.error_text = error.child_value("Message");
    response.error_region = error.child_value("Region");
    if (error && response.error_code.empty()) response.error_code = "Error";
  }
}

std::string summary(const S3Response& response) {
  if (response.error_code.empty()) return fmt::format("HTTP status {}", response.status);
  return fmt::format("{} ({}): {}", response.error_code, response.status, response.error_text);
}

std::string advice(const S3Response& response, const S3Settings& settings) {
  const auto& code = response.error_code;
  if (code == "NoSuchBucket")
    return fmt::format("; there is no bucket \"{}\" at that endpoint: make it, or correct the storage path",
                       settings.bucket);
  if (!response.error_region.empty() && response.error_region != settings.region)
    return fmt::format("; the bucket is in another region: add region={} to the storage path", response.error_region);
  if (code == "PermanentRedirect" || response.status == 301)
    return "; the bucket is in another region: add region=... to the storage path";
  if (code == "InvalidAccessKeyId" || code == "SignatureDoesNotMatch" || code == "ExpiredToken")
    return fmt::format("; the credentials (access key {}) are wrong or too old, or the region is not \"{}\"",
                       settings.access_key, settings.region);
  if (code == "RequestTimeTooSkewed") return "; set this host's clock";
  if (response.status == 403)
    return fmt::format("; the access key {} may not do this in that bucket", settings.access_key);
  if (response.status == 412) return "; the object was replaced while it was read";
  return "";
}

ListPage read_list_page(const std::string& body) {
  pugi::xml_document document;
  const auto root = parse(body, "ListBucketResult", document);
  ListPage page;
  for (const auto& object : root.children("Contents"))
    page.objects.push_back({object.child_value("Key"), object.child("Size").text().as_ullong()});
  if (root.child("IsTruncated").text().as_bool()) {
    page.next = root.child_value("NextContinuationToken");
    if (page.next.empty()) throw Error(ErrorCode::io, "the storage endpoint cut a listing without saying how to go on");
  }
  return page;
}

std::string read_upload_id(const std::string& body) {
  pugi::xml_document document;
  std::string id = parse(body, "InitiateMultipartUploadResult", document).child_value("UploadId");
  if (id.empty()) throw Error(ErrorCode::io, "the storage endpoint began an upload without an id for it");
  return id;
}

std::string complete_upload_body(const std::vector<std::string>& etags) {
  pugi::xml_document document;
  auto root = document.append_child("CompleteMultipartUpload");
  for (std::size_t i = 0; i < etags.size(); ++i) {
    auto part = root.append_child("Part");
    part.append_child("PartNumber").text() = static_cast<unsigned long long>(i) + 1;
    part.append_child("ETag").text() = etags[i].c_str();
  }
  std::ostringstream out;
  document.save(out, "", pugi::format_raw);
  return std::move(out).str();
}

}  // namespace troupe::storage
