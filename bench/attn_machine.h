/* attn_machine.h - the references of bench_attn, written for each ISA: this machine's limits, and
 * plain attention over row-major f16.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_ATTN_MACHINE_H
#define QUIRE_BENCH_ATTN_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Decode attention of one query head over f16 K and V stored by token, [n_tokens][d]. */
typedef struct attn_row_major {
    const uint16_t *k;
    const uint16_t *v;
    const float *q; /* [d], the logit scale folded in */
    float *out;     /* [d] */
    uint32_t d;     /* a multiple of 16, at most 1024 */
    uint32_t n_tokens;
} attn_row_major;

typedef struct attn_machine {
    const char *isa;

    /* One key after the other: dot product, online softmax, weighted sum, all in registers for the
     * usual head sizes. As CPU kernels do that handle one query head at a time. */
    void (*row_major)(const attn_row_major *args);

    /* Read every byte of a buffer (a multiple of 1024, 64-byte aligned) and do nothing else. */
    void (*read)(const void *buffer, size_t size_bytes);

    /* n rounds of independent multiply-adds; returns the floating-point operations of a round. */
    uint32_t (*fma)(uint64_t n);
} attn_machine;

/* The widest version that this CPU supports; NULL = none. */
const attn_machine *attn_machine_get(void);

const attn_machine *attn_machine_avx2(void);
const attn_machine *attn_machine_avx512(void);

#endif /* QUIRE_BENCH_ATTN_MACHINE_H */
