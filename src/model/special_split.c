/* special_split.c - splitting a text at its special tokens in linear time.
 *
 * libllama takes the special tokens from the longest to the shortest, and cuts each, from left to
 * right, out of the remaining texts (llama-vocab.cpp, tokenizer_st_partition() at ggml 0.25.1). For
 * every piece it counts all pieces again. This file does the following:
 *
 *   1. A walk down a trie from each byte finds the longest special token that begins there: a
 *      candidate.
 *   2. By length, from the longest: a candidate whose bytes are all free is taken. Any other
 *      candidate becomes the next shorter token that begins there, or is dropped.
 *   3. Bytes that are free in the end are text.
 *
 * Taken bytes belong to tokens at least as long as the candidate, or to white space that such a
 * token swallowed. So all bytes of a candidate are free if its first and its last byte are.
 *
 * SPDX-License-Identifier: MIT */
#include "model/tokenizer.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define CANDIDATE_TAKEN   0x80000000u
#define CANDIDATE_DROPPED UINT32_MAX
#define NODE_NONE         0u /* the root is nobody's child */

typedef struct edge {
    uint32_t parent;
    uint32_t child; /* NODE_NONE = unused */
    unsigned char byte;
} edge;

struct quire_specials {
    quire_special *all; /* in the order in which they are taken */
    uint32_t n;
    uint32_t n_groups;
    uint32_t *group_begin; /* [n_groups + 1] in all */
    bool *group_is_ordered;
    uint32_t first[256]; /* children of the root */
    edge *edges;         /* hashed by parent and byte */
    uint32_t edge_mask;
    uint32_t n_nodes;
    int32_t *special_of; /* [n_nodes], -1 = none ends there */
};

/* ---- the trie ---- */

static uint32_t edge_slot(const quire_specials *s, uint32_t parent, unsigned char byte)
{
    const uint64_t hash = (((uint64_t)parent << 8) | byte) * 0x9e3779b97f4a7c15u;
    uint32_t i = (uint32_t)(hash >> 32) & s->edge_mask;

    while (s->edges[i].child != NODE_NONE &&
           (s->edges[i].parent != parent || s->edges[i].byte != byte)) {
        i = (i + 1) & s->edge_mask;
    }
    return i;
}

static uint32_t node_next(const quire_specials *s, uint32_t node, char c)
{
    const unsigned char byte = (unsigned char)c;

    return node == 0 ? s->first[byte] : s->edges[edge_slot(s, node, byte)].child;
}

static uint32_t node_next_or_new(quire_specials *s, uint32_t node, char c)
{
    const unsigned char byte = (unsigned char)c;
    uint32_t next = node_next(s, node, c);

    if (next == NODE_NONE) {
        next = s->n_nodes++;
        s->special_of[next] = -1;
        if (node == 0) {
            s->first[byte] = next;
        } else {
            s->edges[edge_slot(s, node, byte)] = (edge){ node, next, byte };
        }
    }
    return next;
}

static int trie_create(quire_specials *s, size_t n_bytes)
{
    size_t n_edges = 16;

    while (n_edges < 2 * n_bytes) {
        n_edges *= 2;
    }
    s->edges = calloc(n_edges, sizeof(*s->edges));
    s->special_of = malloc((n_bytes + 1) * sizeof(*s->special_of));
    QUIRE_FAIL_IF(s->edges == NULL || s->special_of == NULL, QUIRE_NOMEM);
    s->edge_mask = (uint32_t)(n_edges - 1);
    s->n_nodes = 1;
    s->special_of[0] = -1;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t node = 0;

        for (uint32_t k = 0; k < s->all[i].n_bytes; k++) {
            node = node_next_or_new(s, node, s->all[i].text[k]);
        }
        s->special_of[node] = (int32_t)i;
    }
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t node = 0;

        s->all[i].shorter = -1;
        for (uint32_t k = 0; k + 1 < s->all[i].n_bytes; k++) {
            node = node_next(s, node, s->all[i].text[k]);
            if (s->special_of[node] >= 0) {
                s->all[i].shorter = s->special_of[node];
            }
        }
    }
    return QUIRE_OK;
}

/* ---- which tokens are special ---- */

