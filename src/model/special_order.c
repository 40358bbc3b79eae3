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
/* The most pairs that are tried. A hostile vocabulary can have as many pairs as the square of its
 * tokens; the other pairs are ordered by id. */
#define PROBES_MAX 16384u

typedef struct probing {
    const struct llama_vocab *vocab;
    const quire_special *specials; /* by id */
    uint32_t n;
    uint32_t n_bytes;  /* of each */
    uint32_t *by_text; /* [n] numbers in specials */
    bool *is_found;    /* [n] */
    uint32_t (*before)[2];
    uint32_t n_before;
    uint32_t cap;
    uint32_t n_probes;
} probing;

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

/* Which of the special tokens libllama finds in a text: is_found[n]. Returns how many. */
static uint32_t found_mark(const probing *p, const char *text, uint32_t n_bytes, bool parse_special)
{
    int32_t tokens[6 * PROBE_BYTES_MAX + 8]; /* U+2581 for a blank is three bytes */
    const int32_t n =
        llama_tokenize(p->vocab, text, (int32_t)n_bytes, tokens,
                       (int32_t)(sizeof(tokens) / sizeof(tokens[0])), false, parse_special);
    uint32_t n_found = 0;

    for (uint32_t i = 0; i < p->n; i++) {
        p->is_found[i] = false;
        for (int32_t k = 0; k < n && !p->is_found[i]; k++) {
            /* The token "unknown" can also stand for the remaining text. */
            p->is_found[i] = p->specials[i].id == tokens[k] && has_special(p, i, text, n_bytes);
        }
        n_found += p->is_found[i];
    }
    return n_found;
}

/* Put the found token before all other special tokens in the text (control tokens only with
 * parse_special). */
static int winner_add(probing *p, const char *text, uint32_t n_bytes, bool parse_special)
{
    uint32_t winner = 0;

    while (!p->is_found[winner]) {
        winner++;
    }
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
        uint32_t n_found;

        if (parse_special == 0 && (left->is_control || right->is_control)) {
            continue;
        }
        p->n_probes++;
        n_found = found_mark(p, text, n_bytes, parse_special != 0);
        /* No token is found: every such text holds a longer special token. */
        if (shared > 0 && n_found == 1) {
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

/* Pairs of which one swallows white space of the other. */
static int probe_strips(probing *p)
{
    for (uint32_t x = 0; x < p->n; x++) {
        const bool strips = p->specials[x].strips_right;
        const bool has_space = is_space(p->specials[x].text[p->n_bytes - 1]);

        for (uint32_t y = 0; y < p->n && (strips || has_space) && p->n_probes < PROBES_MAX; y++) {
            if (x != y && ((strips && is_space(p->specials[y].text[0])) ||
                           (has_space && p->specials[y].strips_left))) {
                QUIRE_TRY(probe(p, x, y, 0));
            }
        }
    }
    return QUIRE_OK;
}

static int probe_all(probing *p)
{
    for (uint32_t x = 0; x < p->n; x++) {
        for (uint32_t shared = 1; shared < p->n_bytes; shared++) {
            const char *end = p->specials[x].text + p->n_bytes - shared;

            for (uint32_t place = lower_bound(p, end, shared);
                 begins_with(p, place, end, shared) && p->n_probes < PROBES_MAX; place++) {
                if (p->by_text[place] != x) {
                    QUIRE_TRY(probe(p, x, p->by_text[place], shared));
                }
            }
        }
    }
    return QUIRE_OK;
}

/* Append the token with the lowest id among those before which no remaining token must come. */
static int sort_by_probes(probing *p, quire_special *specials)
{
    quire_special *sorted = malloc(p->n * sizeof(*sorted));
    uint32_t *n_above = calloc(p->n, sizeof(*n_above));
    bool *is_placed = calloc(p->n, sizeof(*is_placed));
    const bool has_room = sorted != NULL && n_above != NULL && is_placed != NULL;

    for (uint32_t i = 0; has_room && i < p->n_before; i++) {
        n_above[p->before[i][1]]++;
    }
    for (uint32_t k = 0; has_room && k < p->n; k++) {
        uint32_t next = p->n;

        for (uint32_t i = 0; i < p->n && (next == p->n || n_above[next] > 0); i++) {
            if (!is_placed[i] && (next == p->n || n_above[i] == 0)) {
                next = i;
            }
        }
        is_placed[next] = true;
        sorted[k] = specials[next];
        for (uint32_t i = 0; i < p->n_before; i++) {
            n_above[p->before[i][1]] -= p->before[i][0] == next;
        }
    }
    if (has_room) {
        memcpy(specials, sorted, p->n * sizeof(*sorted));
    }
    free(is_placed);
    free(n_above);
    free(sorted);
    return has_room ? QUIRE_OK : QUIRE_NOMEM;
}

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
                         bool *is_ordered)
{
    probing p = { .vocab = vocab, .specials = specials, .n = n };
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
