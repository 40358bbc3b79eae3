/* shape.c - schemes and their check; see shape.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/shape.h"

#include "base/check.h"
#include "base/parse.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MAP_NONE (-1)

static void store_layer(quire_train_shape *s, uint32_t layer)
{
    s->source_k[layer][0] = s->source_v[layer][0] = (int32_t)layer;
    s->source_k[layer][1] = s->source_v[layer][1] = MAP_NONE;
    s->is_gated_k[layer] = s->is_gated_v[layer] = false;
    s->is_mixed_k[layer] = s->is_mixed_v[layer] = false;
    s->window[layer] = 0;
}

static void read_layers(quire_train_shape *s, uint32_t layer, int32_t k, int32_t v)
{
    s->source_k[layer][0] = k;
    s->source_v[layer][0] = v;
}

static void map_cla2(quire_train_shape *s)
{
    for (uint32_t i = 1; i < s->n_layer; i += 2) {
        read_layers(s, i, (int32_t)i - 1, (int32_t)i - 1);
    }
}

/* The lower half stores. An odd layer more stores too, so that the halves of even counts are equal.
 */
static uint32_t first_reader(const quire_train_shape *s)
{
    return s->n_layer - s->n_layer / 2;
}

static void map_yoco(quire_train_shape *s)
{
    int32_t middle = (int32_t)first_reader(s) - 1;

    for (uint32_t i = first_reader(s); i < s->n_layer; i++) {
        read_layers(s, i, middle, middle);
    }
}

static void map_yoco_mixed(quire_train_shape *s)
{
    map_yoco(s);
    for (uint32_t i = 1; i < first_reader(s); i++) {
        s->is_mixed_k[i] = s->is_mixed_v[i] = true;
    }
}

static void map_lite(quire_train_shape *s)
{
    for (uint32_t i = first_reader(s); i < s->n_layer; i++) {
        read_layers(s, i, (int32_t)first_reader(s) - 1, 0);
    }
}

static void map_lite_learnable(quire_train_shape *s)
{
    map_lite(s);
    for (uint32_t i = first_reader(s); i < s->n_layer; i++) {
        s->is_gated_k[i] = s->is_gated_v[i] = true;
    }
}

/* With two layers the bottom one is the middle one too: one source. */
static void map_fused(quire_train_shape *s)
{
    int32_t middle = (int32_t)first_reader(s) - 1;

    for (uint32_t i = first_reader(s); i < s->n_layer; i++) {
        read_layers(s, i, 0, 0);
        s->source_k[i][1] = s->source_v[i][1] = middle > 0 ? middle : MAP_NONE;
        s->is_gated_k[i] = s->is_gated_v[i] = true;
    }
}

static const struct {
    const char *name;
    void (*map)(quire_train_shape *s); /* of layers that read others; NULL: none does */
} schemes[] = {
    { "mha", NULL },
    { "gqa", NULL },
    { "mqa", NULL },
    { "cla2", map_cla2 },
    { "yoco", map_yoco },
    { "yoco++", map_yoco_mixed },
    { "fusedkv", map_fused },
    { "fusedkv-lite", map_lite },
    { "fusedkv-lite-learnable", map_lite_learnable },
};
#define SCHEMES (sizeof(schemes) / sizeof(schemes[0]))

const char *const *quire_train_scheme_names(void)
{
    static const char *const names[] = { "mha",     "gqa",          "mqa",
                                         "cla2",    "yoco",         "yoco++",
                                         "fusedkv", "fusedkv-lite", "fusedkv-lite-learnable",
                                         NULL };
    _Static_assert(sizeof(names) / sizeof(names[0]) == SCHEMES + 1, "the table's names");

    return names;
}

static int heads_check(const quire_train_shape *s, const char *scheme, quire_error *err)
{
    const char *wanted = NULL;

    if (strcmp(scheme, "mha") == 0 && s->n_kv_head != s->n_head) {
        wanted = "as many KV heads as heads";
    } else if (strcmp(scheme, "mqa") == 0 && s->n_kv_head != 1) {
        wanted = "one KV head";
    } else if (strcmp(scheme, "gqa") == 0 && s->n_kv_head >= s->n_head) {
        wanted = "fewer KV heads than heads";
    }
    if (wanted != NULL) {
        return quire_error_set(err, QUIRE_INVAL, "scheme %s needs %s, not %u of %u", scheme, wanted,
                               s->n_kv_head, s->n_head);
    }
    return QUIRE_OK;
}

