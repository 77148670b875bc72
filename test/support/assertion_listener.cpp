// SPDX-License-Identifier: Apache-2.0
// Fails a run in which a test case made no assertion: such a case passes whatever the code does. So does a run of no
// case at all: a filter that matches none is a name that somebody has misunderstood. Linked into every test program;
// works with any main().
#include <doctest/doctest.h>

#include <iostream>
#include <mutex>
#include <string>
#include <vector>

namespace {

class AssertionListener : public doctest::IReporter {
public:
  explicit AssertionListener(const doctest::ContextOptions&) {}

  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}

  void test_run_end(const doctest::TestRunStats& stats) override {
    for (const auto& name : empty_cases_) {
      std::cerr << "test case without an assertion: " << name << '\n';
    }
    const bool none = stats.numTestCasesPassingFilters == 0;
    if (none) std::cerr << "no test case passed the filters\n";
    // The exit code is made from these counts, and doctest has no other way to say "failed" from here; the object
    // behind the reference is not const.
    auto& counts = const_cast<doctest::TestRunStats&>(stats);
    counts.numTestCasesPassingFilters += none ? 1 : 0;
    counts.numTestCasesFailed += static_cast<unsigned>(empty_cases_.size()) + (none ? 1 : 0);
  }

  void test_case_start(const doctest::TestCaseData& data) override { current_ = data.m_name; }
  void test_case_reenter(const doctest::TestCaseData&) override {}

  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    if (stats.numAssertsCurrentTest == 0 && stats.failure_flags == 0) {
      empty_cases_.push_back(current_);
    }
  }

  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

private:
  std::string current_;
  std::vector<std::string> empty_cases_;
};

DOCTEST_REGISTER_LISTENER("assertions", 1, AssertionListener);

}  // namespace
