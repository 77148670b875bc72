// SPDX-License-Identifier: Apache-2.0
// state_dict() and load_state_dict() of optimizers. libtorch's own Optimizer::save() and load() forget the options
// (1.13) and go through an archive; this reads and writes the fields, which are listed once a kind for both directions.
#include <ATen/Functions.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <troupe/torch_checkpoint.hpp>

#include <algorithm>
#include <sstream>
#include <tuple>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <troupe/error.hpp>

#include "backends/torch/optimizer_state.hpp"

namespace troupe::train::torch {
namespace {

namespace optim = ::torch::optim;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::invalid_argument, "load_state_dict(): the state does not fit the optimizer: " + why);
}

// ---- the fields of each kind, in Python's names ---------------------------------------------------------------------

template <class OptionsType, class StateType>
struct Kind {
  using Options = OptionsType;
  using State = StateType;
  const char* name;
};

/// Calls `call(Kind)` for the kind of the optimizer.
template <class Call>
decltype(auto) with_kind(const optim::Optimizer& optimizer, Call&& call) {
  const auto is = [&]<class Type>(std::type_identity<Type>) {
    return dynamic_cast<const Type*>(&optimizer) != nullptr;
  };
  if (is(std::type_identity<optim::SGD>())) return call(Kind<optim::SGDOptions, optim::SGDParamState>{"SGD"});
  if (is(std::type_identity<optim::Adam>())) return call(Kind<optim::AdamOptions, optim::AdamParamState>{"Adam"});
  if (is(std::type_identity<optim::AdamW>())) return call(Kind<optim::AdamWOptions, optim::AdamWParamState>{"AdamW"});
  if (is(std::type_identity<optim::RMSprop>()))
    return call(Kind<optim::RMSpropOptions, optim::RMSpropParamState>{"RMSprop"});
  if (is(std::type_identity<optim::Adagrad>()))
    return call(Kind<optim::AdagradOptions, optim::AdagradParamState>{"Adagrad"});
  throw Error(ErrorCode::invalid_argument,
              "the state of this kind of optimizer cannot be taken; valid: "
              "SGD, Adam, AdamW, RMSprop, Adagrad (save the "
              "tensors and numbers of another one yourself)");
}

template <class Record, class Type>
inline constexpr bool is = std::is_same_v<std::remove_const_t<Record>, Type>;

/// Calls `field(name, value)` for each option, or each thing remembered of a parameter.
template <class Record, class Field>
void visit(Record& record, Field&& field) {
  if constexpr (is<Record, optim::SGDOptions>) {
    field("lr", record.lr());
    field("momentum", record.momentum());
    field("dampening", record.dampening());
    field("weight_decay", record.weight_decay());
    field("nesterov", record.nesterov());
  } else if constexpr (is<Record, optim::AdamOptions> || is<Record, optim::AdamWOptions>) {
    field("lr", record.lr());
    field("betas", record.betas());
    field("eps", record.eps());
    field("weight_decay", record.weight_decay());
    field("amsgrad", record.amsgrad());
  } else if constexpr (is<Record, optim::RMSpropOptions>) {
    field("lr", record.lr());
    field("alpha", record.alpha());
    field("eps", record.eps());
    field("weight_decay", record.weight_decay());
    field("momentum", record.momentum());
    field("centered", record.centered());
  } else if constexpr (is<Record, optim::AdagradOptions>) {
    field("lr", record.lr());
    field("lr_decay", record.lr_decay());
    field("weight_decay", record.weight_decay());
    field("initial_accumulator_value", record.initial_accumulator_value());
    field("eps", record.eps());
  } else if constexpr (is<Record, optim::SGDParamState>) {
    field("momentum_buffer", record.momentum_buffer());
  } else if constexpr (is<Record, optim::AdamParamState> || is<Record, optim::AdamWParamState>) {
    field("step", record.step());
    field("exp_avg", record.exp_avg());
    field("exp_avg_sq", record.exp_avg_sq());
    field("max_exp_avg_sq", record.max_exp_avg_sq());
  } else if constexpr (is<Record, optim::RMSpropParamState>) {
    field("step", record.step());
    field("square_avg", record.square_avg());
    field("momentum_buffer", record.momentum_buffer());
    field("grad_avg", record.grad_avg());
  } else {
    static_assert(is<Record, optim::AdagradParamState>);
    field("step", record.step());
    field("sum", record.sum());
  }
}

// ---- values ---------------------------------------------------------------------------------------------------------

Json to_json(const std::tuple<double, double>& pair) { return {std::get<0>(pair), std::get<1>(pair)}; }
template <class Number>
Json to_json(const Number& number) {
  return number;
}

void read(const Json& json, std::tuple<double, double>& pair) {
  pair = {json.at(0).get<double>(), json.at(1).get<double>()};
}
template <class Number>
void read(const Json& json, Number& number) {
  number = json.get<Number>();
}

void write_state(Checkpoint& out, const char* name, const at::Tensor& tensor) {
  if (tensor.defined()) out.set(name,
                                tensor);  // not every field is in use: amsgrad, momentum, centered
}
void write_state(Checkpoint& out, const char* name, std::int64_t number) { out.set(name, number); }

void read_state(const CheckpointItem& item, const at::Tensor& parameter, at::Tensor& tensor) {
  auto read = item.as<at::Tensor>();
  if (read.sizes() != parameter.sizes())
    refuse(fmt::format("a tensor of shape [{}] belongs to a parameter of shape [{}]",
                       fmt::join(read.sizes().begin(), read.sizes().end(), ","),
                       fmt::join(parameter.sizes().begin(), parameter.sizes().end(), ",")));
  tensor = read.to(parameter.device());
}
void read_state(const CheckpointItem& item, const at::Tensor& /*parameter*/, std::int64_t& number) {
  // Python keeps the step as a tensor.
  number = item.is_tensor() ? item.as<at::Tensor>().item<std::int64_t>() : item.as<std::int64_t>();
}

