// SPDX-License-Identifier: Apache-2.0
// An append-only file of JSON records, each with its checksum, that only one program writes at a time. A program that
// died in the middle of a record leaves a tail that is cut by the next one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <troupe/json.hpp>

#include "checkpoint/file.hpp"

namespace troupe::detail {

/// One line: the CRC32C of the text in eight hexadecimal digits, a space, the text as JSON.
std::string journal_line(const Json& record);

struct JournalContent {
  std::vector<Json> records;
  std::uint64_t size = 0;  ///< what follows the last good record is torn
  bool damaged = false;    ///< something could not be read
};
/// Reads what can be read: a bad record is left out, those behind it are not.
JournalContent read_journal(std::string_view text);

class Journal {
public:
  /// Opens or makes the file, cuts a torn tail, and keeps other programs (and other journals in this one) out. Throws
  /// invalid_state when somebody else has it, io when it cannot be read or written.
  explicit Journal(const std::filesystem::path& path);

  /// What was there before.
  const std::vector<Json>& records() const { return records_; }
  /// Some of it could not be read.
  bool damaged() const { return damaged_; }

  /// `durable`: it survives a power cut once this returns; otherwise only the end of the program. Throws invalid_state
  /// instead of writing over what somebody else has written.
  void append(const Json& record, bool durable);
  /// Empty, or why this program must not write to the run any more: somebody else has written to the journal, which a
  /// file system without locks may allow.
  std::string why_lost() const;

private:
  File file_;
  std::uint64_t end_ = 0;
  std::vector<Json> records_;
  bool damaged_ = false;
};

}  // namespace troupe::detail
