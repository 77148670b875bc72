// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>
#include <troupe/torch.hpp>
#include <troupe/torch_checkpoint.hpp>
#include <troupe/troupe.hpp>

#include "test/integration/support.hpp"

namespace tt = troupe::train::torch;
using namespace troupe::test;
using troupe::Checkpoint;
using troupe::Json;

namespace {

/// What a checkpoint that was written and read again holds.
Checkpoint written_and_read(const Checkpoint& checkpoint) {
  return troupe::detail::decode(troupe::detail::encode(checkpoint));
}

bool same_bits(const torch::Tensor& a, const torch::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.contiguous().data_ptr(), b.contiguous().data_ptr(), a.nbytes()) == 0;
}

bool same_model(const torch::nn::Sequential& a, const torch::nn::Sequential& b) {
  const auto left = a->parameters();
  const auto right = b->parameters();
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const auto& x, const auto& y) { return same_bits(x.detach(), y.detach()); });
}

torch::nn::Sequential make_net(std::uint64_t seed = 0) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::Tanh(),
                               torch::nn::Linear(8, 2));
}

std::string refused(const std::function<void()>& call) {
  const auto error = error_of(call);
  DOCTEST_CHECK(error.code == troupe::ErrorCode::invalid_argument);
  return error.text;
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Two groups of parameters with options of their own.
template <class Optimizer, class Options>
Optimizer make_optimizer(torch::nn::Sequential& net, const Options& options) {
  auto slow = options;
  slow.lr(options.lr() / 3);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net[0]->parameters(), std::make_unique<Options>(options));
  groups.emplace_back(net[3]->parameters(), std::make_unique<Options>(slow));
  return Optimizer(std::move(groups), options);
}

void steps(torch::nn::Sequential& net, torch::optim::Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(100 + step));
    const auto x = torch::randn({16, 4});
    optimizer.zero_grad();
    net->forward(x).pow(2).mean().backward();
    optimizer.step();
  }
}

/// Ten steps, against five, a checkpoint, fresh objects with other options and
/// weights, and five more.
template <class Optimizer, class Options>
void check_resume(const char* name, const Options& options, const Options& others) {
  DOCTEST_CAPTURE(name);
  auto straight = make_net();
  auto optimizer = make_optimizer<Optimizer>(straight, options);
  steps(straight, optimizer, 0, 10);

  auto first = make_net();
  auto first_optimizer = make_optimizer<Optimizer>(first, options);
  steps(first, first_optimizer, 0, 5);
  for (auto& group : first_optimizer.param_groups()) group.options().set_lr(group.options().get_lr());
  const auto saved =
      written_and_read({{"model", tt::state_dict(first)}, {"optimizer", tt::state_dict(first_optimizer)}});

  auto second = make_net(7);
  auto second_optimizer = make_optimizer<Optimizer>(second, others);
  steps(second, second_optimizer, 0, 1);  // leaves a state that must go
  tt::load_state_dict(second, saved["model"]);
  tt::load_state_dict(second_optimizer, saved["optimizer"]);
  steps(second, second_optimizer, 5, 10);
  DOCTEST_CHECK(same_model(straight, second));
  DOCTEST_CHECK(second_optimizer.param_groups()[1].options().get_lr() == options.lr() / 3);
  DOCTEST_CHECK(written_and_read(tt::state_dict(second_optimizer)) == tt::state_dict(optimizer));
}

}  // namespace

