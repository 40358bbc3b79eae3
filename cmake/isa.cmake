# Files of one ISA's instructions. They define tables of kernels only; dispatch happens at run time.

# Whether AVX-512 kernels are in this build. A build that checks leaves them out where the processor at hand
# cannot run them: compiling them takes longer than all else.
set(QUIRE_AVX512 OFF)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    set(QUIRE_AVX512 ON)
    if((QUIRE_SANITIZE OR QUIRE_TINY) AND EXISTS /proc/cpuinfo)
        file(STRINGS /proc/cpuinfo flags REGEX "^flags[ \t]*:" LIMIT_COUNT 1)
        if(flags AND NOT flags MATCHES " avx512f ")
            set(QUIRE_AVX512 OFF)
        endif()
    endif()
endif()
target_compile_definitions(quire_flags INTERFACE $<$<BOOL:${QUIRE_AVX512}>:QUIRE_HAS_AVX512>)

# Kernels in the library have no checks under a sanitizer. A vector's load costs a look at the shadow of each
# of its bytes, and attention took nearly all of the time of tests that run a model. The address sanitizer
# watches kernels in the tests that are about them (quire_checked_kernels), and the portable kernels
# everywhere.
set(QUIRE_HAS_CHECKED_KERNELS OFF)
if(QUIRE_SANITIZE MATCHES address AND NOT QUIRE_FUZZ)
    set(QUIRE_HAS_CHECKED_KERNELS ON)
endif()

# quire_isa_flags(<variable> <isa>): the compiler's options for an ISA.
function(quire_isa_flags variable isa)
    set(flags_avx2 "-mavx2;-mfma;-mf16c;-mbmi2")
    set(flags_avxvnni "${flags_avx2};-mavxvnni")
    set(flags_avx512 "${flags_avx2};-mavx512f;-mavx512bw;-mavx512vl;-mavx512dq")
    set(flags_avx512vnni "${flags_avx512};-mavx512vnni")
    set(flags_avx512vbmi "${flags_avx512vnni};-mavx512vbmi")
    set(flags_avx512bf16 "${flags_avx512vbmi};-mavx512bf16")
    set(flags_neon "") # every armv8 has it
    set(flags_neondotprod "-march=armv8.2-a+dotprod")
    set(${variable} ${flags_${isa}} PARENT_SCOPE)
endfunction()

# quire_isa_sources(<target> <isa> <file>...): add files that use one ISA's instructions; skipped on
# other processors.
function(quire_isa_sources target isa)
    if(isa MATCHES "^avx" AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
        return()
    endif()
    if(isa MATCHES "^avx512" AND NOT QUIRE_AVX512)
        return()
    endif()
    if(isa MATCHES "^neon" AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
        return()
    endif()
    set(optimization -O3)
    if(QUIRE_FUZZ)
        set(optimization -O1 -fno-sanitize=all) # no fuzz target computes
    elseif(QUIRE_SANITIZE)
        set(optimization -O2 -fno-sanitize=all)
    elseif(QUIRE_COVERAGE OR QUIRE_TINY)
        set(optimization -O1) # these builds need no speed
    endif()
    quire_isa_flags(flags ${isa})
    target_sources(${target} PRIVATE ${ARGN})
    set_property(SOURCE ${ARGN} TARGET_DIRECTORY ${target} APPEND PROPERTY
                 COMPILE_OPTIONS "${flags};${optimization}")
    if(target STREQUAL quire_lib)
        set_property(GLOBAL APPEND PROPERTY QUIRE_ISAS ${isa})
        set_property(GLOBAL APPEND PROPERTY QUIRE_ISA_SOURCES_${isa} ${ARGN})
    endif()
endfunction()

# quire_add_checked_kernels(): the target quire_checked_kernels, objects of the library's kernels with the
# address sanitizer's checks. A program that has these objects takes no kernels from the library.
function(quire_add_checked_kernels)
    get_property(isas GLOBAL PROPERTY QUIRE_ISAS)
    list(REMOVE_DUPLICATES isas)
    add_library(quire_checked_kernels OBJECT)
    target_include_directories(quire_checked_kernels PRIVATE ${PROJECT_SOURCE_DIR}/include
                               ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(quire_checked_kernels PRIVATE quire_flags)
    foreach(isa IN LISTS isas)
        get_property(sources GLOBAL PROPERTY QUIRE_ISA_SOURCES_${isa})
        quire_isa_flags(flags ${isa})
        target_sources(quire_checked_kernels PRIVATE ${sources})
        # gcc 12 takes minutes for a file of kernels with all checks of pointers at once, seconds without two
        # that the address sanitizer makes as well.
        set_property(SOURCE ${sources} TARGET_DIRECTORY quire_checked_kernels APPEND PROPERTY
                     COMPILE_OPTIONS "${flags};-O1;-fno-sanitize=null,object-size")
    endforeach()
endfunction()
