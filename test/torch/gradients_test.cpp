// SPDX-License-Identifier: Apache-2.0
// What prepare_model() does beyond plain averages: buffers, sparse gradients, types, clipping, hooks.
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "test/torch/model_support.hpp"
#include "test/torch/transports.hpp"

namespace train = troupe::train;
namespace nn = torch::nn;
using namespace troupe::test;
using troupe::Config;
using troupe::Json;

namespace {

/// One step of a BatchNorm whose input depends on the rank; what the buffers are then.
Json buffers_after_a_step(const Config& config) {
  nn::Sequential model(nn::Linear(3, 2), nn::BatchNorm1d(2));
  fill(*model);
  model = train::torch::prepare_model(model, {.broadcast_buffers = config["on"].get<bool>()});
  auto output = model->forward(waves({4, 3}, train::world_rank()));
  if (config.value("twice", false)) output.square().sum().backward({}, /*retain_graph=*/true);
  output.square().sum().backward();
  Json result;
  for (const auto& item : model->named_buffers()) result[item.key()] = values_of(item.value());
  return result;
}

/// An embedding of 6 rows of which every rank uses others, beside a dense layer.
struct TwoPartsImpl : nn::Module {
  TwoPartsImpl() {
    embedding = register_module("embedding", nn::Embedding(nn::EmbeddingOptions(6, 2).sparse(true)));
    dense = register_module("dense", nn::Linear(2, 1));
  }
  at::Tensor forward(const at::Tensor& rows) { return dense->forward(embedding->forward(rows)); }
  nn::Embedding embedding{nullptr};
  nn::Linear dense{nullptr};
};
TORCH_MODULE(TwoParts);

const std::vector<std::vector<std::int64_t>> rows_of_rank = {{0, 1, 1}, {1, 5}, {3, 0, 3, 2, 3}};

Json sparse_gradients(const Config& config) {
  TwoParts model;
  fill(*model);
  model = train::torch::prepare_model(model, {.find_unused_parameters = config["leave_out"].get<bool>()});
  Json result;
  for (int step = 0; step < 2; ++step) {
    for (auto& parameter : model->parameters()) parameter.mutable_grad() = at::Tensor();
    const auto& rows = rows_of_rank[static_cast<std::size_t>(train::world_rank())];
    if (config["leave_out"].get<bool>() && train::world_rank() == 1)
      model->dense->forward(torch::ones({1, 2})).sum().backward();
    else
      model->forward(torch::tensor(rows)).sum().backward();
    result = {{"sparse", model->embedding->weight.grad().is_sparse()},
              {"rows", model->embedding->weight.grad().coalesce().indices().numel()},
              {"gradients", gradients_of(*model)}};
  }
  return result;
}

/// The average of what each rank would have alone.
Values sparse_reference(bool leave_out) {
  Values sum;
  for (std::size_t rank = 0; rank < rows_of_rank.size(); ++rank) {
    TwoParts model;
    fill(*model);
    auto output = leave_out && rank == 1 ? model->dense->forward(torch::ones({1, 2}))
                                         : model->forward(torch::tensor(rows_of_rank[rank]));
    (output.sum() / 3 + 0 * model->embedding->forward(torch::tensor({0})).sum()).backward();
    const auto values = gradients_of(*model);
    if (sum.empty()) sum.resize(values.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
  }
  return sum;
}

/// Two tables of which every rank uses its rows: a sparse bag, and a parameter that a function looks up sparsely.
struct TablesImpl : nn::Module {
  at::Tensor sum_of(const std::vector<std::int64_t>& rows) {
    const auto wanted = torch::tensor(rows);
    return bag->forward(wanted.unsqueeze(0)).sum() +
           torch::embedding(plain, wanted, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true).sum();
  }
  nn::EmbeddingBag bag =
      register_module("bag", nn::EmbeddingBag(nn::EmbeddingBagOptions(6, 2).mode(torch::kSum).sparse(true)));
  at::Tensor plain = register_parameter("plain", torch::ones({6, 2}));
};
TORCH_MODULE(Tables);

/// Layers of floats, doubles or bfloat16 one behind the other, each as its letter says.
struct TypedImpl : nn::Module {
  explicit TypedImpl(const std::string& types) {
    for (char letter : types) {
      layers.push_back(register_module(std::to_string(layers.size()), nn::Linear(4, 4)));
      layers.back()->to(letter == 'd' ? torch::kDouble : letter == 'b' ? torch::kBFloat16 : torch::kFloat);
    }
    fill(*this);
  }
  at::Tensor loss(int rank) {
    auto values = waves({4, 4}, rank);
    for (auto& layer : layers) values = layer->forward(values.to(layer->weight.scalar_type())).tanh();
    return values.to(torch::kDouble).square().sum();
  }
  std::vector<nn::Linear> layers;
};
TORCH_MODULE(Typed);

Json typed_gradients(const Config& config) {
  train::torch::PrepareModelOptions options{.bucket_bytes = config["bucket_bytes"]};
  if (config["hook"] == "bf16") options.comm_hook = train::torch::CommHook::bf16;
  if (config["hook"] == "fp16") options.comm_hook = train::torch::CommHook::fp16;
  if (config["hook"] == "own")
    options.comm_hook = [](train::torch::GradientBucket& bucket) {
      bucket.values = train::torch::all_reduce(bucket.values, train::torch::Reduce::mean);
    };
  auto model = train::torch::prepare_model(Typed(config["types"].get<std::string>()), options);
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    model->loss(train::world_rank()).backward();
  }
  for (const auto& parameter : model->parameters())
    if (parameter.grad().scalar_type() != parameter.scalar_type())
      throw std::runtime_error("a gradient is of another type");
  return gradients_of(*model);
}

/// Averages over three ranks, added up as doubles.
Values typed_gradients_alone(const std::string& types) {
  Values sum;
  for (int rank = 0; rank < 3; ++rank) {
    Typed model(types);
    model->loss(rank).backward();
    const auto values = gradients_of(*model);
    sum.resize(values.size());
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i] / 3;
  }
  return sum;
}

