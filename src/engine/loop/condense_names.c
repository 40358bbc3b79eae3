/* condense_names.c - see condense_names.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/condense_names.h"

#include "base/check.h"
#include "base/hash128.h"
#include "engine/condensing.h"
#include "engine/loop/loop_object.h"

#include <string.h>

#define RULES     "quire condensed text 2" /* change it with the rules of condensing.c */
#define TEXT_ROOM (QUIRE_CONDENSING_NAME_MAX + QUIRE_PREFIX_SALT_MAX)

/* ---- the set ---- */

/* An invalidation finds condensed texts by their entries, so pages do not outlive these. */
static void leaves(void *ctx, quire_condensed entry)
{
    quire_loop *loop = ctx;
    uint32_t n_bytes;
    const void *tenant = quire_loop_condensed_tenant(loop, entry, &n_bytes);
    const quire_prefix_key key = quire_loop_condensed_key(loop, tenant, n_bytes, entry);

    (void)quire_prefix_drop_prefix(loop->tree, &key, NULL, 0, quire_loop_now_us(loop));
}

int quire_loop_condensed_create(quire_loop *loop)
{
    quire_condensed_set_opts opts = { .n_max = QUIRE_CONDENSED_MAX, .leaves = leaves, .ctx = loop };
    unsigned char bytes[sizeof RULES + 2 * sizeof(uint64_t)] = RULES;

    (void)quire_le_put(quire_le_put(bytes + sizeof RULES, loop->identity[0], 8), loop->identity[1],
                       8);
    quire_condensed_name_add(&opts.base, bytes, sizeof bytes, &opts.base);
    return quire_condensed_set_create(&loop->condensed, &opts);
}

uint64_t quire_condensing_names_bytes(uint32_t n_tokens)
{
    return quire_condensed_set_bytes(QUIRE_CONDENSED_MAX, n_tokens * (uint32_t)sizeof(int32_t));
}

/* ---- texts ---- */

/* The bytes of a text's entry for policy and tenant. Returns their number. */
static uint32_t first_bytes(const quire_condensed_text *text, unsigned char bytes[TEXT_ROOM])
{
    const size_t n = strlen(text->condensing->name) + 1;

    memcpy(bytes, text->condensing->name, n);
    if (text->tenant_bytes > 0) {
        memcpy(bytes + n, text->tenant, text->tenant_bytes);
    }
    return (uint32_t)n + text->tenant_bytes;
}

/* Chunk number i of a text. */
static const int32_t *chunk_at(const quire_condensed_text *text, uint32_t i)
{
    return text->tokens + (size_t)i * text->condensing->chunk;
}

static uint32_t chunk_bytes(const quire_condensed_text *text)
{
    return text->condensing->chunk * (uint32_t)sizeof(int32_t);
}

quire_condensed quire_loop_condensed_find(const quire_loop *loop, const quire_condensed_text *text,
                                          uint32_t k_max, uint32_t *k)
{
    unsigned char bytes[TEXT_ROOM];
    quire_condensed entry = quire_condensed_find(loop->condensed, QUIRE_CONDENSED_NULL, bytes,
                                                 first_bytes(text, bytes));

    *k = 0;
    while (entry != QUIRE_CONDENSED_NULL && *k < k_max) {
        const quire_condensed next =
            quire_condensed_find(loop->condensed, entry, chunk_at(text, *k), chunk_bytes(text));

        if (next == QUIRE_CONDENSED_NULL) {
            break;
        }
        entry = next;
        ++*k;
    }
    return entry;
}

quire_condensed quire_loop_condensed_hold(quire_loop *loop, const quire_condensed_text *text,
                                          uint32_t k)
{
    unsigned char bytes[TEXT_ROOM];
    quire_condensed entry = quire_condensed_hold(loop->condensed, QUIRE_CONDENSED_NULL, bytes,
                                                 first_bytes(text, bytes));

    for (uint32_t i = 0; i < k && entry != QUIRE_CONDENSED_NULL; i++) {
        const quire_condensed parent = entry;

        entry = quire_condensed_hold(loop->condensed, parent, chunk_at(text, i), chunk_bytes(text));
        quire_condensed_release(loop->condensed, parent);
    }
    return entry;
}

/* ---- pins ---- */