static int compare_specials(const void *a, const void *b)
{
    const quire_special *left = a;
    const quire_special *right = b;

    if (left->n_bytes != right->n_bytes) {
        return left->n_bytes > right->n_bytes ? -1 : 1;
    }
    return left->id < right->id ? -1 : 1;
}

static int specials_collect(quire_specials *s, const struct llama_vocab *vocab, size_t *n_bytes)
{
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    const int special =
        LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_USER_DEFINED | LLAMA_TOKEN_ATTR_UNKNOWN;

    s->all = calloc((size_t)n_vocab + 1, sizeof(*s->all));
    QUIRE_FAIL_IF(s->all == NULL, QUIRE_NOMEM);
    *n_bytes = 0;
    for (int32_t id = 0; id < n_vocab; id++) {
        const int attr = (int)llama_vocab_get_attr(vocab, id);
        const char *text = llama_vocab_get_text(vocab, id);

        if ((attr & special) == 0 || text[0] == '\0') {
            continue;
        }
        s->all[s->n++] = (quire_special){
            .id = id,
            .n_bytes = (uint32_t)strlen(text),
            .text = text,
            .is_control = (attr & (LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_UNKNOWN)) != 0,
            .strips_left = (attr & LLAMA_TOKEN_ATTR_LSTRIP) != 0,
            .strips_right = (attr & LLAMA_TOKEN_ATTR_RSTRIP) != 0,
        };
        *n_bytes += s->all[s->n - 1].n_bytes;
        QUIRE_FAIL_IF(*n_bytes > INT32_MAX / 2, QUIRE_LIMIT);
    }
    qsort(s->all, s->n, sizeof(*s->all), compare_specials);
    return QUIRE_OK;
}

static int groups_create(quire_specials *s, const struct llama_vocab *vocab)
{
    quire_special_work work = { .n_specials = s->n, .left = QUIRE_SPECIAL_WORK_MAX };

    s->group_begin = calloc((size_t)s->n + 1, sizeof(*s->group_begin));
    s->group_is_ordered = calloc((size_t)s->n + 1, sizeof(*s->group_is_ordered));
    QUIRE_FAIL_IF(s->group_begin == NULL || s->group_is_ordered == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < s->n;) {
        const uint32_t begin = i;

        while (i < s->n && s->all[i].n_bytes == s->all[begin].n_bytes) {
            s->all[i++].group = s->n_groups;
        }
        s->group_begin[s->n_groups] = begin;
        QUIRE_TRY(quire_specials_order(vocab, s->all + begin, i - begin, &work,
                                       &s->group_is_ordered[s->n_groups]));
        s->group_begin[++s->n_groups] = i;
    }
    return QUIRE_OK;
}

int quire_specials_create(quire_specials **out, const struct llama_vocab *vocab)
{
    quire_specials *s = calloc(1, sizeof(*s));
    size_t n_bytes;
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(s == NULL, QUIRE_NOMEM);
    if ((rc = specials_collect(s, vocab, &n_bytes)) == QUIRE_OK &&
        (rc = groups_create(s, vocab)) == QUIRE_OK && (rc = trie_create(s, n_bytes)) == QUIRE_OK) {
        *out = s;
        return QUIRE_OK;
    }
    quire_specials_destroy(s);
    return rc;
}

void quire_specials_destroy(quire_specials *specials)
{
    if (specials == NULL) {
        return;
    }
    free(specials->special_of);
    free(specials->edges);
    free(specials->group_is_ordered);
    free(specials->group_begin);
    free(specials->all);
    free(specials);
}

/* ---- splitting ---- */

typedef struct candidate {
    uint32_t begin;
    uint32_t special; /* number in all, with CANDIDATE_TAKEN */
} candidate;

typedef struct split {
    const quire_specials *specials;
    const char *text;
    size_t n_bytes;
    const quire_tokenize_watch *watch;
    uint32_t steps;
    candidate *candidates;
    size_t n_candidates;
    size_t cap;
    size_t *n_of_group; /* candidates that are not taken */
    bool *is_taken;     /* [n_bytes] */
} split;

