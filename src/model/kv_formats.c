/* kv_formats.c - pairs and lists of formats as text, and their sizes.
 *
 * SPDX-License-Identifier: MIT */
#include "model/kv_formats.h"

#include "base/check.h"
#include "base/parse.h"
#include "base/text_buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_MAX_BYTES 32 /* of one format as written */
#define SHOWN_MAX      60 /* characters of a bad text that a message repeats */

/* ---- pairs ---- */

/* The two names of a pair, both the same without a colon. Returns false when one is too long. */
static bool pair_split(const char *text, char *k, char *v)
{
    const char *colon = strchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : strlen(text);
    const char *second = colon != NULL ? colon + 1 : text;

    if (n >= NAME_MAX_BYTES || strlen(second) >= NAME_MAX_BYTES) {
        return false;
    }
    memcpy(k, text, n);
    k[n] = '\0';
    memcpy(v, second, strlen(second) + 1);
    return true;
}

int quire_kv_pair_parse(const char *text, quire_kv_pair *out)
{
    char k[NAME_MAX_BYTES];
    char v[NAME_MAX_BYTES];
    quire_kv_pair pair;

    QUIRE_FAIL_IF(!pair_split(text, k, v), QUIRE_INVAL);
    QUIRE_TRY(quire_format_parse(k, &pair.k));
    QUIRE_TRY(quire_format_parse(v, &pair.v));
    *out = pair;
    return QUIRE_OK;
}

static bool format_suggest(const char *name, quire_format *out)
{
    const char *candidates[QUIRE_FORMAT_COUNT + 1];
    const char *nearest;

    for (uint32_t f = 0; f < QUIRE_FORMAT_COUNT; f++) {
        candidates[f] = quire_format_name((quire_format)f);
    }
    candidates[QUIRE_FORMAT_COUNT] = "iq4_nl"; /* the one name of llama.cpp's that is not near */
    nearest = quire_nearest_name(name, candidates, QUIRE_FORMAT_COUNT + 1);
    if (nearest == candidates[QUIRE_FORMAT_COUNT]) {
        nearest = quire_format_name(QUIRE_FORMAT_Q4);
    }
    return nearest != NULL && quire_format_parse(nearest, out) == QUIRE_OK;
}

bool quire_kv_pair_suggest(const char *text, quire_kv_pair *out)
{
    char k[NAME_MAX_BYTES];
    char v[NAME_MAX_BYTES];

    return pair_split(text, k, v) && format_suggest(k, &out->k) && format_suggest(v, &out->v);
}

char *quire_kv_pair_name(quire_kv_pair pair, char *buffer, size_t buffer_bytes)
{
    if (pair.k == pair.v) {
        (void)snprintf(buffer, buffer_bytes, "%s", quire_format_name(pair.k));
    } else {
        (void)snprintf(buffer, buffer_bytes, "%s:%s", quire_format_name(pair.k),
                       quire_format_name(pair.v));
    }
    return buffer;
}

bool quire_kv_pair_equals(quire_kv_pair a, quire_kv_pair b)
{
    return a.k == b.k && a.v == b.v;
}

int quire_kv_choice_parse(const char *text, quire_kv_choice *out)
{
    quire_kv_choice choice = { .bits = QUIRE_KV_AUTO_BITS };

    if (strncmp(text, "auto", 4) == 0 && (text[4] == '\0' || text[4] == ':')) {
        choice.is_auto = true;
        if (text[4] == ':') {
            QUIRE_TRY(
                quire_parse_f64(text + 5, QUIRE_KV_BITS_MIN, QUIRE_KV_BITS_MAX, &choice.bits));
        }
    } else {
        QUIRE_TRY(quire_kv_pair_parse(text, &choice.pair));
    }
    *out = choice;
    return QUIRE_OK;
}

char *quire_kv_choice_name(const quire_kv_choice *choice, char *buffer, size_t buffer_bytes)
{
    if (!choice->is_auto) {
        return quire_kv_pair_name(choice->pair, buffer, buffer_bytes);
    }
    (void)snprintf(buffer, buffer_bytes, "auto:%g", choice->bits);
    return buffer;
}

