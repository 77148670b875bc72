// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/interop/pickle.hpp"

#include <fmt/format.h>

#include <cstring>
#include <unordered_map>

#include <troupe/error.hpp>

namespace troupe::detail {
namespace {

constexpr std::size_t most_values = 10'000'000;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, fmt::format("the pickle is refused: {}", why));
}

}  // namespace

std::string PickleValue::describe() const {
  struct Describe {
    std::string operator()(std::monostate) const { return "None"; }
    std::string operator()(bool) const { return "a bool"; }
    std::string operator()(std::int64_t) const { return "an int"; }
    std::string operator()(std::uint64_t) const { return "an int"; }
    std::string operator()(double) const { return "a float"; }
    std::string operator()(const std::string&) const { return "a str"; }
    std::string operator()(const PickleList& list) const { return list.is_tuple ? "a tuple" : "a list"; }
    std::string operator()(const PickleDict&) const { return "a dict"; }
    std::string operator()(const PickleGlobal& global) const { return fmt::format("the object {}", global.name); }
    std::string operator()(const PickleStorage&) const { return "a storage"; }
    std::string operator()(const PickleTensor&) const { return "a tensor"; }
  };
  return std::visit(Describe{}, data);
}

PickleValue* PickleReader::add(PickleValue value) {
  if (values_.size() >= most_values) refuse(fmt::format("it has more than {} values", most_values));
  return &values_.emplace_back(std::move(value));
}

std::vector<std::pair<std::string, std::size_t>> PickleReader::storage_sizes() const {
  std::vector<std::pair<std::string, std::size_t>> sizes;
  for (const auto& value : values_)
    if (const auto* storage = value.as<PickleStorage>()) sizes.emplace_back(storage->key, size_of(storage->dtype));
  return sizes;
}

/// The machine that a pickle is a program for.
struct PickleOperations {
  PickleReader& reader;
  std::string_view& rest;
  std::vector<PickleValue*> stack;
  std::vector<std::size_t> marks;
  std::unordered_map<std::uint64_t, PickleValue*> memo;

  std::string_view take(std::uint64_t size) {
    if (size > rest.size()) refuse("it ends in the middle of a value");
    const auto bytes = rest.substr(0, size);
    rest.remove_prefix(size);
    return bytes;
  }
  /// Little-endian.
  std::uint64_t number(std::size_t size) {
    const auto bytes = take(size);
    std::uint64_t value = 0;
    for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return value;
  }
  std::string line() {
    const auto end = rest.substr(0, 1024).find('\n');
    if (end == std::string_view::npos) refuse("a name in it has no end");
    std::string text(take(end));
    take(1);
    return text;
  }

  void push(PickleValue value) { stack.push_back(reader.add(std::move(value))); }
  /// Values above the last mark are those that may be taken.
  PickleValue* pop() {
    if (stack.size() <= (marks.empty() ? 0 : marks.back())) refuse("it takes more values than it made");
    auto* value = stack.back();
    stack.pop_back();
    return value;
  }
  std::vector<PickleValue*> pop_to_mark() {
    if (marks.empty()) refuse("it goes back to a mark that is not there");
    const auto first = stack.begin() + static_cast<std::ptrdiff_t>(marks.back());
    std::vector<PickleValue*> values(first, stack.end());
    stack.erase(first, stack.end());
    marks.pop_back();
    return values;
  }
  PickleValue* top() {
    auto* value = pop();
    stack.push_back(value);
    return value;
  }
  void push_tuple(std::size_t count) {
    PickleList tuple{std::vector<PickleValue*>(count), true};
    while (count-- > 0) tuple.items[count] = pop();
    push({std::move(tuple)});
  }
  void append(const std::vector<PickleValue*>& values) {
    auto* list = std::get_if<PickleList>(&top()->data);
    if (list == nullptr || list->is_tuple) refuse("it appends to something that is not a list");
    list->items.insert(list->items.end(), values.begin(), values.end());
  }
  void set_items(const std::vector<PickleValue*>& values) {
    auto* dict = std::get_if<PickleDict>(&top()->data);
    if (dict == nullptr || values.size() % 2 != 0) refuse("it sets items of something that is not a dict");
    for (std::size_t i = 0; i < values.size(); i += 2) dict->items.emplace_back(values[i], values[i + 1]);
  }
  void remember(std::uint64_t index) { memo.insert_or_assign(index, top()); }
  void recall(std::uint64_t index) {
    const auto found = memo.find(index);
    if (found == memo.end()) refuse("it uses a value that it did not remember");
    stack.push_back(found->second);
  }
  void push_global(const std::string& module, const std::string& name) {
    auto full = module + "." + name;
    require_known_global(full);
    push({PickleGlobal{std::move(full)}});
  }
  std::string pop_string() {
    auto* text = std::get_if<std::string>(&pop()->data);
    if (text == nullptr) refuse("a name in it is not a string");
    return *text;
  }
  void call() {
    const auto* arguments = pop();
    const auto* function = pop();
    const auto* list = arguments->as<PickleList>();
    const auto* global = function->as<PickleGlobal>();
    if (list == nullptr || !list->is_tuple || global == nullptr)
      refuse(fmt::format("it calls {}", function->describe()));
    push(call_global(global->name, *list));
  }
  /// Attributes: an OrderedDict that is a state dict has _metadata, which nobody needs.
  void build() {
    pop();
    if (top()->as<PickleDict>() == nullptr) refuse(fmt::format("it sets attributes of {}", top()->describe()));
  }
  void push_long(std::size_t size) {
    const bool is_unsigned = size == 9 && rest.size() >= size && rest[8] == '\0';  // the byte of its sign
    if (size > 8 && !is_unsigned) refuse("it holds an integer of more than 64 bits");
    const auto bits = number(is_unsigned ? 8 : size);
    if (is_unsigned) {
      take(1);
      return bits >> 63U != 0 ? push({bits}) : push({static_cast<std::int64_t>(bits)});
    }
    const auto unused = 64 - 8 * size;
    push({size == 0 ? std::int64_t{0} : static_cast<std::int64_t>(bits << unused) >> unused});
  }
  void push_float() {
    const auto bytes = take(8);  // the one big-endian number
    std::uint64_t bits = 0;
    for (const char byte : bytes) bits = bits << 8 | static_cast<unsigned char>(byte);
    double value = 0;
    std::memcpy(&value, &bits, sizeof value);
    push({value});
  }
  void push_string(std::uint64_t size) { push({std::string(take(size))}); }

