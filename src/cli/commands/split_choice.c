/* split_choice.c - see split_choice.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/split_choice.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/device_choice.h"
#include "model/runtime_split.h"

#include <stdio.h>
#include <string.h>

#define SHARE_MAX   1e6
#define SHARE_CHARS 32u

/* Cut the next word off a list with commas; NULL: none is left. */
static const char *word_next(const char **rest, size_t *n)
{
    const char *word = *rest;

    if (word == NULL) {
        return NULL;
    }
    *n = strcspn(word, ",");
    *rest = word[*n] == ',' ? word + *n + 1 : NULL;
    return word;
}

static int names_read(quire_split_choice *out, const char *text, quire_error *err)
{
    const char *rest = text;
    const char *word;
    size_t n;

    while ((word = word_next(&rest, &n)) != NULL) {
        if (out->n == QUIRE_DEVICE_SPLIT_MAX) {
            return quire_error_set(err, QUIRE_INVAL, "device: more than %u names for layers",
                                   QUIRE_DEVICE_SPLIT_MAX);
        }
        if (n == 0 || n >= QUIRE_SPLIT_NAME_BYTES || (n == 4 && memcmp(word, "auto", n) == 0)) {
            return quire_error_set(err, QUIRE_INVAL, "device: '%.*s' among several names",
                                   (int)(n < 40 ? n : 40), word);
        }
        (void)snprintf(out->names[out->n++], QUIRE_SPLIT_NAME_BYTES, "%.*s", (int)n, word);
    }
    return QUIRE_OK;
}

static int shares_read(quire_split_choice *out, const char *text, quire_error *err)
{
    const char *rest = text;
    const char *word;
    uint32_t n_shares = 0;
    size_t n;

    while ((word = word_next(&rest, &n)) != NULL) {
        char number[SHARE_CHARS];
        double share = 0.0;

        (void)snprintf(number, sizeof number, "%.*s", (int)(n < SHARE_CHARS ? n : SHARE_CHARS),
                       word);
        if (n >= SHARE_CHARS || quire_parse_f64(number, 0.0, SHARE_MAX, &share) < 0 ||
            share <= 0.0) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "--tensor-split: '%.*s' is no share above 0 and up to %g",
                                   (int)(n < 40 ? n : 40), word, SHARE_MAX);
        }
        if (n_shares < out->n) {
            out->shares[n_shares] = share;
        }
        n_shares++;
    }
    out->has_shares = true;
    return n_shares == out->n
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL, "--tensor-split: %u shares for %u devices",
                                 n_shares, out->n);
}

int quire_split_choice_read(quire_split_choice *out, const quire_common_args *args,
                            quire_error *err)
{
    *out = (quire_split_choice){ .n = 0 };
    if (args->split_mode == QUIRE_SPLIT_ROW) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "--split-mode row: rows of matrices are not split between devices; "
                               "layer gives each device some of the layers");
    }
    if (args->split_mode == QUIRE_SPLIT_NONE) {
        return args->tensor_split == NULL
                   ? QUIRE_OK
                   : quire_error_set(err, QUIRE_INVAL,
                                     "--tensor-split needs --split-mode layer: without it each "
                                     "device has all layers");
    }
    if (args->device == NULL || strchr(args->device, ',') == NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--split-mode layer needs several names in --device, with commas "
                               "between");
    }
    QUIRE_TRY(names_read(out, args->device, err));
    return args->tensor_split != NULL ? shares_read(out, args->tensor_split, err) : QUIRE_OK;
}