void quire_kv_uniform(const quire_model_desc *desc, quire_kv_pair pair, quire_kv_pair *pairs)
{
    for (uint32_t i = 0; i < desc->n_stored; i++) {
        pairs[i] = pair;
    }
}

/* ---- lists by layers ---- */

/* The list on its way into pairs. */
typedef struct layer_list {
    const quire_model_desc *desc;
    quire_kv_pair *pairs;
    bool *is_set; /* [n_stored] */
    quire_error *err;
} layer_list;

static int fail_entry(const layer_list *list, const char *entry, const char *why)
{
    return quire_error_set(list->err, QUIRE_INVAL,
                           "'%.*s' %s: layers are LAYERS=K[:V] with semicolons between, such as "
                           "\"0-1,-2--1=q8;*=q4\"",
                           SHOWN_MAX, entry, why);
}

/* A layer number at *at, negative ones counted from the end; *at moves behind it. */
static int read_layer(const layer_list *list, const char **at, const char *entry, uint32_t *out)
{
    const char *digits = *at + (**at == '-');
    size_t n = strspn(digits, "0123456789");
    const int64_t n_stored = list->desc->n_stored;
    int64_t value = 0;

    if (n == 0) {
        return fail_entry(list, entry, "is no list of layers");
    }
    for (size_t i = 0; i < n && value < INT32_MAX; i++) {
        value = 10 * value + (digits[i] - '0');
    }
    value = **at == '-' ? n_stored - value : value;
    if (value < 0 || value >= n_stored) {
        return quire_error_set(list->err, QUIRE_RANGE,
                               "'%.*s': there is no layer %.*s; layers that store KV are 0 to %u, "
                               "or -%u to -1 from the end",
                               SHOWN_MAX, entry, (int)(digits + n - *at), *at,
                               list->desc->n_stored - 1, list->desc->n_stored);
    }
    *at = digits + n;
    *out = (uint32_t)value;
    return QUIRE_OK;
}

static void set_layers(const layer_list *list, uint32_t first, uint32_t last, quire_kv_pair pair)
{
    for (uint32_t i = first; i <= last; i++) {
        if (!list->is_set[i]) {
            list->is_set[i] = true;
            list->pairs[i] = pair;
        }
    }
}

/* "LAYERS=K[:V]" without the semicolon. */
static int read_entry(const layer_list *list, char *entry)
{
    char *equals = strchr(entry, '=');
    const char *at = entry;
    quire_kv_pair pair;

    if (equals == NULL) {
        return fail_entry(list, entry, "has no '='");
    }
    if (quire_kv_pair_parse(equals + 1, &pair) < 0) {
        char name[24];
        bool is_near = quire_kv_pair_suggest(equals + 1, &pair);

        return quire_error_set(
            list->err, QUIRE_INVAL, "'%.*s': unknown format '%.*s'%s%s%s", SHOWN_MAX, entry,
            SHOWN_MAX, equals + 1, is_near ? " (did you mean " : "",
            is_near ? quire_kv_pair_name(pair, name, sizeof(name)) : "", is_near ? "?)" : "");
    }
    for (;;) {
        uint32_t first = 0;
        uint32_t last = list->desc->n_stored - 1;

        if (*at == '*') {
            at++;
        } else {
            QUIRE_TRY(read_layer(list, &at, entry, &first));
            last = first;
            if (*at == '-') {
                at++;
                QUIRE_TRY(read_layer(list, &at, entry, &last));
            }
        }
        if (first > last) {
            return fail_entry(list, entry, "has a range that ends before it begins");
        }
        set_layers(list, first, last, pair);
        if (at == equals) {
            return QUIRE_OK;
        }
        if (*at != ',') {
            return fail_entry(list, entry, "is no list of layers");
        }
        at++;
    }
}

static int read_list(const layer_list *list, char *text)
{
    for (char *entry = text, *next; entry != NULL; entry = next) {
        next = strchr(entry, ';');
        if (next != NULL) {
            *next++ = '\0';
        }
        QUIRE_TRY(read_entry(list, entry));
    }
    for (uint32_t i = 0; i < list->desc->n_stored; i++) {
        if (!list->is_set[i]) {
            return quire_error_set(list->err, QUIRE_INVAL,
                                   "layer %u gets no format: end the list with \";*=FORMAT\"", i);
        }
    }
    return QUIRE_OK;
}