DOCTEST_TEST_CASE("tensors of every type and layout come back with the same bits") {
  const auto numbers = torch::tensor({1.5, -2.0, 0.0, 3.25, 7.0, 100.0}).view({2, 3});
  for (auto type :
       {torch::kFloat, torch::kDouble, torch::kHalf, torch::kBFloat16, torch::kByte, torch::kChar, torch::kShort,
        torch::kInt, torch::kLong, torch::kBool, torch::kComplexFloat, torch::kComplexDouble}) {
    DOCTEST_CAPTURE(c10::toString(type));
    const auto tensor = numbers.abs().to(type);
    const auto saved = written_and_read({{"plain", tensor},
                                         {"turned", tensor.t()},
                                         {"column", tensor.select(1, 1)},
                                         {"one", tensor[1][2]},
                                         {"empty", torch::empty({0, 3}, type)}});
    DOCTEST_CHECK(same_bits(saved.at<at::Tensor>("plain"), tensor));
    DOCTEST_CHECK(same_bits(saved.at<at::Tensor>("turned"), tensor.t()));
    DOCTEST_CHECK(same_bits(saved.at<at::Tensor>("column"), tensor.select(1, 1)));
    DOCTEST_CHECK(same_bits(saved.at<at::Tensor>("one"), tensor[1][2]));
    DOCTEST_CHECK(saved.at<at::Tensor>("empty").sizes() == at::IntArrayRef({0, 3}));
    DOCTEST_CHECK((saved.at<at::Tensor>("empty").scalar_type() == type));
  }
  const auto lazy = torch::complex(numbers, numbers).conj();
  DOCTEST_CHECK(torch::equal(Checkpoint({{"w", lazy}}).at<at::Tensor>("w"), lazy.resolve_conj()));
}

DOCTEST_TEST_CASE(
    "contiguous tensors are shared with a checkpoint, and what "
    "is read is one's own") {
  const auto tensor = torch::ones({4}).requires_grad_();
  const auto data = tt::to_tensor_data(tensor);
  DOCTEST_CHECK(static_cast<const void*>(data.data()) == tensor.data_ptr());
  DOCTEST_CHECK(tt::view_of(data).data_ptr() == tensor.data_ptr());
  auto own = tt::to_tensor(data);
  own.fill_(5);
  DOCTEST_CHECK(tensor.sum().item<double>() == 4);
  at::Tensor view;
  {
    const auto kept = tt::to_tensor_data(torch::full({3}, 2.0));
    view = tt::view_of(kept);
  }
  DOCTEST_CHECK(view.sum().item<double>() == 6);  // it keeps the memory
  const std::vector<at::Tensor> list{torch::ones({1}), torch::zeros({2})};
  DOCTEST_CHECK(Checkpoint({{"list", list}}).at<std::vector<at::Tensor>>("list")[1].numel() == 2);
}

DOCTEST_TEST_CASE("tensors that a checkpoint cannot hold are refused with what to do") {
  DOCTEST_CHECK(says(refused([] { tt::to_tensor_data(torch::ones({2}).to_sparse()); }), "to_dense()"));
  DOCTEST_CHECK(says(refused([] { tt::to_tensor_data({}); }), "undefined"));
  DOCTEST_CHECK(
      says(refused([] { tt::to_tensor_data(torch::quantize_per_tensor(torch::ones({2}), 0.1, 0, torch::kQInt8)); }),
           "dequantize()"));
  DOCTEST_CHECK(says(refused([] { Checkpoint({{"w", 3}}).at<at::Tensor>("w"); }), "\"w\""));
}

DOCTEST_TEST_CASE(
    "state_dict has Python's names in Python's order, for "
    "holders, pointers and modules") {
  auto net = make_net();
  std::vector<std::string> keys;
  for (const auto& [key, item] : tt::state_dict(net)) keys.push_back(key);
  DOCTEST_CHECK(keys == std::vector<std::string>{"0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean",
                                                 "1.running_var", "1.num_batches_tracked", "3.weight", "3.bias"});
  const Checkpoint state = tt::state_dict(net);
  DOCTEST_CHECK(tt::state_dict(net.ptr()) == state);
  DOCTEST_CHECK(tt::state_dict(*net) == state);
  torch::nn::Linear linear(2, 1);
  DOCTEST_CHECK(tt::state_dict(linear).size() == 2);
}

