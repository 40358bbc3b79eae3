/* special_order.c - the order in which libllama takes special tokens of one length.
 *
 * The order matters for two kinds of pairs: one token can end where the other begins ("<a<" and
 * "<b"), or one token swallows white space with which the other begins or ends. For each such pair
 * libllama splits the shortest text that holds both tokens. If the tokens share bytes, the token
 * that libllama finds comes before all others of its length in the text. If one token swallows
 * white space of the other, the swallowing token comes second when libllama finds both. Control
 * tokens hide other tokens from libllama, so user-defined tokens are also tried without them.
 *
 * Real vocabularies have no such pairs: their special tokens begin and end with different
 * characters, or are runs of one character.
 *
 * SPDX-License-Identifier: MIT */
#include "model/tokenizer.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

/* Longer special tokens are ordered by id, because the remaining text is tokenized on the caller's
 * stack. */
#define PROBE_BYTES_MAX 64u
/* The most pairs of one length that are tried. A hostile vocabulary can have as many pairs as the
 * square of its tokens; the other pairs are ordered by id. */
#define PROBES_MAX 16384u
#define TOKENS_MAX (6 * PROBE_BYTES_MAX + 8) /* of a text; U+2581 for a blank is three bytes */

typedef struct probing {
    const struct llama_vocab *vocab;
    const quire_special *specials; /* by id */
    uint32_t n;
    uint32_t n_bytes;  /* of each */
    uint32_t *by_text; /* [n] numbers in specials */
    bool *is_found;    /* [n] */
    uint32_t found[TOKENS_MAX];
    uint32_t n_found;
    uint32_t (*before)[2];
    uint32_t n_before;
    uint32_t cap;
    uint32_t n_probes;
    quire_special_work *work;
} probing;

/* libllama looks in each text for every special token that there is. */
static bool may_probe(const probing *p)
{
    return p->n_probes < PROBES_MAX && p->work->left >= 2 * (uint64_t)p->work->n_specials;
}

static int compare_pointers(const void *a, const void *b)
{
    const quire_special *const *left = a;
    const quire_special *const *right = b;

    return memcmp((*left)->text, (*right)->text, (*left)->n_bytes);
}

