/* info_retain.c - see info_retain.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/info_retain.h"

#include "base/check.h"
#include "base/num.h"
#include "model/runtime_rows.h"

/* Whether each layer has K and V of its own. */
static bool has_lanes(const quire_model_desc *desc)
{
    return !desc->latent.is_there && desc->n_stored == desc->n_layer;
}

static bool has_windows(const quire_model_desc *desc)
{
    return quire_desc_n_unwindowed(desc) < desc->n_layer;
}

int quire_info_retain_read(const char *policy, uint32_t chunk, uint32_t page_tokens,
                           const quire_model_desc *desc, quire_condensing *out, quire_error *err)
{
    const char *fixed = quire_desc_rows_kept(desc);
    quire_error why = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    quire_condensing_parts parts;
    quire_condensing in_f32;
    int rc = quire_retain_parse(policy, &spec, &why);

    if (rc < 0) {
        return quire_error_set(err, rc, "--retain %s: %s", policy, why.message);
    }
    QUIRE_TRY(quire_condensing_policy_check(&spec, "--retain", err));
    if (fixed == NULL && (desc->has_chunks || quire_desc_n_unwindowed(desc) == 0)) {
        fixed = "windows in all layers, or windows that are chunks";
    }
    if (fixed == NULL && (quire_condensing_is_by_lane(&spec) || has_windows(desc)) &&
        !has_lanes(desc)) {
        fixed = "layers that share KV, or latent attention";
    }
    if (fixed != NULL) {
        return quire_error_set(err, QUIRE_UNSUPP, "--retain %s cannot go with %s", policy, fixed);
    }
    quire_condensing_init(out, &spec, (chunk + page_tokens - 1) / page_tokens * page_tokens,
                          page_tokens, NULL);
    in_f32 = quire_info_retain_of(out, desc, QUIRE_FORMAT_F32, &parts);
    return quire_condensing_kept(&in_f32, 1) <= out->chunk
               ? quire_condensing_window_check(&in_f32, "--retain", err)
               : quire_error_set(err, QUIRE_INVAL,
                                 "--retain %s of %u tokens takes as many pages as the tokens "
                                 "themselves: a smaller share or recent, or condensing after more "
                                 "tokens (--retain-chunk), is needed",
                                 policy, out->chunk);
}

/* What a server's pages of a format are: enough of it for numbers of tokens. */
static void parts_fill(quire_condensing_parts *parts, const quire_condensing *retained,
                       const quire_model_desc *desc, quire_format format)
{
    quire_packing *packing = &parts->packing;

    *parts = (quire_condensing_parts){ 0 };
    *packing = (quire_packing){ .n_kv_head = desc->n_kv_head,
                                .page_tokens = retained->page_tokens,
                                .k_bytes = quire_tile_bytes(format, QUIRE_SIDE_K, desc->d_k),
                                .v_bytes = quire_tile_bytes(format, QUIRE_SIDE_V, desc->d_v),
                                .model_layers = parts->model_layers,
                                .n_model_layers = desc->n_layer };
    for (uint32_t l = 0; l < desc->n_layer; l++) {
        if (desc->window[l] == 0) {
            parts->model_layers[packing->n_layers++] = l;
        }
        packing->window_tokens = quire_max_u32(packing->window_tokens, desc->window[l]);
    }
    if (has_lanes(desc) && quire_format_is_sealed(format)) {
        packing->hot_group = QUIRE_KV_GROUP_HOT;
    }
    if (has_windows(desc)) {
        packing->window_group = packing->hot_group + 1;
    }
}

quire_condensing quire_info_retain_of(const quire_condensing *retained,
                                      const quire_model_desc *desc, quire_format format,
                                      quire_condensing_parts *parts)
{
    quire_condensing c;

    parts_fill(parts, retained, desc, format);
    if (!quire_condensing_is_by_lane(&retained->spec) && !quire_condensing_packs(parts)) {
        return *retained;
    }
    quire_condensing_init(&c, &retained->spec, retained->chunk, retained->page_tokens, parts);
    return c;
}

bool quire_info_retain_works(const quire_condensing *retained, const quire_model_desc *desc,
                             quire_format format)
{
    quire_condensing_parts parts;
    const quire_condensing of = quire_info_retain_of(retained, desc, format, &parts);

    return quire_condensing_kept(&of, 1) <= of.chunk &&
           quire_condensing_window_check(&of, "--retain", NULL) == QUIRE_OK &&
           (!quire_format_is_sealed(format) ||
            (has_lanes(desc) && !retained->spec.policy->drops_kept));
}

quire_info_retained quire_info_retain_held(const quire_condensing *c, uint32_t n_tokens)
{
    const uint32_t k = quire_condensing_before(c, n_tokens - 1);

    return (quire_info_retained){ n_tokens - quire_condensing_gone(c, k), n_tokens - k * c->chunk };
}
