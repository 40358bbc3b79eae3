/* bpe.c - merging the most frequent pairs; see bpe.h.
 *
 * Each pair has a list of the words that contain it; words that no longer contain the pair may stay
 * in the list. A heap orders the pairs by count. A count in the heap may be too high; the search
 * corrects it when the pair comes to the top.
 *
 * SPDX-License-Identifier: MIT */
#include "train/bpe_words.h"

#include "base/check.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define NONE      UINT32_MAX
#define COUNT_MIN 2u /* a pair that occurs once is no pattern */

typedef struct pair {
    uint32_t left;
    uint32_t right;
    uint64_t count;
    uint32_t place;   /* first of its places */
    uint32_t touched; /* the merge that raised its count last */
} pair;

typedef struct place {
    uint32_t word;
    uint32_t next;
} place;

typedef struct entry {
    uint64_t count; /* of the pair, or more */
    uint32_t pair;
} entry;

/* An array that grows. */
typedef struct list {
    void *items;
    uint32_t n;
    uint32_t cap;
} list;

typedef struct learn {
    const quire_bpe_words *words;
    uint32_t *symbols; /* tokens of all words, each word's at its bytes' place */
    uint32_t *lengths; /* [words] tokens of a word */
    uint32_t *seen;    /* [words] the last merge that rewrote it */
    list pairs;        /* of pair */
    list places;       /* of place */
    list heap;         /* of entry */
    uint32_t *slots;   /* [n_slots] index of a pair + 1 */
    uint32_t n_slots;
    list touched;         /* of uint32_t: pairs with raised counts */
    uint32_t *texts;      /* [n_texts] index of a token + 1, by the token's bytes */
    uint32_t n_texts;     /* a power of two above twice the tokens */
    quire_bpe_table *out; /* with room for all tokens */
    list merges;          /* of uint32_t[2] */
    quire_bytes bytes;    /* of the tokens */
} learn;

#define PAIR(l, i) (&((pair *)(l)->pairs.items)[i])

/* Room for one more; NULL when out of memory. */
static void *list_add(list *l, size_t size)
{
    if (l->n == l->cap) {
        uint32_t cap = l->cap > 0 ? 2 * l->cap : 1024;
        void *items = l->cap < UINT32_MAX / 4 ? realloc(l->items, cap * size) : NULL;

        if (items == NULL) {
            return NULL;
        }
        l->items = items;
        l->cap = cap;
    }
    return (char *)l->items + (size_t)l->n++ * size;
}

/* ---- pairs ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

static uint32_t *pair_slot(const learn *l, uint32_t left, uint32_t right)
{
    for (uint32_t i = (uint32_t)mix((uint64_t)left << 32 | right);; i++) {
        uint32_t *slot = &l->slots[i & (l->n_slots - 1)];

        if (*slot == 0 ||
            (PAIR(l, *slot - 1)->left == left && PAIR(l, *slot - 1)->right == right)) {
            return slot;
        }
    }
}

static int pair_slots_grow(learn *l)
{
    uint32_t n = l->n_slots > 0 ? 2 * l->n_slots : 1u << 16;
    uint32_t *slots = calloc(n, sizeof(*slots));

    QUIRE_FAIL_IF(slots == NULL, QUIRE_NOMEM);
    free(l->slots);
    l->slots = slots;
    l->n_slots = n;
    for (uint32_t i = 0; i < l->pairs.n; i++) {
        *pair_slot(l, PAIR(l, i)->left, PAIR(l, i)->right) = i + 1;
    }
    return QUIRE_OK;
}

/* A pair occurs n times more, in a word. */
static int pair_raise(learn *l, const uint32_t tokens[2], uint64_t n, uint32_t word, uint32_t merge)
{
    uint32_t *slot;
    place *at;
    pair *p;

    if (l->pairs.n >= l->n_slots / 2) {
        QUIRE_TRY(pair_slots_grow(l));
    }
    slot = pair_slot(l, tokens[0], tokens[1]);
    if (*slot == 0) {
        p = list_add(&l->pairs, sizeof(pair));
        QUIRE_FAIL_IF(p == NULL, QUIRE_NOMEM);
        *p = (pair){ tokens[0], tokens[1], 0, NONE, NONE };
        *slot = l->pairs.n;
    }
    p = PAIR(l, *slot - 1);
    p->count += n;
    if (p->touched != merge) {
        uint32_t *touched = list_add(&l->touched, sizeof(uint32_t));

        QUIRE_FAIL_IF(touched == NULL, QUIRE_NOMEM);
        *touched = *slot - 1;
        p->touched = merge;
    }
    if (p->place == NONE || ((place *)l->places.items)[p->place].word != word) {
        uint32_t next = p->place;

        at = list_add(&l->places, sizeof(place));
        QUIRE_FAIL_IF(at == NULL, QUIRE_NOMEM);
        *at = (place){ word, next };
        PAIR(l, *slot - 1)->place = l->places.n - 1;
    }
    return QUIRE_OK;
}

/* ---- the heap ---- */

