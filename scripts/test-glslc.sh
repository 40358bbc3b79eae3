#!/bin/sh
# test-glslc.sh - a compiler of shaders for the build of ggml's Vulkan backend that tests use
# (scripts/vulkan.sh): it compiles those that tests may run on Mesa's lavapipe, without spirv-opt.
#
# ggml calls it like glslc. QUIRE_GLSLC names the real one. In place of any other shader it writes a
# header of SPIR-V without code, of which no driver makes a pipeline: ggml then names the pipeline
# and throws, so a test that runs it fails. It refuses all extensions that ggml probes for.
#
# SPDX-License-Identifier: MIT
set -eu

out=
source=
depends=
before=
for word in "$@"; do
    case $before in
    -o) out=$word ;;
    -MF) depends=$word ;;
    *) case $word in *.comp) source=$word ;; esac ;;
    esac
    before=$word
done

case $source in
*/feature-tests/*)
    sed -n 's/^#extension \([A-Za-z0-9_]*\).*/extension not supported: \1/p' "$source" >&2
    exit 1
    ;;
esac

# is_wanted NAME: whether tests may run the shader. Lavapipe computes in f16, has no matrices of
# subgroups, and subgroups of 8, which are too few for some. Quire has no convolutions, its own
# attention and pages, and activations in f32. Of quantised weights the tests have the types that
# are not named here.
is_wanted() {
    case $1 in
    *_fp32 | *_dot2* | *_cm1 | matmul_id_subgroup_* | mul_mat_vec_*[ks4]_f??_f32_subgroup*) return 1 ;;
    flash_attn* | fa_* | set_rows_* | lightning_* | conv* | im2col* | col2im* | pool* | snake* | \
        upscale* | opt_step* | *_wkv* | *_back_*) return 1 ;;
    *q1_0* | *q2_0* | *q4_1* | *q5_0* | *q5_1* | *q3_k* | *iq1_* | *iq2_xs* | *iq2_s* | \
        *iq3_* | *iq4_* | *nvfp4*) return 1 ;;
    esac
    case $source-$1 in
    */unary.comp-*_f16 | */add.comp-*f16* | */sub.comp-*f16* | */mul.comp-*f16* | */div.comp-*f16*) return 1 ;;
    esac
}

name=${out##*/}
if is_wanted "${name%.spv}"; then
    for word in "$@"; do
        shift
        [ "$word" = -O ] || set -- "$@" "$word"
    done
    exec "$QUIRE_GLSLC" "$@"
fi
printf '\003\002\043\007\000\003\001\000\000\000\000\000\001\000\000\000\000\000\000\000' >"$out"
[ -z "$depends" ] || printf '%s: %s\n' "$out" "$source" >"$depends"
