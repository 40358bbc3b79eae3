# Files of one ISA's instructions. They define tables of kernels only; dispatch happens at run time.

# The flags of kernels. All presets that test have the same, so that ccache compiles a kernel once
# for them: kernels take a third of a build's time. Kernels of the library have no checks under a
# sanitizer: a vector's load would cost a look at the shadow of each of its bytes, and attention
# nearly all of the time of tests that run a model. The address sanitizer watches kernels in the
# tests that are about them (quire_checked_kernels), and the portable kernels everywhere.
add_library(quire_kernel_flags INTERFACE)
if(QUIRE_COVERAGE)
    target_link_libraries(quire_kernel_flags INTERFACE quire_flags)
else()
    target_link_libraries(quire_kernel_flags INTERFACE quire_common_flags)
    # Fuzz targets compute nothing.
    target_compile_options(quire_kernel_flags INTERFACE $<IF:$<BOOL:${QUIRE_FUZZ}>,-O1,-O3>
                           $<$<CONFIG:RelWithDebInfo>:-g1>)
    target_compile_definitions(quire_kernel_flags INTERFACE QUIRE_DEBUG=$<BOOL:${QUIRE_DEBUG}>)
endif()

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
    if(isa MATCHES "^neon" AND NOT CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
        return()
    endif()
    set(objects ${target}_${isa})
    if(NOT TARGET ${objects})
        add_library(${objects} OBJECT)
        quire_isa_flags(flags ${isa})
        target_compile_options(${objects} PRIVATE ${flags})
        target_include_directories(${objects} PRIVATE ${PROJECT_SOURCE_DIR}/include
                                   ${PROJECT_SOURCE_DIR}/src)
        target_link_libraries(${objects} PRIVATE quire_kernel_flags)
        target_sources(${target} PRIVATE $<TARGET_OBJECTS:${objects}>)
        if(target STREQUAL quire_lib)
            set_property(GLOBAL APPEND PROPERTY QUIRE_ISAS ${isa})
        endif()
    endif()
    target_sources(${objects} PRIVATE ${ARGN})
    if(target STREQUAL quire_lib)
        set_property(GLOBAL APPEND PROPERTY QUIRE_ISA_SOURCES_${isa} ${ARGN})
    endif()
endfunction()

# Whether the processor at hand can run AVX-512 kernels.
function(quire_runs_avx512 variable)
    set(${variable} ON PARENT_SCOPE)
    if(EXISTS /proc/cpuinfo)
        file(STRINGS /proc/cpuinfo flags REGEX "^flags[ \t]*:" LIMIT_COUNT 1)
        if(flags AND NOT flags MATCHES " avx512f ")
            set(${variable} OFF PARENT_SCOPE)
        endif()
    endif()
endfunction()

# quire_add_checked_kernels(): the target quire_checked_kernels, objects of the library's kernels
# with the address sanitizer's checks. A program that has these objects takes no kernels from the
# library, but those that the processor at hand cannot run: compiling these with checks takes longer
# than all else.
function(quire_add_checked_kernels)
    get_property(isas GLOBAL PROPERTY QUIRE_ISAS)
    quire_runs_avx512(runs_avx512)
    if(NOT runs_avx512)
        list(FILTER isas EXCLUDE REGEX "^avx512")
    endif()
    set(calls $<$<C_COMPILER_ID:GNU>:--param=asan-instrumentation-with-call-threshold=0>)
    add_library(quire_checked_kernels OBJECT)
    target_include_directories(quire_checked_kernels PRIVATE ${PROJECT_SOURCE_DIR}/include
                               ${PROJECT_SOURCE_DIR}/src)
    target_link_libraries(quire_checked_kernels PRIVATE quire_flags)
    foreach(isa IN LISTS isas)
        get_property(sources GLOBAL PROPERTY QUIRE_ISA_SOURCES_${isa})
        quire_isa_flags(flags ${isa})
        target_sources(quire_checked_kernels PRIVATE ${sources})
        # A check of an address is a call here. Inlined checks, and checks of undefined behaviour
        # beside them, make the compilation of kernels three times as long.
        set_property(SOURCE ${sources} TARGET_DIRECTORY quire_checked_kernels APPEND PROPERTY
                     COMPILE_OPTIONS "${flags};-O1;-fno-sanitize=undefined;${calls}")
    endforeach()
endfunction()
