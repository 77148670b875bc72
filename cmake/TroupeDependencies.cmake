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

# Only the headers: the library is loaded at run time.
set(TROUPE_HAS_NCCL FALSE)
if(TROUPE_WITH_NCCL AND TROUPE_TORCH STREQUAL "wheel")
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS "$ENV{NCCL_ROOT}/include" /usr/local/cuda/include)
  mark_as_advanced(NCCL_INCLUDE_DIR)
  if(NCCL_INCLUDE_DIR)
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_INCLUDES "${NCCL_INCLUDE_DIR}")
    set(CMAKE_REQUIRED_QUIET TRUE)
    check_cxx_source_compiles("#include <nccl.h>
                               int main() { ncclConfig_t config = NCCL_CONFIG_INITIALIZER; return config.blocking; }"
                              TROUPE_NCCL_COMPILES)
    unset(CMAKE_REQUIRED_INCLUDES)
    unset(CMAKE_REQUIRED_QUIET)
    set(TROUPE_HAS_NCCL ${TROUPE_NCCL_COMPILES})
    if(NOT TROUPE_HAS_NCCL)
      unset(TROUPE_NCCL_COMPILES CACHE)  # asked again when the folder is another one
    endif()
  endif()
endif()
if(TROUPE_WITH_NCCL AND NOT TROUPE_WITH_NCCL STREQUAL "AUTO" AND NOT TROUPE_HAS_NCCL)
  if(NOT TROUPE_TORCH STREQUAL "wheel")
    message(FATAL_ERROR "TROUPE_WITH_NCCL is ON, but TROUPE_TORCH is \"${TROUPE_TORCH}\": NCCL needs a libtorch with CUDA, "
                        "which is the one of TROUPE_TORCH=wheel")
  elseif(NOT NCCL_INCLUDE_DIR)
    message(FATAL_ERROR "TROUPE_WITH_NCCL is ON, but nccl.h was not found; set NCCL_INCLUDE_DIR to its folder, "
                        "or turn the option off")
  else()
    message(FATAL_ERROR "TROUPE_WITH_NCCL is ON, but ${NCCL_INCLUDE_DIR}/nccl.h does not compile: it must be of NCCL 2.14 or "
                        "newer, with cuda_runtime.h beside it; set NCCL_INCLUDE_DIR to another folder, or turn the option off")
  endif()
endif()
