/* info_retain.c - see info_retain.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/info_retain.h"

#include "base/check.h"
#include "model/runtime_rows.h"

/* Whether each layer has K and V of its own. */
static bool has_lanes(const quire_model_desc *desc)
{
    return !desc->latent.is_there && desc->n_stored == desc->n_layer;
}

int quire_info_retain_read(const char *policy, uint32_t chunk, uint32_t page_tokens,
                           const quire_model_desc *desc, quire_condensing *out, quire_error *err)
{
    const char *fixed = quire_desc_rows_fixed(desc);
    quire_error why = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    quire_condensing in_f32;
    int rc = quire_retain_parse(policy, &spec, &why);

    if (rc < 0) {
        return quire_error_set(err, rc, "--retain %s: %s", policy, why.message);
    }
    QUIRE_TRY(quire_condensing_policy_check(&spec, "--retain", err));
    if (fixed == NULL && quire_condensing_is_by_lane(&spec) && !has_lanes(desc)) {
        fixed = "layers that share KV, or latent attention";
    }
    if (fixed != NULL) {
        return quire_error_set(err, QUIRE_UNSUPP, "--retain %s cannot go with %s", policy, fixed);
    }
    quire_condensing_init(out, &spec, (chunk + page_tokens - 1) / page_tokens * page_tokens,
                          page_tokens, NULL);
    in_f32 = quire_info_retain_of(out, desc, QUIRE_FORMAT_F32);
    return quire_condensing_kept(&in_f32, 1) <= out->chunk
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL,
                                 "--retain %s of %u tokens takes as many pages as the tokens "
                                 "themselves: a smaller share or recent, or condensing after more "
                                 "tokens (--retain-chunk), is needed",
                                 policy, out->chunk);
}

quire_condensing quire_info_retain_of(const quire_condensing *retained,
                                      const quire_model_desc *desc, quire_format format)
{
    const bool is_packed = has_lanes(desc) && quire_format_is_sealed(format);
    const quire_condensing_parts parts = {
        .packing = { .n_layers = desc->n_layer,
                     .n_kv_head = desc->n_kv_head,
                     .page_tokens = retained->page_tokens,
                     .k_bytes = quire_tile_bytes(format, QUIRE_SIDE_K, desc->d_k),
                     .v_bytes = quire_tile_bytes(format, QUIRE_SIDE_V, desc->d_v),
                     .hot_group = is_packed ? QUIRE_KV_GROUP_HOT : 0 }
    };
    quire_condensing c;

    if (!quire_condensing_is_by_lane(&retained->spec) && !is_packed) {
        return *retained;
    }
    quire_condensing_init(&c, &retained->spec, retained->chunk, retained->page_tokens, &parts);
    return c;
}

bool quire_info_retain_works(const quire_condensing *retained, const quire_model_desc *desc,
                             quire_format format)
{
    const quire_condensing of = quire_info_retain_of(retained, desc, format);

    return quire_condensing_kept(&of, 1) <= of.chunk &&
           (!quire_format_is_sealed(format) ||
            (has_lanes(desc) && !retained->spec.policy->drops_kept));
}

quire_info_retained quire_info_retain_held(const quire_condensing *c, uint32_t n_tokens)
{
    const uint32_t k = quire_condensing_before(c, n_tokens - 1);

    return (quire_info_retained){ n_tokens - quire_condensing_gone(c, k), n_tokens - k * c->chunk };
}

quire_info_retained quire_info_retain_most(const quire_condensing *c, uint32_t n_tokens)
{
    return (quire_info_retained){ quire_condensing_need(c, n_tokens),
                                  n_tokens < c->chunk ? n_tokens : c->chunk };
}
