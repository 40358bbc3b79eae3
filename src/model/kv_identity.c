/* kv_identity.c - see kv_identity.h.
 *
 * Facts are written as lines of text, numbers in decimal and floats in hexadecimal, so that the
 * result does not depend on the machine; each line is hashed together with the hash before it.
 *
 * SPDX-License-Identifier: MIT */
#include "model/kv_identity.h"

#include "base/check.h"
#include "base/hash128.h"
#include "model/backend.h"
#include "model/model_internal.h"
#include "model/runtime_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LINE_BYTES 3072u /* as many devices as a split has, with their cards */

typedef unsigned char digest[QUIRE_HASH128_BYTES];

/* Add a line. A line that does not fit the buffer is a bug: only a part of it would count. */
__attribute__((format(printf, 2, 3))) static void add(digest hash, const char *format, ...)
{
    unsigned char bytes[QUIRE_HASH128_BYTES + LINE_BYTES];
    va_list ap;
    int n;

    memcpy(bytes, hash, QUIRE_HASH128_BYTES);
    va_start(ap, format);
    n = vsnprintf((char *)bytes + QUIRE_HASH128_BYTES, LINE_BYTES, format, ap);
    va_end(ap);
    QUIRE_CHECK(n >= 0 && (size_t)n < LINE_BYTES);
    quire_hash128(bytes, QUIRE_HASH128_BYTES + (size_t)n, hash);
}

static void add_rope(digest hash, const char *name, const quire_rope *rope)
{
    add(hash, "%s %d %d %u %u %a %a %a %a %a %a\n", name, (int)rope->type, (int)rope->scaling,
        rope->n_dims, rope->ctx_orig, (double)rope->freq_base, (double)rope->freq_scale,
        (double)rope->ext_factor, (double)rope->attn_factor, (double)rope->beta_fast,
        (double)rope->beta_slow);
}

/* Hash the features that a model has. A model without such features adds nothing, so its identity
 * is the same as before the features existed. */
static void add_features(digest hash, const quire_kv_identity_facts *facts)
{
    const quire_model_desc *desc = facts->desc;
    const struct {
        const char *name;
        float value;
        float none;
    } scales[] = { { "softcap", desc->attn_softcap, 0.0f },
                   { "temperature", desc->attn_temperature, 0.0f },
                   { "embedding", desc->embd_scale, 1.0f },
                   { "residual", desc->residual_scale, 1.0f } };

    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        if (scales[i].value != scales[i].none && scales[i].value != 0.0f) {
            add(hash, "%s %a\n", scales[i].name, (double)scales[i].value);
        }
    }
    if (desc->experts.router.n_experts != 0) {
        const quire_router *r = &desc->experts.router;

        add(hash, "experts %u %u groups %u %u gating %d norm %d scale %a dense %u\n", r->n_experts,
            r->n_used, r->n_groups, r->n_groups_used, (int)r->gating, r->is_normalised,
            (double)r->scale, desc->experts.n_dense);
    }
    if (desc->recurrent.n_layers != 0) {
        add(hash, "recurrent %u taps %u width %u\n", desc->recurrent.n_layers,
            desc->recurrent.conv_taps, desc->recurrent.conv_width);
        if (desc->recurrent.n_v_heads != 0) {
            add(hash, "delta %u %u %u %d\n", desc->recurrent.n_k_heads, desc->recurrent.n_v_heads,
                desc->recurrent.d_head, desc->recurrent.is_interleaved);
            if (desc->recurrent.d_state != desc->recurrent.d_head) {
                add(hash, "state %u\n", desc->recurrent.d_state);
            }
        }
    }
    if (desc->attn_temperature != 0.0f) {
        add(hash, "temperature from %u\n", desc->attn_temperature_tokens);
    }
    if (desc->has_chunks) {
        add(hash, "chunks\n");
    }
    if (facts->is_long) {
        add(hash, "long\n");
    }
}

static void add_layer(digest hash, const quire_model_desc *desc, uint32_t il)
{
    const quire_kv_map_entry *map = &desc->kv_map[il];
    const float *xielu = desc->xielu[il];

    add(hash, "layer %u stores %d reads %u %u", il, (int)map->stored, map->n_k, map->n_v);
    if (desc->mixer[il] != QUIRE_MIXER_ATTENTION) {
        add(hash, " mixer %u", desc->mixer[il]);
    }
    for (uint32_t i = 0; i < map->n_k; i++) {
        add(hash, " K %u", map->k_src[i]);
    }
    for (uint32_t i = 0; i < map->n_v; i++) {
        add(hash, " V %u", map->v_src[i]);
    }
    if (desc->has_layer_sizes) {
        const quire_layer_sizes *s = &desc->layer_sizes[il];

        add(hash, " sizes %u %u %u", s->n_kv_head, s->d_k, s->d_v);
    }
    if (desc->window[il] != 0) {
        add(hash, " window %u", desc->window[il]);
    }
    if (desc->layer_rope[il] == QUIRE_LAYER_ROPE_WINDOW) {
        add_rope(hash, " rope", &desc->rope_window);
    } else if (desc->layer_rope[il] == QUIRE_LAYER_ROPE_NONE) {
        add(hash, " no rope");
    }
    if (xielu[0] != 0.0f || xielu[1] != 0.0f || xielu[2] != 0.0f || xielu[3] != 0.0f) {
        add(hash, " xielu %a %a %a %a", (double)xielu[0], (double)xielu[1], (double)xielu[2],
            (double)xielu[3]);
    }
}

