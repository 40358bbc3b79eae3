/* cuda_machine.h - how kernels see a block of threads.
 *
 * Kernels are written in the C that is C++, too: clang compiles them for cards as CUDA, without
 * NVIDIA's headers and libraries. Tests compile them for the host with <emulated_machine.h> instead
 * (tests/device/fake_cuda), which has the same names, and runs a block's threads one after the
 * other.
 *
 *   EACH_THREAD(t, mem) { ... }   a region, which thread t of the block runs; mem is the block's
 *                                 memory. All threads have left a region before one enters the next
 *   EACH_APART(t) { ... }         a region that touches neither the block's memory nor memory of
 *                                 the card that another thread writes: no thread waits behind it
 *   float x[OF_THREADS];          a thread's variable that outlives a region, with x[MINE(t)]
 *   shared_at(i)                  mem[i] outside of regions: a number for all threads. All threads
 *                                 have read it before one writes to the block's memory again
 *
 * Outside of regions all threads compute the same, from the kernel's arguments and from memory of
 * the card that the kernel does not write. A region is left at its end or by `continue`, not by
 * `break` or `return`. So no barrier can be forgotten. Inside of a region no thread reads what
 * another one writes: tests run the threads in several orders, which must give the same bits.
 *
 * Results. Kernels use only additions, products, quotients, square roots and fused products that
 * round to nearest (-ffp-contract=off), and no function of the card's that approximates. So all
 * cards, and the host, compute the same bits.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_CUDA_MACHINE_H
#define QUIRE_DEVICE_CUDA_MACHINE_H

#include "device/card/card_params.h"
#include "device/cuda/cuda_kernels.h"
#include "quire/codec.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDA_ARCH__

#pragma clang force_cuda_host_device begin
#include "codec/half.h"
#pragma clang force_cuda_host_device end

#define FN     static inline __attribute__((device, always_inline))
#define GLOBAL __attribute__((address_space(1)))
#define UNROLL _Pragma("unroll")

#define OF_THREADS 1
#define MINE(t)    ((void)(t), 0)

#define KERNEL(name)                                                                               \
    extern "C" __attribute__((global, launch_bounds(QUIRE_CUDA_THREADS))) void name(               \
        quire_card_push push, quire_card_constants constants)

extern __attribute__((shared, aligned(16))) float quire_block_memory[];

FN float *block_memory(void)
{
    return quire_block_memory;
}

#define EACH_THREAD(t, mem)                                                                        \
    for (uint32_t t = __nvvm_read_ptx_sreg_tid_x(), go_ = 1; go_ != 0; go_ = 0, __syncthreads())   \
        for (float *const mem = block_memory(); go_ != 0; go_ = 0)

#define EACH_APART(t) for (uint32_t t = __nvvm_read_ptx_sreg_tid_x(), go_ = 1; go_ != 0; go_ = 0)

FN float shared_at(uint32_t i)
{
    const float x = quire_block_memory[i];

    __syncthreads();
    return x;
}

FN uint32_t block_x(void)
{
    return __nvvm_read_ptx_sreg_ctaid_x();
}

FN uint32_t block_y(void)
{
    return __nvvm_read_ptx_sreg_ctaid_y();
}

FN uint32_t block_z(void)
{
    return __nvvm_read_ptx_sreg_ctaid_z();
}

FN float sqrt_of(float x)
{
    return __nvvm_sqrt_rn_f(x);
}

/* The number of an f16. */
FN float half_value(uint32_t bits)
{
    float x;

    __asm__("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"((unsigned short)bits));
    return x;
}

#else
#include <emulated_machine.h>
#endif

FN uint32_t bits_of(float x)
{
    uint32_t bits;

    __builtin_memcpy(&bits, &x, sizeof(bits));
    return bits;
}

FN float float_of(uint32_t bits)
{
    float x;

    __builtin_memcpy(&x, &bits, sizeof(x));
    return x;
}

FN float fma_of(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

FN float magnitude_of(float x)
{
    return __builtin_fabsf(x);
}

FN uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

FN uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

#define MINUS_INFINITY (-__builtin_inff())

/* Round |x| < 2^22 to nearest, ties to even. */
FN float nearest(float x)
{
    return (x + 12582912.0f) - 12582912.0f;
}

/* e^x for x <= 88, within 2 units in the last place; 0 below -87. NaN stays. */
FN float exp_of(float x)
{
    const float whole =
        fma_of(x, 1.44269504f, 12582912.0f); /* its lowest bits: x / ln 2, rounded */
    const float n = whole - 12582912.0f;
    const float r = fma_of(n, 2.12194440e-4f, fma_of(n, -0.693359375f, x));
    float y = 1.0f / 5040.0f;

    if (x < -87.0f) {
        return 0.0f;
    }
    y = fma_of(y, r, 1.0f / 720.0f);
    y = fma_of(y, r, 1.0f / 120.0f);
    y = fma_of(y, r, 1.0f / 24.0f);
    y = fma_of(y, r, 1.0f / 6.0f);
    y = fma_of(y, r, 0.5f);
    y = fma_of(y, r, 1.0f);
    y = fma_of(y, r, 1.0f);
    return y * float_of((bits_of(whole) + 127u) << 23);
}

FN float tanh_of(float x)
{
    const float a = magnitude_of(x);
    const float xx = x * x;
    float y;

    if (a < 0.3f) {
        y = fma_of(xx, 62.0f / 2835.0f, -17.0f / 315.0f);
        y = fma_of(xx, y, 2.0f / 15.0f);
        y = fma_of(xx, y, -1.0f / 3.0f);
        return x * fma_of(xx, y, 1.0f);
    }
    y = 1.0f - 2.0f / (exp_of(2.0f * a < 80.0f ? 2.0f * a : 80.0f) + 1.0f);
    return x == x ? (x < 0.0f ? -y : y) : x;
}

/* Hadamard transform in blocks of n floats of the block's memory from `at` on: butterflies, then a
 * factor. */
FN void rotate(uint32_t at, uint32_t n, uint32_t block)
{
    for (uint32_t half = 1; half < block; half *= 2) {
        EACH_THREAD(t, mem)
        {
            for (uint32_t i = t; i < n / 2; i += QUIRE_CUDA_THREADS) {
                const uint32_t a = at + i / half * 2 * half + i % half;
                const float x = mem[a];
                const float y = mem[a + half];

                mem[a] = x + y;
                mem[a + half] = x - y;
            }
        }
    }
    if (block > 1) {
        const float factor = 1.0f / sqrt_of((float)block);

        EACH_THREAD(t, mem)
        {
            for (uint32_t i = t; i < n; i += QUIRE_CUDA_THREADS) {
                mem[at + i] *= factor;
            }
        }
    }
}

#endif /* QUIRE_DEVICE_CUDA_MACHINE_H */
