// SPDX-License-Identifier: Apache-2.0
// main() of the unit tests.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
