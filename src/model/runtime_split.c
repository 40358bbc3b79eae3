/* runtime_split.c - see runtime_split.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/runtime_split.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights of layers ---- */

/* The bytes of a stored layer's parts in a group of pages, or in all. */
typedef struct layer_bytes {
    quire_kv_groups groups;
    size_t of[QUIRE_GROUPS_MAX][QUIRE_LAYERS_MAX]; /* [n_groups][n_stored] */
} layer_bytes;

/* NULL: no memory. */
static layer_bytes *bytes_get(const quire_model_desc *desc, const quire_runtime_opts *opts)
{
    layer_bytes *bytes = calloc(1, sizeof(*bytes));
    quire_kv_pair pairs[QUIRE_LAYERS_MAX];
    quire_runtime_opts o = *opts;
    quire_kv_form form;

    if (bytes == NULL) {
        return NULL;
    }
    if (o.kv_pairs == NULL) {
        quire_kv_uniform(desc, (quire_kv_pair){ o.k_format, o.v_format }, pairs);
        o.kv_pairs = pairs;
    }
    form = quire_kv_form_of(desc, &o);
    bytes->groups = quire_kv_groups_of(desc, &o);
    for (uint32_t g = 0; g < bytes->groups.n; g++) {
        for (uint32_t s = 0; s < desc->n_stored; s++) {
            bytes->of[g][s] = quire_kv_part_bytes(&form, (quire_group_id)g, s);
        }
    }
    return bytes;
}

static double bytes_of_layer(const layer_bytes *bytes, const quire_model_desc *desc, uint32_t il)
{
    const int32_t stored = desc->kv_map[il].stored;
    double sum = 0.0;

    for (uint32_t g = 0; stored >= 0 && g < bytes->groups.n; g++) {
        sum += (double)bytes->of[g][stored];
    }
    return sum;
}

/* ---- dividing ---- */

/* The device between whose ends a layer lies. */
static uint32_t device_at(const quire_runtime_split *split, uint32_t il)
{
    uint32_t i = 0;

    while (i + 1 < split->n && il >= split->end[i]) {
        i++;
    }
    return i;
}

/* Each layer goes to the device in whose share the middle of its bytes lies. */
static void ends_set(const quire_model_desc *desc, const layer_bytes *bytes, const double *shares,
                     quire_runtime_split *split)
{
    double all = 0.0, all_shares = 0.0, before = 0.0, limit = 0.0;
    uint32_t i = 0;

    for (uint32_t il = 0; il < desc->n_layer; il++) {
        all += bytes_of_layer(bytes, desc, il);
    }
    for (uint32_t k = 0; k < split->n; k++) {
        all_shares += shares[k];
    }
    limit = shares[0] / all_shares * all;
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        const double own = bytes_of_layer(bytes, desc, il);

        while (i + 1 < split->n && own > 0.0 && before + own / 2 > limit) {
            split->end[i++] = il;
            limit += shares[i] / all_shares * all;
        }
        before += own;
    }
    while (i < split->n) {
        split->end[i++] = desc->n_layer;
    }
}

static bool has_kv(const quire_model_desc *desc, const quire_runtime_split *split, uint32_t i)
{
    for (uint32_t s = 0; s < desc->n_stored; s++) {
        if (device_at(split, desc->stored_by[s]) == i) {
            return true;
        }
    }
    return false;
}

int quire_split_divide(const quire_model_desc *desc, const quire_runtime_opts *opts,
                       const double *shares, quire_runtime_split *split, quire_error *err)
{
    layer_bytes *bytes = bytes_get(desc, opts);
    quire_runtime_opts divided = *opts;

    if (bytes == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    ends_set(desc, bytes, shares, split);
    free(bytes);
    divided.split = *split;
    return quire_split_check(desc, &divided, err);
}

/* Whether all K and V that a layer reads lie on one device; *other: a stored layer elsewhere. */
static bool reads_one(const quire_model_desc *desc, const quire_runtime_split *split, uint32_t il,
                      uint32_t *other)
{
    const quire_kv_map_entry *map = &desc->kv_map[il];
    const uint32_t first = device_at(split, desc->stored_by[map->k_src[0]]);

    for (uint32_t i = 0; i < (uint32_t)map->n_k + map->n_v; i++) {
        const uint32_t s = i < map->n_k ? map->k_src[i] : map->v_src[i - map->n_k];

        if (device_at(split, desc->stored_by[s]) != first) {
            *other = desc->stored_by[s];
            return false;
        }
    }
    return true;
}

int quire_split_check(const quire_model_desc *desc, const quire_runtime_opts *opts,
                      quire_error *err)
{
    const quire_runtime_split *split = &opts->split;

    for (uint32_t i = 0; i < split->n; i++) {
        if (split->end[i] > desc->n_layer || (i > 0 && split->end[i] < split->end[i - 1])) {
            return quire_error_set(err, QUIRE_INVAL, "a split of %u layers that ends at %u",
                                   desc->n_layer, split->end[i]);
        }
        if (!has_kv(desc, split, i)) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "device %.40s gets no layer with KV of its own: the model has "
                                   "%u, for %u devices: name fewer devices, or give it a larger "
                                   "share (--tensor-split)",
                                   split->names[i], desc->n_stored, split->n);
        }
    }
    for (uint32_t il = 0; split->n > 0 && il < desc->n_layer; il++) {
        uint32_t other;

        if (quire_mixer_attends(desc->mixer[il]) && !reads_one(desc, split, il, &other)) {
            const uint32_t first = desc->stored_by[desc->kv_map[il].k_src[0]];

            return quire_error_set(err, QUIRE_UNSUPP,
                                   "layer %u reads the KV of layers %u and %u, which lie on two "
                                   "devices (%.40s, %.40s): choose other shares (--tensor-split)",
                                   il, first, other, split->names[device_at(split, first)],
                                   split->names[device_at(split, other)]);
        }
    }
    return QUIRE_OK;
}