int quire_kv_layers_parse(const char *text, const quire_model_desc *desc, quire_kv_pair *pairs,
                          quire_error *err)
{
    layer_list list = { .desc = desc, .err = err };
    char *copy = malloc(strlen(text) + 1);
    int rc = QUIRE_NOMEM;

    list.is_set = calloc(desc->n_stored, sizeof(*list.is_set));
    list.pairs = calloc(desc->n_stored, sizeof(*list.pairs));
    if (copy != NULL && list.is_set != NULL && list.pairs != NULL) {
        memcpy(copy, text, strlen(text) + 1);
        rc = read_list(&list, copy);
    } else {
        quire_error_set(err, rc, "out of memory");
    }
    if (rc == QUIRE_OK) {
        memcpy(pairs, list.pairs, desc->n_stored * sizeof(*pairs));
    }
    free(list.pairs);
    free(list.is_set);
    free(copy);
    return rc;
}

/* ---- chosen formats as text ---- */

/* Whether layer i is the first with its pair. */
static bool is_first_of(const quire_kv_pair *pairs, uint32_t i)
{
    for (uint32_t j = 0; j < i; j++) {
        if (quire_kv_pair_equals(pairs[j], pairs[i])) {
            return false;
        }
    }
    return true;
}

/* Layers from i on with pair i; in a row only, or all. */
static uint32_t count_like(const quire_model_desc *desc, const quire_kv_pair *pairs, uint32_t i,
                           bool is_run)
{
    uint32_t n = 0;

    for (uint32_t j = i; j < desc->n_stored; j++) {
        if (quire_kv_pair_equals(pairs[j], pairs[i])) {
            n++;
        } else if (is_run) {
            break;
        }
    }
    return n;
}

char *quire_kv_layers_text(const quire_model_desc *desc, const quire_kv_pair *pairs, char *buffer,
                           size_t buffer_bytes)
{
    quire_text t = { buffer, buffer_bytes, 0 };
    char name[24];

    buffer[0] = '\0';
    for (uint32_t i = 0; i < desc->n_stored; i++) {
        const char *between = i > 0 ? ";" : "";

        if (!is_first_of(pairs, i)) {
            continue;
        }
        if (count_like(desc, pairs, i, false) == desc->n_stored) {
            quire_text_add(&t, "*");
        } else {
            for (uint32_t j = i, n; j < desc->n_stored; j += n) {
                n = 1;
                if (quire_kv_pair_equals(pairs[j], pairs[i])) {
                    n = count_like(desc, pairs, j, true);
                    quire_text_add(&t, "%s%u", between, j);
                    if (n > 1) {
                        quire_text_add(&t, "-%u", j + n - 1);
                    }
                    between = ",";
                }
            }
        }
        quire_text_add(&t, "=%s", quire_kv_pair_name(pairs[i], name, sizeof(name)));
    }
    return buffer;
}

char *quire_kv_summary(const quire_model_desc *desc, const quire_kv_pair *pairs, char *buffer,
                       size_t buffer_bytes)
{
    quire_text t = { buffer, buffer_bytes, 0 };
    char name[24];

    buffer[0] = '\0';
    for (uint32_t i = 0; i < desc->n_stored; i++) {
        uint32_t n;

        if (!is_first_of(pairs, i)) {
            continue;
        }
        n = count_like(desc, pairs, i, false);
        quire_text_add(&t, "%s%s", i > 0 ? ", " : "",
                       quire_kv_pair_name(pairs[i], name, sizeof(name)));
        if (n < desc->n_stored) {
            quire_text_add(&t, " in %u%s", n, i > 0 ? "" : n == 1 ? " layer" : " layers");
        }
    }
    return buffer;
}

/* ---- sizes ---- */

/* Tile sizes are multiples of 64 bytes and a tile holds 64 tokens, so nothing is rounded. */
uint64_t quire_kv_side_bytes_per_token(const quire_model_desc *desc, uint32_t stored,
                                       quire_format format, quire_side side)
{
    const uint32_t d = quire_kv_dims(desc, stored, side);
    const uint64_t n_heads = quire_stored_sizes_of(desc, stored).n_kv_head;

    return n_heads * (quire_tile_bytes(format, side, d) / QUIRE_TILE_TOKENS);
}

