// SPDX-License-Identifier: Apache-2.0
// Checked reading of configs, and MessagePack as the form of JSON on the wire.
#include <troupe/json.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include <troupe/error.hpp>

namespace troupe {
namespace {

constexpr std::size_t shown_value_length = 80;
constexpr int deepest_nesting = 512;

/// A value for a message: short, and never throwing on broken UTF-8.
std::string show(const Json& value) {
  auto text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > shown_value_length) text = text.substr(0, shown_value_length) + "...";
  return text;
}

/// `"lr", "num_epochs"`.
std::string list_keys(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(show(Json(item.key())));
  return fmt::format("{}", fmt::join(keys, ", "));
}

/// nlohmann's texts open with "[json.exception.type_error.302] ".
std::string_view without_tag(std::string_view text) {
  auto end = text.find("] ");
  return text.starts_with("[json.exception") && end != std::string_view::npos ? text.substr(end + 2) : text;
}

[[noreturn]] void refuse_nesting() {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("a JSON value is nested more than {} levels deep: flatten it", deepest_nesting));
}

/// Refuses what the other side could not read.
void require_readable(const Json& value, int levels) {
  if (value.is_discarded())
    throw Error(ErrorCode::invalid_argument,
                "a JSON value is what nlohmann calls discarded: the result of Json::parse(text, nullptr, false) for a "
                "text that is not JSON. Check is_discarded() behind the parse, or let it throw");
  if (!value.is_structured()) return;
  if (levels == 0) refuse_nesting();
  for (const auto& one : value) require_readable(one, levels - 1);
}

/// nlohmann's own builder of values with a limit: its reader recurses, so a few kilobytes of nested arrays from
/// outside would overflow the stack.
class LimitedParser : public nlohmann::detail::json_sax_dom_parser<Json> {
  using Base = nlohmann::detail::json_sax_dom_parser<Json>;

public:
  explicit LimitedParser(Json& out) : Base(out, true) {}
  bool start_object(std::size_t count) { return deeper() && Base::start_object(count); }
  bool start_array(std::size_t count) { return deeper() && Base::start_array(count); }
  bool end_object() { return shallower() && Base::end_object(); }
  bool end_array() { return shallower() && Base::end_array(); }

private:
  bool deeper() {
    if (++depth_ <= deepest_nesting) return true;
    refuse_nesting();
  }
  bool shallower() {
    --depth_;
    return true;
  }

  int depth_ = 0;
};

}  // namespace

Config::Config(Json value) : Json(detail::require_object(std::move(value), "config")) {}

Config Config::operator[](std::string_view key) const {
  auto shown = show(Json(key));
  if (!is_object())
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} is not an object but {} {}, so it has no key {}: pass an object there, {{{{{}, value}}}}",
                    path_, type_name(), show(*this), shown, shown));
  auto found = find(key);
  if (found == Json::end())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has no key {}; {}. Put it into the run's config, or read it with a default: "
                            "{}.value({}, default)",
                            path_, shown, empty() ? "it is empty" : "its keys are " + list_keys(*this), path_, shown));
  return {fmt::format("{}[{}]", path_, shown), *found};
}

Config Config::operator[](std::size_t index) const {
  if (!is_array())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} is not an array but {} {}, so it has no element {}", path_,
                                                         type_name(), show(*this), static_cast<std::ptrdiff_t>(index)));
  if (index >= size())
    throw Error(ErrorCode::invalid_argument, fmt::format("{} has {} elements, so none at index {} (the first is 0)",
                                                         path_, size(), static_cast<std::ptrdiff_t>(index)));
  return {fmt::format("{}[{}]", path_, index), Json::operator[](index)};
}

ConfigIterator Config::begin() const { return {*this, Json::begin()}; }
ConfigIterator Config::end() const { return {*this, Json::end()}; }

std::vector<ConfigItem> Config::items() const {
  std::vector<ConfigItem> all;
  std::size_t index = 0;
  for (auto one = begin(); one != end(); ++one)
    all.push_back({is_object() ? one.key() : std::to_string(index++), *one});
  return all;
}

const Config& ConfigIterator::operator*() const {
  const auto place = whole_->is_object()  ? fmt::format("{}[{}]", whole_->path(), show(Json(key())))
                     : whole_->is_array() ? fmt::format("{}[{}]", whole_->path(), index_)
                                          : whole_->path();
  return current_ = Config(place, *at_);
}

std::partial_ordering Config::compare_number(const Json& number) const {
  if (!is_number()) detail::refuse_read(*this, fmt::format("type must be number, but is {}", type_name()));
  const Json& value = *this;
  if (value < number) return std::partial_ordering::less;
  if (value > number) return std::partial_ordering::greater;
  return value == number ? std::partial_ordering::equivalent : std::partial_ordering::unordered;
}

namespace detail {

void refuse_read(const Config& value, std::string_view why) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} is {}, which is not what is read from it: {}. Change the run's config, or the type that "
                          "the train function reads",
                          value.path(), show(value), without_tag(why)));
}

Json require_object(Json value, std::string_view what) {
  if (value.is_object()) return value;
  if (value.is_null()) return Json::object();
  const auto* hint = value.is_array() ? "braces around a value make an array of it: write cfg instead of {cfg}, or "
                                        "{{\"key\", value}} with two pairs of braces"
                                      : "write {{\"key\", value}}";
  throw Error(ErrorCode::invalid_argument, fmt::format("{} must be a JSON object, but is the {} {}; {}", what,
                                                       value.type_name(), show(value), hint));
}

std::string pack(const Json& value) {
  std::string out;
  pack_to(out, value);
  return out;
}

void pack_to(std::string& out, const Json& value) {
  require_readable(value, deepest_nesting);
  Json::to_msgpack(value, nlohmann::detail::output_adapter<char>(out));
}

Json unpack(std::string_view bytes) {
  Json value;
  LimitedParser parser(value);
  try {
    Json::sax_parse(bytes.begin(), bytes.end(), &parser, Json::input_format_t::msgpack);
  } catch (const std::exception& error) {
    if (dynamic_cast<const Error*>(&error) != nullptr) throw;
    throw Error(ErrorCode::invalid_argument, fmt::format("{} bytes are not one MessagePack value ({}): they were cut, "
                                                         "or come from another program",
                                                         bytes.size(), without_tag(error.what())));
  }
  return value;
}

}  // namespace detail
}  // namespace troupe
