// SPDX-License-Identifier: Apache-2.0
#include <troupe/checkpoint.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <ostream>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/dictionary.hpp"
#include "checkpoint/host_buffer.hpp"

namespace troupe {
namespace {

constexpr std::size_t most_keys_shown = 20;

std::string quote(std::string_view text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string list_keys(const Checkpoint& checkpoint) {
  if (checkpoint.empty()) return "it is empty";
  std::vector<std::string> keys;
  for (const auto& [key, item] : checkpoint) {
    if (keys.size() == most_keys_shown) break;
    keys.push_back(quote(key));
  }
  const auto more = checkpoint.size() - keys.size();
  return fmt::format("its keys are {}{}", fmt::join(keys, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

[[noreturn]] void refuse_braces(std::string_view why) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("a checkpoint is a dictionary, but {}: write {{{{\"epoch\", 4}}, {{\"model\", tensor}}}}", why));
}

/// Large tensors get huge pages: most of the time to fill fresh memory goes into its page faults.
std::shared_ptr<std::byte[]> allocate(std::size_t size) {
  constexpr std::size_t large = std::size_t{4} << 20;
  if (size < large) return std::shared_ptr<std::byte[]>(new std::byte[size]);
  auto buffer = std::make_shared<detail::HostBuffer>();
  buffer->reserve(size);
  return {buffer, buffer->data()};
}

/// Copies a checkpoint's tensors into memory; large ones by several threads.
class Loader {
public:
  Checkpoint load(const Checkpoint& checkpoint) {
    auto result = rebuild(checkpoint).as<Checkpoint>();
    std::vector<std::jthread> helpers;
    const auto threads = size_ < worth_threads ? 1U : std::min(4U, std::max(1U, std::thread::hardware_concurrency()));
    for (unsigned count = 1; count < threads; ++count) helpers.emplace_back([this] { copy_all(); });
    copy_all();
    helpers.clear();
    if (failure_) std::rethrow_exception(failure_);
    return result;
  }

private:
  static constexpr std::size_t worth_threads = std::size_t{32} << 20;

  CheckpointItem rebuild(const CheckpointItem& item) {
    switch (item.kind()) {
      case CheckpointItem::Kind::tensor:
        return rebuild_tensor(item.as<TensorData>());
      case CheckpointItem::Kind::dictionary: {
        std::vector<CheckpointEntry> entries;
        entries.reserve(item.size());
        for (const auto& [key, value] : item.entries()) entries.emplace_back(key, rebuild(value));
        return CheckpointItem::of_entries(std::move(entries));
      }
      case CheckpointItem::Kind::list: {
        std::vector<CheckpointItem> elements;
        for (std::size_t index = 0; index < item.size(); ++index) elements.push_back(rebuild(item.at(index)));
        return CheckpointItem::of_list(std::move(elements));
      }
      default:
        return item;
    }
  }

  CheckpointItem rebuild_tensor(const TensorData& tensor) {
    auto memory = allocate(tensor.bytes());
    auto* data = memory.get();
    TensorData result(tensor.dtype(), tensor.shape(), data, std::move(memory));
    if (const auto& shard = tensor.shard()) result = result.as_shard_of(shard->global_shape, shard->row_offset);
    copies_.emplace_back(tensor, data);
    size_ += tensor.bytes();
    return CheckpointItem::of_tensor(std::move(result));
  }

  void copy_all() {
    try {
      for (auto place = next_++; place < copies_.size(); place = next_++)
        copies_[place].first.copy_to(copies_[place].second);
    } catch (...) {
      next_ = copies_.size();  // the others stop too
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }

  std::vector<std::pair<TensorData, std::byte*>> copies_;
  std::size_t size_ = 0;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

Checkpoint::Checkpoint(std::initializer_list<detail::CheckpointBrace> braces) {
  const auto* first = braces.begin();
  const auto add = [this](const CheckpointItem& key, const CheckpointItem& item) {
    auto name = key.as<std::string>();
    if (contains(name)) refuse_braces(fmt::format("the key {} stands there twice", quote(name)));
    set(std::move(name), item);
  };
  if (std::all_of(braces.begin(), braces.end(), [](const auto& brace) { return brace.is_pair(); })) {
    for (const auto& brace : braces) add(brace.item().at(0), brace.item().at(1));
  } else if (braces.size() == 1 && first->item().is_dictionary()) {
    *this = first->item().as<Checkpoint>();  // {checkpoint}, or one pair of braces too many
  } else if (braces.size() == 2 && first->item().is_string()) {
    add(first->item(), first[1].item());  // {"epoch", 4}, where something else took the outer braces
  } else {
    refuse_braces(fmt::format("the braces hold {}", CheckpointItem(braces).describe()));
  }
}

Checkpoint Checkpoint::of_json(const Json& object) {
  if (object.is_null()) return {};
  if (!object.is_object()) refuse_braces(fmt::format("this is {}", CheckpointItem::of_json(object).describe()));
  return CheckpointItem::of_json(object).as<Checkpoint>();
}

std::size_t Checkpoint::size() const { return entries_ ? entries_->entries().size() : 0; }

const CheckpointItem* Checkpoint::find(std::string_view key) const {
  if (!entries_) return nullptr;
  const auto place = entries_->find(key);
  return place < entries_->entries().size() ? &entries_->entries()[place].second : nullptr;
}

const CheckpointItem& Checkpoint::operator[](std::string_view key) const {
  if (const auto* item = find(key)) return *item;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the checkpoint has no key {}; {}. Save it there, or read it with a default: value({}, "
                          "default)",
                          quote(key), list_keys(*this), quote(key)));
}

void Checkpoint::refuse(std::string_view key, const detail::ItemMismatch& error) const {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("checkpoint[{}] is {}, which cannot be read as {}: read the type that was saved, or save "
                          "the one that is read",
                          quote(key), error.holds, error.wanted));
}

namespace {

/// The dictionary to change: the one that is there if nobody else has it, else a copy of it.
detail::Dictionary& own(std::shared_ptr<const detail::Dictionary>& entries) {
  if (!entries) {
    entries = std::make_shared<detail::Dictionary>();
  } else if (entries.use_count() > 1) {
    entries = std::make_shared<detail::Dictionary>(*entries);
  } else {
    std::atomic_thread_fence(std::memory_order_acquire);  // after the reads of whoever shared it last
  }
  return const_cast<detail::Dictionary&>(*entries);  // all are made non-const
}

}  // namespace

void Checkpoint::set(std::string key, CheckpointItem item) {
  own(entries_).set(std::move(key), std::move(item));
  folder_.reset();
}

bool Checkpoint::erase(std::string_view key) {
  if (!contains(key)) return false;
  auto& dictionary = own(entries_);
  dictionary.erase(dictionary.find(key));
  folder_.reset();
  return true;
}

const CheckpointEntry* Checkpoint::begin() const { return entries_ ? entries_->entries().data() : nullptr; }

const CheckpointEntry* Checkpoint::end() const { return entries_ ? begin() + size() : nullptr; }

Json Checkpoint::to_json() const {
  auto object = Json::object();
  for (const auto& [key, item] : *this) {
    try {
      object.emplace(key, item.to_json());
    } catch (const detail::ItemMismatch& error) {
      refuse(key, error);
    }
  }
  return object;
}

Checkpoint Checkpoint::to_dict() const { return Loader().load(*this); }

std::size_t Checkpoint::bytes() const {
  std::size_t sum = sizeof(Checkpoint);
  for (const auto& [key, item] : *this) sum += sizeof(std::string) + key.size() + item.bytes();
  return sum;
}

bool operator==(const Checkpoint& left, const Checkpoint& right) {
  if (left.entries_ == right.entries_) return true;
  return left.size() == right.size() && std::all_of(left.begin(), left.end(), [&](const CheckpointEntry& entry) {
           const auto* other = right.find(entry.first);
           return other != nullptr && *other == entry.second;
         });
}

std::ostream& operator<<(std::ostream& out, const Checkpoint& checkpoint) {
  out << '{';
  const char* separator = "";
  for (const auto& [key, item] : checkpoint) {
    out << separator << quote(key) << ':' << item;
    separator = ",";
  }
  return out << '}';
}

}  // namespace troupe