/* Count n steps. */
static int split_step(split *sp, uint32_t n)
{
    sp->steps += n;
    if (sp->steps < QUIRE_TOKENIZE_STEPS) {
        return QUIRE_OK;
    }
    sp->steps = 0;
    return quire_tokenize_watch_check(sp->watch);
}

/* The first token that counts, among a special token and the shorter special tokens with which it
 * begins; -1 = none. */
static int32_t usable(const split *sp, int32_t special)
{
    while (special >= 0 && sp->specials->all[special].is_control &&
           !sp->watch->opts->parse_special) {
        special = sp->specials->all[special].shorter;
    }
    return special;
}

static int candidate_add(split *sp, size_t begin, int32_t special)
{
    if (sp->n_candidates == sp->cap) {
        const size_t cap = sp->cap > 0 ? 2 * sp->cap : 64;
        candidate *more = realloc(sp->candidates, cap * sizeof(*more));

        QUIRE_FAIL_IF(more == NULL, QUIRE_NOMEM);
        sp->candidates = more;
        sp->cap = cap;
    }
    sp->candidates[sp->n_candidates++] = (candidate){ (uint32_t)begin, (uint32_t)special };
    sp->n_of_group[sp->specials->all[special].group]++;
    return QUIRE_OK;
}

static int candidates_find(split *sp)
{
    const quire_specials *s = sp->specials;

    for (size_t i = 0; i < sp->n_bytes; i++) {
        uint32_t node = s->first[(unsigned char)sp->text[i]];
        int32_t found = -1;
        uint32_t n = 1;

        while (node != NODE_NONE) {
            found = s->special_of[node] >= 0 ? s->special_of[node] : found;
            node = i + n < sp->n_bytes ? node_next(s, node, sp->text[i + n]) : NODE_NONE;
            n++;
        }
        found = usable(sp, found);
        if (found >= 0) {
            QUIRE_TRY(candidate_add(sp, i, found));
        }
        QUIRE_TRY(split_step(sp, n));
    }
    return QUIRE_OK;
}

/* As isspace() in the C locale. */
static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void take(split *sp, candidate *c)
{
    const quire_special *special = &sp->specials->all[c->special];
    size_t begin = c->begin;
    size_t end = begin + special->n_bytes;

    if (special->strips_left) {
        while (begin > 0 && !sp->is_taken[begin - 1] && is_space(sp->text[begin - 1])) {
            begin--;
        }
    }
    if (special->strips_right) {
        while (end < sp->n_bytes && !sp->is_taken[end] && is_space(sp->text[end])) {
            end++;
        }
    }
    memset(sp->is_taken + begin, true, end - begin);
    c->special |= CANDIDATE_TAKEN;
}

/* Take the candidate's occurrence, or replace the candidate by a shorter special token. Returns
 * false when the candidate is dropped. */
static bool candidate_settle(split *sp, candidate *c)
{
    const quire_special *all = sp->specials->all;
    const quire_special *special = &all[c->special];
    int32_t shorter;

    sp->n_of_group[special->group]--;
    if (sp->is_taken[c->begin]) {
        return false;
    }
    if (!sp->is_taken[c->begin + special->n_bytes - 1]) {
        take(sp, c);
        return true;
    }
    shorter = usable(sp, special->shorter);
    if (shorter < 0) {
        return false;
    }
    c->special = (uint32_t)shorter;
    sp->n_of_group[all[shorter].group]++;
    return true;
}

static bool is_of_group(const split *sp, const candidate *c, uint32_t g)
{
    const quire_specials *s = sp->specials;

    return c->special >= s->group_begin[g] && c->special < s->group_begin[g + 1];
}

/* Take the occurrences of the special tokens of a group, from left to right. */
static int candidates_settle(split *sp, uint32_t g)
{
    for (size_t i = 0; i < sp->n_candidates; i++) {
        candidate *c = &sp->candidates[i];

        if (is_of_group(sp, c, g) && !candidate_settle(sp, c)) {
            c->special = CANDIDATE_DROPPED;
        }
        QUIRE_TRY(split_step(sp, 1));
    }
    return QUIRE_OK;
}

