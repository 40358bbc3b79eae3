/* info_need.c - see info_need.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/info_need.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/opened_memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define HOST            0u /* quire_memory_layer_side() */
#define LAYERS_TEXT_MAX 256u

int quire_info_need_get(quire_info_need *out, quire_opened *session, const quire_common_args *args,
                        quire_error *err)
{
    static const quire_opened_want nothing_special;
    const quire_memory_place *place = quire_opened_place(session);
    const uint64_t limit_bytes = session->memory_limit_bytes;
    quire_runtime_opts opts;

    *out = (quire_info_need){ .session = session, .refusal = QUIRE_ERROR_INIT };
    QUIRE_TRY(quire_opened_draft(session, args, &nothing_special, &opts, err));
    quire_memory_need_get(session->desc, &opts, &out->need);
    out->host = quire_memory_host_use(&out->need, place);
    out->host_bytes = quire_memory_host_bytes(&out->need, place);
    out->missing_bytes = quire_memory_missing(&out->need, limit_bytes, place);
    out->weights_set = opts.weights_set;
    out->layers = opts.split;
    if (out->missing_bytes > 0) {
        (void)quire_memory_check(session->desc, &opts, limit_bytes, place, &out->refusal);
    }
    (void)quire_kv_args_text(&session->kv, session->desc, opts.kv_pairs, out->kv, sizeof out->kv);
    free((void *)(uintptr_t)opts.kv_pairs);
    return QUIRE_OK;
}

/* ---- the layers of weights ---- */

static uint32_t side_of(const quire_info_need *need, uint32_t layer)
{
    return quire_memory_layer_side(need->session->desc, need->weights_set, layer);
}

static bool has_output(const quire_info_need *need, uint32_t side)
{
    return side_of(need, need->session->desc->n_layer) == side;
}

/* The next layers of a side from *first on, of which *end is behind the last; false: none. */
static bool range_next(const quire_info_need *need, uint32_t side, uint32_t *first, uint32_t *end)
{
    const uint32_t n_layer = need->session->desc->n_layer;

    while (*first < n_layer && side_of(need, *first) != side) {
        (*first)++;
    }
    *end = *first;
    while (*end < n_layer && side_of(need, *end) == side) {
        (*end)++;
    }
    return *first < *end;
}

/* Whether weights lie elsewhere than on the host. */
static bool has_layers(const quire_info_need *need)
{
    return side_of(need, need->session->desc->n_layer) != HOST;
}

/* "layers 0-3, layers 8-11, output". */
static char *layers_text(const quire_info_need *need, uint32_t side, char *text, size_t text_bytes)
{
    size_t n = 0;
    uint32_t end;

    text[0] = '\0';
    for (uint32_t il = 0; n < text_bytes && range_next(need, side, &il, &end); il = end) {
        n += (size_t)snprintf(text + n, text_bytes - n, "%slayers %u-%u", n > 0 ? ", " : "", il,
                              end - 1);
    }
    if (n < text_bytes && has_output(need, side)) {
        (void)snprintf(text + n, text_bytes - n, "%soutput", n > 0 ? ", " : "");
    }
    return text;
}

static json_t *layers_json(const quire_info_need *need, uint32_t side)
{
    json_t *list = json_array();
    uint32_t end;

    for (uint32_t il = 0; range_next(need, side, &il, &end); il = end) {
        (void)json_array_append_new(
            list, json_pack("{s:i, s:i}", "first_layer", (int)il, "last_layer", (int)end - 1));
    }
    return json_pack("{s:o, s:b}", "layers", list, "output", (int)has_output(need, side));
}

/* ---- devices ---- */

/* What a device needs and has. */
typedef struct device_row {
    const char *name;
    uint32_t first_layer; /* of KV */
    uint32_t last_layer;
    double kv_share;
    uint32_t side; /* of its weights; HOST: it has none */
    quire_memory_use use;
    bool is_cpu;           /* its buffers are among the host's */
    uint64_t memory_bytes; /* UINT64_MAX: not known */
} device_row;

static uint32_t n_devices(const quire_info_need *need)
{
    return need->layers.n > 0 ? need->layers.n : quire_opened_place(need->session) != NULL ? 1 : 0;
}

static device_row row_of(const quire_info_need *need, uint32_t i)
{
    const quire_memory_place *place = quire_opened_place(need->session);
    const quire_memory_part *part = &place->parts[i];
    device_row row = { .name = place->name,
                       .last_layer = need->session->desc->n_layer - 1,
                       .kv_share = 1.0,
                       .side = has_layers(need) ? 1 : HOST,
                       .use = quire_memory_device_use(&need->need, place, i),
                       .memory_bytes = place->bytes };

    if (need->layers.n > 0) {
        row.name = part->name;
        row.first_layer = i > 0 ? need->layers.end[i - 1] : 0;
        row.last_layer = need->layers.end[i] - 1;
        row.kv_share = need->need.shares[i];
        row.side = part->layers; /* as the sides are counted */
        row.is_cpu = part->is_cpu;
        row.memory_bytes = part->is_cpu ? need->session->memory_limit_bytes : part->bytes;
    }
    return row;
}