double largest_of(const Values& values) { return largest_difference(values, Values(values.size(), 0.0)); }

/// A layer that is registered under two names, and a head.
struct TiedImpl : nn::Module {
  TiedImpl() {
    layer = register_module("first", nn::Linear(3, 3));
    register_module("second", layer);
    head = register_module("head", nn::Linear(3, 1));
  }
  at::Tensor forward(const at::Tensor& input) { return head->forward(layer->forward(layer->forward(input).tanh())); }
  nn::Linear layer{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Tied);

/// With `leave_out` rank 1 uses the head alone.
at::Tensor tied_loss(Tied& model, int rank, bool leave_out) {
  const auto input = waves({4, 3}, rank);
  return (leave_out && rank == 1 ? model->head->forward(input) : model->forward(input)).square().sum();
}

Json tied_gradients(const Config& config) {
  Tied model;
  fill(*model);
  model = train::torch::prepare_model(
      model, {.find_unused_parameters = config["leave_out"].get<bool>(), .bucket_bytes = config["bucket_bytes"]});
  Json result;
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    tied_loss(model, train::world_rank(), config["leave_out"]).backward();
    result["gradients"] = gradients_of(*model);
  }
  result["norm"] = train::torch::clip_grad_norm(model, 0.1);
  result["clipped"] = train::torch::clip_grad_norm(model, 1e9);
  return result;
}

/// The average over two ranks, and its norm.
std::pair<Values, double> tied_reference(bool leave_out) {
  Tied model;
  fill(*model);
  ((tied_loss(model, 0, leave_out) + tied_loss(model, 1, leave_out)) / 2).backward();
  double squares = 0;
  for (const auto& parameter : {model->layer->weight, model->layer->bias, model->head->weight, model->head->bias})
    squares += parameter.grad().square().sum().item<double>();
  return {gradients_of(*model), std::sqrt(squares)};
}

/// Parameters whose gradients are what `gradient_of` says, to the bit: of no, some and many pieces, and one whose
/// elements lie in another order.
struct PlainImpl : nn::Module {
  PlainImpl() {
    register_parameter("tiny", torch::zeros({3}));
    register_parameter("wide", torch::zeros({701, 900}));
    register_parameter("turned", torch::zeros({17, 33, 5, 5}).contiguous(at::MemoryFormat::ChannelsLast));
    register_parameter("long", torch::zeros({1000003}));
  }
  at::Tensor forward(int rank) {
    auto loss = torch::zeros({});
    for (auto& parameter : parameters()) loss = loss + (parameter * gradient_of(parameter, rank)).sum();
    return loss;
  }
  static at::Tensor gradient_of(const at::Tensor& parameter, int rank) { return waves(parameter.sizes(), rank); }
};
TORCH_MODULE(Plain);

