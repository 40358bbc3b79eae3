# Install rules: headers, libquire, CMake package, pkg-config file, the program.
install(DIRECTORY include/quire DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
