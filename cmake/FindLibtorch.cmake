# SPDX-License-Identifier: Apache-2.0
# Libtorch::torch from the PyPI wheel (Libtorch_SOURCE=wheel) or from Debian (Libtorch_SOURCE=system). The wheel's own
# TorchConfig.cmake is of no use: it demands nvcc and CUDA's libraries even for the CPU.
#   LIBTORCH_ROOT   the wheel's torch folder; default: where cmake/fetch_torch.sh puts it
if(NOT Libtorch_SOURCE)
  set(Libtorch_SOURCE wheel)
endif()

if(Libtorch_SOURCE STREQUAL "wheel")
  if(NOT LIBTORCH_ROOT)
    if(DEFINED ENV{LIBTORCH_ROOT})
      set(libtorch_default "$ENV{LIBTORCH_ROOT}")
    elseif(DEFINED ENV{XDG_CACHE_HOME})
      set(libtorch_default "$ENV{XDG_CACHE_HOME}/troupe/torch-2.15.0/torch")
    else()
      set(libtorch_default "$ENV{HOME}/.cache/troupe/torch-2.15.0/torch")
    endif()
    set(LIBTORCH_ROOT "${libtorch_default}" CACHE PATH "The torch folder of an installed wheel" FORCE)
  endif()
  set(libtorch_include "${LIBTORCH_ROOT}/include")
  set(libtorch_search PATHS "${LIBTORCH_ROOT}/lib" NO_DEFAULT_PATH)
  set(libtorch_help "Run cmake/fetch_torch.sh, set LIBTORCH_ROOT to the torch folder of an installed wheel, or turn torch "
                    "off (for troupe itself: -DTROUPE_TORCH=off).")
else()
  find_path(libtorch_include torch/csrc/distributed/c10d/ProcessGroup.hpp NO_CACHE)
  set(libtorch_search)
  set(libtorch_help "Install libtorch-dev and libgloo-dev.")
endif()
string(JOIN "" libtorch_help ${libtorch_help})

# Not cached: a change of LIBTORCH_ROOT or Libtorch_SOURCE must not be answered with yesterday's library.
foreach(library torch_cpu c10)
  find_library(Libtorch_${library}_LIBRARY ${library} ${libtorch_search} NO_CACHE)
endforeach()
set(Libtorch_INCLUDE_DIR)
if(EXISTS "${libtorch_include}/torch/csrc/api/include/torch/torch.h")
  set(Libtorch_INCLUDE_DIR "${libtorch_include}")
endif()

foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(Libtorch_INCLUDE_DIR AND NOT Libtorch_VERSION AND EXISTS "${Libtorch_INCLUDE_DIR}/${header}")
    file(STRINGS "${Libtorch_INCLUDE_DIR}/${header}" libtorch_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) [0-9]+")
    set(libtorch_numbers)
    foreach(part MAJOR MINOR PATCH)
      if("${libtorch_lines}" MATCHES "TORCH_VERSION_${part} ([0-9]+)")
        list(APPEND libtorch_numbers ${CMAKE_MATCH_1})
      endif()
    endforeach()
    list(JOIN libtorch_numbers "." Libtorch_VERSION)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Libtorch REQUIRED_VARS Libtorch_torch_cpu_LIBRARY Libtorch_c10_LIBRARY Libtorch_INCLUDE_DIR
                                           VERSION_VAR Libtorch_VERSION REASON_FAILURE_MESSAGE "${libtorch_help}")
if(NOT Libtorch_FOUND OR TARGET Libtorch::torch)
  return()
endif()

if(Libtorch_SOURCE STREQUAL "wheel")
  # The wheel's include folder holds a fmt of its own, which would hide the one that troupe and spdlog use.
  set(libtorch_include "${CMAKE_BINARY_DIR}/libtorch-include")
  file(MAKE_DIRECTORY "${libtorch_include}")
  foreach(folder ATen c10 caffe2 torch)
    file(CREATE_LINK "${Libtorch_INCLUDE_DIR}/${folder}" "${libtorch_include}/${folder}" SYMBOLIC)
  endforeach()
endif()

find_package(Threads REQUIRED)
add_library(Libtorch::c10 SHARED IMPORTED)
set_target_properties(Libtorch::c10 PROPERTIES IMPORTED_LOCATION "${Libtorch_c10_LIBRARY}")
add_library(Libtorch::torch SHARED IMPORTED)
set_target_properties(Libtorch::torch PROPERTIES
  IMPORTED_LOCATION "${Libtorch_torch_cpu_LIBRARY}"
  INTERFACE_INCLUDE_DIRECTORIES "${libtorch_include};${libtorch_include}/torch/csrc/api/include"
  INTERFACE_COMPILE_DEFINITIONS "USE_DISTRIBUTED;USE_C10D_GLOO"
  INTERFACE_COMPILE_FEATURES cxx_std_20
  INTERFACE_LINK_LIBRARIES "Libtorch::c10;Threads::Threads")
if(Libtorch_SOURCE STREQUAL "wheel")
  # libtorch_cpu needs two small CUDA libraries, which live beside it.
  file(GLOB libtorch_cuda_folders LIST_DIRECTORIES true "${LIBTORCH_ROOT}/../nvidia/*/lib")
  foreach(folder ${libtorch_cuda_folders})
    get_filename_component(folder "${folder}" REALPATH)
    set_property(TARGET Libtorch::torch APPEND PROPERTY INTERFACE_LINK_OPTIONS "LINKER:-rpath,${folder}")
  endforeach()
else()
  # Debian keeps Gloo in a library of its own; the wheel has a copy inside libtorch_cpu, and linking both would break.
  find_library(Libtorch_gloo_LIBRARY gloo NO_CACHE)
  if(Libtorch_gloo_LIBRARY)
    set_property(TARGET Libtorch::torch APPEND PROPERTY INTERFACE_LINK_LIBRARIES "${Libtorch_gloo_LIBRARY}")
  endif()
  if(CMAKE_CXX_FLAGS MATCHES "sanitize" OR TROUPE_SANITIZE)
    find_library(Libtorch_glog_LIBRARY glog NO_CACHE)
    if(Libtorch_glog_LIBRARY)
      set_property(TARGET Libtorch::torch APPEND PROPERTY INTERFACE_LINK_LIBRARIES "${Libtorch_glog_LIBRARY}")
    endif()
  endif()
endif()
