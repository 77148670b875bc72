// SPDX-License-Identifier: Apache-2.0
// Tests of the torch backend on real workers. The program is its own worker.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <troupe/init.hpp>

int main(int argc, char** argv) {
  troupe::init(argc, argv);
  doctest::Context context(argc, argv);
  return context.run();
}
