# Toolchain for the preset arm64: Debian's cross compiler, and qemu-user to run the built programs.
# Libraries, the C library too, are Debian's arm64 packages, which lie beside this machine's own. So
# qemu needs no -L: the cross compiler's loader with the packaged C library hangs in pthread_create.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
