# SPDX-License-Identifier: Apache-2.0
# Build settings and the helper functions that every folder's CMakeLists.txt uses.
include_guard()
include(GNUInstallDirs)

if(PROJECT_IS_TOP_LEVEL)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
  endif()
  # -g1: line numbers in backtraces, and objects a quarter of the size.
  if(TROUPE_SANITIZE)
    set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  else()
    set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1 -DNDEBUG")
  endif()
  set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

  find_program(CCACHE_PROGRAM ccache)
  if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    # The sloppiness is what a precompiled header needs; without BASEDIR and NOHASHDIR every clone and build folder would
    # miss the others' hits.
    set(CMAKE_CXX_COMPILER_LAUNCHER
        "${CMAKE_COMMAND}" -E env "CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime"
        "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${CCACHE_PROGRAM}")
  endif()
endif()

if(TROUPE_SANITIZE)
  # For everything in the tree: a program of which only a part is instrumented reports nonsense.
  # Errors end a program through UBSAN_OPTIONS=halt_on_error=1: -fno-sanitize-recover would not obey suppressions.
  add_compile_options(-fsanitize=${TROUPE_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TROUPE_SANITIZE})
endif()

# Warnings of our own code; a program that embeds us keeps its own. Off are maybe-uninitialized, which GCC 12 sees in
# every move of a std::variant, and missing-field-initializers: designated initializers leave fields out on purpose.
function(troupe_set_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                                           -Wno-maybe-uninitialized -Wno-missing-field-initializers
                                           $<$<BOOL:${TROUPE_WERROR}>:-Werror>)
endfunction()

# troupe_add_library(name FOLDER dir [SOURCES files...] [PUBLIC targets...] [PRIVATE targets...])
# A folder's static library: its sources, its public headers (those in DIR/troupe) and what it may use. Without any
# source it is a header-only target of the same name, so that users of the target need not care.
function(troupe_add_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "FOLDER" "SOURCES;PUBLIC;PRIVATE")
  file(GLOB headers CONFIGURE_DEPENDS "${arg_FOLDER}/troupe/*.hpp")
  # Headers of backends named torch* belong to troupe_torch, which shares the folder. Not so the options of TorchConfig:
  # they are free of torch, and TorchTrainer takes them.
  set(torch_headers ${headers})
  list(FILTER torch_headers INCLUDE REGEX "/backends/troupe/torch[^/]*\\.hpp$")
  list(FILTER torch_headers EXCLUDE REGEX "/torch_config\\.hpp$")
  if(name STREQUAL "troupe_torch")
    set(headers ${torch_headers})
  elseif(torch_headers)
    list(REMOVE_ITEM headers ${torch_headers})
  endif()
  if(arg_SOURCES)
    add_library(${name} STATIC ${arg_SOURCES})
    set(public PUBLIC)
    target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${name} PRIVATE ${arg_PRIVATE})
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    troupe_set_warnings(${name})
  else()
    add_library(${name} INTERFACE)
    set(public INTERFACE)
    target_link_libraries(${name} INTERFACE ${arg_PRIVATE})
  endif()
  target_compile_features(${name} ${public} cxx_std_20)
  target_link_libraries(${name} ${public} ${arg_PUBLIC})
  target_sources(${name} ${public} FILE_SET HEADERS BASE_DIRS "${arg_FOLDER}" FILES ${headers})
  string(REGEX REPLACE "^troupe_" "" export_name ${name})
  set_target_properties(${name} PROPERTIES EXPORT_NAME ${export_name})
  add_library(troupe::${export_name} ALIAS ${name})
endfunction()

# Tests and examples spend their time in the libraries: optimizing them would double the time it takes to compile them.
function(troupe_compile_quickly target)
  if(PROJECT_IS_TOP_LEVEL)
    target_compile_options(${target} PRIVATE -O0)
  endif()
endfunction()

# Large headers of others that all examples include, precompiled once.
function(troupe_use_example_pch target)
  if(NOT TARGET troupe_example_pch)
    file(WRITE "${PROJECT_BINARY_DIR}/example_pch.cpp" "// Holds precompiled headers.\n")
    add_library(troupe_example_pch OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/example_pch.cpp")
    target_link_libraries(troupe_example_pch PRIVATE nlohmann_json::nlohmann_json fmt::fmt CLI11::CLI11)
    target_compile_features(troupe_example_pch PRIVATE cxx_std_20)
    troupe_set_warnings(troupe_example_pch)
    troupe_compile_quickly(troupe_example_pch)
    target_precompile_headers(troupe_example_pch PRIVATE <CLI/CLI.hpp> <nlohmann/json.hpp> <fmt/format.h>)
  endif()
  target_precompile_headers(${target} REUSE_FROM troupe_example_pch)
endfunction()

# torch/torch.h costs 20 s and more than 1 GB a file; precompiled, half of it. Tests and examples share one.
function(troupe_use_torch_pch target)
  if(NOT TARGET troupe_torch_pch)
    file(WRITE "${PROJECT_BINARY_DIR}/torch_pch.cpp" "// Holds the precompiled torch/torch.h.\n")
    add_library(troupe_torch_pch OBJECT EXCLUDE_FROM_ALL "${PROJECT_BINARY_DIR}/torch_pch.cpp")
    target_link_libraries(troupe_torch_pch PRIVATE Libtorch::torch)
    target_compile_features(troupe_torch_pch PRIVATE cxx_std_20)
    troupe_set_warnings(troupe_torch_pch)  # a header compiled with other flags is not used
    troupe_compile_quickly(troupe_torch_pch)
    target_precompile_headers(troupe_torch_pch PRIVATE <torch/torch.h> <nlohmann/json.hpp>)
  endif()
  target_precompile_headers(${target} REUSE_FROM troupe_torch_pch)
endfunction()
