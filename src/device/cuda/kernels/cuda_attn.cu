/* cuda_attn.cu - attention of rows over one split of a table: one partial (m, l, o) per row and
 * head. Compiled once for each number of LANES, which are a block's heads of all its rows.
 *
 * Block (x, y, z): heads of one kv head (a power of two of them at most, constants.at[0]; y counts
 * kv heads and parts of their groups), split z. With one row per block (constants.at[3]) it has row
 * push.first_row + x. Else it has up to so many rows of a cascade, which see all tokens of the same
 * pages: each tile is read once for them, unless rows read it in different forms.
 *
 * Tiles are visited in table order, and all sums of a lane run in an order that depends on the tile
 * alone, so a lane's bits are the same with any number of lanes. Products are in f32 for all
 * formats.
 *
 * Thread t has slot t of a tile in q . K, and dimensions t, t + 64, ... in P . V.
 *
 * SPDX-License-Identifier: MIT */
#include "device/cuda/kernels/cuda_rows.h"

#define PARTS    8u /* of a tile, in sums over its tokens */
#define THREADS  QUIRE_CUDA_THREADS
#define NAME2(n) cuda_attn_##n
#define NAME1(n) NAME2(n)

/* The levels of a sealed format for all threads. */
FN void levels_take(const attn_block *b, uint32_t format)
{
    const quire_card_levels *table =
        (const quire_card_levels *)(uintptr_t)b->p->tables + (format - QUIRE_FORMAT_Q6);

    EACH_THREAD(t, mem)
    {
        mem[b->at_levels + t] = table->level[t];
    }
}

/* ---- q . K ---- */

/* Add one form of one K source to the logits of slot t. */
FN void logits_add(const attn_block *b, const float *mem, uint32_t t, uint32_t source,
                   const attn_form *form, uint32_t format, float *sum)
{
    const uint32_t d = b->d_k;
    const float *q = mem + source * LANES * d;
    const float *levels = mem + b->at_levels;
    const uint32_t first = form->first * b->heads;
    const uint32_t end = form->end * b->heads;
    const float scale = scale_of(format, form->address, t);
    float products[LANES];
    float means[LANES];

    UNROLL
    for (uint32_t h = 0; h < LANES; h++) {
        products[h] = means[h] = 0.0f;
    }
    for (uint32_t at = 0; at < d / 4; at++) {
        const float_4 k = k4(format, form->address, d, at, t, levels);
        const float_4 mean =
            is_sealed(format) ? mean4(form->address, at) : make_4(0.0f, 0.0f, 0.0f, 0.0f);

        UNROLL
        for (uint32_t h = 0; h < LANES; h++) {
            const float_4 x = floats_at(q + h * d + 4 * at);

            products[h] = add4(products[h], x, k);
            if (is_sealed(format)) {
                means[h] = add4(means[h], x, mean);
            }
        }
    }
    UNROLL
    for (uint32_t h = 0; h < LANES; h++) {
        if (h >= first && h < end) {
            sum[h] += fma_of(products[h], scale, means[h]);
        }
    }
}

/* Logits of a tile into the block's memory; of slots that the rows do not see -infinity. */
FN void logits_take(const attn_block *b, const attn_tile *tile)
{
    float sum[OF_THREADS][LANES];

    EACH_APART(t)
    {
        UNROLL
        for (uint32_t h = 0; h < LANES; h++) {
            sum[MINE(t)][h] = 0.0f;
        }
    }
    for (uint32_t i = 0; i < b->n_k; i++) {
        for (uint32_t r = 0; r < b->n_rows;) {
            const attn_form form = form_of(b, &b->p->k[i], r, tile);

            if (is_sealed(form.format)) {
                levels_take(b, form.format);
            }
            EACH_THREAD(t, mem)
            {
                if (t < tile->begin || t >= tile->end) {
                    continue;
                }
#define ADD(f) logits_add(b, mem, t, i, &form, f, sum[MINE(t)])
                BY_FORMAT(form.format, ADD)
#undef ADD
            }
            r = form.end;
        }
    }
    EACH_THREAD(t, mem)
    {
        const bool is_seen = t >= tile->begin && t < tile->end;
        const float cap = b->p->softcap;
        const GLOBAL float *biases = floats_of(b->p->biases);

        UNROLL
        for (uint32_t h = 0; h < LANES; h++) {
            float y = sum[MINE(t)][h] * b->p->scale;

            y = cap == 0.0f ? y : cap * tanh_of(y / cap);
            y = is_seen && tile->has_biases ? y + biases[tile->biases_at + t] : y;
            mem[b->at_s + h * TILE + t] = is_seen ? y : MINUS_INFINITY;
        }
    }
}