static uint64_t pair_hot_bytes(const quire_model_desc *desc, uint32_t stored, quire_kv_pair pair)
{
    uint64_t bytes = 0;

    if (quire_format_is_sealed(pair.k)) {
        bytes += quire_kv_side_bytes_per_token(desc, stored, QUIRE_FORMAT_HOT, QUIRE_SIDE_K);
    }
    if (quire_format_is_sealed(pair.v)) {
        bytes += quire_kv_side_bytes_per_token(desc, stored, QUIRE_FORMAT_HOT, QUIRE_SIDE_V);
    }
    return bytes;
}

uint64_t quire_kv_layer_bytes_per_token(const quire_model_desc *desc, uint32_t stored,
                                        quire_kv_pair pair)
{
    return quire_kv_side_bytes_per_token(desc, stored, pair.k, QUIRE_SIDE_K) +
           quire_kv_side_bytes_per_token(desc, stored, pair.v, QUIRE_SIDE_V);
}

uint64_t quire_kv_bytes_per_token(const quire_model_desc *desc, const quire_kv_pair *pairs)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < desc->n_stored; i++) {
        bytes += quire_kv_layer_bytes_per_token(desc, i, pairs[i]);
    }
    return bytes;
}

uint64_t quire_kv_hot_bytes_per_token(const quire_model_desc *desc, const quire_kv_pair *pairs)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < desc->n_stored; i++) {
        bytes += pair_hot_bytes(desc, i, pairs[i]);
    }
    return bytes;
}

uint64_t quire_kv_uniform_bytes_per_token(const quire_model_desc *desc, quire_kv_pair pair)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < desc->n_stored; i++) {
        bytes += quire_kv_layer_bytes_per_token(desc, i, pair);
    }
    return bytes;
}

uint64_t quire_kv_uniform_hot_bytes_per_token(const quire_model_desc *desc, quire_kv_pair pair)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < desc->n_stored; i++) {
        bytes += pair_hot_bytes(desc, i, pair);
    }
    return bytes;
}

uint64_t quire_kv_values_per_token(const quire_model_desc *desc)
{
    uint64_t n = 0;

    for (uint32_t i = 0; i < desc->n_stored; i++) {
        n += (uint64_t)quire_stored_sizes_of(desc, i).n_kv_head *
             (quire_kv_dims(desc, i, QUIRE_SIDE_K) + quire_kv_dims(desc, i, QUIRE_SIDE_V));
    }
    return n;
}

double quire_kv_bits(const quire_model_desc *desc, const quire_kv_pair *pairs)
{
    return 8.0 * (double)quire_kv_bytes_per_token(desc, pairs) /
           (double)quire_kv_values_per_token(desc);
}

double quire_kv_uniform_bits(const quire_model_desc *desc, quire_kv_pair pair)
{
    return 8.0 * (double)quire_kv_uniform_bytes_per_token(desc, pair) /
           (double)quire_kv_values_per_token(desc);
}

bool quire_kv_is_sealed(const quire_model_desc *desc, const quire_kv_pair *pairs)
{
    return quire_kv_hot_bytes_per_token(desc, pairs) > 0;
}

double quire_kv_hot_share(uint32_t begin, uint32_t end, uint32_t recent, uint32_t sinks)
{
    uint64_t n_hot = 0;
    uint64_t n_all = 0;

    for (uint64_t query = begin; query < end; query++) {
        uint64_t n_seen = query + 1;
        uint64_t tile = query / QUIRE_TILE_TOKENS;
        uint64_t n_tiles = recent / QUIRE_TILE_TOKENS;
        uint64_t first_recent = tile > n_tiles ? (tile - n_tiles) * QUIRE_TILE_TOKENS : 0;
        uint64_t n_sealed = first_recent > sinks ? first_recent - sinks : 0;

        n_hot += n_seen - n_sealed;
        n_all += n_seen;
    }
    return n_all != 0 ? (double)n_hot / (double)n_all : 0.0;
}