/// Gradients that differ by a bit from sums in rank order: fresh ones, those added to an average, and those added up
/// under no_sync().
Json wrong_bits(const Config& config) {
  auto model = train::torch::prepare_model(Plain(), {.bucket_bytes = config["bucket_bytes"]});
  const int ranks = train::world_size();
  Json wrong = Json::array();
  // `added(i, rank)`: what a rank brings for parameter i.
  const auto compare = [&](const std::string& what, auto&& added) {
    const auto parameters = model->named_parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto sum = added(i, 0);
      for (int rank = 1; rank < ranks; ++rank) sum = sum + added(i, rank);
      if (!torch::equal(parameters[i].value().grad(), sum * (1.0 / ranks)))
        wrong.push_back(what + " " + parameters[i].key());
    }
  };
  const auto fresh = [&](std::size_t i, int rank) { return PlainImpl::gradient_of(model->parameters()[i], rank); };
  model->forward(train::world_rank()).backward();
  compare("fresh", fresh);
  std::vector<at::Tensor> average;
  for (const auto& parameter : model->parameters()) average.push_back(parameter.grad().clone());
  model->forward(train::world_rank()).backward();
  compare("added", [&](std::size_t i, int rank) { return average[i] + fresh(i, rank); });
  model->zero_grad();
  {
    auto guard = train::torch::no_sync(model);
    model->forward(train::world_rank()).backward();
  }
  model->forward(train::world_rank()).backward();
  compare("accumulated", [&](std::size_t i, int rank) { return fresh(i, rank) * 2; });
  return wrong;
}

/// Gradients after one backward() with a hook.
Json with_hook(const Config& config) {
  const std::string name = config["hook"];
  train::torch::PrepareModelOptions options{.bucket_bytes = 128};
  Json seen = Json::array();
  if (name == "bf16") options.comm_hook = train::torch::CommHook::bf16;
  if (name == "fp16") options.comm_hook = train::torch::CommHook::fp16;
  if (name == "own")
    options.comm_hook = [&](train::torch::GradientBucket& bucket) {
      seen.push_back({bucket.index, bucket.parameters});
      bucket.values = train::torch::all_reduce(bucket.values / train::world_size());
    };
  auto net = train::torch::prepare_model(small_net(), options);
  for (int step = 0; step < 2; ++step) {
    for (auto& parameter : net->parameters()) parameter.mutable_grad() = at::Tensor();
    net->forward(waves({4, 4}, train::world_rank())).square().sum().backward();
  }
  return {{"gradients", gradients_of(*net)}, {"seen", seen}};
}

}  // namespace

DOCTEST_TEST_CASE("every synchronized backward gives all ranks the buffers of rank 0, unless that is off") {
  for (const auto& transport : transports()) {
    const std::string name = transport.name;
    DOCTEST_CAPTURE(name);
    const auto apart = run_on(3, transport.config, troupe::fn<buffers_after_a_step>, {{"on", false}});
    DOCTEST_CHECK(apart[0]["1.running_mean"] != apart[1]["1.running_mean"]);
    const auto together = run_on(3, transport.config, troupe::fn<buffers_after_a_step>, {{"on", true}});
    for (const auto& buffers : together) DOCTEST_CHECK(buffers == apart[0]);
    DOCTEST_CHECK(together[1]["1.num_batches_tracked"] == Json({1.0}));
  }
}

DOCTEST_TEST_CASE("a graph that is kept for a second backward does not mind the broadcast of buffers") {
  const auto results = run_on(2, true, troupe::fn<buffers_after_a_step>, {{"on", true}, {"twice", true}});
  DOCTEST_CHECK(results[0] == results[1]);
}

DOCTEST_TEST_CASE("gradients of a sparse embedding stay sparse, and are the average on every rank") {
  for (const auto& transport : transports())
    for (bool leave_out : {false, true}) {
      const std::string name = transport.name;
      DOCTEST_CAPTURE(name);
      DOCTEST_CAPTURE(leave_out);
      const auto results = run_on(3, transport.config, troupe::fn<sparse_gradients>, {{"leave_out", leave_out}});
      DOCTEST_CHECK(results[0] == results[1]);
      DOCTEST_CHECK(results[0] == results[2]);
      DOCTEST_CHECK(results[0]["sparse"] == true);
      DOCTEST_CHECK(results[0]["rows"] == (leave_out ? 4 : 5));
      DOCTEST_CHECK(largest_difference(results[0]["gradients"].get<Values>(), sparse_reference(leave_out)) < 1e-6);
    }
}

