# find_package(flashladder) for other projects: the registry, the oracle, the checks, the readers, the stages. The
# program stays where it was built: it draws its report with what lies beside its sources.
include(CMakePackageConfigHelpers)

install(TARGETS flashladder_common flashladder_simt flashladder_stages flashladder_lab EXPORT flashladder-targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY common/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/flashladder/common FILES_MATCHING PATTERN "*.hpp"
        PATTERN "cli" EXCLUDE PATTERN "labs" EXCLUDE PATTERN "terminal.hpp" EXCLUDE)
install(EXPORT flashladder-targets NAMESPACE flashladder:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashladder)
# The build itself can be found too, not installed: the labs are compiled against it.
export(EXPORT flashladder-targets NAMESPACE flashladder:: FILE ${CMAKE_CURRENT_BINARY_DIR}/flashladder-targets.cmake)
configure_package_config_file(common/cmake/flashladder-config.cmake.in
                              ${CMAKE_CURRENT_BINARY_DIR}/flashladder-config.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashladder)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/flashladder-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/flashladder-config.cmake
              ${CMAKE_CURRENT_BINARY_DIR}/flashladder-config-version.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/flashladder)
