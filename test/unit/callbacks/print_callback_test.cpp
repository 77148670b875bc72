// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <sstream>
#include <streambuf>
#include <string>
#include <vector>

#include <troupe/print_callback.hpp>

using troupe::Json;

namespace {

/// Counts the writes that reach the stream.
class CountingBuffer : public std::streambuf {
public:
  int writes = 0;
  std::string text;

protected:
  std::streamsize xsputn(const char* bytes, std::streamsize size) override {
    ++writes;
    text.append(bytes, static_cast<std::size_t>(size));
    return size;
  }
  int overflow(int c) override {
    ++writes;
    text.push_back(static_cast<char>(c));
    return c;
  }
};

}  // namespace

DOCTEST_TEST_CASE("a round is printed as one indented list, in one write") {
  CountingBuffer buffer;
  std::ostream out(&buffer);
  troupe::PrintCallback callback(out);
  callback.handle_result({Json{{"epoch", 0}, {"a", 1}}, Json{{"epoch", 0}}}, {});
  DOCTEST_CHECK(buffer.text == R"([
    {
        "epoch": 0,
        "a": 1
    },
    {
        "epoch": 0
    }
]
)");
  DOCTEST_CHECK(buffer.writes == 1);
}

DOCTEST_TEST_CASE("printing survives NaN, broken UTF-8 and a round of one") {
  std::ostringstream out;
  troupe::PrintCallback callback(out);
  callback.handle_result({Json{{"loss", std::nan("")}, {"text", "\xff"}}}, {});
  DOCTEST_CHECK(Json::parse(out.str()).dump() == "[{\"loss\":null,\"text\":\"\xEF\xBF\xBD\"}]");
}
