/* info_retain.c - see info_retain.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/info_retain.h"

#include "base/check.h"
#include "model/runtime_rows.h"

#include <stdlib.h>

/* Whether each layer has K and V of its own. */
static bool has_lanes(const quire_model_desc *desc)
{
    return !desc->latent.is_there && desc->n_stored == desc->n_layer;
}

static bool has_windows(const quire_model_desc *desc)
{
    return quire_desc_n_unwindowed(desc) < desc->n_layer;
}

/* Why no text of a model can be condensed by a policy; NULL: some can. */
static const char *obstacle(const quire_model_desc *desc, const quire_retain_spec *spec)
{
    const char *fixed = quire_desc_rows_kept(desc);

    if (fixed == NULL && (desc->has_chunks || quire_desc_n_unwindowed(desc) == 0)) {
        fixed = "windows in all layers, or windows that are chunks";
    }
    if (fixed == NULL && (quire_condensing_is_by_lane(spec) || has_windows(desc)) &&
        !has_lanes(desc)) {
        fixed = "layers that share KV, or latent attention";
    }
    return fixed;
}

int quire_info_retain_read(quire_info_retain *out, const char *policy, uint32_t chunk,
                           uint32_t page_tokens, quire_error *err)
{
    quire_error why = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    quire_condensing in_f32;
    const char *fixed;
    int rc = quire_retain_parse(policy, &spec, &why);

    if (rc < 0) {
        return quire_error_set(err, rc, "--retain %s: %s", policy, why.message);
    }
    QUIRE_TRY(quire_condensing_policy_check(&spec, "--retain", err));
    fixed = obstacle(out->desc, &spec);
    if (fixed != NULL) {
        return quire_error_set(err, QUIRE_UNSUPP, "--retain %s cannot go with %s", policy, fixed);
    }
    out->pairs = calloc(out->desc->n_stored, sizeof(*out->pairs));
    out->layers = calloc(out->desc->n_layer, sizeof(*out->layers));
    if (out->pairs == NULL || out->layers == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    quire_condensing_init(&out->policy, &spec,
                          (chunk + page_tokens - 1) / page_tokens * page_tokens, page_tokens, NULL);
    in_f32 = quire_info_retain_of(out, QUIRE_FORMAT_F32);
    return quire_condensing_kept(&in_f32, 1) <= in_f32.chunk
               ? quire_condensing_window_check(&in_f32, "--retain", err)
               : quire_error_set(err, QUIRE_INVAL,
                                 "--retain %s of %u tokens takes as many pages as the tokens "
                                 "themselves: a smaller share or recent, or condensing after more "
                                 "tokens (--retain-chunk), is needed",
                                 policy, in_f32.chunk);
}

void quire_info_retain_fini(quire_info_retain *retain)
{
    free(retain->layers);
    free(retain->pairs);
}

quire_condensing quire_info_retain_of(quire_info_retain *retain, quire_format format)
{
    const quire_condensing *policy = &retain->policy;
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;
    quire_condensing c;

    quire_kv_uniform(retain->desc, (quire_kv_pair){ format, format }, retain->pairs);
    opts.page_tokens = policy->page_tokens;
    opts.kv_pairs = retain->pairs;
    retain->parts = (quire_condensing_parts){ .predictor = NULL };
    quire_condensing_packing_init(&retain->parts, retain->layers, retain->desc, &opts);
    if (!quire_condensing_is_by_lane(&policy->spec) && !quire_condensing_packs(&retain->parts)) {
        return *policy;
    }
    quire_condensing_init(&c, &policy->spec, policy->chunk, policy->page_tokens, &retain->parts);
    return c;
}

bool quire_info_retain_works(const quire_info_retain *retain, const quire_condensing *of,
                             quire_format format)
{
    return (of->packing.n_layers > 0 || !quire_condensing_is_by_lane(&of->spec)) &&
           quire_condensing_kept(of, 1) <= of->chunk &&
           quire_condensing_window_check(of, "--retain", NULL) == QUIRE_OK &&
           (!quire_format_is_sealed(format) ||
            (has_lanes(retain->desc) && !of->spec.policy->drops_kept));
}

quire_info_retained quire_info_retain_held(const quire_condensing *c, uint32_t n_tokens)
{
    const uint32_t k = quire_condensing_before(c, n_tokens - 1);

    return (quire_info_retained){ n_tokens - quire_condensing_gone(c, k), n_tokens - k * c->chunk };
}
