# ggml built by GCC calls libgomp. A static build of it calls the library quire_openmp instead
# (src/model/openmp.c), if that has all functions that the archives ask for; then nothing links
# OpenMP. Otherwise (another compiler's OpenMP, a shared libggml, no OpenMP at all) ggml keeps the
# threads that it was built with.
set(QUIRE_OWN_THREADS OFF)

function(quire_openmp_replace)
    set(ours GOMP_parallel GOMP_barrier GOMP_single_start GOMP_loop_nonmonotonic_dynamic_start
        GOMP_loop_nonmonotonic_dynamic_next GOMP_loop_end GOMP_atomic_start GOMP_atomic_end
        omp_get_thread_num omp_get_num_threads)
    set(asked "")
    foreach(target ggml::ggml-base ggml::ggml-cpu)
        if(NOT TARGET ${target})
            return() # backends are loaded at run time
        endif()
        get_target_property(archive ${target} IMPORTED_LOCATION)
        if(NOT archive MATCHES "\\.a$")
            return()
        endif()
        execute_process(COMMAND ${CMAKE_NM} -u ${archive} OUTPUT_VARIABLE symbols ERROR_QUIET)
        string(REGEX MATCHALL "U (GOMP|GOACC|omp|__kmpc)_[A-Za-z0-9_]+" found "${symbols}")
        list(APPEND asked ${found})
    endforeach()
    list(TRANSFORM asked REPLACE "^U " "")
    list(REMOVE_DUPLICATES asked)
    if(NOT "GOMP_barrier" IN_LIST asked)
        return()
    endif()
    list(REMOVE_ITEM asked ${ours})
    if(NOT asked STREQUAL "")
        message(STATUS "ggml keeps OpenMP's threads: it also calls ${asked}")
        return()
    endif()
    foreach(target ggml::ggml-base ggml::ggml-cpu)
        get_target_property(libraries ${target} INTERFACE_LINK_LIBRARIES)
        list(FILTER libraries EXCLUDE REGEX "OpenMP")
        list(APPEND libraries quire_openmp)
        set_property(TARGET ${target} PROPERTY INTERFACE_LINK_LIBRARIES ${libraries})
    endforeach()
    set(QUIRE_OWN_THREADS ON PARENT_SCOPE)
endfunction()
