#!/bin/sh
# check_glslc.sh - scripts/test-glslc.sh with a double of glslc: wanted shaders are compiled without
# -O, others become a header of SPIR-V, and extensions that ggml probes for are refused.
#
# SPDX-License-Identifier: MIT
set -eu

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
printf '#!/bin/sh\nprintf "%%s\\n" "$*" >"%s/called"\n' "$dir" >"$dir/glslc"
chmod +x "$dir/glslc"
export QUIRE_GLSLC="$dir/glslc"

# compile NAME SOURCE ARGUMENT...: as ggml calls it.
compile() {
    rm -f "$dir/called"
    name=$1
    source=$2
    shift 2
    scripts/test-glslc.sh -fshader-stage=compute "$source" -o "$dir/$name.spv" "$@"
}

fault() {
    echo "scripts/test-glslc.sh: $*"
    exit 1
}

# Of products, of types, of activations.
for name in matmul_quant_f32 matmul_id_f16_f32_f16acc mul_mat_vec_q4_k_f32_f32 mul_mat_vec_id_q8_0_f32_f32_subgroup \
    rms_norm_mul_add_f32 get_rows_q2_k_f32; do
    compile "$name" x/some.comp -O -DA=1
    grep -qxF -e "-fshader-stage=compute x/some.comp -o $dir/$name.spv -DA=1" "$dir/called" || fault "$name is not compiled"
done
compile silu_f32 x/unary.comp -O
[ -e "$dir/called" ] || fault "silu_f32 is not compiled"

for name in matmul_f32_f32_fp32 matmul_quant_f16_dot2_f16acc matmul_id_subgroup_f16 mul_mat_vec_q4_k_f32_f32_subgroup \
    mul_mat_vec_iq3_s_f32_f32 flash_attn_f32_f16 conv2d_f32 set_rows_f32_f16_i64; do
    compile "$name" x/some.comp -O -MD -MF "$dir/depends"
    [ ! -e "$dir/called" ] || fault "$name is compiled"
    [ "$(od -An -tx4 -N4 "$dir/$name.spv" | tr -d ' ')" = 07230203 ] || fault "$name has no header of SPIR-V"
    [ "$(wc -c <"$dir/$name.spv")" -eq 20 ] || fault "$name is more than a header"
    grep -qxF "$dir/$name.spv: x/some.comp" "$dir/depends" || fault "$name depends on nothing"
done
compile silu_f16 x/unary.comp -O
[ ! -e "$dir/called" ] || fault "silu_f16 is compiled"

mkdir "$dir/feature-tests"
printf '#version 460\n#extension GL_KHR_cooperative_matrix : require\n' >"$dir/feature-tests/some.comp"
! scripts/test-glslc.sh -o - "$dir/feature-tests/some.comp" >"$dir/out" 2>&1 || fault "an extension is there"
grep -qxF 'extension not supported: GL_KHR_cooperative_matrix' "$dir/out" || fault "no extension is named"
