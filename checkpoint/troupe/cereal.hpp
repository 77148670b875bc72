// SPDX-License-Identifier: Apache-2.0
// Include this to send types that have cereal's serialize() (or save() and load()) to workers. Types that are
// convertible to and from JSON travel as JSON even then. No smart pointers, no polymorphic types.
#pragma once

#include <cereal/archives/portable_binary.hpp>
#include <cereal/types/array.hpp>
#include <cereal/types/map.hpp>
#include <cereal/types/optional.hpp>
#include <cereal/types/set.hpp>
#include <cereal/types/string.hpp>
#include <cereal/types/tuple.hpp>
#include <cereal/types/unordered_map.hpp>
#include <cereal/types/utility.hpp>
#include <cereal/types/vector.hpp>
#include <cstddef>
#include <exception>
#include <sstream>
#include <streambuf>
#include <string>
#include <string_view>
#include <type_traits>

#include <troupe/codec.hpp>
#include <troupe/error.hpp>

namespace troupe::detail {

template <class T>
concept CerealSerializable = !JsonConvertible<T> && std::is_default_constructible_v<T> &&
                             cereal::traits::is_output_serializable<T, cereal::PortableBinaryOutputArchive>::value &&
                             cereal::traits::is_input_serializable<T, cereal::PortableBinaryInputArchive>::value;

/// Reads bytes where they are.
class ViewBuffer : public std::streambuf {
public:
  explicit ViewBuffer(std::string_view bytes) {
    auto* first = const_cast<char*>(bytes.data());  // a get area is never written to
    setg(first, first, first + bytes.size());
  }
  bool at_end() const { return gptr() == egptr(); }
  std::size_t left() const { return static_cast<std::size_t>(egptr() - gptr()); }
};

template <CerealSerializable T>
struct Codec<T, void> {
  static std::string encode(const T& value) {
    std::ostringstream out(std::ios::binary);
    {
      cereal::PortableBinaryOutputArchive archive(out);
      archive(value);
    }
    return std::move(out).str();
  }

  static T decode(std::string_view bytes) {
    ViewBuffer buffer(bytes);
    T value{};
    try {
      std::istream in(&buffer);
      cereal::PortableBinaryInputArchive archive(in);
      archive(value);
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {  // also std::bad_alloc and std::length_error: a wrong length
      throw Error(ErrorCode::invalid_argument, describe(bytes, error.what()));
    }
    if (!buffer.at_end()) throw Error(ErrorCode::invalid_argument, describe(bytes, "bytes are left over"));
    return value;
  }

private:
  static std::string describe(std::string_view bytes, const std::string& why) {
    return std::to_string(bytes.size()) + " bytes are not the cereal form of the type asked for (" + why +
           "): they were cut, or save() and load() of the type do not match";
  }
};

}  // namespace troupe::detail
