/* cuda_merge.cu - the partials of a row and head to its output, in ascending order of splits.
 *
 * Block (x, y): row push.first_row + x, head y. A sink joins the sum of weights, the sum is divided
 * by, V is rotated back, gates are applied, sources are added. m and that sum are the row's sums,
 * where they are wanted.
 *
 * SPDX-License-Identifier: MIT */
#include "device/cuda/kernels/cuda_tiles.h"

#define THREADS QUIRE_CUDA_THREADS

/* The partials of a row and head, and where they come to. */
typedef struct merge_block {
    const quire_card_params *p;
    const GLOBAL float *from;
    uint32_t n_splits;
    uint32_t size; /* floats of a partial */
    float m;
    float l;
} merge_block;

/* The weight of a split's sums. */
FN float weight_of(const merge_block *b, uint32_t s)
{
    const float ms = b->from[(uint64_t)s * b->size];

    return ms == MINUS_INFINITY ? 0.0f : exp_of(ms - b->m);
}

FN void sums_take(merge_block *b, float sink)
{
    b->m = sink;
    for (uint32_t s = 0; s < b->n_splits; s++) {
        const float ms = b->from[(uint64_t)s * b->size];

        b->m = ms > b->m ? ms : b->m;
    }
    b->l = sink == MINUS_INFINITY ? 0.0f : exp_of(sink - b->m);
    for (uint32_t s = 0; s < b->n_splits; s++) {
        b->l += b->from[(uint64_t)s * b->size + 1] * weight_of(b, s);
    }
}

/* Dimension j of a source, divided by the sum of weights. */
FN float output_of(const merge_block *b, uint32_t source, uint32_t j)
{
    const GLOBAL float *o = b->from + 2 + source * b->p->d_v + j;
    float sum = 0.0f;

    for (uint32_t s = 0; s < b->n_splits; s++) {
        sum += o[(uint64_t)s * b->size] * weight_of(b, s);
    }
    return sum / b->l;
}

/* A source's output through the block's memory into the result. g: kv head. */
FN void source_give(const merge_block *b, uint32_t source, uint32_t g, GLOBAL float *to)
{
    const quire_card_params *p = b->p;
    const uint64_t gates = p->gate[source];

    EACH_THREAD(t, mem)
    {
        for (uint32_t j = t; j < p->d_v; j += THREADS) {
            mem[j] = output_of(b, source, j);
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
    merge_block b;

    b.p = p;
    b.n_splits = (seq->n_entries + p->split_entries - 1) / p->split_entries;
    b.size = 2 + n_v * p->d_v;
    b.from = floats_of(push.partials + ((uint64_t)block_x() * p->n_head + h) * push.n_splits_max *
                                           b.size * sizeof(float));
    sums_take(&b, p->sinks != 0 ? floats_of(p->sinks)[h] : MINUS_INFINITY);
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
    for (uint32_t i = 0; i < n_v; i++) {
        source_give(&b, i, h / (p->n_head / p->n_kv_head),
                    (GLOBAL float *)(uintptr_t)p->result + place * p->d_v);
    }
}