static void device_print(const quire_info_need *need, const device_row *row)
{
    char layers[LAYERS_TEXT_MAX], text[16];

    printf("  %-11s layers %u-%u: KV %s", row->name, row->first_layer, row->last_layer,
           quire_format_bytes(row->use.kv_bytes, text, sizeof text));
    if (row->side != HOST) {
        printf(", weights %s (%s)", quire_format_bytes(row->use.weights_bytes, text, sizeof text),
               layers_text(need, row->side, layers, sizeof layers));
    }
    if (!row->is_cpu) {
        printf(", buffers %s", quire_format_bytes(row->use.buffers_bytes, text, sizeof text));
        printf(", sum %s", quire_format_bytes(quire_memory_use_sum(&row->use), text, sizeof text));
    }
    printf(", memory %s\n", row->memory_bytes != UINT64_MAX
                                ? quire_format_bytes(row->memory_bytes, text, sizeof text)
                                : "not known");
}

static json_t *device_json(const quire_info_need *need, const device_row *row)
{
    json_t *json =
        json_pack("{s:s, s:i, s:i, s:f, s:I, s:I, s:I, s:o}", "name", row->name, "first_layer",
                  (int)row->first_layer, "last_layer", (int)row->last_layer, "kv_share",
                  row->kv_share, "weights_bytes", (json_int_t)row->use.weights_bytes, "kv_bytes",
                  (json_int_t)row->use.kv_bytes, "buffers_bytes",
                  (json_int_t)row->use.buffers_bytes, "memory_bytes",
                  row->memory_bytes != UINT64_MAX ? json_integer((json_int_t)row->memory_bytes)
                                                  : json_null());

    if (row->side != HOST) {
        (void)json_object_set_new(json, "weights", layers_json(need, row->side));
    }
    return json;
}

/* ---- all ---- */

void quire_info_need_print(const quire_info_need *need)
{
    const uint64_t limit_bytes = need->session->memory_limit_bytes;
    const struct {
        const char *name;
        uint64_t bytes;
    } rows[] = {
        { "weights", need->host.weights_bytes },
        { "KV pages", need->host.kv_bytes },
        { "buffers", need->host.buffers_bytes },
        { "program", need->need.program_bytes },
        { "sum", need->host_bytes },
        { "limit", limit_bytes },
    };
    const bool fits = need->missing_bytes == 0;
    char layers[LAYERS_TEXT_MAX], text[24];

    printf("\n  Memory for %u tokens of KV %s%s\n", need->need.n_ctx, need->kv,
           n_devices(need) > 0 ? ", of the host" : "");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        printf("  %-11s %15" PRIu64 "  %9s\n", rows[i].name, rows[i].bytes,
               quire_format_bytes(rows[i].bytes, text, sizeof(text)));
    }
    if (has_layers(need)) {
        (void)layers_text(need, HOST, layers, sizeof layers);
        printf("\n  %-11s weights: %s%stoken embedding", "host", layers, layers[0] ? ", " : "");
    }
    printf("%s", n_devices(need) > 0 ? "\n" : "");
    for (uint32_t i = 0; i < n_devices(need); i++) {
        const device_row row = row_of(need, i);

        device_print(need, &row);
    }
    printf("  %-11s %s %s\n", fits ? "fits" : "does not fit:",
           quire_format_bytes(fits ? limit_bytes - need->host_bytes : need->missing_bytes, text,
                              sizeof(text)),
           !fits                 ? "too much"
           : n_devices(need) > 0 ? "to spare on the host"
                                 : "to spare");
    if (!fits) {
        printf("  %s\n", need->refusal.message);
    }
}

json_t *quire_info_need_json(const quire_info_need *need)
{
    const bool fits = need->missing_bytes == 0;
    json_t *json = json_pack(
        "{s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:s?}", "tokens", (int)need->need.n_ctx,
        "kv", need->kv, "weights_bytes", (json_int_t)need->host.weights_bytes, "kv_bytes",
        (json_int_t)need->host.kv_bytes, "buffers_bytes", (json_int_t)need->host.buffers_bytes,
        "program_bytes", (json_int_t)need->need.program_bytes, "total_bytes",
        (json_int_t)need->host_bytes, "fits", (int)fits, "missing_bytes",
        (json_int_t)need->missing_bytes, "refusal", fits ? NULL : need->refusal.message);
    json_t *devices = n_devices(need) > 0 ? json_array() : NULL;

    for (uint32_t i = 0; i < n_devices(need); i++) {
        const device_row row = row_of(need, i);

        (void)json_array_append_new(devices, device_json(need, &row));
    }
    if (devices != NULL) {
        (void)json_object_set_new(json, "devices", devices);
    }
    if (has_layers(need)) {
        (void)json_object_set_new(json, "weights", layers_json(need, HOST));
    }
    return json;
}
