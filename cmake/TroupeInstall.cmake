# SPDX-License-Identifier: Apache-2.0
# Installs libraries, public headers and a package, so that find_package(troupe) works for an embedding program.
# troupe::torch is a component of its own: who does not ask for it needs no libtorch.
include_guard()
include(CMakePackageConfigHelpers)

set(troupe_package_folder "${CMAKE_INSTALL_LIBDIR}/cmake/troupe")
install(TARGETS troupe_base troupe_engine troupe_session troupe_checkpoint troupe_backends troupe_callbacks troupe_actors troupe
        EXPORT troupeTargets FILE_SET HEADERS)
install(EXPORT troupeTargets NAMESPACE troupe:: DESTINATION "${troupe_package_folder}")
if(TARGET troupe_torch)
  install(TARGETS troupe_torch EXPORT troupeTorchTargets FILE_SET HEADERS)
  install(EXPORT troupeTorchTargets NAMESPACE troupe:: DESTINATION "${troupe_package_folder}")
endif()

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/troupeConfig.cmake.in" "${PROJECT_BINARY_DIR}/troupeConfig.cmake"
                              INSTALL_DESTINATION "${troupe_package_folder}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/troupeConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/troupeConfig.cmake" "${PROJECT_BINARY_DIR}/troupeConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindCAF.cmake" "${PROJECT_SOURCE_DIR}/cmake/FindLibtorch.cmake"
        DESTINATION "${troupe_package_folder}")
