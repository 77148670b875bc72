// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <optional>
#include <vector>

#include <troupe/json.hpp>
#include <troupe/run_results.hpp>

namespace troupe {
namespace detail {
class Run;
}

/// The rounds of a running training: `for (auto& round : trainer.run_iterator(...))`. Each round is one list of
/// metrics in rank order. Leaving the loop early and dropping the iterator stops the run.
class RunIterator {
public:
  class Cursor {
  public:
    using iterator_category = std::input_iterator_tag;
    using value_type = std::vector<Json>;
    using difference_type = std::ptrdiff_t;
    using pointer = value_type*;
    using reference = value_type&;

    Cursor() = default;
    explicit Cursor(RunIterator* owner) : owner_(owner) { ++*this; }
    reference operator*() const { return owner_->round_; }
    pointer operator->() const { return &owner_->round_; }
    Cursor& operator++() {
      if (!owner_->next()) owner_ = nullptr;
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Cursor& a, const Cursor& b) { return a.owner_ == b.owner_; }

  private:
    RunIterator* owner_ = nullptr;
  };

  explicit RunIterator(std::shared_ptr<detail::Run> run);
  ~RunIterator();
  RunIterator(RunIterator&&) noexcept;
  RunIterator& operator=(RunIterator&&) noexcept;

  /// Waits for the first round. Throws what run() would throw when the run fails.
  Cursor begin() { return Cursor(this); }
  Cursor end() { return {}; }

  /// True once all rounds were taken and the function has returned on all ranks.
  bool is_finished() const;
  /// The ranks' results once finished; nothing before, unless `force`: then the rounds that are left are dropped until
  /// the function has returned. (Dropping the iterator stops the function.)
  std::optional<RunResults> get_final_results(bool force = false);
  /// The API review's name: the results of a finished run; throws invalid_state before.
  RunResults get_returns();

private:
  bool next();
  const RunResults& conclude();

  std::shared_ptr<detail::Run> run_;
  std::vector<Json> round_;
  std::optional<RunResults> results_;
};

}  // namespace troupe
