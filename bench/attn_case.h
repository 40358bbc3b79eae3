/* attn_case.h - one attention workload of bench_attn: a KV cache of random tiles, and its timing.
 *
 * The same random K and V, by (token % 2048), lie in every case of a shape, so outputs of formats
 * can be compared; addresses do not repeat, so times are those of memory.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_ATTN_CASE_H
#define QUIRE_BENCH_ATTN_CASE_H

#include <stdint.h>

#include "attn_machine.h"
#include "quire/attn.h"

typedef struct attn_shape {
    uint32_t d;
    uint32_t group; /* query heads of a kv head */
    uint32_t n_kv_head;
    uint32_t n_tokens;
    uint32_t n_rows;   /* queries: the last tokens; 1 = decode */
    uint32_t n_layers; /* taken in turn, one by run */
    uint32_t page_tokens;
    uint32_t n_threads;
    uint32_t repeats;
} attn_shape;

typedef struct attn_format {
    quire_format k;
    quire_format v;
} attn_format;

typedef struct attn_timing {
    double seconds;  /* one layer, best of the repeats */
    double kv_bytes; /* of one layer */
} attn_timing;

/* isa: NULL = fastest. out: [n_rows][heads][d]. Errors: QUIRE_NOMEM, QUIRE_UNSUPP (isa),
 * QUIRE_INVAL (shape). */
int attn_case_paged(const attn_shape *shape, attn_format format, const char *isa, float *out,
                    attn_timing *timing);

/* machine->row_major over the same values, one decode row (shape->n_rows is not looked at). */
int attn_case_row_major(const attn_shape *shape, const attn_machine *machine, float *out,
                        attn_timing *timing);

#endif /* QUIRE_BENCH_ATTN_CASE_H */
