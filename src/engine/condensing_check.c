/* condensing_check.c - which models, formats and settings allow texts to be condensed or read in
 * part. The checks run with and without a runtime. See condensing.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/condensing.h"

#include "base/check.h"
#include "engine/repeating.h"
#include "model/rope_frequencies.h"
#include "model/runtime_rows.h"
#include "retain/query_sums.h"

int quire_condensing_policy_check(const quire_retain_spec *spec, const char *setting,
                                  quire_error *err)
{
    if (spec->granule != 1 && spec->granule != QUIRE_TILE_TOKENS) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s %s: in shared pages a lane keeps whole tiles of %u tokens, so "
                               "granule=%u cannot be given",
                               setting, spec->policy->name, QUIRE_TILE_TOKENS, spec->granule);
    }
    return QUIRE_OK;
}

int quire_condensing_full_layers(const quire_retain_spec *spec, const quire_packing *packing,
                                 bool *is_full, uint32_t *n, quire_error *err)
{
    bool all[QUIRE_LAYERS_MAX], chooses[QUIRE_LAYERS_MAX] = { false };
    uint32_t n_full = 0;

    for (uint32_t l = 0; l < packing->n_layers; l++) {
        chooses[quire_packing_model_layer(packing, l)] = true;
    }
    QUIRE_TRY(quire_retain_full_layers(spec, quire_packing_n_model(packing), chooses, all, err));
    for (uint32_t l = 0; l < packing->n_layers; l++) {
        is_full[l] = all[quire_packing_model_layer(packing, l)];
        n_full += is_full[l];
    }
    if (n != NULL) {
        *n = n_full;
    }
    return QUIRE_OK;
}

/* Whether a part has room behind the text at each place of a context; on a device also behind a
 * lane that keeps all tokens, whose table has no room for more. */
static int check_room(const quire_condensing *c, uint32_t n_ctx, const char *setting,
                      quire_error *err)
{
    const uint32_t n_room = quire_repeating_room(&c->spec);
    const uint32_t k_max = quire_condensing_before(c, n_ctx - 1);
    uint32_t n_before = 0; /* tokens before the part at the last place */

    if (k_max > 0) {
        n_before = c->packing.is_on_device ? k_max * c->chunk
                                           : quire_condensing_kept(c, k_max - 1) + c->chunk;
    }
    if (n_room > 0 && k_max > 0 && n_before + n_room > n_ctx) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s %s needs room for %u tokens behind the text, which a context of "
                               "%u does not have at the last place: %s --retain-chunk is needed",
                               setting, c->text, n_room, n_ctx,
                               c->packing.is_on_device ? "a smaller repeat or another"
                                                       : "a smaller share, repeat or");
    }
    return QUIRE_OK;
}

/* Policies that sealed tokens exclude. */
static int check_sealed(const quire_condensing_on *on, const quire_retain_spec *spec,
                        const char *setting, quire_error *err)
{
    return quire_opts_is_sealed(on->desc, on->opts) && spec->policy->drops_kept
               ? quire_error_set(err, QUIRE_UNSUPP,
                                 "%s %s drops tokens that it has kept before, and tokens in q6 to "
                                 "q3 stay in their tile: use f32, f16, bf16 or q8",
                                 setting, spec->policy->name)
               : QUIRE_OK;
}

/* Why pages cannot be packed on a device, as a phrase; NULL: they can, or there is none. A KV head
 * is a sequence of the device there, with tables of tiles (retain/packed_device.h). */
static const char *no_lanes_on_device(const quire_condensing_on *on)
{
    const quire_runtime_opts *o = on->opts;

    return !quire_runtime_has_device(o)          ? NULL
           : o->page_tokens != QUIRE_TILE_TOKENS ? "in pages of more than 64 tokens"
           : o->split.n > 0                      ? "with layers on several devices"
           : o->kv_overflows || o->attends_host  ? "beside texts larger than memory "
                                                   "(--kv-overflow refuse excludes these)"
           : quire_desc_has_own(on->desc)        ? "of models with learned sinks or gates of V"
                                                 : NULL;
}