DOCTEST_TEST_CASE("load_state_dict copies into the model in place, and converts types") {
  auto net = make_net();
  auto other = make_net(1);
  const auto* memory = other->parameters()[0].data_ptr();
  net->forward(torch::randn({8, 4}));  // moves the running mean
  DOCTEST_CHECK(!same_model(net, other));
  const auto keys = tt::load_state_dict(other, written_and_read(tt::state_dict(net)));
  DOCTEST_CHECK(keys.missing_keys.empty());
  DOCTEST_CHECK(same_model(net, other));
  DOCTEST_CHECK(torch::equal(net->named_buffers()["1.running_mean"], other->named_buffers()["1.running_mean"]));
  DOCTEST_CHECK(other->parameters()[0].data_ptr() == memory);
  DOCTEST_CHECK(other->parameters()[0].requires_grad());

  torch::nn::Linear linear(2, 1);
  tt::load_state_dict(linear, {{"weight", torch::full({1, 2}, 0.5, torch::kDouble)}, {"bias", torch::ones({1})}});
  DOCTEST_CHECK((linear->weight.scalar_type() == torch::kFloat));
  DOCTEST_CHECK(linear->weight.sum().item<double>() == 1);
  // Memory that is not in one piece.
  torch::nn::Linear turned(2, 3);
  turned->weight.set_data(torch::zeros({2, 3}).t());
  tt::load_state_dict(turned, {{"weight", torch::arange(6, torch::kFloat).view({3, 2})}, {"bias", torch::ones({3})}});
  DOCTEST_CHECK(turned->weight[2][1].item<double>() == 5);
}

DOCTEST_TEST_CASE("names that all begin with module. are taken without it") {
  torch::nn::Linear linear(2, 1);
  const Checkpoint state{{"module.weight", torch::full({1, 2}, 3.0F)}, {"module.bias", torch::zeros({1})}};
  tt::load_state_dict(linear, state);
  DOCTEST_CHECK(linear->weight.sum().item<double>() == 6);
  Checkpoint mixed = state;
  mixed.erase("module.bias");
  mixed.set("bias", torch::zeros({1}));
  const auto text = refused([&] { tt::load_state_dict(linear, mixed); });
  DOCTEST_CHECK(says(text, "missing in the state: weight"));
  DOCTEST_CHECK(says(text, "unexpected in the state: module.weight"));
}

DOCTEST_TEST_CASE(
    "a state that does not fit is refused with all differences "
    "at once, and changes nothing") {
  auto net = make_net();
  const auto before = written_and_read(tt::state_dict(net));
  Checkpoint state = written_and_read(tt::state_dict(make_net(1)));
  state.erase("0.bias");
  state.set("0.extra", torch::ones({1}));
  const auto text = refused([&] { tt::load_state_dict(net, state); });
  DOCTEST_CHECK(says(text, "missing in the state: 0.bias"));
  DOCTEST_CHECK(says(text, "unexpected in the state: 0.extra"));
  DOCTEST_CHECK(says(text, "strict = false"));
  DOCTEST_CHECK(tt::state_dict(net) == before);

  state.set("3.weight", torch::ones({2, 9}));
  const auto shapes = refused([&] { tt::load_state_dict(net, state); });
  DOCTEST_CHECK(says(shapes, "3.weight is float32[2,9] in the state, [2,8] in the model"));
  DOCTEST_CHECK(says(refused([&] { tt::load_state_dict(net, state, false); }), "3.weight"));
  DOCTEST_CHECK(tt::state_dict(net) == before);

  state.erase("3.weight");
  const auto keys = tt::load_state_dict(net, state, false);
  DOCTEST_CHECK(keys.missing_keys == std::vector<std::string>{"0.bias", "3.weight"});
  DOCTEST_CHECK(keys.unexpected_keys == std::vector<std::string>{"0.extra"});
  DOCTEST_CHECK(!(tt::state_dict(net) == before));

  DOCTEST_CHECK(says(refused([&] { tt::load_state_dict(net, {{"model", tt::state_dict(net)}, {"epoch", 3}}); }),
                     "checkpoint[\"model\"]"));
  DOCTEST_CHECK(says(refused([&] { tt::load_state_dict(net, 5); }), "5"));
}

