/* matmul_ggml.h - ggml's product of the same weights, for bench_matmul. The weights are in ggml's
 * repacking buffer type if it has one, else as in the file.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BENCH_MATMUL_GGML_H
#define QUIRE_BENCH_MATMUL_GGML_H

#include <stdbool.h>
#include <stdint.h>

#include <ggml.h>

typedef struct matmul_ggml matmul_ggml;

typedef struct matmul_ggml_opts {
    enum ggml_type type;
    uint32_t n_in;
    uint32_t n_out;
    uint32_t n_matrices; /* of a set */
    uint32_t n_sets;
    uint32_t n_threads;
} matmul_ggml_opts;

/* All matrices are copies of `weights`, in GGUF's blocks. NULL: no memory. */
matmul_ggml *matmul_ggml_new(const matmul_ggml_opts *opts, const void *weights);
void matmul_ggml_free(matmul_ggml *m);
bool matmul_ggml_is_repacked(const matmul_ggml *m);

typedef struct matmul_ggml_case {
    const float *x;
    float *y;
    uint32_t n_rows;
    uint32_t set;
    uint32_t n; /* of its matrices, the first */
} matmul_ggml_case;

/* y = W x, one matrix after the other. */
void matmul_ggml_run(matmul_ggml *m, const matmul_ggml_case *c);

#endif /* QUIRE_BENCH_MATMUL_GGML_H */