int quire_loop_retained_hold(quire_loop *loop, const quire_retain_spec *spec,
                             const quire_loop_text *of, quire_retained_text *out)
{
    quire_condensing condensing = { .chunk = 0 };
    const quire_condensed_text text = { &condensing, of->tokens, of->tenant, of->tenant_bytes };
    uint32_t k;

    *out = (quire_retained_text){ .entry = QUIRE_CONDENSED_NULL };
    if (spec != NULL) {
        quire_condensing_init(&condensing, spec, loop->opts.retain_chunk,
                              loop->runtime_opts->page_tokens, &loop->lanes.parts);
    }
    k = quire_condensing_before(&condensing, of->n_tokens - 1);
    if (k > 0) {
        out->entry = quire_loop_condensed_hold(loop, &text, k);
        QUIRE_FAIL_IF(out->entry == QUIRE_CONDENSED_NULL, QUIRE_LIMIT);
    }
    out->n_gone = quire_condensing_gone(&condensing, k);
    out->key = quire_loop_condensed_key(loop, of->tenant, of->tenant_bytes, out->entry);
    return QUIRE_OK;
}

void quire_loop_retained_release(quire_loop *loop, uint32_t entry)
{
    quire_condensed_release(loop->condensed, entry);
}

/* ---- names and keys ---- */

quire_condensed_name quire_loop_condensed_name(const quire_loop *loop,
                                               const quire_condensed_text *text)
{
    unsigned char bytes[TEXT_ROOM];
    quire_condensed_name name = *quire_condensed_name_of(loop->condensed, QUIRE_CONDENSED_NULL);

    quire_condensed_name_add(&name, bytes, first_bytes(text, bytes), &name);
    return name;
}

void quire_condensed_text_next(const quire_condensed_text *text, uint32_t k,
                               quire_condensed_name *name)
{
    quire_condensed_name_add(name, chunk_at(text, k), chunk_bytes(text), name);
}

quire_prefix_key quire_condensed_name_key(const quire_condensed_name *name, const void *tenant,
                                          uint32_t tenant_bytes)
{
    return (quire_prefix_key){
        .identity = { quire_le_get(name->bytes, 8), quire_le_get(name->bytes + 8, 8) },
        .salt = tenant,
        .salt_bytes = tenant_bytes,
    };
}

quire_prefix_key quire_loop_condensed_key(const quire_loop *loop, const void *tenant,
                                          uint32_t tenant_bytes, quire_condensed entry)
{
    return entry == QUIRE_CONDENSED_NULL
               ? quire_loop_key(loop, tenant, tenant_bytes)
               : quire_condensed_name_key(quire_condensed_name_of(loop->condensed, entry), tenant,
                                          tenant_bytes);
}

static quire_condensed_text walk_text(const quire_condensed_walk *walk)
{
    return (quire_condensed_text){ &walk->condensing, walk->of.tokens, walk->of.tenant,
                                   walk->of.tenant_bytes };
}

void quire_condensed_walk_begin(const quire_loop *loop, const quire_retain_spec *spec,
                                const quire_loop_text *text, quire_condensed_walk *walk)
{
    quire_condensed_text named;

    *walk = (quire_condensed_walk){ .of = *text };
    quire_condensing_init(&walk->condensing, spec, loop->opts.retain_chunk,
                          loop->runtime_opts->page_tokens, &loop->lanes.parts);
    named = walk_text(walk);
    walk->name = quire_loop_condensed_name(loop, &named);
}

bool quire_condensed_walk_next(quire_condensed_walk *walk, quire_prefix_key *key)
{
    const quire_condensed_text text = walk_text(walk);

    if (walk->k == quire_condensing_before(&walk->condensing, walk->of.n_tokens - 1)) {
        return false;
    }
    quire_condensed_text_next(&text, walk->k++, &walk->name);
    *key = quire_condensed_name_key(&walk->name, walk->of.tenant, walk->of.tenant_bytes);
    return true;
}

const void *quire_loop_condensed_tenant(const quire_loop *loop, quire_condensed entry,
                                        uint32_t *n_bytes)
{
    const char *bytes;
    size_t n_policy;

    for (quire_condensed up;
         (up = quire_condensed_parent(loop->condensed, entry)) != QUIRE_CONDENSED_NULL;) {
        entry = up;
    }
    bytes = quire_condensed_bytes(loop->condensed, entry, n_bytes);
    n_policy = strlen(bytes) + 1;
    *n_bytes -= (uint32_t)n_policy;
    return bytes + n_policy;
}

bool quire_loop_is_condensed(const quire_loop *loop, const quire_prefix_key *root)
{
    return root->identity[0] != loop->identity[0] || root->identity[1] != loop->identity[1];
}
