// SPDX-License-Identifier: Apache-2.0
// Tests of the torch backend on real workers. The program is its own worker, and plays another host program when a test
// asks for it with `--host=`.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <string_view>

#include <troupe/init.hpp>

#include "test/torch/faults_host.hpp"

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  if (argc > 1 && std::string_view(argv[1]) == "--host=train_for_ever") return troupe::test::train_for_ever();
  doctest::Context context(argc, argv);
  return context.run();
}