static void add_model(digest hash, const quire_kv_identity_facts *facts)
{
    const quire_model_desc *desc = facts->desc;

    add(hash, "model %016llx\n", (unsigned long long)desc->fingerprint);
    for (uint32_t i = 0; i < QUIRE_HASH128_BYTES; i++) {
        add(hash, "%02x", facts->weights[i]);
    }
    add(hash, "shape %u %u %u %u %u %u %u %a %a\n", desc->n_layer, desc->n_stored, desc->n_embd,
        desc->n_head, desc->n_kv_head, desc->d_k, desc->d_v, (double)desc->attn_scale,
        (double)desc->rms_eps);
    add_rope(hash, "rope", &desc->rope);
    add_features(hash, facts);
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        add_layer(hash, desc, il);
    }
}

/* Returns whether bf16 is stored somewhere. */
static bool add_form(digest hash, const quire_kv_identity_facts *facts)
{
    bool has_bf16 = false;
    bool is_sealed = false;

    add(hash, "page %u\n", facts->page_tokens);
    for (uint32_t s = 0; s < facts->desc->n_stored; s++) {
        const quire_kv_identity_layer *l = &facts->stored[s];

        has_bf16 |= l->k_format == QUIRE_FORMAT_BF16 || l->v_format == QUIRE_FORMAT_BF16;
        is_sealed |= quire_format_is_sealed(l->k_format) || quire_format_is_sealed(l->v_format);
        add(hash, "stored %u K %s %u %d V %s %u\n", s, quire_format_name(l->k_format), l->rotate_k,
            l->pairs_qk, quire_format_name(l->v_format), l->rotate_v);
    }
    if (is_sealed) {
        add(hash, "hot %u %u\n", facts->kv_recent, facts->kv_sinks);
    }
    if (facts->has_window_group) {
        add(hash, "windows apart\n");
    }
    if (facts->desc->recurrent.n_layers != 0 && facts->state_format != QUIRE_FORMAT_F32) {
        add(hash, "states %s\n", quire_format_name(facts->state_format));
    }
    if (facts->has_bounds) {
        add(hash, "bounds bf16\n");
    }
    return has_bf16;
}

/* Attention kernels of one family give the same bits: the sets of CPUs with AVX-512 do, unless
 * bf16 is stored, which each of them multiplies in its own way. Memory: static, or isa itself. */
static const char *kernel_family(const char *isa, bool has_bf16)
{
    return strncmp(isa, "avx512+", strlen("avx512+")) == 0 && !has_bf16 ? "avx512" : isa;
}

static uint64_t number_of(const unsigned char *bytes)
{
    uint64_t number = 0;

    for (uint32_t i = 0; i < 8; i++) {
        number = number << 8 | bytes[i];
    }
    return number;
}

void quire_kv_identity_make(const quire_kv_identity_facts *facts, uint64_t identity[2])
{
    digest hash = { 0 };
    bool has_bf16;

    for (size_t i = 0; i < sizeof facts->versions / sizeof facts->versions[0]; i++) {
        add(hash, "version %u\n", facts->versions[i]);
    }
    add_model(hash, facts);
    has_bf16 = add_form(hash, facts);
    add(hash, "attention %s\n", kernel_family(facts->attn_isa, has_bf16));
    add(hash, "ggml %s\n", facts->ggml);
    identity[0] = number_of(hash);
    identity[1] = number_of(hash + 8);
}

void quire_kv_identity_get(const quire_runtime *rt, uint64_t identity[2])
{
    const quire_model_desc *desc = &rt->model->desc;
    quire_kv_identity_layer stored[QUIRE_LAYERS_MAX] = { 0 };
    char ggml[QUIRE_BACKEND_KERNELS_BYTES];
    quire_kv_identity_facts facts = {
        .desc = desc,
        .weights = rt->weights->digest,
        .stored = stored,
        .page_tokens = rt->opts.page_tokens,
        .kv_recent = rt->opts.kv_recent,
        .kv_sinks = rt->opts.kv_sinks,
        .state_format = rt->opts.state_format,
        .has_window_group = rt->groups.window != 0,
        .has_bounds = rt->opts.has_bounds,
        .is_long = rt->weights->rope_long != NULL && quire_runtime_is_long(rt),
        .attn_isa = rt->rounding != NULL ? rt->rounding : quire_runtime_isa(rt),
        .ggml = ggml,
        .versions = QUIRE_KV_IDENTITY_VERSIONS
    };

    quire_backend_kernels(ggml, sizeof ggml);
    for (uint32_t il = 0; il < desc->n_layer; il++) {
        const int32_t s = desc->kv_map[il].stored;
        const quire_attn_layer *layer = &rt->ops[il].layer;

        if (s >= 0) {
            stored[s] = (quire_kv_identity_layer){ .k_format = rt->pairs[s].k,
                                                   .v_format = rt->pairs[s].v,
                                                   .rotate_k = layer->k_store.rotate,
                                                   .rotate_v = layer->v_store.rotate,
                                                   .pairs_qk = quire_attn_pairs_qk(layer) };
        }
    }
    quire_kv_identity_make(&facts, identity);
}
