/* runtime_shift.h - tokens leave the middle of a sequence.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_RUNTIME_SHIFT_H
#define QUIRE_MODEL_RUNTIME_SHIFT_H

#include "model/runtime.h"

/* Drop the tokens [begin, end) of a sequence, and move those behind to the positions from `begin`
 * on: their K is turned by the difference, which is exact for RoPE, and coded again; V moves byte
 * for byte. The values still depend on the dropped tokens. begin and end are multiples of
 * QUIRE_TILE_TOKENS; no other holder has the pages from `begin` on, or relies on them. The tokens
 * of a device pass the host's memory, a piece at a time (core/pool/tile_window.h), with the bytes
 * that the same pages would have in the host's. In sealed formats a tile with a hot form gets both
 * forms from it; the hot pages of sinks that leave or move are gone. Errors: QUIRE_INVAL (the
 * range), QUIRE_UNSUPP (shift_check()), QUIRE_NOMEM (scratch: of sealed formats both forms of the
 * tokens that have hot pages near the end, kv_recent of them and a page), QUIRE_LOST; then nothing
 * has changed, unless *is_torn: of such a sequence only the pages below `begin` are whole. */
int quire_runtime_shift(quire_runtime *runtime, quire_seq_id seq, uint32_t begin, uint32_t end,
                        bool *is_torn);
/* The same where others hold the pages from `begin` on, or rely on them: the tokens move into pages
 * of a new sequence *out, which shares the pages below `begin`. Its bytes are those that
 * quire_runtime_shift() makes. After reading a page, seq
 * gives the page up, so the move needs little memory beyond the pages that others hold. Afterwards
 * seq can only be closed. Errors: as quire_runtime_shift(), and those of quire_seq_reserve() and
 * quire_seq_fork(); then *out is QUIRE_SEQ_NULL, and seq is whole only if *is_torn is false. With
 * begin = end no token leaves, and the bytes stay those of seq. */
int quire_runtime_shift_away(quire_runtime *runtime, quire_seq_id seq, uint32_t begin, uint32_t end,
                             quire_seq_id *out, bool *is_torn);
/* Which of the tokens [begin, end) of a sequence stay. begin, end and n_kept are multiples of
 * QUIRE_TILE_TOKENS. */
typedef struct quire_thinning {
    uint32_t begin;
    uint32_t end;
    uint32_t n_kept;     /* in each lane */
    const bool *is_kept; /* [quire_runtime_n_lanes()][end - begin] */
} quire_thinning;
/* Each lane drops tokens of its own: its kept ones move together, to the positions from `begin` on,
 * and the tokens behind `end` follow. Each K is turned by the difference of its positions and coded
 * again; V moves byte for byte. No other holder has the pages from `begin` on, or relies on them.
 * Errors: QUIRE_INVAL (the range), QUIRE_UNSUPP (shift_check(), quire_runtime_rows_check(), sealed
 * formats), QUIRE_NOMEM (scratch: a row of f32 for each token that leaves), QUIRE_LOST; then
 * nothing has changed, unless *is_torn, as of quire_runtime_shift(). */
int quire_runtime_thin(quire_runtime *runtime, quire_seq_id seq, const quire_thinning *thinning,
                       bool *is_torn);
/* QUIRE_OK, or QUIRE_UNSUPP: a rope that is not movable (rope_frequencies.h), layers that keep
 * their windows alone, recurrent layers, kv_elsewhere_bytes. */
int quire_runtime_shift_check(const quire_runtime *runtime);
/* The same of a runtime that would have these options, with formats by layer. Thread: any. */
int quire_opts_shift_check(const quire_model_desc *desc, const quire_runtime_opts *opts);

#endif /* QUIRE_MODEL_RUNTIME_SHIFT_H */