  PickleValue* run();
  void apply(unsigned char operation);
};

void PickleOperations::apply(unsigned char operation) {
  switch (operation) {
    case 0x80:  // PROTO
      if (const auto protocol = number(1); protocol < 2 || protocol > 5)
        refuse(fmt::format("protocol {} is not one of 2 to 5", protocol));
      return;
    case 0x95:  // FRAME
      return void(take(8));
    case '(':
      return marks.push_back(stack.size());
    case '0':
      return void(pop());
    case 'N':
      return push({});
    case 0x88:
      return push({true});
    case 0x89:
      return push({false});
    case 'J':
      return push({std::int64_t{static_cast<std::int32_t>(number(4))}});
    case 'K':
      return push({static_cast<std::int64_t>(number(1))});
    case 'M':
      return push({static_cast<std::int64_t>(number(2))});
    case 0x8a:
      return push_long(number(1));
    case 'G':
      return push_float();
    case 'X':
      return push_string(number(4));
    case 0x8c:
      return push_string(number(1));
    case 0x8d:
      return push_string(number(8));
    case 'U':  // SHORT_BINSTRING, by Python 2
      return push_string(number(1));
    case 'T':
      return push_string(number(4));
    case '}':
      return push({PickleDict{}});
    case ']':
      return push({PickleList{}});
    case ')':
      return push({PickleList{{}, true}});
    case 't':
      return push({PickleList{pop_to_mark(), true}});
    case 0x85:
    case 0x86:
    case 0x87:
      return push_tuple(operation - 0x84u);
    case 'a':
      return append({pop()});
    case 'e':
      return append(pop_to_mark());
    case 's': {
      auto* value = pop();
      return set_items({pop(), value});
    }
    case 'u':
      return set_items(pop_to_mark());
    case 'q':
      return remember(number(1));
    case 'r':
      return remember(number(4));
    case 0x94:  // MEMOIZE
      return remember(memo.size());
    case 'h':
      return recall(number(1));
    case 'j':
      return recall(number(4));
    case 'c': {
      const auto module = line();
      return push_global(module, line());
    }
    case 0x93: {  // STACK_GLOBAL
      const auto name = pop_string();
      return push_global(pop_string(), name);
    }
    case 'R':
      return call();
    case 'Q':
      return push(load_persistent(*pop()));
    case 'b':
      return build();
    default:
      refuse(fmt::format("operation 0x{:02x} has no place in a state dict", operation));
  }
}

PickleValue* PickleOperations::run() {
  for (;;) {
    const auto operation = static_cast<unsigned char>(take(1).front());
    if (operation == '.') {
      auto* result = pop();
      if (!stack.empty() || !marks.empty()) refuse("it leaves values behind");
      return result;
    }
    apply(operation);
  }
}

PickleValue* PickleReader::read(std::string_view& bytes) { return PickleOperations{*this, bytes, {}, {}, {}}.run(); }

}  // namespace troupe::detail
