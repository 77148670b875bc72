// SPDX-License-Identifier: Apache-2.0
// How arguments and results of remote calls travel: JSON-convertible types as MessagePack. Other types travel in
// cereal form once <troupe/cereal.hpp> is included.
#pragma once

#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <troupe/json.hpp>

namespace troupe::detail {

template <class T>
concept JsonConvertible =
    std::is_constructible_v<Json, const T&> && requires(const Json& json) { json.template get<T>(); };

/// Bytes of a value. Specialize to teach troupe a type.
template <class T, class = void>
struct Codec {
  static_assert(JsonConvertible<T>,
                "troupe: this type cannot be sent to a worker; give it to_json()/from_json(), or include "
                "<troupe/cereal.hpp> and give it a serialize()");
  static std::string encode(const T& value) { return pack(Json(value)); }
  static T decode(std::string_view bytes) { return unpack(bytes).template get<T>(); }
};

template <>
struct Codec<Json> {
  static std::string encode(const Json& value) { return pack(value); }
  static Json decode(std::string_view bytes) { return unpack(bytes); }
};

/// Values one after the other, each behind its length.
void append_field(std::string& out, std::string_view bytes);
/// The next field of `rest`, which is shortened; throws invalid_argument when it is cut off.
std::string_view take_field(std::string_view& rest);

template <class... Ts>
std::string encode_all(const Ts&... values) {
  std::string out;
  (append_field(out, Codec<Ts>::encode(values)), ...);
  return out;
}

template <class... Ts>
std::tuple<Ts...> decode_all([[maybe_unused]] std::string_view bytes) {
  return std::tuple<Ts...>{Codec<Ts>::decode(take_field(bytes))...};  // braces: left to right
}

}  // namespace troupe::detail