/* ---- softmax ---- */

/* Turn logits into weights, and find the factor of earlier sums. */
FN void softmax(const attn_block *b)
{
    EACH_THREAD(t, mem)
    {
        for (uint32_t i = t; i < LANES * PARTS; i += THREADS) {
            const float *s = mem + b->at_s + i * (TILE / PARTS);
            float m = MINUS_INFINITY;

            for (uint32_t j = 0; j < TILE / PARTS; j++) {
                m = s[j] > m ? s[j] : m;
            }
            mem[b->at_parts + i] = m;
        }
    }
    EACH_THREAD(t, mem)
    {
        if (t < LANES) {
            const float before = mem[b->at_m + t];
            float m = before;

            for (uint32_t j = 0; j < PARTS; j++) {
                const float part = mem[b->at_parts + t * PARTS + j];

                m = part > m ? part : m;
            }
            mem[b->at_r + t] = m == MINUS_INFINITY ? 1.0f : exp_of(before - m);
            mem[b->at_m + t] = m;
        }
    }
    EACH_THREAD(t, mem)
    {
        UNROLL
        for (uint32_t h = 0; h < LANES; h++) {
            float *s = mem + b->at_s + h * TILE + t;

            *s = *s == MINUS_INFINITY ? 0.0f : exp_of(*s - mem[b->at_m + h]);
        }
    }
    EACH_THREAD(t, mem)
    {
        for (uint32_t i = t; i < LANES * PARTS; i += THREADS) {
            const float *s = mem + b->at_s + i * (TILE / PARTS);
            float sum = 0.0f;

            for (uint32_t j = 0; j < TILE / PARTS; j++) {
                sum += s[j];
            }
            mem[b->at_parts + i] = sum;
        }
    }
    EACH_THREAD(t, mem)
    {
        if (t < LANES) {
            float sum = 0.0f;

            for (uint32_t j = 0; j < PARTS; j++) {
                sum += mem[b->at_parts + t * PARTS + j];
            }
            mem[b->at_l + t] = fma_of(mem[b->at_l + t], mem[b->at_r + t], sum);
        }
    }
}

/* ---- P . V ---- */

/* Tokens 4 * at .. of dimension i, of a V that is the beginning of K. */
FN float_4 prefix4(uint32_t format, uint64_t tile, uint32_t d_k, uint32_t at, uint32_t i,
                   const float *levels)
{
    const float_4 scale = scale4(format, tile, at);
    const float mean = is_sealed(format) ? mean1(tile, i) : 0.0f;

    return make_4(k1(format, tile, d_k, i, 4 * at, levels) * scale.x + mean,
                  k1(format, tile, d_k, i, 4 * at + 1, levels) * scale.y + mean,
                  k1(format, tile, d_k, i, 4 * at + 2, levels) * scale.z + mean,
                  k1(format, tile, d_k, i, 4 * at + 3, levels) * scale.w + mean);
}

FN float_4 own4(uint32_t format, uint64_t tile, uint32_t d_v, uint32_t at, uint32_t i,
                const float *levels)
{
    const float_4 v = v4(format, tile, d_v, at, i, levels);
    const float_4 scale = scale4(format, tile, at);

    return make_4(v.x * scale.x, v.y * scale.y, v.z * scale.z, v.w * scale.w);
}

FN float if_seen(float x, uint32_t slot, const attn_tile *tile)
{
    return slot >= tile->begin && slot < tile->end ? x : 0.0f;
}

/* One form of one V source: o = o * factor + P . V, of dimension i of the form's rows. */
FN void output_add(const attn_block *b, float *mem, uint32_t i, uint32_t source,
                   const attn_tile *tile, const attn_form *form, uint32_t format, bool is_prefix)
{
    const uint32_t first = form->first * b->heads;
    const uint32_t end = form->end * b->heads;
    const float *levels = mem + b->at_levels;
    float sum[LANES];

    UNROLL
    for (uint32_t h = 0; h < LANES; h++) {
        sum[h] = 0.0f;
    }
    for (uint32_t at = tile->begin / 4; at < (tile->end + 3) / 4; at++) {
        float_4 v = is_prefix ? prefix4(format, form->address, b->d_k, at, i, levels)
                              : own4(format, form->address, b->d_v, at, i, levels);

        /* Slots that no row sees may hold NaN. */
        v = make_4(if_seen(v.x, 4 * at, tile), if_seen(v.y, 4 * at + 1, tile),
                   if_seen(v.z, 4 * at + 2, tile), if_seen(v.w, 4 * at + 3, tile));
        UNROLL
        for (uint32_t h = 0; h < LANES; h++) {
            sum[h] = add4(sum[h], floats_at(mem + b->at_s + h * TILE + 4 * at), v);
        }
    }
    UNROLL
    for (uint32_t h = 0; h < LANES; h++) {
        if (h >= first && h < end) {
            float *o = mem + b->at_o + (source * LANES + h) * b->d_v + i;

            *o = fma_of(*o, mem[b->at_r + h], sum[h]);
        }
    }
}

