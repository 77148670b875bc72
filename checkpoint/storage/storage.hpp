// SPDX-License-Identifier: Apache-2.0
// Where checkpoints are kept: a folder, or a bucket of S3-compatible object storage. An object is a key and bytes; it
// is there as a whole or not at all.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include <troupe/error.hpp>

namespace troupe::storage {

/// The store did not answer in time, or kept failing: another request would fare no better now.
class Unavailable : public Error {
public:
  using Error::Error;
};

struct ObjectInfo {
  std::string key;
  std::uint64_t size = 0;
  friend bool operator==(const ObjectInfo&, const ObjectInfo&) = default;
};

/// Bytes of an object; without a length all up to its end.
struct Range {
  std::uint64_t offset = 0;
  std::optional<std::uint64_t> length;
};

/// How long to wait and how much to do at once; the defaults suit a store across the world.
struct StorageOptions {
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(10);
  std::chrono::seconds stall_timeout{30};                           ///< no byte for so long: the connection is dead
  std::chrono::milliseconds retry_limit = std::chrono::minutes(3);  ///< of one request, all its attempts together
  std::chrono::milliseconds first_backoff{200};                     ///< doubled (up to 10 s) and jittered each time
  std::uint64_t part_size = 8 << 20;  ///< larger files travel in such parts; S3 wants 5 MiB at least
  int connections = 4;                ///< at once for one file; memory: this many parts
  std::stop_token stop;               ///< ends requests and waits at once
};

/// Keys are relative, with '/' between their parts; empty, "." and ".." are no parts. Errors are troupe::Error with
/// code io (Unavailable for a store that does not answer, invalid_argument for a bad key, stopped after a stop
/// request). Safe to use from several threads.
class Storage {
public:
  Storage() = default;
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  /// The place, for messages.
  virtual std::string name() const = 0;
  virtual void put(const std::string& key, std::string_view bytes) = 0;
  virtual void put_file(const std::string& key, const std::filesystem::path& file) = 0;
  /// A range that goes beyond the end is an error, and so is an object that is not there.
  virtual std::string get(const std::string& key, const Range& range = {}) = 0;
  /// `file` appears when all of it is there; its folder must exist.
  virtual void get_file(const std::string& key, const std::filesystem::path& file) = 0;
  /// All objects whose key begins with `prefix`, by key.
  virtual std::vector<ObjectInfo> list(const std::string& prefix) = 0;
  virtual std::optional<ObjectInfo> head(const std::string& key) = 0;
  /// No error if there is no such object.
  virtual void remove(const std::string& key) = 0;
  /// Requests are tried again for so long at most, from now on and also those under way.
  virtual void give_up_after(std::chrono::milliseconds /*limit*/) {}
};

/// "s3://bucket/prefix?endpoint=http://host:port&region=..." or the path of a folder, which is made when missing.
/// Throws invalid_option for a location that cannot be one.
std::unique_ptr<Storage> open_storage(const std::string& location, StorageOptions options = {});

/// Throws invalid_argument that says what is wrong with the key.
void check_key(const std::string& key);

}  // namespace troupe::storage