/// How Optimizer::state() names a parameter: by its address, which older versions write out as text.
template <class Key>
Key key_of(const at::Tensor& parameter) {
  if constexpr (std::is_same_v<Key, std::string>) {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  } else {
    return parameter.unsafeGetTensorImpl();
  }
}
using States = std::remove_cvref_t<decltype(std::declval<optim::Optimizer&>().state())>;

// ---- both directions ------------------------------------------------------------------------------------------------

template <class K>
Checkpoint save(const optim::Optimizer& optimizer, const K& kind) {
  std::vector<CheckpointEntry> states;
  std::vector<CheckpointItem> groups;
  std::int64_t number = 0;
  for (const auto& group : optimizer.param_groups()) {
    Json entry = Json::object();
    visit(static_cast<const typename K::Options&>(group.options()),
          [&](const char* name, const auto& value) { entry[name] = to_json(value); });
    entry["params"] = Json::array();
    for (const auto& parameter : group.params()) {
      const auto found = optimizer.state().find(key_of<States::key_type>(parameter));
      if (found != optimizer.state().end()) {
        Checkpoint state;
        visit(static_cast<const typename K::State&>(*found->second),
              [&](const char* name, const auto& value) { write_state(state, name, value); });
        states.emplace_back(std::to_string(number), state);
      }
      entry["params"].push_back(number++);
    }
    groups.push_back(CheckpointItem::of_json(entry));
  }
  Checkpoint dictionary;
  dictionary.set("type", kind.name);
  dictionary.set("state", CheckpointItem::of_entries(std::move(states)));
  dictionary.set("param_groups", CheckpointItem::of_list(std::move(groups)));
  return dictionary;
}

template <class K>
std::unique_ptr<optim::OptimizerOptions> read_options(const Json& saved, const optim::OptimizerOptions& present) {
  auto options = present.clone();
  visit(static_cast<typename K::Options&>(*options), [&](const char* name, auto& value) {
    if (saved.contains(name)) read(saved[name], value);
  });
  return options;
}

template <class K>
std::unique_ptr<optim::OptimizerParamState> read_parameter(const Checkpoint& saved, const at::Tensor& parameter) {
  auto state = std::make_unique<typename K::State>();
  visit(*state, [&](const char* name, auto& value) {
    if (const auto* item = saved.find(name)) read_state(*item, parameter, value);
  });
  return state;
}

template <class K>
void load(optim::Optimizer& optimizer, const Checkpoint& saved, const K& kind) {
  if (const auto type = saved.value("type", kind.name); type != kind.name)
    refuse(fmt::format("it is of {}, the optimizer is {}", type, kind.name));
  auto& groups = optimizer.param_groups();
  const auto& saved_groups = saved["param_groups"];
  if (!saved_groups.is_list() || saved_groups.size() != groups.size())
    refuse(fmt::format("it has {} groups of parameters, the optimizer has {}", saved_groups.size(), groups.size()));
  const auto saved_states = saved.at<Checkpoint>("state");

  // Everything is read before anything is changed.
  std::vector<std::unique_ptr<optim::OptimizerOptions>> options;
  States states;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const auto entry = saved_groups.at(i).template as<Json>();
    const auto numbers = entry.value("params", Json::array());
    const auto& parameters = groups[i].params();
    if (numbers.size() != parameters.size())
      refuse(
          fmt::format("group {} has {} parameters in it, {} in the optimizer", i, numbers.size(), parameters.size()));
    options.push_back(read_options<K>(entry, groups[i].options()));
    for (std::size_t j = 0; j < parameters.size(); ++j)
      if (const auto* item = saved_states.find(numbers[j].dump()))
        states[key_of<States::key_type>(parameters[j])] =
            read_parameter<K>(item->template as<Checkpoint>(), parameters[j]);
  }
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].set_options(std::move(options[i]));
  optimizer.state() = std::move(states);
}

template <class K>
void visit_tensors(const optim::Optimizer& optimizer, const K& /*kind*/,
                   const std::function<void(const at::Tensor&)>& call) {
  const auto field = [&](const char* /*name*/, const auto& value) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, at::Tensor>)
      if (value.defined()) call(value);
  };
  for (const auto& group : optimizer.param_groups())
    for (const auto& parameter : group.params())
      if (const auto found = optimizer.state().find(key_of<States::key_type>(parameter));
          found != optimizer.state().end())
        visit(static_cast<const typename K::State&>(*found->second), field);
}

}  // namespace

Checkpoint state_dict(const optim::Optimizer& optimizer) {
  return with_kind(optimizer, [&](const auto& kind) { return save(optimizer, kind); });
}

void load_state_dict(optim::Optimizer& optimizer, const CheckpointItem& state) {
  const auto saved = state.as<Checkpoint>();
  try {
    with_kind(optimizer, [&](const auto& kind) { load(optimizer, saved, kind); });
  } catch (const Json::exception& error) {
    refuse(error.what());
  }
}

}  // namespace troupe::train::torch

void troupe::for_each_state_tensor(const ::torch::optim::Optimizer& optimizer,
                                   const std::function<void(const at::Tensor&)>& visit) {
  train::torch::with_kind(optimizer, [&](const auto& kind) { train::torch::visit_tensors(optimizer, kind, visit); });
}