static bool is_before(const learn *l, entry a, entry b)
{
    const pair *p = PAIR(l, a.pair), *q = PAIR(l, b.pair);

    if (a.count != b.count) {
        return a.count > b.count;
    }
    return p->left != q->left ? p->left < q->left : p->right < q->right;
}

static void heap_up(learn *l, uint32_t i)
{
    entry *heap = l->heap.items;

    while (i > 0 && is_before(l, heap[i], heap[(i - 1) / 2])) {
        entry above = heap[(i - 1) / 2];

        heap[(i - 1) / 2] = heap[i];
        heap[i] = above;
        i = (i - 1) / 2;
    }
}

static void heap_down(learn *l)
{
    entry *heap = l->heap.items;

    for (uint32_t i = 0;;) {
        uint32_t best = i;
        entry was = heap[i];

        for (uint32_t child = 2 * i + 1; child <= 2 * i + 2 && child < l->heap.n; child++) {
            best = is_before(l, heap[child], heap[best]) ? child : best;
        }
        if (best == i) {
            return;
        }
        heap[i] = heap[best];
        heap[best] = was;
        i = best;
    }
}

/* Pairs whose counts a merge has raised enter the heap once more. */
static int heap_take_touched(learn *l)
{
    for (uint32_t i = 0; i < l->touched.n; i++) {
        uint32_t index = ((uint32_t *)l->touched.items)[i];
        entry *e = list_add(&l->heap, sizeof(entry));

        QUIRE_FAIL_IF(e == NULL, QUIRE_NOMEM);
        *e = (entry){ PAIR(l, index)->count, index };
        heap_up(l, l->heap.n - 1);
    }
    l->touched.n = 0;
    return QUIRE_OK;
}

/* The most frequent pair; NONE when none is frequent enough. */
static uint32_t heap_top(learn *l)
{
    entry *heap = l->heap.items;

    while (l->heap.n > 0) {
        entry top = heap[0];
        uint64_t count = PAIR(l, top.pair)->count;

        if (top.count == count && count >= COUNT_MIN) {
            return top.pair;
        }
        /* Too high a count is put right. A raised count has an entry of its own. */
        if (count >= COUNT_MIN && count < top.count) {
            heap[0].count = count;
        } else {
            heap[0] = heap[--l->heap.n];
        }
        heap_down(l);
    }
    return NONE;
}

/* ---- tokens ---- */

static uint32_t token_at(const quire_bpe_table *t, uint32_t i)
{
    return i > 0 ? t->ends[i - 1] : 0;
}

/* The token of two tokens' bytes, a new one if there is none. */
static int token_of(learn *l, const uint32_t tokens[2], uint32_t *token)
{
    quire_bpe_table *t = l->out;
    size_t from = l->bytes.n, n;
    uint64_t hash;

    for (uint32_t i = 0; i < 2; i++) {
        uint32_t at = token_at(t, tokens[i]), n_bytes = t->ends[tokens[i]] - at;
        char part[2 * QUIRE_BPE_WORD_BYTES_MAX];

        memcpy(part, l->bytes.data + at, n_bytes); /* the buffer may move */
        QUIRE_TRY(quire_bytes_add(&l->bytes, part, n_bytes));
    }
    n = l->bytes.n - from;
    hash = quire_hash_add(QUIRE_HASH_INIT, l->bytes.data + from, n);
    for (uint32_t i = (uint32_t)(hash ^ hash >> 32);; i++) {
        uint32_t *slot = &l->texts[i & (l->n_texts - 1)];
        uint32_t there = *slot - 1;

        if (*slot == 0) {
            *token = t->n_tokens;
            t->ends[t->n_tokens++] = (uint32_t)l->bytes.n;
            *slot = t->n_tokens;
            return QUIRE_OK;
        }
        if (t->ends[there] - token_at(t, there) == n &&
            memcmp(l->bytes.data + token_at(t, there), l->bytes.data + from, n) == 0) {
            *token = there;
            l->bytes.n = from;
            return QUIRE_OK;
        }
    }
}

/* ---- merging ---- */

static uint32_t *symbols_of(const learn *l, uint32_t word)
{
    return l->symbols + l->words->words[word].at;
}

/* Replace a pair by its token in a word. */
static int rewrite(learn *l, uint32_t word, const uint32_t tokens[3], uint32_t merge)
{
    uint32_t *symbols = symbols_of(l, word), n = 0;
    uint64_t count = l->words->words[word].count;

    for (uint32_t i = 0; i + 1 < l->lengths[word]; i++) {
        PAIR(l, *pair_slot(l, symbols[i], symbols[i + 1]) - 1)->count -= count;
    }
    for (uint32_t i = 0; i < l->lengths[word]; i++) {
        bool is_pair =
            i + 1 < l->lengths[word] && symbols[i] == tokens[0] && symbols[i + 1] == tokens[1];

        symbols[n++] = is_pair ? tokens[2] : symbols[i];
        i += is_pair;
    }
    l->lengths[word] = n;
    for (uint32_t i = 0; i + 1 < n; i++) {
        if (symbols[i] == tokens[2] || symbols[i + 1] == tokens[2]) {
            QUIRE_TRY(pair_raise(l, symbols + i, count, word, merge));
        } else {
            PAIR(l, *pair_slot(l, symbols[i], symbols[i + 1]) - 1)->count += count;
        }
    }
    return QUIRE_OK;
}

