// numbers.glsl - f32 to f16 and bf16 in integers, as src/codec/half.h: Vulkan leaves the rounding
// of its own conversion open.
//
// SPDX-License-Identifier: MIT

// Finite values saturate. up: the next f16 that is not smaller, for scales (x >= 0).
uint f16_of(float x, bool up)
{
    const uint u = floatBitsToUint(x);
    const uint sign_bit = u >> 16 & 0x8000u;
    const uint magnitude = u & 0x7fffffffu;

    if (magnitude > 0x7f800000u) {
        return sign_bit | 0x7e00u;
    }
    if (magnitude == 0x7f800000u) {
        return sign_bit | 0x7c00u;
    }
    if (magnitude >= 0x477fe000u) {
        return sign_bit | 0x7bffu;
    }
    if (magnitude < 0x38800000u) { // subnormal
        const uint exponent = max(magnitude >> 23, 1);
        const uint mantissa = magnitude >> 23 != 0 ? magnitude & 0x7fffffu | 0x800000u : magnitude;
        const uint shift = 126 - exponent;

        if (shift > 25) {
            return sign_bit | (up && mantissa != 0 ? 1u : 0u);
        }
        const uint r = mantissa >> shift;
        const uint rest = mantissa & (1u << shift) - 1;
        const uint middle = 1u << shift - 1;

        return sign_bit |
               r + uint(up ? rest != 0 : rest > middle || rest == middle && (r & 1) != 0);
    }
    const uint rounded = magnitude + (up ? 0x1fffu : 0xfffu + (magnitude >> 13 & 1));

    return sign_bit | min((rounded >> 13) - 0x1c000u, 0x7bffu);
}

uint bf16_bits(float x)
{
    const uint u = floatBitsToUint(x);
    const uint magnitude = u & 0x7fffffffu;

    if (magnitude > 0x7f800000u) {
        return u >> 16 | 0x40u;
    }
    if (magnitude == 0x7f800000u) {
        return u >> 16;
    }
    const uint rounded = magnitude + 0x7fffu + (magnitude >> 16 & 1);

    return u >> 16 & 0x8000u | min(rounded >> 16, 0x7f7fu);
}

bool is_finite(float x)
{
    return (floatBitsToUint(x) & 0x7f800000u) != 0x7f800000u;
}