/* The first in by_text whose first n bytes are not below text. */
static uint32_t lower_bound(const probing *p, const char *text, uint32_t n)
{
    uint32_t low = 0;
    uint32_t high = p->n;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (memcmp(p->specials[p->by_text[middle]].text, text, n) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static bool begins_with(const probing *p, uint32_t place, const char *text, uint32_t n)
{
    return place < p->n && memcmp(p->specials[p->by_text[place]].text, text, n) == 0;
}

static int before_add(probing *p, uint32_t first, uint32_t second)
{
    if (p->n_before == p->cap) {
        const uint32_t cap = p->cap > 0 ? 2 * p->cap : 64;
        uint32_t(*more)[2] = realloc(p->before, cap * sizeof(*more));

        QUIRE_FAIL_IF(more == NULL, QUIRE_NOMEM);
        p->before = more;
        p->cap = cap;
    }
    p->before[p->n_before][0] = first;
    p->before[p->n_before++][1] = second;
    return QUIRE_OK;
}

static bool has_special(const probing *p, uint32_t special, const char *text, uint32_t n_bytes)
{
    for (uint32_t at = 0; at + p->n_bytes <= n_bytes; at++) {
        if (memcmp(text + at, p->specials[special].text, p->n_bytes) == 0) {
            return true;
        }
    }
    return false;
}

/* The special token of an id; n: none. */
static uint32_t special_of(const probing *p, int32_t id)
{
    uint32_t low = 0;
    uint32_t high = p->n;

    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;

        if (p->specials[middle].id < id) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < p->n && p->specials[low].id == id ? low : p->n;
}

/* Which of the special tokens libllama finds in a text: found[n_found], and is_found[n]. */
static void found_mark(probing *p, const char *text, uint32_t n_bytes, bool parse_special)
{
    int32_t tokens[TOKENS_MAX];
    const int32_t n = llama_tokenize(p->vocab, text, (int32_t)n_bytes, tokens, (int32_t)TOKENS_MAX,
                                     false, parse_special);

    while (p->n_found > 0) {
        p->is_found[p->found[--p->n_found]] = false;
    }
    for (int32_t k = 0; k < n; k++) {
        const uint32_t i = special_of(p, tokens[k]);

        /* The token "unknown" can also stand for the remaining text. */
        if (i < p->n && !p->is_found[i] && has_special(p, i, text, n_bytes)) {
            p->is_found[i] = true;
            p->found[p->n_found++] = i;
        }
    }
    p->n_probes++;
    p->work->left -= p->work->n_specials;
}

/* Put the found token before all other special tokens in the text (control tokens only with
 * parse_special). */
static int winner_add(probing *p, const char *text, uint32_t n_bytes, bool parse_special)
{
    const uint32_t winner = p->found[0];

    for (uint32_t at = 0; at + p->n_bytes <= n_bytes; at++) {
        const uint32_t place = lower_bound(p, text + at, p->n_bytes);

        if (begins_with(p, place, text + at, p->n_bytes) && p->by_text[place] != winner &&
            (parse_special || !p->specials[p->by_text[place]].is_control)) {
            QUIRE_TRY(before_add(p, winner, p->by_text[place]));
        }
    }
    return QUIRE_OK;
}

/* y begins with the last `shared` bytes of x; 0: between x and y stands white space that no special
 * token has. */
static int probe(probing *p, uint32_t x, uint32_t y, uint32_t shared)
{
    const quire_special *left = &p->specials[x];
    const quire_special *right = &p->specials[y];
    const uint32_t begin = p->n_bytes + (shared == 0);
    const uint32_t n_bytes = begin + p->n_bytes - shared;
    char text[2 * PROBE_BYTES_MAX + 1];

    memcpy(text, left->text, p->n_bytes);
    text[p->n_bytes] = '\v';
    memcpy(text + begin, right->text + shared, p->n_bytes - shared);
    for (unsigned parse_special = 0; parse_special < 2; parse_special++) {
        if (parse_special == 0 && (left->is_control || right->is_control)) {
            continue;
        }
        found_mark(p, text, n_bytes, parse_special != 0);
        /* No token is found: every such text holds a longer special token. */
        if (shared > 0 && p->n_found == 1) {
            QUIRE_TRY(winner_add(p, text, n_bytes, parse_special != 0));
        } else if (shared == 0 && p->is_found[x] && p->is_found[y]) {
            QUIRE_TRY(left->strips_right ? before_add(p, y, x) : before_add(p, x, y));
        } else if (shared == 0 && p->is_found[x] != p->is_found[y]) {
            QUIRE_TRY(p->is_found[x] ? before_add(p, x, y) : before_add(p, y, x));
        }
    }
    return QUIRE_OK;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool begins_with_space(const probing *p, uint32_t i)
{
    return is_space(p->specials[i].text[0]);
}

static bool ends_with_space(const probing *p, uint32_t i)
{
    return is_space(p->specials[i].text[p->n_bytes - 1]);
}

/* Pairs of which one swallows white space of the other. right: room for n numbers, of the tokens
 * that may stand on the right. */
static int probe_strips_with(probing *p, uint32_t *right, bool strips_right)
{
    uint32_t n_right = 0;

    for (uint32_t y = 0; y < p->n; y++) {
        right[n_right] = y;
        n_right += strips_right ? begins_with_space(p, y) : p->specials[y].strips_left;
    }
    for (uint32_t x = 0; x < p->n && n_right > 0 && may_probe(p); x++) {
        const bool is_left = strips_right ? p->specials[x].strips_right : ends_with_space(p, x);

        for (uint32_t i = 0; is_left && i < n_right && may_probe(p); i++) {
            if (right[i] != x) {
                QUIRE_TRY(probe(p, x, right[i], 0));
            }
        }
    }
    return QUIRE_OK;
}

static int probe_strips(probing *p)
{
    uint32_t *right = calloc(p->n, sizeof(*right));
    int rc = right != NULL ? probe_strips_with(p, right, true) : QUIRE_NOMEM;

    rc = rc == QUIRE_OK ? probe_strips_with(p, right, false) : rc;
    free(right);
    return rc;
}

static int probe_all(probing *p)
{
    for (uint32_t x = 0; x < p->n && may_probe(p); x++) {
        for (uint32_t shared = 1; shared < p->n_bytes && may_probe(p); shared++) {
            const char *end = p->specials[x].text + p->n_bytes - shared;

            for (uint32_t place = lower_bound(p, end, shared);
                 begins_with(p, place, end, shared) && may_probe(p); place++) {
                if (p->by_text[place] != x) {
                    QUIRE_TRY(probe(p, x, p->by_text[place], shared));
                }
            }
        }
    }
    return QUIRE_OK;
}

/* ---- sorting ---- */

/* The state of a sort. */
typedef struct sorting {
    uint32_t *n_above; /* [n] tokens that must come before */
    uint32_t *begin;   /* [n + 1] in below, where the tokens behind a token begin */
    uint32_t *below;   /* [n_before] */
    uint32_t *ready;   /* [n] a heap of tokens that none must come before: the lowest on top */
    uint32_t n_ready;
    bool *is_placed;       /* [n] */
    quire_special *sorted; /* [n] */
} sorting;

static void ready_push(sorting *o, uint32_t i)
{
    uint32_t at = o->n_ready++;

    for (; at > 0 && i < o->ready[(at - 1) / 2]; at = (at - 1) / 2) {
        o->ready[at] = o->ready[(at - 1) / 2];
    }
    o->ready[at] = i;
}

static uint32_t ready_pop(sorting *o)
{
    const uint32_t top = o->ready[0], last = o->ready[--o->n_ready];
    uint32_t at = 0;

    for (;;) {
        uint32_t child = 2 * at + 1;

        if (child + 1 < o->n_ready && o->ready[child + 1] < o->ready[child]) {
            child++;
        }
        if (child >= o->n_ready || last < o->ready[child]) {
            break;
        }
        o->ready[at] = o->ready[child];
        at = child;
    }
    o->ready[at] = last;
    return top;
}

/* Sort the pairs by their first tokens, by counting. */
static void below_fill(const probing *p, sorting *o)
{
    for (uint32_t i = 0; i < p->n_before; i++) {
        o->begin[p->before[i][0] + 1]++;
        o->n_above[p->before[i][1]]++;
    }
    for (uint32_t i = 0; i < p->n; i++) {
        o->begin[i + 1] += o->begin[i];
    }
    for (uint32_t i = p->n_before; i-- > 0;) { /* begin[x + 1] goes down to where x begins */
        o->below[--o->begin[p->before[i][0] + 1]] = p->before[i][1];
    }
    memmove(o->begin, o->begin + 1, p->n * sizeof(*o->begin));
    o->begin[p->n] = p->n_before;
}

/* Append the token with the lowest id among those before which no remaining token must come; the
 * lowest of all where there is none. */
static void place_all(const probing *p, sorting *o)
{
    uint32_t first = 0; /* not placed */

    for (uint32_t i = 0; i < p->n; i++) {
        if (o->n_above[i] == 0) {
            ready_push(o, i);
        }
    }
    for (uint32_t k = 0; k < p->n; k++) {
        uint32_t next;

        while (o->is_placed[first]) {
            first++;
        }
        next = o->n_ready > 0 ? ready_pop(o) : first;
        o->is_placed[next] = true;
        o->sorted[k] = p->specials[next];
        for (uint32_t i = o->begin[next]; i < o->begin[next + 1]; i++) {
            if (--o->n_above[o->below[i]] == 0 && !o->is_placed[o->below[i]]) {
                ready_push(o, o->below[i]);
            }
        }
    }
}

static int sort_by_probes(const probing *p, quire_special *specials)
{
    sorting o = { .n_above = calloc(p->n, sizeof(*o.n_above)),
                  .begin = calloc((size_t)p->n + 1, sizeof(*o.begin)),
                  .below = calloc(p->n_before, sizeof(*o.below)),
                  .ready = calloc(p->n, sizeof(*o.ready)),
                  .is_placed = calloc(p->n, sizeof(*o.is_placed)),
                  .sorted = calloc(p->n, sizeof(*o.sorted)) };
    const bool has_room = o.n_above != NULL && o.begin != NULL && o.below != NULL &&
                          o.ready != NULL && o.is_placed != NULL && o.sorted != NULL;

    if (has_room) {
        below_fill(p, &o);
        place_all(p, &o);
        memcpy(specials, o.sorted, p->n * sizeof(*specials));
    }
    free(o.sorted);
    free(o.is_placed);
    free(o.ready);
    free(o.below);
    free(o.begin);
    free(o.n_above);
    return has_room ? QUIRE_OK : QUIRE_NOMEM;
}

/* ---- */

static int by_text_create(probing *p)
{
    const quire_special **pointers = calloc(p->n, sizeof(*pointers));

    p->by_text = calloc(p->n, sizeof(*p->by_text));
    p->is_found = calloc(p->n, sizeof(*p->is_found));
    if (pointers == NULL || p->by_text == NULL || p->is_found == NULL) {
        free(pointers);
        return QUIRE_NOMEM;
    }
    for (uint32_t i = 0; i < p->n; i++) {
        pointers[i] = &p->specials[i];
    }
    qsort(pointers, p->n, sizeof(*pointers), compare_pointers);
    for (uint32_t i = 0; i < p->n; i++) {
        p->by_text[i] = (uint32_t)(pointers[i] - p->specials);
    }
    free(pointers);
    return QUIRE_OK;
}

int quire_specials_order(const struct llama_vocab *vocab, quire_special *specials, uint32_t n,
                         quire_special_work *work, bool *is_ordered)
{
    probing p = { .vocab = vocab, .specials = specials, .n = n, .work = work };
    int rc;

    *is_ordered = false;
    p.n_bytes = n > 0 ? specials[0].n_bytes : 0;
    if (n < 2 || p.n_bytes > PROBE_BYTES_MAX) {
        return QUIRE_OK;
    }
    if ((rc = by_text_create(&p)) == QUIRE_OK && (rc = probe_all(&p)) == QUIRE_OK &&
        (rc = probe_strips(&p)) == QUIRE_OK && p.n_before > 0) {
        *is_ordered = true;
        rc = sort_by_probes(&p, specials);
    }
    free(p.before);
    free(p.is_found);
    free(p.by_text);
    return rc;
}