static int merge_pair(learn *l, uint32_t index)
{
    uint32_t merge = l->merges.n, place_at = PAIR(l, index)->place;
    uint32_t tokens[3] = { PAIR(l, index)->left, PAIR(l, index)->right, 0 };
    uint32_t *kept = list_add(&l->merges, 2 * sizeof(uint32_t));

    QUIRE_FAIL_IF(kept == NULL, QUIRE_NOMEM);
    memcpy(kept, tokens, 2 * sizeof(uint32_t));
    QUIRE_TRY(token_of(l, tokens, &tokens[2]));
    PAIR(l, index)->place = NONE;
    for (; place_at != NONE; place_at = ((place *)l->places.items)[place_at].next) {
        uint32_t word = ((place *)l->places.items)[place_at].word;

        if (l->seen[word] != merge) {
            l->seen[word] = merge;
            QUIRE_TRY(rewrite(l, word, tokens, merge));
        }
    }
    return heap_take_touched(l);
}

/* ---- set-up ---- */

static int begin(learn *l, uint32_t n_tokens)
{
    const quire_bpe_words *w = l->words;

    for (l->n_texts = 1024; l->n_texts < 4 * n_tokens;) {
        l->n_texts *= 2;
    }
    l->symbols = malloc((w->bytes.n + 1) * sizeof(*l->symbols));
    l->lengths = calloc((size_t)w->n + 1, sizeof(*l->lengths));
    l->seen = malloc(((size_t)w->n + 1) * sizeof(*l->seen));
    l->texts = calloc(l->n_texts, sizeof(*l->texts));
    l->out->ends = calloc(n_tokens, sizeof(*l->out->ends));
    QUIRE_FAIL_IF(l->symbols == NULL || l->lengths == NULL || l->seen == NULL || l->texts == NULL ||
                      l->out->ends == NULL,
                  QUIRE_NOMEM);
    for (uint32_t i = 0; i < QUIRE_BPE_BYTES; i++) {
        char byte = (char)i;

        QUIRE_TRY(quire_bytes_add(&l->bytes, &byte, 1));
        l->out->ends[i] = i + 1;
    }
    l->out->n_tokens = QUIRE_BPE_BYTES;
    for (uint32_t i = 0; i < w->n; i++) {
        uint32_t *symbols = symbols_of(l, i);

        l->seen[i] = NONE;
        l->lengths[i] = w->words[i].n_bytes;
        for (uint32_t j = 0; j < l->lengths[i]; j++) {
            symbols[j] = (unsigned char)w->bytes.data[w->words[i].at + j];
        }
        for (uint32_t j = 0; j + 1 < l->lengths[i]; j++) {
            QUIRE_TRY(pair_raise(l, symbols + j, w->words[i].count, i, NONE - 1));
        }
    }
    return heap_take_touched(l);
}

static int learn_all(learn *l, uint32_t n_tokens, quire_error *err)
{
    int rc = begin(l, n_tokens);

    while (rc == QUIRE_OK && l->out->n_tokens < n_tokens) {
        uint32_t top = heap_top(l);

        if (top == NONE) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "the text has repeated pairs for a BPE vocabulary of %u tokens, "
                                   "not %u",
                                   l->out->n_tokens, n_tokens);
        }
        rc = merge_pair(l, top);
    }
    return rc < 0 ? quire_error_set(err, rc, "the BPE vocabulary: out of memory") : QUIRE_OK;
}

int quire_bpe_learn(const quire_bpe_words *words, uint32_t n_tokens, quire_bpe_table *out,
                    quire_error *err)
{
    learn l = { .words = words, .out = out };
    int rc;

    memset(out, 0, sizeof(*out));
    if (n_tokens < QUIRE_BPE_BYTES || n_tokens > QUIRE_BPE_TOKENS_MAX) {
        return quire_error_set(err, QUIRE_INVAL,
                               "a BPE vocabulary of %u tokens: %u to %u are "
                               "possible",
                               n_tokens, QUIRE_BPE_BYTES, QUIRE_BPE_TOKENS_MAX);
    }
    rc = learn_all(&l, n_tokens, err);
    out->bytes = (unsigned char *)l.bytes.data;
    out->merges = l.merges.items;
    out->n_merges = l.merges.n;
    free(l.symbols);
    free(l.lengths);
    free(l.seen);
    free(l.texts);
    free(l.slots);
    free(l.pairs.items);
    free(l.places.items);
    free(l.heap.items);
    free(l.touched.items);
    if (rc < 0) {
        quire_bpe_table_fini(out);
    }
    return rc;
}

void quire_bpe_table_fini(quire_bpe_table *t)
{
    free(t->bytes);
    free(t->ends);
    free(t->merges);
    memset(t, 0, sizeof(*t));
}