/* Why even policies have packed pages; NULL: they have none. */
static const char *packed_because(const quire_condensing_on *on)
{
    return quire_opts_is_sealed(on->desc, on->opts)                ? "in q6 to q3"
           : quire_desc_n_unwindowed(on->desc) < on->desc->n_layer ? "beside layers with windows"
                                                                   : NULL;
}

static int check_device(const quire_condensing_on *on, const quire_retain_spec *spec,
                        const char *setting, quire_error *err)
{
    const char *why = no_lanes_on_device(on), *because = packed_because(on);

    if (why == NULL || (because == NULL && !quire_condensing_is_by_lane(spec))) {
        return QUIRE_OK;
    }
    return because != NULL
               ? quire_error_set(err, QUIRE_UNSUPP,
                                 "%s %s keeps tokens %s in tiles that are packed, and on device %s "
                                 "these cannot be kept %s",
                                 setting, spec->policy->name, because, on->opts->device, why)
               : quire_error_set(err, QUIRE_UNSUPP,
                                 "%s %s keeps another number of tokens in each lane (so do floor "
                                 "below 1 and full_layers), and on device %s such tokens cannot be "
                                 "kept %s: there keydiff, window, last, stride and random work",
                                 setting, spec->policy->name, on->opts->device, why);
}

int quire_condensing_window_check(const quire_condensing *c, const char *setting, quire_error *err)
{
    const uint32_t n_kept = quire_condensing_kept(c, 1);

    return n_kept + 1 >= c->packing.window_tokens
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL,
                                 "%s %s keeps %u tokens of %u, fewer than the %u that layers with "
                                 "windows see: a larger share, or condensing after more tokens "
                                 "(--retain-chunk), is needed",
                                 setting, c->text, n_kept, c->chunk, c->packing.window_tokens);
}

/* Of a model with windows. */
static int check_windows(const quire_condensing_on *on, const quire_retain_spec *spec,
                         const char *setting, quire_error *err)
{
    const quire_kv_groups groups = quire_kv_groups_of(on->desc, on->opts);
    const char *other = on->desc->has_chunks ? "windows that are chunks of the text: a text that "
                                               "drops tokens has other chunks"
                        : groups.window == 0 ? "windows in a cache that keeps pages behind them"
                        : quire_desc_n_unwindowed(on->desc) == 0
                            ? "a model whose layers all have windows: these drop tokens already"
                            : NULL;

    return quire_desc_n_unwindowed(on->desc) == on->desc->n_layer || other == NULL
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_UNSUPP, "%s %s cannot go with %s", setting,
                                 spec->policy->name, other);
}

static int check_by_lane(const quire_condensing_parts *parts, const quire_retain_spec *spec,
                         uint32_t n_ctx, uint32_t chunk, const char *setting, quire_error *err)
{
    const quire_packing *packing = &parts->packing;
    quire_error why = QUIRE_ERROR_INIT;
    bool is_full[QUIRE_LAYERS_MAX];
    quire_condensing c;
    int rc;

    if (packing->n_layers == 0) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s %s keeps tokens by lane, which works with one pair of formats "
                               "for all layers, in models whose layers store K and V of their own",
                               setting, spec->policy->name);
    }
    if (spec->policy->worth == QUIRE_RETAIN_WORTH_PREDICTED && parts->predictor == NULL) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s %s has learned nothing about this model: quire calibrate "
                               "--retain comes first, and a new start of the server",
                               setting, spec->policy->name);
    }
    if (spec->policy->expects_queries && parts->rotation == NULL) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s %s works with models whose layers all turn K alike", setting,
                               spec->policy->name);
    }
    rc = quire_condensing_full_layers(spec, packing, is_full, NULL, &why);
    if (rc < 0) {
        return quire_error_set(err, rc, "%s %s", setting, why.message);
    }
    quire_condensing_init(&c, spec, chunk, packing->page_tokens, parts);
    if (quire_condensing_kept(&c, 1) > chunk) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%s %s of %u tokens takes as many pages as the tokens themselves: "
                               "a smaller share or recent, or condensing after more tokens "
                               "(--retain-chunk), is needed",
                               setting, c.text, chunk);
    }
    QUIRE_TRY(quire_condensing_window_check(&c, setting, err));
    return check_room(&c, n_ctx, setting, err);
}

