# Compiler flags of all quire code. Baseline x86-64-v2 / armv8: wider instructions only in the
# files that carry an ISA in their name, by per-file flags (quire_isa_sources).
add_library(quire_flags INTERFACE)
target_compile_options(quire_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-Wno-sign-conversion>
    $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes;-Wvla;-Wundef;-Wcast-qual>
    -fno-math-errno)
# The order of additions is part of the results, so no contraction behind our back: an FMA is
# written where it is meant.
target_compile_options(quire_flags INTERFACE -ffp-contract=off)
target_compile_definitions(quire_flags INTERFACE
    _GNU_SOURCE QUIRE_DEBUG=${QUIRE_DEBUG} $<$<BOOL:${QUIRE_TINY}>:QUIRE_TINY>)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(quire_flags INTERFACE -march=x86-64-v2)
endif()
if(QUIRE_WERROR)
    target_compile_options(quire_flags INTERFACE -Werror)
endif()
if(QUIRE_SANITIZE)
    target_compile_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE} -fno-omit-frame-pointer
                           -fno-sanitize-recover=all)
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
