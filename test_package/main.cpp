// SPDX-License-Identifier: Apache-2.0
// A program outside of troupe's tree: runs a function on two workers. With WITH_TORCH it also looks for the backend
// that registers itself when troupe::torch is linked.
#include <algorithm>
#include <iostream>
#include <troupe/troupe.hpp>

namespace {

int rank() { return troupe::train::world_rank(); }

bool has_torch() {
  const auto names = troupe::backend_names();
  return std::find(names.begin(), names.end(), "torch") != names.end();
}

}  // namespace

int main(int argc, char** argv) {
  troupe::init(argc, argv);
#ifdef WITH_TORCH
  const bool torch_wanted = true;
#else
  const bool torch_wanted = false;
#endif
  if (has_torch() != torch_wanted) {
    std::cerr << "the torch backend is " << (torch_wanted ? "missing" : "there uninvited") << '\n';
    return 1;
  }
  troupe::Trainer trainer({.num_workers = 2, .logdir = argc > 1 ? argv[1] : "consumer"});
  std::cout << troupe::Json(trainer.run(troupe::fn<rank>)).dump() << '\n';
  trainer.shutdown();
}
