# Compiler flags of all quire code. Baseline x86-64-v2 / armv8: wider instructions only in the
# files that carry an ISA in their name (quire_isa_sources).
#
# quire_flags is for all code but the library's kernels: quire_common_flags, and those of the
# preset.
add_library(quire_common_flags INTERFACE)
add_library(quire_flags INTERFACE)
target_link_libraries(quire_flags INTERFACE quire_common_flags)
target_compile_options(quire_common_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wno-sign-conversion>
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes;-Wvla;-Wundef;-Wcast-qual>
    -fno-math-errno)
# The order of additions is part of the results, so no contraction behind our back: an FMA is
# written where it is meant.
target_compile_options(quire_common_flags INTERFACE -ffp-contract=off)
target_compile_definitions(quire_common_flags INTERFACE _GNU_SOURCE)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(quire_common_flags INTERFACE -march=x86-64-v2)
endif()
if(QUIRE_WERROR)
    target_compile_options(quire_common_flags INTERFACE -Werror)
endif()

target_compile_options(quire_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:${QUIRE_OPTIMIZE}>)
target_compile_definitions(quire_flags INTERFACE
    QUIRE_DEBUG=${QUIRE_DEBUG} $<$<BOOL:${QUIRE_TINY}>:QUIRE_TINY>)
if(QUIRE_SANITIZE)
    target_compile_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer
                           -fno-sanitize-recover=all)
    # C++ here is llama.cpp's chat code, templates of its headers for the most part.
    target_compile_options(quire_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=undefined>)
    # gcc guesses wrongly about code that it has instrumented.
    target_compile_options(quire_flags INTERFACE $<$<C_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    target_link_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE})
endif()
# The tests are some three hundred programs of the same libraries, and when their objects are in
# ccache, linking them with ld takes a third of the build.
if((BUILD_TESTING OR QUIRE_FUZZ) AND NOT CMAKE_CROSSCOMPILING)
    find_program(QUIRE_LLD ld.lld)
    if(QUIRE_LLD)
        target_link_options(quire_flags INTERFACE -fuse-ld=lld)
    endif()
endif()
if(QUIRE_COVERAGE)
    # Threads count the same lines.
    target_compile_options(quire_flags INTERFACE --coverage -fprofile-update=atomic)
    target_link_options(quire_flags INTERFACE --coverage)
endif()
