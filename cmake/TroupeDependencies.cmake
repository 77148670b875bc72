# SPDX-License-Identifier: Apache-2.0
# Libraries that troupe is made of. conanfile.py lists the packages they come from.
include_guard()

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(cereal REQUIRED)
find_package(CURL 7.88 REQUIRED)  # S3: 7.88 signs what it sends
find_package(OpenSSL REQUIRED COMPONENTS Crypto)
find_package(pugixml REQUIRED)
find_package(PkgConfig REQUIRED)
# Not Debian's CMake package: it asks for the tools, too.
pkg_check_modules(libzip REQUIRED IMPORTED_TARGET libzip)
find_package(CAF REQUIRED COMPONENTS core io)
if(CAF_VERSION VERSION_GREATER_EQUAL 1)
  # Code that shows plain CAF is written for 0.17; 1.x keeps those functions and marks them deprecated.
  set(TROUPE_CAF_OPTIONS -Wno-deprecated-declarations)
endif()
if(TROUPE_BUILD_EXAMPLES OR TROUPE_BUILD_BENCH)
  find_package(CLI11 REQUIRED)
endif()
if(TROUPE_BUILD_TESTS)
  find_package(doctest REQUIRED)
  find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)
endif()

if(NOT TROUPE_TORCH STREQUAL "off")
  set(Libtorch_SOURCE ${TROUPE_TORCH})
  find_package(Libtorch REQUIRED)
endif()

if(TROUPE_WITH_NCCL)
  if(NOT TROUPE_TORCH STREQUAL "wheel")
    message(FATAL_ERROR "TROUPE_WITH_NCCL is ON, but TROUPE_TORCH is \"${TROUPE_TORCH}\": NCCL needs a libtorch with CUDA, "
                        "which is the one of TROUPE_TORCH=wheel")
  endif()
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS "$ENV{NCCL_ROOT}/include" /usr/local/cuda/include)
  if(NOT NCCL_INCLUDE_DIR)
    message(FATAL_ERROR "TROUPE_WITH_NCCL is ON, but nccl.h was not found; set NCCL_INCLUDE_DIR to its folder, "
                        "or turn the option off")
  endif()
endif()
