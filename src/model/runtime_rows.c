/* runtime_rows.c - see runtime_rows.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime_rows.h"

#include "base/check.h"
#include "codec/slot_copy.h"
#include "model/archs.h"
#include "model/model_internal.h"
#include "model/runtime_internal.h"

#define TILE QUIRE_TILE_TOKENS

const char *quire_desc_rows_kept(const quire_model_desc *desc)
{
    if (desc->recurrent.n_layers > 0) {
        return "recurrent layers: a state forgets no single token";
    }
    return desc->has_layer_sizes ? "KV heads that differ by layer" : NULL;
}

const char *quire_desc_rows_fixed(const quire_model_desc *desc)
{
    const char *kept = quire_desc_rows_kept(desc);

    if (kept != NULL) {
        return kept;
    }
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        if (desc->window[il] != 0) {
            return "layers with windows: these give up their tokens by position, and all layers of "
                   "a text share its places";
        }
    }
    return NULL;
}

uint32_t quire_desc_n_unwindowed(const quire_model_desc *desc)
{
    uint32_t n = 0;

    for (uint32_t il = 0; il < desc->n_layer; il++) {
        n += desc->window[il] == 0;
    }
    return n;
}

bool quire_opts_is_sealed(const quire_model_desc *desc, const quire_runtime_opts *opts)
{
    return quire_kv_groups_of(desc, opts).hot != 0;
}

const char *quire_opts_rows_kept(const quire_model_desc *desc, const quire_runtime_opts *opts)
{
    return opts->kv_elsewhere_bytes != 0 || opts->is_contiguous ? "a cache without pages of its own"
                                                                : quire_desc_rows_kept(desc);
}

const char *quire_opts_rows_fixed(const quire_model_desc *desc, const quire_runtime_opts *opts)
{
    const char *kept = quire_opts_rows_kept(desc, opts);

    if (quire_opts_is_sealed(desc, opts)) {
        return "KV in q6 to q3: 64 tokens are coded as one tile, and shared pages keep no 8-bit "
               "copy to code the kept ones from; q8, f16, bf16 and f32 work";
    }
    return kept != NULL ? kept : quire_desc_rows_fixed(desc);
}

bool quire_desc_has_own(const quire_model_desc *desc)
{
    bool has_own = (quire_arch_row_get(desc->arch)->needs & QUIRE_PART_SINKS) != 0;

    for (uint32_t l = 0; l < desc->n_layer; l++) {
        has_own = has_own || desc->kv_map[l].v_gates != 0;
    }
    return has_own;
}

int quire_desc_rows_check(const quire_model_desc *desc)
{
    return desc->latent.is_there || quire_desc_rows_fixed(desc) != NULL ? QUIRE_UNSUPP : QUIRE_OK;
}

int quire_opts_rows_check(const quire_model_desc *desc, const quire_runtime_opts *opts)
{
    return desc->latent.is_there || quire_opts_rows_fixed(desc, opts) != NULL ? QUIRE_UNSUPP
                                                                              : QUIRE_OK;
}

int quire_runtime_rows_check(const quire_runtime *rt)
{
    return quire_opts_rows_check(&rt->model->desc, &rt->opts);
}

uint32_t quire_runtime_n_lanes(const quire_runtime *rt)
{
    return rt->model->desc.n_stored * rt->model->desc.n_kv_head;
}

quire_runtime_lane quire_runtime_lane_at(const quire_runtime *rt, uint32_t i)
{
    const quire_model_desc *desc = &rt->model->desc;
    const int32_t stored = (int32_t)(i / desc->n_kv_head);
    uint32_t il = 0;

    while (desc->kv_map[il].stored != stored) {
        il++;
        QUIRE_CHECK(il < desc->n_layer);
    }
    return (quire_runtime_lane){ .layer = il, .head = i % desc->n_kv_head };
}

int quire_runtime_rows_begin(const quire_runtime *rt, quire_seq_id from, quire_seq_id to,
                             quire_runtime_rows *out)
{
    *out = (quire_runtime_rows){ .runtime = rt };
    QUIRE_TRY(quire_seq_table_get(rt->cache, from, QUIRE_KV_GROUP_MAIN, &out->from));
    QUIRE_TRY(quire_seq_table_get(rt->cache, to, QUIRE_KV_GROUP_MAIN, &out->to));
    QUIRE_TRY(quire_runtime_tiles_init(&out->read, rt, false, &out->status));
    return quire_runtime_tiles_init(&out->write, rt, true, &out->status);
}

int quire_runtime_rows_end(quire_runtime_rows *rows)
{
    quire_tile_window_end(&rows->read.window);
    quire_tile_window_end(&rows->write.window);
    return rows->status;
}

void quire_runtime_rows_keys(quire_runtime_rows *rows, quire_runtime_lane lane, uint32_t n,
                             float *keys)
{
    const quire_codec *codec = quire_codec_get();
    quire_runtime_side side;
    quire_attn_layer layer;

    (void)quire_kv_layout(&rows->runtime->form, lane.layer, &layer);
    side = quire_runtime_side_of_head(&layer, QUIRE_SIDE_K, lane.head);
    quire_runtime_tiles_put(&rows->read, &rows->from, &side, n);
    for (uint32_t t = 0; t < n; t += TILE) {
        const quire_tile_rows some = { .d = layer.d_k,
                                       .n_tokens = n - t < TILE ? n - t : TILE,
                                       .stride = layer.d_k };

        codec->decode_k(layer.k_store.format, &some, quire_runtime_tile(&rows->read, t / TILE, 0),
                        keys + (size_t)t * layer.d_k);
    }
}

/* One side of a lane. */
static void copy_side(quire_runtime_rows *rows, const quire_runtime_side *side,
                      const quire_tile_kind *kind, const bool *is_kept, uint32_t n)
{
    uint32_t at = 0;

    quire_runtime_tiles_put(&rows->read, &rows->from, side, n);
    quire_runtime_tiles_put(&rows->write, &rows->to, side, rows->to.n_tokens);
    for (uint32_t t = 0; t < n; t++) {
        if (is_kept[t]) {
            quire_tile_slot_copy(kind, quire_runtime_tile(&rows->read, t / TILE, 0), t % TILE,
                                 quire_runtime_tile(&rows->write, at / TILE, 0), at % TILE);
            at++;
        }
    }
}

void quire_runtime_rows_copy(quire_runtime_rows *rows, quire_runtime_lane lane, const bool *is_kept,
                             uint32_t n)
{
    quire_runtime_side side;
    quire_attn_layer layer;
    quire_tile_kind kind;

    (void)quire_kv_layout(&rows->runtime->form, lane.layer, &layer);
    side = quire_runtime_side_of_head(&layer, QUIRE_SIDE_K, lane.head);
    kind = (quire_tile_kind){ layer.k_store.format, QUIRE_SIDE_K, layer.d_k };
    copy_side(rows, &side, &kind, is_kept, n);
    if (layer.v_prefix_of_k) {
        return;
    }
    side = quire_runtime_side_of_head(&layer, QUIRE_SIDE_V, lane.head);
    kind = (quire_tile_kind){ layer.v_store.format, QUIRE_SIDE_V, layer.d_v };
    copy_side(rows, &side, &kind, is_kept, n);
}
