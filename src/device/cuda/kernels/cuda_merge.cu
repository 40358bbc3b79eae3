/* cuda_merge.cu - the partials of a row and head to its output, in ascending order of splits, 64 at
 * a time.
 *
 * Block (x, y): row push.first_row + x, head y. A sink joins the sum of weights, the sum is divided
 * by, V is rotated back, gates are applied, sources are added. m and that sum are the row's sums,
 * where they are wanted.
 *
 * SPDX-License-Identifier: MIT */
#include "device/cuda/kernels/cuda_tiles.h"

#define THREADS QUIRE_CUDA_THREADS

#define AT_ONCE 16u /* loads that do not wait for each other */

/* The partials of a row and head, and the parts of the block's memory: the output [d_v], then of
 * the splits at hand their weights and their sums of weights, rescaled, [64] each, and the sum of
 * these. */
typedef struct merge_block {
    const quire_card_params *p;
    const GLOBAL float *from;
    uint32_t n_splits;
    uint32_t size; /* floats of a partial */
    uint32_t at_weights, at_parts, at_l;
    float m;
    float l;
} merge_block;

/* b->m: the greatest of all splits, and of the sink. */
FN void greatest_take(merge_block *b, float sink)
{
    EACH_THREAD(t, mem)
    {
        float m = sink;

        for (uint32_t s = t; s < b->n_splits; s += THREADS) {
            const float ms = b->from[(uint64_t)s * b->size];

            m = ms > m ? ms : m;
        }
        mem[b->at_weights + t] = m;
    }
    for (uint32_t n = THREADS / 2; n > 0; n /= 2) {
        EACH_THREAD(t, mem)
        {
            float *m = mem + b->at_weights + t;

            if (t < n && m[n] > m[0]) {
                m[0] = m[n];
            }
        }
    }
    b->m = shared_at(b->at_weights);
}

/* The weights of n splits from `first` on. */
FN void weights_take(const merge_block *b, uint32_t first, uint32_t n)
{
    EACH_THREAD(t, mem)
    {
        if (t < n) {
            const GLOBAL float *from = b->from + (uint64_t)(first + t) * b->size;
            const float weight = from[0] == MINUS_INFINITY ? 0.0f : exp_of(from[0] - b->m);

            mem[b->at_weights + t] = weight;
            mem[b->at_parts + t] = from[1] * weight;
        }
    }
}

/* Dimension o of n splits, added to a sum. */
FN float splits_add(const merge_block *b, float sum, const GLOBAL float *o, const float *weights,
                    uint32_t n)
{
    uint32_t s = 0;

    for (; s + AT_ONCE <= n; s += AT_ONCE) {
        float x[AT_ONCE];

        UNROLL
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            x[i] = o[(uint64_t)(s + i) * b->size];
        }
        UNROLL
        for (uint32_t i = 0; i < AT_ONCE; i++) {
            sum += x[i] * weights[s + i];
        }
    }
    for (; s < n; s++) {
        sum += o[(uint64_t)s * b->size] * weights[s];
    }
    return sum;
}

/* The sums of a source's outputs; and of all weights, with the first source. */
FN void sums_take(merge_block *b, uint32_t source, float sink)
{
    for (uint32_t first = 0; first < b->n_splits; first += THREADS) {
        const uint32_t n = least(THREADS, b->n_splits - first);

        weights_take(b, first, n);
        EACH_THREAD(t, mem)
        {
            const GLOBAL float *o = b->from + (uint64_t)first * b->size + 2 + source * b->p->d_v;

            for (uint32_t j = t; j < b->p->d_v; j += THREADS) {
                mem[j] = splits_add(b, first == 0 ? 0.0f : mem[j], o + j, mem + b->at_weights, n);
            }
            if (t == 0 && source == 0) {
                float l = first > 0                ? mem[b->at_l]
                          : sink == MINUS_INFINITY ? 0.0f
                                                   : exp_of(sink - b->m);

                for (uint32_t s = 0; s < n; s++) {
                    l += mem[b->at_parts + s];
                }
                mem[b->at_l] = l;
            }
        }
    }
    if (source == 0) {
        b->l = shared_at(b->at_l);
    }
}

/* A source's sums, divided, through the block's memory into the result. g: kv head. */
FN void source_give(const merge_block *b, uint32_t source, uint32_t g, GLOBAL float *to)
{
    const quire_card_params *p = b->p;
    const uint64_t gates = p->gate[source];

    EACH_THREAD(t, mem)
    {
        for (uint32_t j = t; j < p->d_v; j += THREADS) {
            mem[j] /= b->l;
        }
    }
    rotate(0, p->d_v, p->is_prefix != 0 ? p->k[0].rotate : p->v[source].rotate);
    EACH_THREAD(t, mem)
    {
        for (uint32_t j = t; j < p->d_v; j += THREADS) {
            const float x = gates != 0 ? mem[j] * floats_of(gates)[g * p->d_v + j] : mem[j];

            to[j] = source == 0 ? x : to[j] + x;
        }
    }
}

KERNEL(cuda_merge)
{
    const quire_card_params *p = (const quire_card_params *)(uintptr_t)push.params;
    const quire_card_row *row =
        (const quire_card_row *)(uintptr_t)p->rows + push.first_row + block_x();
    const quire_card_seq *seq = (const quire_card_seq *)(uintptr_t)p->seqs + row->seq;
    const uint32_t n_v = constants.at[0];
    const uint32_t h = block_y();
    const uint64_t place = (uint64_t)row->index * p->n_head + h;
    const float sink = p->sinks != 0 ? floats_of(p->sinks)[h] : MINUS_INFINITY;
    merge_block b;

    b.p = p;
    b.n_splits = (seq->n_entries + p->split_entries - 1) / p->split_entries;
    b.size = 2 + n_v * p->d_v;
    b.from = floats_of(push.partials + ((uint64_t)block_x() * p->n_head + h) * push.n_splits_max *
                                           b.size * sizeof(float));
    b.at_weights = p->d_v;
    b.at_parts = b.at_weights + THREADS;
    b.at_l = b.at_parts + THREADS;
    b.l = 0.0f;
    greatest_take(&b, sink);
    for (uint32_t i = 0; i < n_v; i++) {
        sums_take(&b, i, sink);
        source_give(&b, i, h / (p->n_head / p->n_kv_head),
                    (GLOBAL float *)(uintptr_t)p->result + place * p->d_v);
    }
    if (p->sums != 0) {
        GLOBAL float *sums = (GLOBAL float *)(uintptr_t)p->sums + 2 * place;

        EACH_APART(t)
        {
            if (t == 0) {
                sums[0] = b.m;
                sums[1] = b.l;
            }
        }
    }
}
