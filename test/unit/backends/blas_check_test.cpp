// SPDX-License-Identifier: Apache-2.0
#include "backends/blas_check.hpp"

#include <doctest/doctest.h>

using troupe::find_reference_blas;

DOCTEST_TEST_CASE("the reference BLAS is found among loaded libraries, others are not taken for it") {
  const std::string libc = "7f00-7f10 r-xp 00000000 08:01 11 /usr/lib/x86_64-linux-gnu/libc.so.6\n";
  const std::string reference = "/usr/lib/x86_64-linux-gnu/blas/libblas.so.3.11.0";
  DOCTEST_CHECK(find_reference_blas(libc + "7f20-7f30 r-xp 00000000 08:01 12 " + reference + "\n" + libc) == reference);
  DOCTEST_CHECK(find_reference_blas("7f20-7f30 r-xp 00000000 08:01 12 " + reference) == reference);
  for (const char* other :
       {"/usr/lib/x86_64-linux-gnu/openblas-openmp/libblas.so.3", "/usr/lib/x86_64-linux-gnu/atlas/libblas.so.3.10.3",
        "/usr/lib/x86_64-linux-gnu/blis-openmp/libblas.so.3", "/opt/torch/lib/libtorch_cpu.so", "/opt/libblas/other.so",
        "[heap]", ""})
    DOCTEST_CHECK(!find_reference_blas(libc + "7f20-7f30 r-xp 00000000 08:01 12 " + other + "\n"));
  DOCTEST_CHECK(!find_reference_blas(""));
}