int quire_train_scheme_set(quire_train_shape *s, const char *name, quire_error *err)
{
    const char *const *names = quire_train_scheme_names();
    const char *nearest;
    size_t i = 0;

    while (i < SCHEMES && strcmp(schemes[i].name, name) != 0) {
        i++;
    }
    if (i == SCHEMES) {
        nearest = quire_nearest_name(name, names, SCHEMES);
        return quire_error_set(err, QUIRE_INVAL, "no scheme \"%s\"%s%s%s", name,
                               nearest != NULL ? "; is \"" : "", nearest != NULL ? nearest : "",
                               nearest != NULL ? "\" meant?" : "");
    }
    if (s->n_layer > QUIRE_TRAIN_LAYERS_MAX || (schemes[i].map != NULL && s->n_layer < 2)) {
        return quire_error_set(err, QUIRE_INVAL, "scheme %s with %u layers: 2 to %u are possible",
                               name, s->n_layer, QUIRE_TRAIN_LAYERS_MAX);
    }
    QUIRE_TRY(heads_check(s, name, err));
    (void)snprintf(s->scheme, sizeof(s->scheme), "%s", name);
    for (uint32_t layer = 0; layer < s->n_layer; layer++) {
        store_layer(s, layer);
    }
    if (schemes[i].map != NULL) {
        schemes[i].map(s);
    }
    return QUIRE_OK;
}

int quire_train_window_set(quire_train_shape *s, uint32_t window, quire_error *err)
{
    if (strcmp(s->scheme, "yoco") != 0 && strcmp(s->scheme, "yoco++") != 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "a window belongs to the schemes yoco and yoco++, not to %s",
                               s->scheme);
    }
    for (uint32_t i = 0; i + 1 < first_reader(s); i++) {
        s->window[i] = window;
    }
    return QUIRE_OK;
}

bool quire_train_is_plain(const quire_train_shape *s)
{
    bool is_plain = true;

    for (uint32_t i = 0; i < s->n_layer; i++) {
        is_plain = is_plain && quire_train_stores_k(s, i) && quire_train_stores_v(s, i) &&
                   !s->is_mixed_k[i] && !s->is_mixed_v[i] && s->window[i] == 0;
    }
    return is_plain;
}

static int factors_check(const quire_train_shape *s, quire_error *err)
{
    if (s->d_head / 2 > QUIRE_TRAIN_PAIRS_MAX) {
        return quire_error_set(err, QUIRE_INVAL,
                               "factors of RoPE's frequencies and a head of %u: at most %u are "
                               "possible",
                               s->d_head, 2 * QUIRE_TRAIN_PAIRS_MAX);
    }
    for (uint32_t i = 0; i < s->d_head / 2; i++) {
        if (!(s->rope_factors[i] > 0) || !isfinite(s->rope_factors[i])) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "factor %u of RoPE's frequencies is %g: it must be above 0", i,
                                   (double)s->rope_factors[i]);
        }
    }
    return QUIRE_OK;
}

