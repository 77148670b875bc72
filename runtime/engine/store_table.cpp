// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/store_table.hpp"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace troupe::engine {
namespace {

std::int64_t as_number(const std::string& text) {
  std::int64_t number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

}  // namespace

bool StoreTable::has_all(const std::vector<std::string>& keys) const {
  return std::all_of(keys.begin(), keys.end(), [this](const std::string& key) { return values_.contains(key); });
}

StoreAnswer StoreTable::found(const StoreRequest& request) const {
  StoreAnswer answer{request.client, request.id, false, {}, 1};
  if (request.operation == StoreOperation::get) answer.value = values_.at(request.keys.front());
  return answer;
}

std::vector<StoreAnswer> StoreTable::handle(const StoreRequest& request, Time now) {
  StoreAnswer answer{request.client, request.id, false, {}, 0};
  if (request.keys.empty() && request.operation != StoreOperation::count) {
    answer.failed = true;
    answer.value = "no key";
    return {answer};
  }
  std::vector<StoreAnswer> answers;
  switch (request.operation) {
    case StoreOperation::set:
      values_[request.keys.front()] = request.value;
      answers = wake();
      break;
    case StoreOperation::add: {
      auto& value = values_[request.keys.front()];
      answer.number = as_number(value) + request.amount;
      value = std::to_string(answer.number);
      answers = wake();
      break;
    }
    case StoreOperation::check:
      answer.number = has_all(request.keys) ? 1 : 0;
      break;
    case StoreOperation::erase:
      answer.number = static_cast<std::int64_t>(values_.erase(request.keys.front()));
      break;
    case StoreOperation::count:
      answer.number = static_cast<std::int64_t>(values_.size());
      break;
    case StoreOperation::get:
    case StoreOperation::wait:
      if (!has_all(request.keys)) {
        waiting_.push_back({request, now + request.timeout});
        return {};
      }
      return {found(request)};
  }
  answers.push_back(std::move(answer));
  return answers;
}

std::vector<StoreAnswer> StoreTable::wake() {
  std::vector<StoreAnswer> answers;
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (!has_all(waiting.request.keys)) return false;
    answers.push_back(found(waiting.request));
    return true;
  });
  return answers;
}

std::vector<StoreAnswer> StoreTable::tick(Time now) {
  std::vector<StoreAnswer> answers;
  std::erase_if(waiting_, [&](const Waiting& waiting) {
    if (now < waiting.deadline) return false;
    std::vector<std::string> missing;
    for (const auto& key : waiting.request.keys)
      if (!values_.contains(key)) missing.push_back(key);
    answers.push_back(
        {waiting.request.client, waiting.request.id, true, fmt::format("{}", fmt::join(missing, ", ")), 0});
    return true;
  });
  return answers;
}

std::optional<Time> StoreTable::deadline() const {
  std::optional<Time> next;
  for (const auto& waiting : waiting_)
    if (!next || waiting.deadline < *next) next = waiting.deadline;
  return next;
}

void StoreTable::forget(std::uint64_t client) {
  std::erase_if(waiting_, [client](const Waiting& waiting) { return waiting.request.client == client; });
}

}  // namespace troupe::engine
