// SPDX-License-Identifier: Apache-2.0
// What S3 answers: headers, XML, errors.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/storage/s3_client.hpp"

namespace troupe::storage {

/// Takes ETag and Content-Length from a line of the head; a status line begins a new head (100 Continue came before).
void read_s3_header(std::string_view line, S3Response& response);
/// Fills in the error fields from an <Error> body. S3 sends one with status 200 too, after a long operation.
void read_s3_error(S3Response& response);

/// "AccessDenied (403): Access Denied".
std::string summary(const S3Response& response);
/// "; what to change" for errors that people make, else nothing.
std::string advice(const S3Response& response, const S3Settings& settings);

struct ListPage {
  std::vector<ObjectInfo> objects;
  std::string next;  ///< empty: the last one
};
/// Throws io for a body that is not a listing.
ListPage read_list_page(const std::string& body);
std::string read_upload_id(const std::string& body);

/// The body that ends a multipart upload.
std::string complete_upload_body(const std::vector<std::string>& etags);

}  // namespace troupe::storage