uint32_t quire_split_card_of(const quire_runtime_split *split, uint32_t il)
{
    uint32_t i = device_at(split, il);

    while (i > 0 && strcmp(split->names[i], "cpu") == 0) {
        i--;
    }
    while (i + 1 < split->n && strcmp(split->names[i], "cpu") == 0) {
        i++;
    }
    return i;
}

uint32_t quire_split_device_of(const quire_model_desc *desc, const quire_runtime_split *split,
                               uint32_t il)
{
    return quire_mixer_attends(desc->mixer[il])
               ? device_at(split, desc->stored_by[desc->kv_map[il].k_src[0]])
               : device_at(split, il);
}

/* ---- bytes ---- */

double quire_split_share(const quire_model_desc *desc, const quire_runtime_opts *opts, uint32_t i)
{
    layer_bytes *bytes = bytes_get(desc, opts);
    double most = 0.0;

    if (bytes == NULL) {
        return 1.0;
    }
    /* Main pages that only count tokens have no parts, and are no share worth counting. */
    for (uint32_t g = 0; g < bytes->groups.n; g++) {
        double own = 0.0, all = 0.0;

        for (uint32_t s = 0; s < desc->n_stored; s++) {
            all += (double)bytes->of[g][s];
            own += device_at(&opts->split, desc->stored_by[s]) == i ? (double)bytes->of[g][s] : 0.0;
        }
        most = own > most * all ? own / all : most;
    }
    free(bytes);
    return most;
}

void quire_split_ends(const quire_kv_form *form, const quire_kv_groups *groups,
                      const quire_runtime_split *split, quire_device_split_opts *out)
{
    out->n_devices = split->n;
    out->n_groups = groups->n;
    for (uint32_t g = 0; g < groups->n; g++) {
        uint32_t n_parts;
        const size_t page_bytes = quire_kv_parts(form, (quire_group_id)g, NULL, &n_parts);
        const size_t n_pages = quire_cache_extent_pages(page_bytes, n_parts);
        size_t end = 0;

        for (uint32_t i = 0; i < split->n; i++) {
            for (uint32_t s = 0; s < form->desc->n_stored; s++) {
                if (device_at(split, form->desc->stored_by[s]) == i) {
                    end += n_pages * quire_kv_part_bytes(form, (quire_group_id)g, s);
                }
            }
            out->end[g][i] = end;
        }
        /* Pages that only count tokens are the first device's. */
        for (uint32_t i = 0; end == 0 && i < split->n; i++) {
            out->end[g][i] = n_pages * page_bytes;
        }
    }
}

/* ---- words ---- */

char *quire_split_text(const quire_runtime_split *split, char *buffer, size_t buffer_bytes)
{
    size_t n = 0;

    buffer[0] = '\0';
    for (uint32_t i = 0; i < split->n && n < buffer_bytes; i++) {
        const uint32_t first = i > 0 ? split->end[i - 1] : 0;

        n += (size_t)snprintf(buffer + n, buffer_bytes - n, "%s%.20s: layers %u-%u",
                              i > 0 ? "; " : "", split->names[i], first, split->end[i] - 1);
    }
    return buffer;
}

char *quire_split_rounding_of(const quire_device *device, bool has_layers,
                              char text[QUIRE_SPLIT_ROUNDING_BYTES])
{
    quire_device_info info;

    quire_device_info_get(device, &info);
    has_layers = has_layers && info.card_rounding[0] != '\0';
    (void)snprintf(text, QUIRE_SPLIT_ROUNDING_BYTES, "%s%s%s", info.rounding,
                   has_layers ? " of " : "", has_layers ? info.card_rounding : "");
    return text;
}

char *quire_split_rounding(const quire_device_split *devices, const quire_runtime_split *split,
                           bool has_layers)
{
    const size_t bytes = QUIRE_DEVICE_SPLIT_MAX * (QUIRE_SPLIT_ROUNDING_BYTES + 16u);
    char first[QUIRE_SPLIT_ROUNDING_BYTES], own[QUIRE_SPLIT_ROUNDING_BYTES];
    char *text = malloc(bytes);
    bool is_one = true;
    int n;

    if (text == NULL) {
        return NULL;
    }
    (void)quire_split_rounding_of(quire_device_split_device(devices, 0), has_layers, first);
    n = snprintf(text, bytes, "split");
    for (uint32_t i = 0; i < split->n; i++) {
        (void)quire_split_rounding_of(quire_device_split_device(devices, i), has_layers, own);
        is_one = is_one && strcmp(own, first) == 0;
        n += snprintf(text + n, bytes - (size_t)n, " %u %s", i > 0 ? split->end[i - 1] : 0, own);
    }
    if (is_one) {
        (void)snprintf(text, bytes, "%s", first);
    }
    return text;
}
