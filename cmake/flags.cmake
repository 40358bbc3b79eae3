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
# The tests are some three hundred programs of the same libraries, and linking them with ld takes a
# third of a build whose objects are in ccache.
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

# quire_isa_sources(<target> <isa> <file>...): add files that use one ISA's instructions; skipped on
# other processors. The files define their tables only; dispatch happens at run time.
function(quire_isa_sources target isa)
    if(isa MATCHES "^avx" AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
        return()
    endif()
    if(isa MATCHES "^neon" AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
        return()
    endif()
    set(flags_avx2 "-mavx2;-mfma;-mf16c;-mbmi2")
    set(flags_avxvnni "${flags_avx2};-mavxvnni")
    set(flags_avx512 "${flags_avx2};-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq")
    set(flags_avx512vnni "${flags_avx512};-mavx512vnni")
    set(flags_avx512vbmi "${flags_avx512vnni};-mavx512vbmi")
    set(flags_avx512bf16 "${flags_avx512vbmi};-mavx512bf16")
    set(flags_neon "") # every armv8 has it
    set(flags_neondotprod "-march=armv8.2-a+dotprod")
    # Sanitizers see more where less is optimised away. gcc 12 takes minutes for a file of kernels with
    # all checks of pointers at once, seconds without two that the address sanitizer makes as well. No
    # fuzz target computes, so there the kernels have no checks, which would take clang minutes.
    set(optimization -O3)
    if(QUIRE_FUZZ)
        set(optimization -O1 -fno-sanitize=all)
    elseif(QUIRE_SANITIZE STREQUAL "thread")
        # Each load of a vector costs a look at 64 bytes' histories: about half of the tests' time. The
        # portable kernels read and write the same tiles from the same threads, and are watched.
        set(optimization -O2 -fno-sanitize=thread)
    elseif(QUIRE_SANITIZE)
        set(optimization -O1)
        if(QUIRE_SANITIZE MATCHES address)
            list(APPEND optimization -fno-sanitize=null,object-size)
        endif()
    elseif(QUIRE_COVERAGE OR QUIRE_TINY)
        set(optimization -O1) # speed is not what these builds are for
    endif()
    target_sources(${target} PRIVATE ${ARGN})
    set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} APPEND PROPERTY
                 COMPILE_OPTIONS "${flags_${isa}};${optimization}")
endfunction()
