// SPDX-License-Identifier: Apache-2.0
// Functions that workers can run. A worker is another process of the same program, so no code is ever sent: functions
// register themselves before main(), and what travels is (build id of the module, offset of the trampoline in it).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <troupe/json.hpp>

namespace troupe {
class Checkpoint;

namespace detail {

/// The only things a worker ever calls: a train function, a constructor of a stateful object, a call on one.
using TrainEntry = Json (*)(const Config& config);
using MakeEntry = void* (*)(std::string_view arguments);
using CallEntry = std::string (*)(void* object, std::string_view arguments);
using AnyEntry = void (*)();

enum class EntryKind : std::uint8_t { train, make, call };

/// What travels instead of code.
struct FunctionId {
  std::string build;
  std::uint64_t offset = 0;

  bool operator==(const FunctionId&) const = default;
};

/// Registration, before main(): `name` is for people only.
bool register_entry(AnyEntry entry, EntryKind kind, const char* name);
/// Throws invalid_argument for an address that lies in no loaded module.
FunctionId identify(AnyEntry entry);
/// Finds a registered function; throws invalid_argument for anything else. Never turns an offset into an address.
AnyEntry resolve(const FunctionId& id, EntryKind kind);
/// The name a function was registered under, shortened for people.
std::string name_of(AnyEntry entry);
/// Build id of the module that holds troupe; workers of another build are refused.
const std::string& build_id();

template <class Trampoline, EntryKind Kind>
struct Registered {
  static bool add() { return register_entry(reinterpret_cast<AnyEntry>(&Trampoline::call), Kind, __PRETTY_FUNCTION__); }
  // Instantiated, and so run before main(), because a Fn holds its address.
  static inline const bool done = add();
};

template <class>
inline constexpr bool always_false = false;

/// `Result(Args...)` of a function, or of a class with one operator() that is no template; else void.
template <class F>
struct SignatureOf : std::type_identity<void> {};
template <class F>
  requires requires(const F& function) { std::function{function}; }
struct SignatureOf<F> {
  template <class Signature>
  static Signature* of(const std::function<Signature>&);
  using type = std::remove_pointer_t<decltype(of(std::function{std::declval<const F&>()}))>;
};

/// Whether parameters are a config or nothing. What Json converts to by itself could be called as well, and would fail
/// where a worker calls it; Json itself has lost the check of its keys.
template <class Signature>
inline constexpr bool takes_config = true;  // of a generic lambda: takes what it is given
template <class Result, class... Args>
inline constexpr bool takes_config<Result(Args...)> = (std::is_same_v<std::remove_cvref_t<Args>, Config> && ...);

/// Calls a function of no argument or of one config.
template <class F>
decltype(auto) apply_config(F&& function, const Config& config) {
  if constexpr (std::is_invocable_v<F>) {
    return std::forward<F>(function)();
  } else {
    return std::forward<F>(function)(config);
  }
}

/// A checkpoint that a train function returned, as what travels to the driver. Large ones are written to the disk
/// first.
Json give_back(const Checkpoint& result);

template <class F>
Json call_train(F&& function, const Config& config) {
  if constexpr (!takes_config<typename SignatureOf<std::remove_cvref_t<F>>::type> ||
                (!std::is_invocable_v<F> && !std::is_invocable_v<F, const Config&>)) {
    static_assert(
        always_false<F>,
        "troupe: a train function takes no argument or one `const troupe::Config&`, and nothing that a config "
        "converts to (a plain Json, a number); put further values into the run's config");
    return {};
  } else {
    using Result = decltype(apply_config(std::forward<F>(function), config));
    if constexpr (std::is_void_v<Result>) {
      apply_config(std::forward<F>(function), config);
      return nullptr;
    } else if constexpr (std::is_same_v<std::remove_cvref_t<Result>, Checkpoint>) {
      return give_back(apply_config(std::forward<F>(function), config));
    } else {
      static_assert(std::is_constructible_v<Json, Result>,
                    "troupe: the result of a train function must be void, convertible to troupe::Json or a "
                    "troupe::Checkpoint; give the type a to_json(), return its numbers (a tensor: .item<double>()), or "
                    "put it into a checkpoint (a model: train::torch::state_dict(model))");
      return Json(apply_config(std::forward<F>(function), config));
    }
  }
}

template <auto Function>
struct OfFunction {
  static Json call(const Config& config) { return call_train(Function, config); }
};

template <class Lambda>
struct OfLambda {
  static Json call(const Config& config) { return call_train(Lambda{}, config); }
};

}  // namespace detail

/// A registered train function: `troupe::fn<f>`, or made from a lambda without captures.
class Fn {
public:
  /// No function.
  constexpr Fn() = default;

  template <class Lambda>
    requires(std::is_class_v<Lambda> && !std::is_same_v<Lambda, Fn>)
  constexpr Fn(Lambda)  // NOLINT(google-explicit-constructor)
      : entry_(&detail::OfLambda<Lambda>::call),
        anchor_(&detail::Registered<detail::OfLambda<Lambda>, detail::EntryKind::train>::done) {
    static_assert(std::is_empty_v<Lambda> && std::is_default_constructible_v<Lambda>,
                  "troupe: a worker is another process, so a lambda with captures (or a std::function) cannot be "
                  "sent; pass the values in the run's config");
  }

  template <class Result, class... Args>
  constexpr Fn(Result (*)(Args...)) {  // NOLINT(google-explicit-constructor)
    static_assert(detail::always_false<Result>,
                  "troupe: a function pointer does not tell a worker which function it is; "
                  "write troupe::fn<train_func>");
  }

  explicit constexpr operator bool() const { return entry_ != nullptr; }
  constexpr detail::TrainEntry entry() const { return entry_; }

  /// Used by troupe::fn.
  constexpr Fn(detail::TrainEntry train_entry, const bool* anchor) : entry_(train_entry), anchor_(anchor) {}

private:
  detail::TrainEntry entry_ = nullptr;
  [[maybe_unused]] const bool* anchor_ = nullptr;
};

/// `troupe::fn<train_func>`: the function as something workers can run. An overload is chosen with a static_cast.
template <auto Function>
inline constexpr Fn fn{&detail::OfFunction<Function>::call,
                       &detail::Registered<detail::OfFunction<Function>, detail::EntryKind::train>::done};

}  // namespace troupe