FN void outputs_add(const attn_block *b, uint32_t source, const attn_tile *tile,
                    const attn_form *form)
{
    const bool is_prefix = b->p->is_prefix != 0;

    if (is_sealed(form->format)) {
        levels_take(b, form->format);
    }
    EACH_THREAD(t, mem)
    {
        for (uint32_t i = t; i < b->d_v; i += THREADS) {
            if (is_prefix) {
#define ADD(f) output_add(b, mem, i, source, tile, form, f, true)
                BY_FORMAT(form->format, ADD)
#undef ADD
            } else {
#define ADD(f) output_add(b, mem, i, source, tile, form, f, false)
                BY_FORMAT(form->format, ADD)
#undef ADD
            }
        }
    }
}

FN void visit(const attn_block *b, const attn_tile *tile)
{
    logits_take(b, tile);
    softmax(b);
    for (uint32_t i = 0; i < b->n_v; i++) {
        const quire_card_source *source = b->p->is_prefix != 0 ? &b->p->k[0] : &b->p->v[i];

        for (uint32_t r = 0; r < b->n_rows;) {
            const attn_form form = form_of(b, source, r, tile);

            outputs_add(b, i, tile, &form);
            r = form.end;
        }
    }
}

/* ---- a split ---- */

/* The slots of a tile that a row at position `pos` sees, from position `begin` on. */
FN void slots_see(const attn_block *b, const quire_card_entry *entry, uint32_t pos, uint32_t begin,
                  attn_tile *tile)
{
    const uint32_t first = most(entry->first_slot, tile->number * TILE);
    const uint32_t end = least(entry->first_slot + entry->n_tokens, (tile->number + 1) * TILE);
    const uint32_t before = first - entry->first_slot;
    uint32_t from = first;
    uint32_t to = end;

    if (entry->positions == 0) {
        const uint32_t at = entry->first_pos + before;

        from = first + (begin > at ? least(begin - at, end - first) : 0);
        to = pos < at ? first : least(end, first + (pos - at + 1));
        tile->first_pos = at;
    } else {
        const GLOBAL uint32_t *list = words_at(b->p->positions) + entry->positions + before;

        while (from < end && list[from - first] < begin) {
            from++;
        }
        while (to > from && list[to - first - 1] > pos) {
            to--;
        }
        tile->first_pos = list[0];
    }
    tile->has_biases = entry->positions != 0 && b->p->biases != 0;
    tile->biases_at = entry->positions + tile->number * TILE - entry->first_slot;
    tile->begin = from - tile->number * TILE;
    tile->end = to - tile->number * TILE;
}

/* The rows' queries, zeros where there are no more rows or heads. */
FN void queries_take(const attn_block *b, uint32_t first_head)
{
    for (uint32_t i = 0; i < b->n_k; i++) {
        const GLOBAL float *q = floats_of(b->p->q[i]);

        for (uint32_t r = 0; r < b->rows; r++) {
            const uint32_t index = r < b->n_rows ? row_at(b, row_number(b, r))->index : 0;
            const uint32_t n = r < b->n_rows ? b->n_heads * b->d_k : 0;
            const GLOBAL float *from = q + ((uint64_t)index * b->p->n_head + first_head) * b->d_k;
            const uint32_t to = (i * LANES + r * b->heads) * b->d_k;

            EACH_THREAD(t, mem)
            {
                for (uint32_t j = t; j < b->heads * b->d_k; j += THREADS) {
                    mem[to + j] = j < n ? from[j] : 0.0f;
                }
            }
        }
        rotate(i * LANES * b->d_k, LANES * b->d_k, b->p->k[i].rotate);
    }
}