static int sizes_check(const quire_train_shape *s, quire_error *err)
{
    const struct {
        const char *name;
        uint32_t value;
        uint32_t most;
    } sizes[] = {
        { "vocabulary", s->n_vocab, QUIRE_TRAIN_SIZE_MAX },
        { "layers", s->n_layer, QUIRE_TRAIN_LAYERS_MAX },
        { "width", s->d_model, QUIRE_TRAIN_SIZE_MAX },
        { "heads", s->n_head, QUIRE_TRAIN_SIZE_MAX },
        { "KV heads", s->n_kv_head, QUIRE_TRAIN_SIZE_MAX },
        { "head size", s->d_head, QUIRE_TRAIN_SIZE_MAX },
        { "feed-forward size", s->d_ff, QUIRE_TRAIN_SIZE_MAX },
    };

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i].value == 0 || sizes[i].value > sizes[i].most) {
            return quire_error_set(err, QUIRE_INVAL, "%s: %u; 1 to %u are possible", sizes[i].name,
                                   sizes[i].value, sizes[i].most);
        }
    }
    if (s->n_head % s->n_kv_head != 0) {
        return quire_error_set(err, QUIRE_INVAL, "%u heads cannot share %u KV heads evenly",
                               s->n_head, s->n_kv_head);
    }
    if (s->d_head % 2 != 0 || (uint64_t)s->n_head * s->d_head > QUIRE_TRAIN_SIZE_MAX) {
        return quire_error_set(err, QUIRE_INVAL,
                               "head size %u: RoPE needs an even one, and all %u heads at most %u",
                               s->d_head, s->n_head, QUIRE_TRAIN_SIZE_MAX);
    }
    if (!(s->rope_base > 1) || !(s->norm_epsilon >= 0) ||
        !isfinite(s->rope_base + s->norm_epsilon)) {
        return quire_error_set(err, QUIRE_INVAL, "RoPE base %g, norm epsilon %g are not possible",
                               s->rope_base, s->norm_epsilon);
    }
    return s->has_rope_factors ? factors_check(s, err) : QUIRE_OK;
}

/* One side of one layer. */
typedef struct map_side {
    char name; /* 'K', 'V' */
    const int32_t (*sources)[2];
    const bool *is_gated;
    const bool *is_mixed;
} map_side;

static int source_check(const map_side *side, uint32_t layer, int32_t source, quire_error *err)
{
    if (source < 0 || source >= (int32_t)layer) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%c of layer %u comes from layer %d, which is not below it",
                               side->name, layer, source);
    }
    if (side->sources[source][0] != source) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%c of layer %u comes from layer %d, which stores none", side->name,
                               layer, source);
    }
    return QUIRE_OK;
}

static int side_check(const map_side *side, uint32_t layer, quire_error *err)
{
    const int32_t *sources = side->sources[layer];

    if (side->is_mixed[layer] && (layer == 0 || sources[0] != (int32_t)layer)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%c of layer %u is a mix, and only layers above layer 0 that store "
                               "can have one",
                               side->name, layer);
    }
    if (sources[0] == (int32_t)layer) {
        if (sources[1] != MAP_NONE || side->is_gated[layer]) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "layer %u stores its %c and has a second source or a gate",
                                   layer, side->name);
        }
        return QUIRE_OK;
    }
    QUIRE_TRY(source_check(side, layer, sources[0], err));
    if (sources[1] == MAP_NONE) {
        return QUIRE_OK;
    }
    QUIRE_TRY(source_check(side, layer, sources[1], err));
    if (sources[1] == sources[0] || !side->is_gated[layer]) {
        return quire_error_set(err, QUIRE_INVAL,
                               "%c of layer %u: two sources (%d, %d) must differ and have gates",
                               side->name, layer, sources[0], sources[1]);
    }
    return QUIRE_OK;
}

int quire_train_shape_check(const quire_train_shape *s, quire_error *err)
{
    const map_side k = { 'K', s->source_k, s->is_gated_k, s->is_mixed_k };
    const map_side v = { 'V', s->source_v, s->is_gated_v, s->is_mixed_v };

    QUIRE_TRY(sizes_check(s, err));
    if ((int)s->gate_form < QUIRE_GATE_HALF || s->gate_form > QUIRE_GATE_HEADS) {
        return quire_error_set(err, QUIRE_INVAL, "no gate form %d", (int)s->gate_form);
    }
    for (uint32_t layer = 0; layer < s->n_layer; layer++) {
        QUIRE_TRY(side_check(&k, layer, err));
        QUIRE_TRY(side_check(&v, layer, err));
    }
    return QUIRE_OK;
}

uint32_t quire_train_gate_size(const quire_train_shape *s)
{
    switch (s->gate_form) {
    case QUIRE_GATE_HALF:
        return s->d_head / 2;
    case QUIRE_GATE_FULL:
        return s->d_head;
    default:
        return s->n_kv_head * s->d_head;
    }
}