DOCTEST_TEST_CASE("gradients of a sparse EmbeddingBag stay sparse, and other sparse gradients become dense") {
  Values expected(6, 0.0);
  for (const auto& rows : rows_of_rank)
    for (auto row : rows) expected[static_cast<std::size_t>(row)] += 1.0 / 3;
  for (const auto& transport : transports()) {
    const std::string name = transport.name;
    DOCTEST_CAPTURE(name);
    for (const auto& result : run_on(3, transport.config, []() -> Json {
           auto model = train::torch::prepare_model(Tables());
           for (int step = 0; step < 2; ++step) {
             model->zero_grad();
             model->sum_of(rows_of_rank[static_cast<std::size_t>(train::world_rank())]).backward();
           }
           const auto bag = model->bag->weight.grad();
           const auto plain = model->plain.grad();
           return {bag.is_sparse(), plain.is_sparse(), values_of(bag.to_dense().select(1, 0)),
                   values_of(plain.to_dense().select(1, 1))};
         })) {
      DOCTEST_CHECK(result[0] == true);
      DOCTEST_CHECK(result[1] == false);
      DOCTEST_CHECK(largest_difference(result[2].get<Values>(), expected) < 1e-6);
      DOCTEST_CHECK(largest_difference(result[3].get<Values>(), expected) < 1e-6);
    }
  }
}

DOCTEST_TEST_CASE("layers of several types train in one model, each averaged in its own type") {
  for (const auto& [types, precision] : {std::pair{"fdf", 1e-7}, std::pair{"ffddff", 1e-7}, std::pair{"bb", 1.0 / 256}})
    for (const auto& transport : transports())
      for (int bucket_bytes : {16, 1 << 20}) {
        const std::string name = transport.name;
        DOCTEST_CAPTURE(types);
        DOCTEST_CAPTURE(name);
        DOCTEST_CAPTURE(bucket_bytes);
        const auto expected = typed_gradients_alone(types);
        const auto results = run_on(3, transport.config, troupe::fn<typed_gradients>,
                                    {{"types", types}, {"bucket_bytes", bucket_bytes}, {"hook", "none"}});
        for (const auto& result : results) {
          DOCTEST_CHECK(result == results[0]);
          DOCTEST_CHECK(largest_difference(result.get<Values>(), expected) < 4 * largest_of(expected) * precision);
        }
      }
}

DOCTEST_TEST_CASE("a comm_hook averages gradients of doubles, which stay doubles") {
  const auto expected = typed_gradients_alone("dd");
  for (const auto& [hook, precision] :
       {std::pair{"own", 1e-15}, std::pair{"bf16", 1.0 / 256}, std::pair{"fp16", 1.0 / 2048}})
    for (const auto& transport : transports()) {
      const std::string name = transport.name;
      DOCTEST_CAPTURE(hook);
      DOCTEST_CAPTURE(name);
      const auto results = run_on(3, transport.config, troupe::fn<typed_gradients>,
                                  {{"types", "dd"}, {"bucket_bytes", 128}, {"hook", hook}});
      for (const auto& result : results) {
        DOCTEST_CHECK(result == results[0]);
        const auto difference = largest_difference(result.get<Values>(), expected);
        DOCTEST_CHECK(difference < 4 * largest_of(expected) * precision);
        if (hook != std::string("own")) DOCTEST_CHECK(difference > 1e-9);
      }
    }
}

DOCTEST_TEST_CASE("a sparse embedding whose gradient is dense on one rank gets a dense average") {
  const auto results = run_on(2, true, []() -> Json {
    TwoParts model;
    fill(*model);
    model = train::torch::prepare_model(model);
    auto loss = model->forward(torch::tensor({0, 1})).sum();
    if (train::world_rank() == 1) loss = loss + model->embedding->weight.sum();
    loss.backward();
    return {model->embedding->weight.grad().is_sparse(), gradients_of(*model)};
  });
  DOCTEST_CHECK(results[0] == results[1]);
  DOCTEST_CHECK(results[0][0] == false);
}

