// SPDX-License-Identifier: Apache-2.0
#include "actors/node/death_watch.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>
#include <utility>

#include "actors/node/threads.hpp"

namespace troupe::node {

namespace {

/// Free, held, held and announced: a word that changes more often is not ours to understand, and is left alone.
constexpr int most_changes = 8;

/// With one line a thread, a wake for a removed line may come just before the wait: the line is let go this much later.
constexpr ::timespec longest_wait{1, 0};

::futex_waitv to_wait(const std::uint32_t* word, std::uint32_t value, std::uint32_t flags) {
  ::futex_waitv entry{};
  entry.uaddr = reinterpret_cast<std::uintptr_t>(word);
  entry.val = value;
  entry.flags = FUTEX_32 | flags;
  return entry;
}

}  // namespace

/// One thread and its lines.
class DeathWatch::Bank {
public:
  Bank(const std::function<void(Token)>& on_death, std::size_t capacity) : on_death_(on_death), capacity_(capacity) {
    thread_ = start_thread("troupe-deaths", [this] { run(); });
  }
  Bank(const Bank&) = delete;
  Bank& operator=(const Bank&) = delete;
  ~Bank() {
    {
      const std::lock_guard lock(mutex_);
      quitting_ = true;
      rouse();
    }
    thread_.join();
  }

  bool add(Token token, const std::shared_ptr<const LifeLine>& line) {
    const std::lock_guard lock(mutex_);
    if (lines_.size() >= capacity_) {
      return false;
    }
    lines_.push_back({token, line, line->value(), most_changes});
    rouse();
    return true;
  }

  bool remove(Token token) {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(lines_.begin(), lines_.end(), [&](const Line& line) { return line.token == token; });
    if (found == lines_.end()) {
      return false;
    }
    rouse();
    lines_.erase(found);
    return true;
  }

private:
  struct Line {
    Token token;
    std::shared_ptr<const LifeLine> line;
    std::uint32_t seen;
    int changes_left;
  };

  void run() {
    for (;;) {
      std::vector<Token> dead;
      std::vector<::futex_waitv> words;
      std::vector<std::shared_ptr<const LifeLine>> held;  // mapped as long as the kernel looks at them
      {
        const std::lock_guard lock(mutex_);
        if (quitting_) {
          return;
        }
        words.push_back(to_wait(&changes_, changes_, FUTEX_PRIVATE_FLAG));
        std::erase_if(lines_, [&](Line& line) { return is_over(line, dead); });
        for (const auto& line : lines_) {
          words.push_back(to_wait(line.line->word(), line.seen, 0));
          held.push_back(line.line);
        }
      }
      for (const auto token : dead) {
        on_death_(token);
      }
      if (!dead.empty()) {
        continue;  // time has passed
      }
      if (capacity_ > 1) {
        futex_wait_any(words);
      } else {
        futex_wait_one(words.back(), longest_wait);
      }
    }
  }

  static bool is_over(Line& line, std::vector<Token>& dead) {
    const auto value = line.line->value();
    if (LifeLine::tells_death(value)) {
      dead.push_back(line.token);
      return true;
    }
    if (value != line.seen) {
      line.seen = value;
      line.changes_left -= 1;
    }
    return line.changes_left == 0;
  }

  /// Under the lock: the thread looks at its lines again.
  void rouse() {
    std::atomic_ref(changes_).fetch_add(1);
    futex_wake_all(&changes_, FUTEX_PRIVATE_FLAG);
    if (capacity_ == 1 && !lines_.empty()) {
      futex_wake_all(lines_.front().line->word(), 0);
    }
  }

  const std::function<void(Token)>& on_death_;
  const std::size_t capacity_;
  std::mutex mutex_;
  std::uint32_t changes_ = 0;
  std::vector<Line> lines_;
  bool quitting_ = false;
  std::thread thread_;  // last: it uses all of the above
};

DeathWatch::DeathWatch(std::function<void(Token)> on_death, std::size_t lines_per_thread)
    : on_death_(std::move(on_death)), lines_per_thread_(lines_per_thread) {}

DeathWatch::~DeathWatch() = default;

void DeathWatch::add(Token token, const std::shared_ptr<const LifeLine>& line) {
  const std::lock_guard lock(mutex_);
  for (auto& bank : banks_) {
    if (bank->add(token, line)) {
      return;
    }
  }
  banks_.push_back(std::make_unique<Bank>(on_death_, lines_per_thread_));
  banks_.back()->add(token, line);
}

void DeathWatch::remove(Token token) {
  const std::lock_guard lock(mutex_);
  for (auto& bank : banks_) {
    if (bank->remove(token)) {
      return;
    }
  }
}

}  // namespace troupe::node
