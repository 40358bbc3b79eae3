# shellcheck shell=sh
# cuda.sh - ggml's CUDA backend of the pinned llama.cpp, for weights on NVIDIA's cards (-ngl): built
# when it is asked for, since its kernels take very long. Needs env.sh and llama.sh.
#
#   $CACHE_DIR/llama-<tag>-<key>.cuda/  build folder; a build that was interrupted goes on there
#   $CACHE_DIR/llama-<tag>-<key>/quire-ggml-cuda/
#                                       lib/libggml-cuda.a and its header, beside ggml and libllama;
#                                       `libraries`: those of NVIDIA's that it needs, by path;
#                                       `architectures`: for which it was compiled
#
# NVIDIA's toolkit is the user's own (12.0 or later): nvcc, cuBLAS and the static runtime library.
#
#   QUIRE_CUDA_ARCHITECTURES  as CMAKE_CUDA_ARCHITECTURES, as 86 or "86-real;89-real". Default: the
#                             cards of this machine, or without one all that ggml chooses. Built
#                             anew when a card is another one
#   CUDACXX                   nvcc; default: that of the PATH, or /usr/local/cuda/bin/nvcc
#
# Options of ggml's, and why:
#   GGML_CUDA_FA=OFF       attention is Quire's own
#   GGML_CUDA_NO_VMM=ON    memory by the runtime library alone. Otherwise programs are linked with
#                          the driver's library, and do not start on a machine without a driver
#   GGML_CUDA_GRAPHS=ON    as in ggml's own builds; Quire switches it off at run time (docs/gpu.md)
#   GGML_CUDA_NCCL=OFF     Quire has one card for a layer
#
# SPDX-License-Identifier: MIT

# find_nvcc: print its path.
find_nvcc() {
    for nvcc in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
        [ -z "$nvcc" ] || [ ! -x "$nvcc" ] || {
            printf '%s\n' "$nvcc"
            return 0
        }
    done
    die "ggml's CUDA backend needs NVIDIA's toolkit: nvcc is neither in the PATH nor in" \
        "/usr/local/cuda/bin (CUDACXX=/where/it/is/nvcc names another one)"
}

# cuda_toolkit NVCC: print the folder of its toolkit.
cuda_toolkit() {
    dirname "$(dirname "$(readlink -f "$1")")"
}

# cuda_library NVCC NAME: print the path of a library of its toolkit. Stubs only stand in for the
# driver's.
cuda_library() {
    toolkit=$(cuda_toolkit "$1")
    for folder in "$toolkit"/lib64 "$toolkit"/targets/*/lib "$toolkit"/lib /usr/lib/"$(uname -m)"-linux-gnu; do
        [ ! -e "$folder/$2" ] || {
            printf '%s\n' "$folder/$2"
            return 0
        }
    done
    die "NVIDIA's toolkit at $toolkit has no $2, which ggml's CUDA backend needs"
}

# cuda_architectures: print those to compile for, as "86-real;89-real"; nothing: ggml's choice.
cuda_architectures() {
    if [ -n "${QUIRE_CUDA_ARCHITECTURES:-}" ]; then
        printf '%s\n' "$QUIRE_CUDA_ARCHITECTURES"
    else
        nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
            sed -n 's/^ *\([0-9]*\)\.\([0-9]\) *$/\1\2-real/p' | sort -u | paste -s -d ';' -
    fi
}

# cuda_is_built FOLDER: whether the backend is there, for the architectures that are wished or, by
# default, for each card of this machine.
cuda_is_built() {
    [ -d "$1" ] || return 1
    built=$(cat "$1/architectures")
    wished=$(cuda_architectures)
    [ -z "${QUIRE_CUDA_ARCHITECTURES:-}" ] || [ "$built" = "$wished" ] || return 1
    [ -n "$built" ] || return 0 # ggml's choice has code for all cards
    [ -n "$wished" ] || return 0
    printf '%s\n' "$wished" | tr ';' '\n' | while IFS= read -r one; do
        case ";$built;" in
        *";$one;"* | *";${one%-real};"*) ;;
        *) return 1 ;;
        esac
    done
}

# build_ggml_cuda: installed into the prefix as quire-ggml-cuda.
build_ggml_cuda() {
    folder=$(llama_prefix)/quire-ggml-cuda
    ! cuda_is_built "$folder" || return 0
    nvcc=$(find_nvcc)
    cudart=$(cuda_library "$nvcc" libcudart_static.a)
    cublas=$(cuda_library "$nvcc" libcublas.so)
    hold_lock setup
    ! cuda_is_built "$folder" || return 0
    clean_up_at_exit setup
    fetch_source
    build=$(llama_prefix).cuda
    new=$CACHE_DIR/setup.tmp.cuda
    architectures=$(cuda_architectures)
    say "building ggml's CUDA backend for ${architectures:-all cards}, once (an hour or more; log: $build/build.log)"
    # ggml looks for the toolkit before CMake knows the compiler. It would take that of the PATH.
    # Without an architecture ggml takes its list, unless it compiles for this machine alone.
    choice=-DGGML_NATIVE=OFF
    [ -z "$architectures" ] || choice=-DCMAKE_CUDA_ARCHITECTURES=$architectures
    configure_llama "$build" -DLLAMA_BUILD_COMMON=OFF -DLLAMA_BUILD_TOOLS=OFF -DGGML_CUDA=ON \
        -DCMAKE_CUDA_COMPILER="$nvcc" -DCUDAToolkit_ROOT="$(cuda_toolkit "$nvcc")" \
        -DGGML_CUDA_FA=OFF -DGGML_CUDA_NO_VMM=ON -DGGML_CUDA_GRAPHS=ON -DGGML_CUDA_NCCL=OFF "$choice"
    logged "$build/build.log" "building ggml's CUDA backend" \
        cmake --build "$build" --parallel "$JOBS" --target ggml-cuda
    copy_backend cuda "$build" "$new"
    printf '%s\n%s\n' "$cudart" "$cublas" >"$new/libraries"
    printf '%s\n' "$architectures" >"$new/architectures"
    rm -rf "$folder"
    mv -T "$new" "$folder"
    rm -rf "$build"
}