DOCTEST_TEST_CASE(
    "training goes on from a checkpoint with the same bits, with "
    "every optimizer") {
  using namespace torch::optim;
  check_resume<SGD>("SGD", SGDOptions(0.1), SGDOptions(0.5));
  check_resume<SGD>("SGD, momentum", SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01), SGDOptions(0.5));
  check_resume<SGD>("SGD, dampening", SGDOptions(0.1).momentum(0.9).dampening(0.3), SGDOptions(0.5).momentum(0.1));
  check_resume<Adam>("Adam", AdamOptions(0.01), AdamOptions(0.5));
  check_resume<Adam>("Adam, amsgrad",
                     AdamOptions(0.01).amsgrad(true).weight_decay(0.1).betas(std::make_tuple(0.8, 0.9)).eps(1e-6),
                     AdamOptions(0.5));
  check_resume<AdamW>("AdamW", AdamWOptions(0.01).weight_decay(0.2).amsgrad(true), AdamWOptions(0.5));
  check_resume<RMSprop>("RMSprop", RMSpropOptions(0.01), RMSpropOptions(0.5));
  check_resume<RMSprop>("RMSprop, centered",
                        RMSpropOptions(0.01).momentum(0.9).centered(true).alpha(0.9).weight_decay(0.01),
                        RMSpropOptions(0.5));
  check_resume<Adagrad>("Adagrad", AdagradOptions(0.01).lr_decay(0.1).weight_decay(0.01), AdagradOptions(0.5));
}

DOCTEST_TEST_CASE("a state of another optimizer is refused, and changes nothing") {
  auto net = make_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  steps(net, sgd, 0, 2);
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.25));
  steps(net, adam, 0, 2);
  const auto before = written_and_read(tt::state_dict(adam));
  DOCTEST_CHECK(
      says(refused([&] { tt::load_state_dict(adam, tt::state_dict(sgd)); }), "of SGD, the optimizer is Adam"));

  auto small = torch::nn::Linear(2, 1);
  torch::optim::Adam fewer(small->parameters(), torch::optim::AdamOptions(0.1));
  DOCTEST_CHECK(says(refused([&] { tt::load_state_dict(adam, tt::state_dict(fewer)); }), "2 parameters in it, 6"));
  auto grouped = make_optimizer<torch::optim::Adam>(net, torch::optim::AdamOptions(0.1));
  DOCTEST_CHECK(says(refused([&] { tt::load_state_dict(adam, tt::state_dict(grouped)); }), "2 groups"));

  // One tensor of a wrong shape, behind options that fit.
  auto state = written_and_read(tt::state_dict(adam));
  auto states = state.at<Checkpoint>("state");
  auto last = states.at<Checkpoint>("5");
  last.set("exp_avg", torch::ones({3}));
  states.set("5", last);
  state.set("state", states);
  auto groups = state["param_groups"].as<Json>();
  groups[0]["lr"] = 0.75;
  state.set("param_groups", groups);
  DOCTEST_CHECK(says(refused([&] { tt::load_state_dict(adam, state); }), "[3]"));
  groups[0]["lr"] = "fast";
  state = before;
  state.set("param_groups", groups);
  DOCTEST_CHECK(says(refused([&] { tt::load_state_dict(adam, state); }), "number"));
  DOCTEST_CHECK(tt::state_dict(adam) == before);

  torch::optim::LBFGS lbfgs(net->parameters(), torch::optim::LBFGSOptions(0.1));
  DOCTEST_CHECK(says(refused([&] { tt::state_dict(lbfgs); }), "Adagrad"));
  DOCTEST_CHECK(says(refused([&] { tt::load_state_dict(adam, Checkpoint()); }), "param_groups"));
}

DOCTEST_TEST_CASE("random numbers go on where rng_state was taken") {
  torch::manual_seed(3);
  torch::randn({5});
  const auto saved = written_and_read({{"rng", tt::rng_state()}});
  const auto next = torch::randn({40});
  torch::manual_seed(99);
  tt::set_rng_state(saved.at<at::Tensor>("rng"));
  DOCTEST_CHECK(torch::equal(torch::randn({40}), next));
  DOCTEST_CHECK(says(refused([] { tt::set_rng_state(torch::zeros({3}, torch::kByte)); }), "rng_state()"));
}