DOCTEST_TEST_CASE("bf16 and fp16 send shorter gradients within their precision, and every rank gets the same bits") {
  for (bool shared_memory : {true, false}) {
    DOCTEST_CAPTURE(shared_memory);
    const auto exact =
        run_on(3, shared_memory, troupe::fn<with_hook>, {{"hook", "none"}})[0]["gradients"].get<Values>();
    double largest = 0;
    for (double value : exact) largest = std::max(largest, std::abs(value));
    for (const auto& [hook, precision] : {std::pair{"bf16", 1.0 / 256}, std::pair{"fp16", 1.0 / 2048}}) {
      DOCTEST_CAPTURE(hook);
      const auto results = run_on(3, shared_memory, troupe::fn<with_hook>, {{"hook", hook}});
      const auto difference = largest_difference(results[0]["gradients"].get<Values>(), exact);
      // Each rank's value is rounded once, and so is every sum; partial sums may be larger than the result.
      DOCTEST_CHECK(difference < 4 * largest * precision);
      DOCTEST_CHECK(difference > 0);
      DOCTEST_CHECK(results[0] == results[1]);
      DOCTEST_CHECK(results[0] == results[2]);
    }
  }
}

DOCTEST_TEST_CASE("a hook of the user's own averages the buckets, in the same order everywhere") {
  for (auto placement : {troupe::Placement::process, troupe::Placement::thread}) {
    const auto exact = run_on(2, true, troupe::fn<with_hook>, {{"hook", "none"}}, placement);
    const auto results = run_on(2, true, troupe::fn<with_hook>, {{"hook", "own"}}, placement);
    DOCTEST_CHECK(results[0] == results[1]);
    DOCTEST_CHECK(largest_difference(results[0]["gradients"].get<Values>(), exact[0]["gradients"].get<Values>()) <
                  1e-6);
    const Json one_step = Json::parse(R"([[0, ["2.bias", "2.weight", "0.bias"]], [1, ["0.weight"]]])");
    DOCTEST_REQUIRE(results[0]["seen"].size() == 4);
    for (std::size_t i = 0; i < 4; ++i) DOCTEST_CHECK(results[0]["seen"][i] == one_step[i % 2]);
  }
}

DOCTEST_TEST_CASE("a gradient that is a lazy negative arrives as such") {
  for (const auto& transport : transports()) {
    const std::string name = transport.name;
    DOCTEST_CAPTURE(name);
    for (const auto& gradient : run_on(2, transport.config, []() -> Json {
           struct OneImpl : nn::Module {
             at::Tensor w = register_parameter("w", torch::ones({1}));
           };
           auto one = train::torch::prepare_model(std::make_shared<OneImpl>());
           const auto factor = torch::complex(torch::zeros({1}), torch::full({1}, 1.0 + train::world_rank()));
           // (0 - iw) (0 + ic) = wc
           torch::real(torch::conj(torch::complex(torch::zeros({1}), one->w)) * factor).sum().backward();
           return one->w.grad().item<double>();
         }))
      DOCTEST_CHECK(gradient == 1.5);
  }
}

static void check_clipping(const troupe::TorchConfig& backend) {
  const auto results = run_on(3, backend, []() -> Json {
    TwoParts model;
    fill(*model);
    model = train::torch::prepare_model(model);
    model->forward(torch::tensor({train::world_rank(), 1, 1})).sum().backward();
    const auto before = gradients_of(*model);
    const double norm = train::torch::clip_grad_norm(model, 0.5);
    const auto after = gradients_of(*model);
    const double again = train::torch::clip_grad_norm(model, 1e9);
    const double largest = train::torch::clip_grad_norm(model, 1e9, {.norm_type = INFINITY});
    return {{"before", before}, {"after", after}, {"norm", norm}, {"again", again}, {"largest", largest}};
  });
  for (const auto& result : results) DOCTEST_CHECK(result == results[0]);
  const auto before = results[0]["before"].get<Values>();
  const auto after = results[0]["after"].get<Values>();
  double squares = 0;
  double largest = 0;
  for (double value : before) squares += value * value;
  for (double value : after) largest = std::max(largest, std::abs(value));
  const double norm = results[0]["norm"];
  DOCTEST_CHECK(std::abs(norm - std::sqrt(squares)) < 1e-5);
  DOCTEST_CHECK(norm > 0.5);
  DOCTEST_CHECK(std::abs(results[0]["again"].get<double>() - 0.5) < 1e-5);
  DOCTEST_CHECK(std::abs(results[0]["largest"].get<double>() - largest) < 1e-6);
  for (std::size_t i = 0; i < before.size(); ++i) DOCTEST_CHECK(std::abs(after[i] - before[i] * 0.5 / norm) < 1e-5);
}

DOCTEST_TEST_CASE("clip_grad_norm scales the averaged gradients to the norm, dense and sparse, alike on every rank") {
  for (const auto& transport : transports()) {
    const std::string name = transport.name;
    DOCTEST_CAPTURE(name);
    check_clipping(transport.config);
  }
}

