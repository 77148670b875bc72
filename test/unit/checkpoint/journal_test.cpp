// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/journal.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include <troupe/error.hpp>

#include "test/unit/checkpoint/file_size_limit.hpp"
#include "test/unit/temp_folder.hpp"
#include "test/unit/thrown.hpp"

using namespace troupe;
using namespace troupe::detail;
using troupe::test::TempFolder;

namespace {

std::string four_records() {
  std::string text;
  for (int i = 0; i < 4; ++i) text += journal_line({{"record", i}, {"text", "some words\nof it"}});
  return text;
}

std::vector<int> numbers(const std::vector<Json>& records) {
  std::vector<int> all;
  for (const auto& record : records) all.push_back(record.at("record").get<int>());
  return all;
}

}  // namespace

DOCTEST_TEST_CASE("a journal gives back what was appended, in this program and the next") {
  const TempFolder folder;
  const auto path = folder.path() / "journal";
  {
    Journal journal(path);
    DOCTEST_CHECK(journal.records().empty());
    DOCTEST_CHECK_FALSE(journal.damaged());
    journal.append({{"record", 1}}, true);
    journal.append({{"record", 2}, {"bytes", "\xff\xfe"}}, false);
  }
  {
    Journal journal(path);
    DOCTEST_CHECK(numbers(journal.records()) == std::vector<int>{1, 2});
    journal.append({{"record", 3}}, true);
  }
  DOCTEST_CHECK(numbers(Journal(path).records()) == std::vector<int>{1, 2, 3});
}

DOCTEST_TEST_CASE("a journal that is cut at any byte keeps the whole records and goes on") {
  const TempFolder folder;
  const auto path = folder.path() / "journal";
  const auto text = four_records();
  const auto line = text.size() / 4;
  for (std::size_t size = 0; size <= text.size(); ++size) {
    DOCTEST_CAPTURE(size);
    std::ofstream(path, std::ios::trunc | std::ios::binary) << text.substr(0, size);
    {
      Journal journal(path);
      DOCTEST_REQUIRE(journal.records().size() == size / line);
      DOCTEST_REQUIRE(journal.damaged() == (size % line != 0));
      journal.append({{"record", 99}}, false);
    }
    Journal again(path);
    DOCTEST_REQUIRE(again.records().size() == size / line + 1);
    DOCTEST_REQUIRE(again.records().back().at("record") == 99);
    DOCTEST_REQUIRE_FALSE(again.damaged());
  }
}

DOCTEST_TEST_CASE("a changed byte costs the records it is in and is noticed") {
  const auto text = four_records();
  const auto line = text.size() / 4;
  for (std::size_t at = 0; at < text.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      DOCTEST_CAPTURE(at);
      DOCTEST_CAPTURE(bit);
      auto changed = text;
      changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
      const auto content = read_journal(changed);
      DOCTEST_REQUIRE((content.damaged || content.size < text.size()));
      std::vector<int> expected;
      const auto hit = static_cast<int>(at / line);
      // Without its end of line a record melts into the next one.
      const bool two = at % line == line - 1;
      for (int i = 0; i < 4; ++i)
        if (i != hit && !(two && i == hit + 1)) expected.push_back(i);
      DOCTEST_REQUIRE(numbers(content.records) == expected);
    }
}

DOCTEST_TEST_CASE("one program at a time has the journal") {
  const TempFolder folder;
  const auto path = folder.path() / "journal";
  {
    Journal first(path);
    DOCTEST_CHECK(test::contains(test::thrown_by([&] { Journal second(path); }), "is active"));
    first.append({{"record", 1}}, true);
    DOCTEST_CHECK(first.why_lost().empty());
  }
  DOCTEST_CHECK(Journal(path).records().size() == 1);
}

DOCTEST_TEST_CASE("a journal that others write to is lost") {
  const TempFolder folder;
  const auto path = folder.path() / "journal";
  Journal journal(path);
  journal.append({{"record", 1}}, false);
  std::ofstream(path, std::ios::app) << journal_line({{"record", 2}});
  DOCTEST_CHECK(journal.why_lost().find("taken over") != std::string::npos);
  DOCTEST_CHECK(test::contains(test::thrown_by([&] { journal.append({{"record", 3}}, false); }), "invalid_state"));
  DOCTEST_CHECK(numbers(read_journal(test::read_file(path)).records) == std::vector<int>{1, 2});
  Journal other(folder.path() / "other");
  std::filesystem::rename(folder.path() / "other", folder.path() / "aside");
  std::ofstream(folder.path() / "other") << "";
  DOCTEST_CHECK(other.why_lost().find("taken over") != std::string::npos);
}

DOCTEST_TEST_CASE("a record that finds no room is no other program's") {
  const TempFolder folder;
  const auto path = folder.path() / "journal";
  Journal journal(path);
  journal.append({{"record", 1}}, false);
  const auto size = std::filesystem::file_size(path);
  {
    const test::FileSizeLimit limit(size + 5);
    DOCTEST_CHECK(test::contains(test::thrown_by([&] { journal.append({{"record", 2}}, false); }), "io: "));
  }
  DOCTEST_CHECK(std::filesystem::file_size(path) == size);
  DOCTEST_CHECK(journal.why_lost() == "");
}