/* Of the rows that are those of this dispatch. */
FN void partials_give(const attn_block *b, uint32_t first_head)
{
    const uint32_t size = 2 + b->n_v * b->d_v;

    EACH_THREAD(t, mem)
    {
        for (uint32_t lane = 0; lane < b->n_rows * b->heads; lane++) {
            const uint32_t h = lane % b->heads;
            const uint32_t x = row_number(b, lane / b->heads) - b->push.first_row;
            const uint64_t index =
                ((uint64_t)x * b->p->n_head + first_head + h) * b->push.n_splits_max + block_z();
            GLOBAL float *to =
                (GLOBAL float *)(uintptr_t)(b->push.partials + index * size * sizeof(float));

            if (h >= b->n_heads || x >= b->push.n_rows) { /* a row before the first is far behind */
                continue;
            }
            if (t == 0) {
                to[0] = mem[b->at_m + lane];
                to[1] = mem[b->at_l + lane];
            }
            for (uint32_t j = t; j < b->n_v * b->d_v; j += THREADS) {
                const uint32_t source = j / b->d_v;

                to[2 + j] = mem[b->at_o + (source * LANES + lane) * b->d_v + j % b->d_v];
            }
        }
    }
}

FN void memory_divide(attn_block *b)
{
    b->at_o = b->n_k * LANES * b->d_k;
    b->at_s = b->at_o + b->n_v * LANES * b->d_v;
    b->at_m = b->at_s + LANES * TILE;
    b->at_l = b->at_m + LANES;
    b->at_r = b->at_l + LANES;
    b->at_parts = b->at_r + LANES;
    b->at_levels = b->at_parts + LANES * PARTS;
}

FN void sums_clear(const attn_block *b)
{
    EACH_THREAD(t, mem)
    {
        for (uint32_t i = b->at_o + t; i < b->at_s; i += THREADS) {
            mem[i] = 0.0f;
        }
        if (t < LANES) {
            mem[b->at_m + t] = MINUS_INFINITY;
            mem[b->at_l + t] = 0.0f;
        }
    }
}

/* The first position that a row sees. */
FN uint32_t begin_of(const attn_block *b, uint32_t pos)
{
    const uint32_t window = b->p->window;

    if (b->p->has_chunks != 0) {
        return pos - pos % window;
    }
    return window != 0 && pos >= window ? pos - window + 1 : 0;
}

/* Tiles of the entries [e, end) of a table that begins at `table`. */
FN void split_visit(const attn_block *b, uint32_t table, uint32_t e, uint32_t end, uint32_t pos,
                    attn_tile *tile)
{
    const uint32_t begin = begin_of(b, pos);

    for (; e < end; e++) {
        const quire_card_entry *entry = entry_at(b, table + e);
        const uint32_t tiles_end = (entry->first_slot + entry->n_tokens + TILE - 1) / TILE;

        if (entry->first_pos > pos) {
            break;
        }
        tile->entry = e;
        for (tile->number = entry->first_slot / TILE; tile->number < tiles_end; tile->number++) {
            slots_see(b, entry, pos, begin, tile);
            if (tile->begin < tile->end) {
                visit(b, tile);
            }
        }
    }
}

KERNEL(NAME1(LANES))
{
    attn_block b;
    attn_tile tile;

    b.p = (const quire_card_params *)(uintptr_t)push.params;
    b.push = push;
    b.heads = constants.at[0];
    b.n_k = constants.at[1];
    b.n_v = constants.at[2];
    b.rows = constants.at[3];
    b.d_k = b.p->d_k;
    b.d_v = b.p->d_v;
    b.rows_at = b.row_one = 0;
    if (!rows_take(&b)) {
        return;
    }

    /* All rows see the same tokens of the split. */
    const quire_card_row *row = row_at(&b, row_number(&b, 0));
    const quire_card_seq *seq = seq_of(&b, row);
    const uint32_t group = b.p->n_head / b.p->n_kv_head;
    const uint32_t n_parts = (group + b.heads - 1) / b.heads;
    const uint32_t part = block_y() % n_parts;
    const uint32_t e = block_z() * b.p->split_entries;

    tile.g = block_y() / n_parts;
    if (e >= seq->n_entries) {
        return;
    }
    b.n_heads = least(b.heads, group - part * b.heads);
    memory_divide(&b);
    queries_take(&b, tile.g * group + part * b.heads);
    sums_clear(&b);
    split_visit(&b, seq->first_entry[b.p->k[0].group], e,
                least(e + b.p->split_entries, seq->n_entries), row->pos, &tile);
    partials_give(&b, tile.g * group + part * b.heads);
}