/* Cards that are named twice have the weights of both places once. */
int quire_split_choice_layers(quire_split_choice *choice, quire_model_opts *opts, int64_t n_layers,
                              quire_error *err)
{
    const char *names[QUIRE_DEVICE_SPLIT_MAX];
    uint32_t n = 0;

    for (uint32_t i = 0; i < choice->n && n_layers > 0; i++) {
        uint32_t k = 0;

        while (k < n && strcmp(names[k], choice->names[i]) != 0) {
            k++;
        }
        if (!quire_device_is_cpu(choice->names[i])) {
            choice->layers[i] = k == n ? n + 1 : 0;
            choice->card[i] = k;
            names[k] = choice->names[i];
            n = k == n ? n + 1 : n;
        }
    }
    if (n_layers > 0 && n == 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "-ngl and --split-mode layer: weights can be on cards alone, and "
                               "--device names none");
    }
    QUIRE_TRY(n > 0 ? quire_device_layers(opts, names, n, n_layers, err) : QUIRE_OK);
    memcpy(choice->devices, opts->devices, sizeof choice->devices);
    memset(opts->devices, 0, sizeof opts->devices);
    choice->n_devices = n;
    opts->n_sets = 1;
    return QUIRE_OK;
}

void quire_split_choice_weights(const quire_split_choice *choice, const quire_model_desc *desc,
                                const quire_runtime_split *split, quire_model_split *out)
{
    *out = (quire_model_split){ .n = choice->n_devices };
    memcpy(out->devices, choice->devices, sizeof out->devices);
    for (uint32_t il = 0; il <= desc->n_layer; il++) {
        const uint32_t layer = il < desc->n_layer ? il : il - 1; /* the output is behind the last */

        out->of[il] = (uint8_t)choice->card[quire_split_card_of(split, layer)];
    }
}

int quire_split_choice_look(const quire_split_choice *choice, const char *name,
                            quire_memory_place *out, quire_error *err)
{
    *out = (quire_memory_place){ .name = name, .bytes = UINT64_MAX, .n_parts = choice->n };
    for (uint32_t i = 0; i < choice->n; i++) {
        QUIRE_TRY(quire_device_memory_look(&out->parts[i], choice->names[i], err));
        out->parts[i].layers = choice->layers[i];
    }
    return QUIRE_OK;
}

/* Memory of devices of one name is divided among them. */
static void shares_of_memory(const quire_memory_place *place, uint64_t host_bytes, double *shares)
{
    bool is_known = true;

    for (uint32_t i = 0; i < place->n_parts; i++) {
        const quire_memory_part *part = &place->parts[i];
        uint32_t n = 0;

        for (uint32_t k = 0; k < place->n_parts; k++) {
            n += strcmp(place->parts[k].name, part->name) == 0;
        }
        is_known = is_known && (part->is_cpu || part->bytes != UINT64_MAX);
        shares[i] = (double)(part->is_cpu ? host_bytes : part->bytes) / n;
    }
    for (uint32_t i = 0; i < place->n_parts; i++) {
        shares[i] = !is_known ? 1.0 : shares[i] > 1.0 ? shares[i] : 1.0;
    }
}

int quire_split_choice_apply(const quire_split_choice *choice, const quire_memory_place *place,
                             uint64_t limit_bytes, const quire_model_desc *desc,
                             quire_runtime_opts *opts, quire_error *err)
{
    const uint64_t weights_bytes = desc->resident_bytes;
    quire_runtime_opts resolved = *opts;
    double shares[QUIRE_DEVICE_SPLIT_MAX];

    if (choice->n == 0) {
        return QUIRE_OK;
    }
    memcpy(shares, choice->shares, sizeof shares);
    if (!choice->has_shares) {
        shares_of_memory(place, limit_bytes > weights_bytes ? limit_bytes - weights_bytes : 0,
                         shares);
    }
    opts->device = place->name;
    opts->split.n = choice->n;
    memcpy(opts->split.names, choice->names, sizeof choice->names);
    quire_runtime_opts_resolve(desc, &resolved);
    if (choice->has_ends) {
        memcpy(opts->split.end, choice->end, sizeof opts->split.end);
        resolved.split = opts->split;
        return quire_split_check(desc, &resolved, err);
    }
    return quire_split_divide(desc, &resolved, shares, &opts->split, err);
}
