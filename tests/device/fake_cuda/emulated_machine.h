/* emulated_machine.h - the host's side of src/device/cuda/kernels/cuda_machine.h, which includes
 * this file where no card is compiled for: a block's threads run one after the other, each through
 * a region of its kernel.
 *
 * The order of threads is ascending, descending, or another one that emulated_block.order gives. A
 * thread that reads what another one writes in the same region computes other bits in another
 * order.
 *
 * Thread: one runs kernels at a time (fake_cuda.c has a lock).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DEVICE_EMULATED_MACHINE_H
#define QUIRE_TESTS_DEVICE_EMULATED_MACHINE_H

#include "codec/half.h"

#include <math.h>

#define FN     static inline __attribute__((always_inline))
#define GLOBAL /* memory of the card */
#define UNROLL /* the compiler's choice */

#define OF_THREADS QUIRE_CUDA_THREADS
#define MINE(t)    (t)

#define KERNEL(name)                                                                               \
    void name(quire_card_push push, quire_card_constants constants);                               \
    void name(quire_card_push push, quire_card_constants constants)

typedef struct emulated_block {
    uint32_t x, y, z;
    uint32_t order; /* below 64: thread i ^ order is the i-th */
    float *memory;
} emulated_block;

/* The block that runs. */
extern emulated_block emulated_block_now;

#define EACH_THREAD(t, mem)                                                                        \
    for (uint32_t i_ = 0, t = emulated_block_now.order, go_ = 1; i_ < QUIRE_CUDA_THREADS;          \
         t = ++i_ ^ emulated_block_now.order, go_ = 1)                                             \
        for (float *const mem = emulated_block_now.memory; go_ != 0; go_ = 0)

#define EACH_APART(t)                                                                              \
    for (uint32_t i_ = 0, t = emulated_block_now.order; i_ < QUIRE_CUDA_THREADS;                   \
         t = ++i_ ^ emulated_block_now.order)

FN float shared_at(uint32_t i)
{
    return emulated_block_now.memory[i];
}

FN uint32_t block_x(void)
{
    return emulated_block_now.x;
}

FN uint32_t block_y(void)
{
    return emulated_block_now.y;
}

FN uint32_t block_z(void)
{
    return emulated_block_now.z;
}

FN float sqrt_of(float x)
{
    return sqrtf(x);
}

FN float half_value(uint32_t bits)
{
    return quire_f16_to_f32((uint16_t)bits);
}

#endif /* QUIRE_TESTS_DEVICE_EMULATED_MACHINE_H */
