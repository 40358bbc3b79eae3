/* cuda_rows.h - the rows of a block of attention, and the forms in which they read a tile.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_CUDA_ROWS_H
#define QUIRE_DEVICE_CUDA_ROWS_H

#include "device/cuda/kernels/cuda_tiles.h"

/* What a block is about: the same for all its threads. */
typedef struct attn_block {
    const quire_card_params *p;
    quire_card_push push;
    uint32_t heads; /* places for heads, of a row */
    uint32_t rows;  /* places for rows */
    uint32_t n_heads;
    uint32_t n_rows;
    uint32_t rows_at; /* of a cascade: the block's first row, in the list */
    uint32_t row_one; /* else: its row */
    uint32_t n_k, n_v, d_k, d_v;
    /* The block's memory: q [n_k][LANES][d_k], then o [n_v][LANES][d_v], logits [LANES][64], m, l
     * and a factor of each lane, sums of parts [LANES][8], the levels of the sealed format at
     * hand. */
    uint32_t at_o, at_s, at_m, at_l, at_r, at_parts, at_levels;
} attn_block;

/* A tile, and the tokens of it that the rows see. */
typedef struct attn_tile {
    uint32_t entry;
    uint32_t g; /* kv head */
    uint32_t number;
    uint32_t first_pos;
    uint32_t begin, end; /* slots */
    bool has_biases;
    uint32_t biases_at; /* of slot 0, in the batch's biases */
} attn_tile;

/* A form in which rows [first, end) read a tile. */
typedef struct attn_form {
    uint32_t format;
    uint32_t first, end;
    uint64_t address;
} attn_form;

FN const quire_card_row *row_at(const attn_block *b, uint32_t index)
{
    return (const quire_card_row *)(uintptr_t)b->p->rows + index;
}

FN uint32_t row_number(const attn_block *b, uint32_t r)
{
    return b->rows == 1 ? b->row_one : words_at(b->p->cascade_rows)[b->rows_at + r];
}

FN const quire_card_seq *seq_of(const attn_block *b, const quire_card_row *row)
{
    return (const quire_card_seq *)(uintptr_t)b->p->seqs + row->seq;
}

FN const quire_card_entry *entry_at(const attn_block *b, uint32_t index)
{
    return (const quire_card_entry *)(uintptr_t)b->p->entries + index;
}

FN uint64_t address_of(const attn_block *b, const quire_card_source *source, uint32_t r,
                       const attn_tile *tile, uint32_t *format)
{
    const quire_card_row *row = row_at(b, row_number(b, r));
    const quire_card_seq *seq = seq_of(b, row);
    const uint32_t tile_pos = tile->first_pos / TILE;
    const bool is_near =
        row->pos / TILE - tile_pos <= b->p->recent_tiles || tile_pos < b->p->sink_tiles;

    if (is_sealed(source->format) && is_near) {
        const quire_card_entry *hot =
            entry_at(b, seq->first_entry[source->hot_group] + tile->entry);

        if (hot->extent != 0) {
            *format = QUIRE_FORMAT_HOT;
            return tile_of(&source->hot_lane, hot, tile->g, tile->number);
        }
    }
    *format = source->format;
    return tile_of(&source->lane, entry_at(b, seq->first_entry[source->group] + tile->entry),
                   tile->g, tile->number);
}

/* Row `first`'s form, and the rows behind it that read the same. */
FN attn_form form_of(const attn_block *b, const quire_card_source *source, uint32_t first,
                     const attn_tile *tile)
{
    attn_form form;
    uint32_t format;

    form.first = first;
    form.address = address_of(b, source, first, tile, &form.format);
    form.end = b->rows == 1 || !is_sealed(source->format) ? b->n_rows : first + 1;
    while (form.end < b->n_rows) {
        if (address_of(b, source, form.end, tile, &format) != form.address ||
            format != form.format) {
            break;
        }
        form.end++;
    }
    return form;
}

/* Which rows the block has; false: none that has this split. */
FN bool rows_take(attn_block *b)
{
    const quire_card_cascade *cascade = (const quire_card_cascade *)(uintptr_t)b->p->cascades;
    uint32_t x = block_x();

    if (b->rows == 1) {
        b->row_one = b->push.first_row + x;
        b->n_rows = 1;
        return b->push.n_cascades == 0 || block_z() >= row_at(b, b->row_one)->n_shared;
    }
    while (x >= (cascade->n_rows + b->rows - 1) / b->rows) {
        x -= (cascade->n_rows + b->rows - 1) / b->rows;
        cascade++;
    }
    b->rows_at = cascade->first + x * b->rows;
    b->n_rows = least(b->rows, cascade->n_rows - x * b->rows);
    if (block_z() >= cascade->n_splits) {
        return false;
    }
    for (uint32_t r = 0; r < b->n_rows; r++) {
        if (row_number(b, r) - b->push.first_row < b->push.n_rows) {
            return true;
        }
    }
    return false;
}

#endif /* QUIRE_DEVICE_CUDA_ROWS_H */
