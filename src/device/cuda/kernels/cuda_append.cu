/* cuda_append.cu - K or V of new rows into their slots of a tile, with the bytes of the CPU's
 * codecs (src/codec).
 *
 * Block (x, y): segment x (rows of one tile), kv head y. Rows are stored one after the other. A
 * sealed side is written hot. K in 8 bit is rounded with the token's queries in view, where the
 * layer has them (src/codec/q8_rounding_body.h has the rule).
 *
 * constants.at: is V, format, minds queries.
 *
 * SPDX-License-Identifier: MIT */
#include "device/cuda/kernels/cuda_tiles.h"

#define THREADS   QUIRE_CUDA_THREADS
#define SUMS      16u /* parts of a dot product: src/codec/lanes.h */
#define MOVES_MAX 4u
#define GAIN_MIN  (-9.5367431640625e-7f) /* -2^-20: a smaller gain is no gain */
#define STAYS     1.15292150e18f         /* of codes that may not move */
#define AT_MASK   (QUIRE_HEAD_DIM_MAX - 1u)

typedef struct append_block {
    const quire_card_params *p;
    uint64_t tile;
    uint32_t format;
    uint32_t g;
    uint32_t d;
    uint32_t rotate;
    bool is_v;
    bool has_queries;
    /* The block's memory: values, then codes [d]; a direction [d], the sum of the token's queries
     * of the head; codes less values [d]; a number for each thread. */
    uint32_t at_u, at_e, at_part;
} append_block;

/* The sum of products of the floats at a and b, in the order of src/codec/lanes.h. */
FN float dot(const append_block *block, uint32_t a, uint32_t b)
{
    const uint32_t part = block->at_part;

    EACH_THREAD(t, mem)
    {
        float sum = 0.0f;

        for (uint32_t i = t; t < SUMS && i < block->d; i += SUMS) {
            sum += mem[a + i] * mem[b + i];
        }
        mem[part + t] = sum;
    }
    EACH_THREAD(t, mem)
    {
        if (t < SUMS / 2) {
            mem[part + t] += mem[part + t + SUMS / 2];
        }
    }
    EACH_THREAD(t, mem)
    {
        const float *s = mem + part;

        if (t == 0) {
            mem[part + SUMS] = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
        }
    }
    return shared_at(part + SUMS);
}

/* The largest magnitude of the row as bits, so that NaN and infinity are on top. */
FN uint32_t largest_bits(const append_block *b)
{
    EACH_THREAD(t, mem)
    {
        uint32_t largest = 0;

        for (uint32_t i = t; i < b->d; i += THREADS) {
            largest = most(largest, bits_of(magnitude_of(mem[i])));
        }
        mem[b->at_part + t] = float_of(largest);
    }
    for (uint32_t n = THREADS / 2; n > 0; n /= 2) {
        EACH_THREAD(t, mem)
        {
            float *part = mem + b->at_part + t;

            if (t < n) {
                *part = float_of(most(bits_of(part[0]), bits_of(part[n])));
            }
        }
    }
    return bits_of(shared_at(b->at_part));
}

/* ---- the direction of queries ---- */

/* The queries of a row and the head into the direction; false where they give none. */
FN bool queries_take(const append_block *b, uint32_t row)
{
    const uint32_t heads = b->p->n_head / b->p->n_kv_head;
    const GLOBAL float *q =
        floats_of(b->p->q[0]) + ((uint64_t)row * b->p->n_head + (uint64_t)b->g * heads) * b->d;
    float mean_square;

    EACH_THREAD(t, mem)
    {
        for (uint32_t i = t; i < b->d; i += THREADS) {
            float sum = q[i];

            for (uint32_t h = 1; h < heads; h++) {
                sum += q[(uint64_t)h * b->d + i];
            }
            mem[b->at_u + i] = sum;
        }
    }
    rotate(b->at_u, b->d, b->rotate);
    mean_square = dot(b, b->at_u, b->at_u) / (float)b->d;
    if (!(mean_square >= 7.888609e-31f && mean_square <= 1.2676506e30f)) { /* 2^-100, 2^100 */
        return false;
    }
    EACH_THREAD(t, mem)
    {
        const float factor = 1.0f / sqrt_of(mean_square);

        for (uint32_t i = t; i < b->d; i += THREADS) {
            mem[b->at_u + i] *= factor;
        }
    }
    return true;
}

/* The effect of a move of code i, its lowest bits replaced by i. A move takes e towards 0 and past
 * it; exact codes do not move. */
FN float gain_of(float e, float u, float twice_e_u, uint32_t i)
{
    const float own = e == 0.0f ? STAYS : (1.0f - 2.0f * magnitude_of(e)) + u * u;
    const float gain = own + twice_e_u * (e < 0.0f ? u : -u);

    return float_of((bits_of(gain) & ~AT_MASK) | i);
}

/* The best move. */
FN float move_find(const append_block *b, float e_u)
{
    EACH_THREAD(t, mem)
    {
        float best = GAIN_MIN;

        for (uint32_t i = t; i < b->d; i += THREADS) {
            const float gain = gain_of(mem[b->at_e + i], mem[b->at_u + i], 2.0f * e_u, i);

            best = gain < best ? gain : best;
        }
        mem[b->at_part + t] = best;
    }
    for (uint32_t n = THREADS / 2; n > 0; n /= 2) {
        EACH_THREAD(t, mem)
        {
            float *part = mem + b->at_part + t;

            if (t < n && part[n] < part[0]) {
                part[0] = part[n];
            }
        }
    }
    return shared_at(b->at_part);
}

