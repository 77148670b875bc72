// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/new_file.hpp"
#include "checkpoint/storage/storage.hpp"

namespace troupe::storage {

/// A folder as storage; an object is a file that was written beside its place and renamed.
class LocalStorage : public Storage {
public:
  /// Makes the folder when missing; throws io.
  explicit LocalStorage(std::filesystem::path root);

  std::string name() const override { return root_.string(); }
  void put(const std::string& key, std::string_view bytes) override;
  void put_file(const std::string& key, const std::filesystem::path& file) override;
  std::string get(const std::string& key, const Range& range) override;
  void get_file(const std::string& key, const std::filesystem::path& file) override;
  std::vector<ObjectInfo> list(const std::string& prefix) override;
  std::optional<ObjectInfo> head(const std::string& key) override;
  void remove(const std::string& key) override;

private:
  std::filesystem::path place(const std::string& key) const;
  detail::NewFile create(const std::string& key);

  std::filesystem::path root_;
  std::mutex folders_;  ///< a folder must not be removed as empty just before its first file is made
};

}  // namespace troupe::storage
