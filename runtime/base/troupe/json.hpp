// SPDX-License-Identifier: Apache-2.0
// Metrics, configs and results are JSON values that keep the order of their keys.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace troupe {

/// A JSON value whose objects keep the user's order.
using Json = nlohmann::ordered_json;

class Config;

namespace detail {

/// Throws invalid_argument for a value that was read as something it is not; `why` is nlohmann's text.
[[noreturn]] void refuse_read(const Config& value, std::string_view why);

template <class T>
concept Number = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

}  // namespace detail

class ConfigIterator;
struct ConfigItem;

/// What a train function receives. Reading a key that is not there throws and names the key and those present, at any
/// depth, also of values that a loop hands out; plain nlohmann would be undefined behaviour. Nested values are handed
/// out as copies, so nothing dangles. (What find() and a Json default of value() give is plain: read it with at().)
/// A plain `double lr = config["lr"]` of another type throws nlohmann's type_error; get<double>() also names the key.
class Config : public Json {
public:
  Config() : Json(Json::object()) {}
  /// Throws invalid_argument unless `value` is an object (null counts as an empty one).
  explicit Config(Json value);

  /// The value under `key`; throws invalid_argument when it is missing.
  Config operator[](std::string_view key) const;
  Config operator[](const char* key) const { return (*this)[std::string_view(key)]; }
  /// The element at `index`; throws invalid_argument when there is none.
  Config operator[](std::size_t index) const;
  template <std::signed_integral Index>
  Config operator[](Index index) const {
    return (*this)[static_cast<std::size_t>(index)];  // a negative one is beyond every end
  }

  /// `for (const auto& layer : config["layers"])`. The value belongs to the loop's turn.
  ConfigIterator begin() const;
  ConfigIterator end() const;
  /// `for (const auto& [key, value] : config["model"].items())`.
  std::vector<ConfigItem> items() const;

  /// The value as a T; throws invalid_argument when it is of another type.
  template <class T>
  T get() const {
    try {
      return Json::template get<T>();
    } catch (const Json::exception& error) {
      detail::refuse_read(*this, error.what());
    }
  }

  /// Compares with a number; anything else throws invalid_argument (nlohmann orders types instead, and a loop up to
  /// the text "3" would never end).
  template <detail::Number T>
  friend std::partial_ordering operator<=>(const Config& value, T number) {
    return value.compare_number(Json(number));
  }

  /// Where this value stands in the whole config, as one would write it: `config["model"]["depth"]`.
  const std::string& path() const { return path_; }

  /// Without this nlohmann takes a Config for a container and makes an array of it.
  friend void to_json(Json& out, const Config& value) { out = static_cast<const Json&>(value); }

private:
  friend class ConfigIterator;
  Config(std::string path, const Json& value) : Json(value), path_(std::move(path)) {}
  std::partial_ordering compare_number(const Json& number) const;

  std::string path_ = "config";
};

class ConfigIterator {
public:
  using iterator_category = std::input_iterator_tag;
  using value_type = Config;
  using difference_type = std::ptrdiff_t;
  using pointer = const Config*;
  using reference = const Config&;

  ConfigIterator(const Config& whole, const Json::const_iterator& at) : whole_(&whole), at_(at) {}

  const Config& operator*() const;
  const Config* operator->() const { return &**this; }
  const std::string& key() const { return at_.key(); }
  const Config& value() const { return **this; }
  ConfigIterator& operator++() {
    ++at_;
    ++index_;
    return *this;
  }
  bool operator==(const ConfigIterator& other) const { return at_ == other.at_; }
  /// With what find() gave.
  bool operator==(const Json::const_iterator& other) const { return at_ == other; }

private:
  const Config* whole_;
  Json::const_iterator at_;
  std::size_t index_ = 0;
  mutable Config current_;
};

struct ConfigItem {
  std::string name;
  Config held;
  const std::string& key() const { return name; }
  const Config& value() const { return held; }
};

namespace detail {

/// `value` itself, or `{}` for null; throws invalid_argument with a hint about braces for anything but an object.
/// `what` names the value in the message ("config", "metrics").
Json require_object(Json value, std::string_view what);

/// MessagePack, the form of JSON on the wire (it keeps NaN and infinity).
std::string pack(const Json& value);
void pack_to(std::string& out, const Json& value);
/// Throws invalid_argument on bytes that are not one MessagePack value.
Json unpack(std::string_view bytes);

}  // namespace detail
}  // namespace troupe