/* ---- codes of 8 bit ---- */

/* Codes of the row in place of its values. */
FN void codes_take(const append_block *b, float inverse)
{
    EACH_THREAD(t, mem)
    {
        for (uint32_t i = t; i < b->d; i += THREADS) {
            float y = inverse != 0.0f ? mem[i] * inverse : 0.0f;

            y = y > 127.0f ? 127.0f : y;
            y = y < -127.0f ? -127.0f : y;
            mem[i] = nearest(y);
            mem[b->at_e + i] = nearest(y) - y;
        }
    }
}

FN void codes_move(const append_block *b)
{
    float e_u = dot(b, b->at_e, b->at_u);

    for (uint32_t n = 0; n < MOVES_MAX; n++) {
        const float gain = move_find(b, e_u);
        const uint32_t i = bits_of(gain) & AT_MASK;
        float by;

        if (!(gain < GAIN_MIN)) {
            break;
        }
        by = shared_at(b->at_e + i) < 0.0f ? 1.0f : -1.0f;
        e_u += by * shared_at(b->at_u + i);
        EACH_THREAD(t, mem)
        {
            if (t == 0) {
                mem[i] += by;
                mem[b->at_e + i] += by;
            }
        }
    }
}

FN void store_q8(const append_block *b, uint32_t slot, bool has_direction)
{
    const quire_q8_scale scale = quire_q8_scale_of(largest_bits(b));
    GLOBAL uint16_t *scales = (GLOBAL uint16_t *)(uintptr_t)b->tile;
    GLOBAL uint8_t *codes = (GLOBAL uint8_t *)(uintptr_t)b->tile + TILE * 2;

    codes_take(b, scale.inverse);
    if (has_direction && scale.inverse != 0.0f) {
        codes_move(b);
    }
    EACH_THREAD(t, mem)
    {
        if (t == 0) {
            scales[slot] = scale.bits;
        }
        for (uint32_t i = t; i < b->d; i += THREADS) {
            const int32_t code = (int32_t)mem[i];

            if (b->is_v) {
                codes[(slot / 4 * b->d + i) * 4 + slot % 4] = (uint8_t)code;
            } else {
                codes[(i / 4 * TILE + slot) * 4 + i % 4] = (uint8_t)(code + 128);
            }
        }
    }
}

/* ---- formats of floats ---- */

/* The place of dimension i of a slot, in numbers; `of` neighbours lie together. */
FN uint32_t place_of(const append_block *b, uint32_t slot, uint32_t i, uint32_t of)
{
    return b->is_v ? (slot / of * b->d + i) * of + slot % of : (i / of * TILE + slot) * of + i % of;
}

FN void store_floats(const append_block *b, uint32_t slot)
{
    EACH_THREAD(t, mem)
    {
        for (uint32_t i = t; i < b->d; i += THREADS) {
            if (b->format == QUIRE_FORMAT_F32) {
                ((GLOBAL float *)(uintptr_t)b->tile)[place_of(b, slot, i, 1)] = mem[i];
            } else if (b->format == QUIRE_FORMAT_F16) {
                ((GLOBAL uint16_t *)(uintptr_t)b->tile)[place_of(b, slot, i, 1)] =
                    quire_f32_to_f16(mem[i]);
            } else {
                ((GLOBAL uint16_t *)(uintptr_t)b->tile)[place_of(b, slot, i, 2)] =
                    quire_f32_to_bf16(mem[i]);
            }
        }
    }
}

FN void store_row(const append_block *b, uint32_t row, uint32_t slot)
{
    const bool has_direction = b->has_queries && queries_take(b, row);
    const GLOBAL float *x = floats_of(b->is_v ? b->p->v_new : b->p->k_new) +
                            ((uint64_t)row * b->p->n_kv_head + b->g) * b->d;

    EACH_THREAD(t, mem)
    {
        for (uint32_t i = t; i < b->d; i += THREADS) {
            mem[i] = x[i];
        }
    }
    rotate(0, b->d, b->rotate);
    if (b->format >= QUIRE_FORMAT_Q8) {
        store_q8(b, slot, has_direction);
    } else {
        store_floats(b, slot);
    }
}

KERNEL(cuda_append)
{
    const quire_card_params *p = (const quire_card_params *)(uintptr_t)push.params;
    const quire_card_segment *segment =
        (const quire_card_segment *)(uintptr_t)push.segments + block_x();
    const quire_card_seq *seq = (const quire_card_seq *)(uintptr_t)p->seqs + segment->seq;
    const quire_card_source *store = constants.at[0] != 0 ? &p->v_store : &p->k_store;
    const uint32_t format = constants.at[1];
    const uint32_t group = is_sealed(format) ? store->hot_group : store->group;
    const quire_card_entry *entry =
        (const quire_card_entry *)(uintptr_t)p->entries + seq->first_entry[group] + segment->entry;
    append_block b;

    b.p = p;
    b.format = format;
    b.g = block_y();
    b.is_v = constants.at[0] != 0;
    b.d = b.is_v ? p->d_v : p->d_k;
    b.rotate = store->rotate;
    b.has_queries = constants.at[2] != 0;
    b.tile =
        tile_of(is_sealed(format) ? &store->hot_lane : &store->lane, entry, b.g, segment->tile);
    b.at_u = b.d;
    b.at_e = 2 * b.d;
    b.at_part = 3 * b.d;
    for (uint32_t r = 0; r < segment->n_tokens; r++) {
        store_row(&b, segment->first_row + r, segment->first_slot + r);
    }
}
