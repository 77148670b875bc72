// SPDX-License-Identifier: Apache-2.0
// What is needed to talk to a bucket: from the location, the usual AWS variables and the files in ~/.aws.
#pragma once

#include <string>

namespace troupe::storage {

struct S3Settings {
  std::string endpoint;  ///< scheme, host and port, without a '/' at the end
  bool bucket_in_host = false;
  std::string region;
  std::string bucket;
  std::string prefix;  ///< without '/' at either end
  std::string access_key;
  std::string secret_key;
  std::string session_token;  ///< empty for lasting credentials

  /// "s3://bucket/prefix", for messages.
  std::string name() const { return "s3://" + bucket + (prefix.empty() ? "" : "/" + prefix); }
};

/// What comes first counts: the location's query; AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN,
/// AWS_REGION, AWS_DEFAULT_REGION, AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL; the profile (AWS_PROFILE, else "default") in
/// ~/.aws/credentials and ~/.aws/config (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE). Throws invalid_option.
S3Settings resolve_s3_settings(const std::string& location);

}  // namespace troupe::storage