static int compare_keys(const void *a, const void *b)
{
    const uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

/* The same token after token, each from left to right. The candidates are sorted: a pass for each
 * token would take time quadratic in a text of many of them. */
static int candidates_settle_in_order(split *sp, uint32_t g)
{
    uint64_t *keys = calloc(sp->n_of_group[g], sizeof *keys); /* special token, candidate */
    size_t n = 0;
    int rc = QUIRE_OK;

    QUIRE_FAIL_IF(keys == NULL, QUIRE_NOMEM);
    for (size_t i = 0; i < sp->n_candidates; i++) {
        if (is_of_group(sp, &sp->candidates[i], g)) {
            keys[n++] = (uint64_t)sp->candidates[i].special << 32 | i;
        }
    }
    qsort(keys, n, sizeof *keys, compare_keys);
    for (size_t i = 0; i < n && rc == QUIRE_OK; i++) {
        candidate *c = &sp->candidates[(uint32_t)keys[i]];

        if (!candidate_settle(sp, c)) {
            c->special = CANDIDATE_DROPPED;
        }
        rc = split_step(sp, 1);
    }
    free(keys);
    return rc == QUIRE_OK ? split_step(sp, (uint32_t)sp->n_candidates) : rc;
}

static void dropped_remove(split *sp)
{
    size_t n = 0;

    for (size_t i = 0; i < sp->n_candidates; i++) {
        if (sp->candidates[i].special != CANDIDATE_DROPPED) {
            sp->candidates[n++] = sp->candidates[i];
        }
    }
    sp->n_candidates = n;
}

static int groups_settle(split *sp)
{
    const quire_specials *s = sp->specials;

    for (uint32_t g = 0; g < s->n_groups; g++) {
        if (sp->n_of_group[g] > 0) {
            QUIRE_TRY(s->group_is_ordered[g] ? candidates_settle_in_order(sp, g)
                                             : candidates_settle(sp, g));
            dropped_remove(sp);
        }
    }
    return QUIRE_OK;
}

/* The text between two tokens, without the white space that they swallowed. */
static void text_add(const split *sp, size_t begin, size_t end, quire_fragment *out, size_t *n)
{
    while (begin < end && sp->is_taken[begin]) {
        begin++;
    }
    while (end > begin && sp->is_taken[end - 1]) {
        end--;
    }
    if (begin < end) {
        out[(*n)++] = (quire_fragment){ (uint32_t)begin, (uint32_t)end, -1 };
    }
}

static int fragments_make(const split *sp, quire_fragment **out, size_t *n_out)
{
    quire_fragment *list = malloc((2 * sp->n_candidates + 1) * sizeof(*list));
    size_t begin = 0;
    size_t n = 0;

    QUIRE_FAIL_IF(list == NULL, QUIRE_NOMEM);
    for (size_t i = 0; i < sp->n_candidates; i++) {
        const candidate *c = &sp->candidates[i];
        const quire_special *special = &sp->specials->all[c->special & ~CANDIDATE_TAKEN];

        text_add(sp, begin, c->begin, list, &n);
        begin = (size_t)c->begin + special->n_bytes;
        list[n++] = (quire_fragment){ c->begin, (uint32_t)begin, special->id };
    }
    text_add(sp, begin, sp->n_bytes, list, &n);
    *out = list;
    *n_out = n;
    return QUIRE_OK;
}

int quire_specials_split(const quire_specials *specials, const char *text, size_t text_bytes,
                         const quire_tokenize_watch *watch, quire_fragment **out, size_t *n_out)
{
    split sp = { .specials = specials, .text = text, .n_bytes = text_bytes, .watch = watch };
    int rc = QUIRE_NOMEM;

    *out = NULL;
    *n_out = 0;
    sp.n_of_group = calloc((size_t)specials->n_groups + 1, sizeof(*sp.n_of_group));
    sp.is_taken = calloc(text_bytes + 1, sizeof(*sp.is_taken));
    if (sp.n_of_group != NULL && sp.is_taken != NULL && (rc = candidates_find(&sp)) == QUIRE_OK &&
        (rc = groups_settle(&sp)) == QUIRE_OK) {
        rc = fragments_make(&sp, out, n_out);
    }
    free(sp.is_taken);
    free(sp.n_of_group);
    free(sp.candidates);
    return rc;
}
