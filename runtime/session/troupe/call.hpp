// SPDX-License-Identifier: Apache-2.0
// How calls on stateful workers are built: an object made on each worker, and functions without captures that take it
// by reference and arguments by value.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <troupe/codec.hpp>
#include <troupe/fn.hpp>

namespace troupe {
namespace detail {

/// Answer of one call: bytes of the result, or an exception.
using CallDone = std::function<void(std::string bytes, std::exception_ptr error)>;

/// What a handle needs of a started trainer.
class CallTarget {
public:
  virtual ~CallTarget() = default;
  virtual int worker_count() const = 0;
  /// Never blocks, but in local mode, where it makes the call; `done` is called exactly once, also when the worker is
  /// lost.
  virtual void call(int rank, FunctionId function, std::string arguments, CallDone done) = 0;
  /// Throws invalid_state on a thread that must not wait for an answer: one that takes the rounds of the run which the
  /// workers are busy with.
  virtual void check_may_wait() const {}
  virtual void shutdown(std::chrono::milliseconds patience) = 0;
};

/// Result and parameters of a call's function, the leading object included.
template <class Signature>
struct CallTraitsOf;
template <class R, class... Args>
struct CallTraitsOf<R(Args...)> {
  using Result = R;
  using Parameters = std::tuple<Args...>;
};
template <class F>
struct CallTraits : CallTraitsOf<typename SignatureOf<F>::type> {
  static_assert(std::is_class_v<F>,
                "troupe: a function pointer does not tell a worker which function it is; call it from a lambda without "
                "captures: [](Model& model, int step) { return f(model, step); }");
};
template <class F>
  requires std::is_void_v<typename SignatureOf<F>::type>
struct CallTraits<F> : CallTraitsOf<void()> {
  static_assert(always_false<F>,
                "troupe: a call takes a lambda without captures whose parameters have types (no auto): "
                "[](Model& model, int step) { ... }; a troupe::fn<> is for run()");
};

template <class T>
inline constexpr bool is_object_parameter =
    std::is_lvalue_reference_v<T> && !std::is_const_v<std::remove_reference_t<T>>;

template <class F, class Parameters>
struct CallShape;
template <class F, class First, class... Rest>
struct CallShape<F, std::tuple<First, Rest...>> {
  static constexpr bool with_object = is_object_parameter<First>;
  using Object = std::conditional_t<with_object, std::remove_reference_t<First>, void>;
  using Arguments = std::conditional_t<with_object, std::tuple<std::decay_t<Rest>...>,
                                       std::tuple<std::decay_t<First>, std::decay_t<Rest>...>>;
};
template <class F>
struct CallShape<F, std::tuple<>> {
  static constexpr bool with_object = false;
  using Object = void;
  using Arguments = std::tuple<>;
};

template <class F>
using ShapeOf = CallShape<F, typename CallTraits<F>::Parameters>;
template <class F>
using CallResult = std::decay_t<typename CallTraits<F>::Result>;

/// One address a type, to refuse a call on an object of another type.
template <class T>
inline constexpr char type_tag = 0;

struct ObjectBox {
  void* object = nullptr;
  const void* type = nullptr;
  void (*drop)(void*) = nullptr;
};
/// Throws invalid_state when the worker holds no object, or one of another type.
void* require_object_of(const ObjectBox* box, const void* type);

/// What is sent of an argument: a literal as a text.
template <class T>
using Sent = std::conditional_t<std::is_same_v<std::decay_t<T>, const char*> || std::is_same_v<std::decay_t<T>, char*>,
                                std::string, std::decay_t<T>>;

template <class Cls, class... Args>
struct MakeObject {
  static void* call(std::string_view arguments) {
    auto make = [](Args&&... args) { return new Cls(std::move(args)...); };
    auto* object = std::apply(make, decode_all<Args...>(arguments));
    return new ObjectBox{object, &type_tag<Cls>, [](void* p) { delete static_cast<Cls*>(p); }};
  }
};

template <class F>
struct CallObject {
  static std::string call(void* box, std::string_view bytes) {
    using Shape = ShapeOf<F>;
    auto arguments = [&]<class... Ts>(std::type_identity<std::tuple<Ts...>>) {
      return decode_all<Ts...>(bytes);
    }(std::type_identity<typename Shape::Arguments>{});
    auto invoke = [&](auto&&... args) -> decltype(auto) {
      if constexpr (Shape::with_object) {
        using Object = typename Shape::Object;
        void* object = require_object_of(static_cast<ObjectBox*>(box), &type_tag<Object>);
        return F{}(*static_cast<Object*>(object), std::move(args)...);
      } else {
        return F{}(std::move(args)...);
      }
    };
    if constexpr (std::is_void_v<CallResult<F>>) {
      std::apply(invoke, std::move(arguments));
      return {};
    } else {
      return Codec<CallResult<F>>::encode(std::apply(invoke, std::move(arguments)));
    }
  }
};

/// Arguments as the called function declares them: a literal handed to a std::string parameter arrives as one.
template <class F, class... Args>
std::string encode_arguments(Args&&... args) {
  static_assert(std::is_empty_v<F> && std::is_default_constructible_v<F>,
                "troupe: a worker is another process, so a lambda with captures cannot be sent; "
                "pass the values as arguments of the call");
  using Arguments = typename ShapeOf<F>::Arguments;
  static_assert(std::tuple_size_v<Arguments> == sizeof...(Args),
                "troupe: the call's arguments do not match the lambda's parameters (the object comes first and is "
                "not passed)");
  return std::apply([](const auto&... values) { return encode_all(values...); },
                    Arguments(std::forward<Args>(args)...));
}

template <class F>
FunctionId call_id() {
  static_cast<void>(&Registered<CallObject<F>, EntryKind::call>::done);
  return identify(reinterpret_cast<AnyEntry>(&CallObject<F>::call));
}

}  // namespace detail
}  // namespace troupe
