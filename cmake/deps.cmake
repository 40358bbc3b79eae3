# All dependencies, each AUTO (use it if it is there), ON (fail without it) or OFF.
set(QUIRE_MODEL AUTO CACHE STRING "Model runtime and the quire program: ggml, libllama, jansson, libcyaml, libmicrohttpd")
set(QUIRE_CMOCKA AUTO CACHE STRING "Unit tests: cmocka")
set_property(CACHE QUIRE_MODEL QUIRE_CMOCKA PROPERTY STRINGS AUTO ON OFF)

# Tested versions of ggml; the soname says nothing before 1.0, so both ends are bounded.
set(QUIRE_GGML_MIN 0.21)
set(QUIRE_GGML_BELOW 0.26)

find_package(Threads REQUIRED)

# Headers only: nothing is linked, and nothing of it shows in libquire's interface.
find_path(QUIRE_XXHASH_INCLUDE xxhash.h REQUIRED DOC "xxHash's header (package libxxhash-dev)")
find_package(PkgConfig)

# JSON: traces read it, the server speaks it. Not looked for when cross-compiling: pkg-config would
# find the one of this machine.
if(PkgConfig_FOUND AND NOT CMAKE_CROSSCOMPILING)
    pkg_check_modules(JANSSON QUIET IMPORTED_TARGET jansson)
endif()

function(quire_dep_missing option what)
    if("${${option}}" STREQUAL "ON")
        message(FATAL_ERROR "${option}=ON but ${what}. scripts/setup.sh installs it.")
    endif()
    message(STATUS "${option}: off (${what})")
endfunction()

set(QUIRE_HAS_CMOCKA OFF)
if(NOT QUIRE_CMOCKA STREQUAL "OFF")
    find_package(cmocka QUIET)
    if(cmocka_FOUND)
        set(QUIRE_HAS_CMOCKA ON)
    else()
        quire_dep_missing(QUIRE_CMOCKA "cmocka was not found (package libcmocka-dev)")
    endif()
endif()

set(QUIRE_HAS_MODEL OFF)
if(NOT QUIRE_MODEL STREQUAL "OFF")
    find_package(llama QUIET)
    if(PkgConfig_FOUND)
        pkg_check_modules(CYAML QUIET IMPORTED_TARGET libcyaml)
        pkg_check_modules(MICROHTTPD QUIET IMPORTED_TARGET libmicrohttpd)
    endif()
    if(NOT llama_FOUND)
        quire_dep_missing(QUIRE_MODEL "libllama was not found (set CMAKE_PREFIX_PATH)")
    elseif(NOT JANSSON_FOUND)
        quire_dep_missing(QUIRE_MODEL "jansson was not found (package libjansson-dev)")
    elseif(NOT CYAML_FOUND)
        quire_dep_missing(QUIRE_MODEL "libcyaml was not found (package libcyaml-dev)")
    elseif(NOT MICROHTTPD_FOUND)
        quire_dep_missing(QUIRE_MODEL "libmicrohttpd was not found (package libmicrohttpd-dev)")
    elseif(ggml_VERSION VERSION_LESS QUIRE_GGML_MIN OR NOT ggml_VERSION VERSION_LESS QUIRE_GGML_BELOW)
        quire_dep_missing(QUIRE_MODEL
            "ggml ${ggml_VERSION} is outside the tested range ${QUIRE_GGML_MIN} <= v < ${QUIRE_GGML_BELOW}")
    else()
        set(QUIRE_HAS_MODEL ON)
    endif()
endif()

include(${CMAKE_CURRENT_LIST_DIR}/openmp.cmake)
if(QUIRE_HAS_MODEL)
    quire_openmp_replace()
endif()

function(quire_deps_summary)
    message(STATUS "  model runtime  ${QUIRE_HAS_MODEL} (ggml ${ggml_VERSION})")
    message(STATUS "  own threads    ${QUIRE_OWN_THREADS}")
    message(STATUS "  unit tests     ${QUIRE_HAS_CMOCKA}")
endfunction()