DOCTEST_TEST_CASE("clip_grad_norm computes the norm of short types as a float") {
  for (auto type : {torch::kBFloat16, torch::kHalf}) {
    if (type == torch::kHalf && TORCH_VERSION_MAJOR < 2) continue;  // it does not compute with these on CPUs
    const std::string name = c10::toString(type);
    DOCTEST_CAPTURE(name);
    const auto module = std::make_shared<nn::Module>();
    auto& gradient = module->register_parameter("w", torch::zeros({3}, type)).mutable_grad();
    gradient = torch::full({3}, 49152, type);  // exact in both; the norm is neither, and above the largest half
    const double norm = train::torch::clip_grad_norm(module, 1.0);
    DOCTEST_CHECK(std::abs(norm - 49152 * std::sqrt(3.0)) < 0.1);
    DOCTEST_CHECK(largest_difference(values_of(gradient), Values(3, 1 / std::sqrt(3.0))) < 1e-2);
    DOCTEST_CHECK((gradient.scalar_type() == type));
  }
}

DOCTEST_TEST_CASE("a module under two names is averaged once, and clipped once") {
  for (bool shared_memory : {true, false})
    for (bool leave_out : {false, true})
      for (int bucket_bytes : {16, 1 << 20}) {
        DOCTEST_CAPTURE(shared_memory);
        DOCTEST_CAPTURE(leave_out);
        DOCTEST_CAPTURE(bucket_bytes);
        const auto results = run_on(2, shared_memory, troupe::fn<tied_gradients>,
                                    {{"leave_out", leave_out}, {"bucket_bytes", bucket_bytes}});
        const auto [expected, norm] = tied_reference(leave_out);
        DOCTEST_CHECK(results[0] == results[1]);
        DOCTEST_CHECK(largest_difference(results[0]["gradients"].get<Values>(), expected) < 1e-5);
        DOCTEST_CHECK(std::abs(results[0]["norm"].get<double>() - norm) < 1e-4);
        DOCTEST_CHECK(std::abs(results[0]["clipped"].get<double>() - 0.1) < 1e-5);
      }
}

DOCTEST_TEST_CASE("gradients of every size and layout are summed in rank order, to the bit") {
  for (int workers : {2, 3})
    for (int bucket_bytes : {1000, 4 << 20, 64 << 20}) {
      DOCTEST_CAPTURE(workers);
      DOCTEST_CAPTURE(bucket_bytes);
      for (const auto& wrong : run_on(workers, true, troupe::fn<wrong_bits>, {{"bucket_bytes", bucket_bytes}}))
        DOCTEST_CHECK(wrong == Json::array());
    }
}

namespace {

/// Ten steps of SGD on batches of twelve samples, whatever the number of workers; all parameters.
Json train_on_shares(const Config& config) {
  nn::Sequential net(nn::Linear(4, 8), nn::Tanh(), nn::Linear(8, 2));
  fill(*net);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  train::torch::PrepareModelOptions options;
  options.bucket_bytes = 64;
  if (config["hook"] == "fp16") options.comm_hook = train::torch::CommHook::fp16;
  net = train::torch::prepare_model(net, options);
  const auto x = waves({24, 4}, 1);
  const auto y = waves({24, 2}, 2);
  auto loader = train::torch::prepare_data_loader({x, y}, {.batch_size = 12 / train::world_size()});
  for (int epoch = 0; epoch < 5; ++epoch)
    for (auto& [inputs, targets] : loader) {
      optimizer.zero_grad();
      torch::mse_loss(net->forward(inputs), targets).backward();
      optimizer.step();
    }
  return parameters_of(*net);
}

}  // namespace

TROUPE_TRANSPORT_CASE("a prepared model trains alike on every transport", 3) {
  static const auto alone = run_on(1, true, troupe::fn<train_on_shares>, {{"hook", "none"}})[0].get<Values>();
  TestTrainer trainer(options);
  for (const auto& [hook, tolerance] : {std::pair{"none", 1e-5}, std::pair{"fp16", 1e-2}}) {
    const auto results = trainer->run(troupe::fn<train_on_shares>, {.config = {{"hook", hook}}});
    for (const auto& parameters : results) {
      DOCTEST_CHECK(parameters == results[0]);
      DOCTEST_CHECK(largest_difference(parameters.get<Values>(), alone) < tolerance);
    }
  }
}