int quire_condensing_check(const quire_condensing_on *on, const quire_retain_spec *spec,
                           uint32_t chunk, const char *setting, quire_error *err)
{
    const char *fixed = quire_opts_rows_kept(on->desc, on->opts);

    QUIRE_TRY(quire_condensing_policy_check(spec, setting, err));
    QUIRE_TRY(check_device(on, spec, setting, err));
    if (fixed != NULL) {
        return quire_error_set(err, QUIRE_UNSUPP, "%s %s cannot go with %s", setting,
                               spec->policy->name, fixed);
    }
    QUIRE_TRY(check_sealed(on, spec, setting, err));
    QUIRE_TRY(check_windows(on, spec, setting, err));
    return quire_condensing_is_by_lane(spec) || packed_because(on) != NULL
               ? check_by_lane(on->parts, spec, on->opts->n_ctx, chunk, setting, err)
               : QUIRE_OK;
}

int quire_attending_check(const quire_condensing_on *on, const char *setting, quire_error *err)
{
    const char *why;

    if (!on->opts->has_bounds) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s cannot go with a server whose pages have no bounds of their "
                               "keys: start it with --attend",
                               setting);
    }
    QUIRE_TRY(quire_runtime_bounds_check(on->desc, err));
    why = no_lanes_on_device(on);
    if (why != NULL) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "%s cannot go with KV on device %s %s: there tokens cannot choose "
                               "pages",
                               setting, on->opts->device, why);
    }
    return on->parts->packing.n_layers > 0
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_UNSUPP,
                                 "%s cannot go with this model's KV: layers share K and V, or "
                                 "differ in their formats",
                                 setting);
}

bool quire_condensing_turns(const quire_model_desc *desc)
{
    return quire_model_rope_is_plain(desc) && desc->d_k <= QUIRE_QUERY_SUMS_D_MAX;
}

/* The constants of layers without windows, and their numbers. */
static uint32_t layers_fill(quire_condensing_parts *parts, quire_attn_layer *layers,
                            const quire_model_desc *desc, const quire_runtime_opts *opts)
{
    const quire_kv_form form = quire_kv_form_of(desc, opts);
    uint32_t n = 0;

    for (uint32_t l = 0; l < desc->n_layer; l++) {
        if (desc->window[l] == 0) {
            parts->model_layers[n] = l;
            (void)quire_kv_layout(&form, l, &layers[n++]);
        }
    }
    return n;
}

void quire_condensing_packing_init(quire_condensing_parts *parts, quire_attn_layer *layers,
                                   const quire_model_desc *desc, const quire_runtime_opts *opts)
{
    const quire_kv_groups groups = quire_kv_groups_of(desc, opts);
    quire_packing *packing = &parts->packing;
    uint32_t n;

    const quire_condensing_on on = { desc, opts, parts };

    packing->n_layers = 0;
    if (no_lanes_on_device(&on) != NULL || desc->latent.is_there ||
        quire_opts_rows_kept(desc, opts) != NULL) {
        return;
    }
    n = layers_fill(parts, layers, desc, opts);
    if (n == 0 || (n < desc->n_layer && desc->n_stored < desc->n_layer) ||
        quire_packing_init(packing, layers, n, opts->page_tokens) < 0) {
        packing->n_layers = 0;
        packing->hot_group = 0;
        return;
    }
    packing->is_on_device = quire_runtime_has_device(opts);
    if (n < desc->n_layer) {
        packing->model_layers = parts->model_layers;
        packing->n_model_layers = desc->n_layer;
        packing->window_group = groups.window;
        packing->window_tokens = groups.window_tokens;
    }
}
