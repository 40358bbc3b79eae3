# Install rules: headers, libquire (static, or shared with BUILD_SHARED_LIBS=ON), its CMake package
# and pkg-config file, the program.
#
# A consumer writes find_package(quire) and links quire::quire, or asks pkg-config for quire.

if(BUILD_SHARED_LIBS)
    # Only functions that the public headers declare are visible in the library: these headers push
    # default visibility.
    get_property(isas GLOBAL PROPERTY QUIRE_ISAS)
    list(TRANSFORM isas REPLACE "(.+)" "$<TARGET_OBJECTS:quire_lib_\\1>" OUTPUT_VARIABLE kernels)
    add_library(quire_shared SHARED $<TARGET_OBJECTS:quire_lib> ${kernels})
    set_target_properties(quire_shared PROPERTIES OUTPUT_NAME quire EXPORT_NAME quire LINKER_LANGUAGE C
                          VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
                          LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
    target_include_directories(quire_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(quire_shared PRIVATE Threads::Threads m ${CMAKE_DL_LIBS})
    set(QUIRE_INSTALLED_LIBRARY quire_shared)
    set(QUIRE_PC_LIBS "-L\${libdir} -lquire")
    set(QUIRE_PC_LIBS_PRIVATE "-lm -ldl -pthread")
else()
    set(QUIRE_INSTALLED_LIBRARY quire_lib)
    set(QUIRE_PC_LIBS "-L\${libdir} -lquire -lm -ldl -pthread")
    set(QUIRE_PC_LIBS_PRIVATE "")
endif()

install(DIRECTORY include/quire DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS ${QUIRE_INSTALLED_LIBRARY} EXPORT quire
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET quire)
    install(TARGETS quire RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
    # The program looks for it in ../share/quire of its own folder (src/cli/commands/places.c).
    install(FILES tests/data/quire-stories.gguf DESTINATION ${CMAKE_INSTALL_DATADIR}/quire)
endif()

set(QUIRE_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/quire)
install(EXPORT quire NAMESPACE quire:: DESTINATION ${QUIRE_CMAKE_DIR} FILE quire-targets.cmake)
configure_package_config_file(cmake/quire-config.cmake.in ${PROJECT_BINARY_DIR}/quire-config.cmake
                              INSTALL_DESTINATION ${QUIRE_CMAKE_DIR} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may break its users.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/quire-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/quire-config.cmake ${PROJECT_BINARY_DIR}/quire-config-version.cmake
        DESTINATION ${QUIRE_CMAKE_DIR})

# The prefix of the pkg-config file follows the file, so an installed tree may be moved.
file(RELATIVE_PATH QUIRE_PC_UP ${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_LIBDIR}/pkgconfig
     ${CMAKE_INSTALL_PREFIX})
configure_file(cmake/quire.pc.in ${PROJECT_BINARY_DIR}/quire.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/quire.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
