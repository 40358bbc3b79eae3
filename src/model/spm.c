/* spm.c - SPM tokens of a text: pairs of characters are merged, the best token first.
 *
 * The tokens are the same as libllama's (llama-vocab.cpp, llm_tokenizer_spm_session at ggml
 * 0.25.1). libllama's time grows with the square of the number of characters that are no tokens,
 * because it makes room for their bytes one character at a time. Two characters that no token has
 * side by side never merge. So a text is cut between such characters, usually at blanks, and each
 * part is merged on its own. A part of n characters takes n log n.
 *
 * SPDX-License-Identifier: MIT */
#include "model/tokenizer.h"

#include "base/check.h"
#include "base/hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLANK       "\xe2\x96\x81" /* U+2581 stands for a blank */
#define BLANK_BYTES 3u
#define NONE        UINT32_MAX
/* Bits of the filter of pairs, per token. A token has about 7 pairs, most of which occur in other
 * tokens too. */
#define PAIR_BITS_PER_TOKEN 64u

typedef struct token_slot {
    uint32_t hash;
    uint32_t n_bytes; /* 0 = unused */
    int32_t id;
} token_slot;

struct quire_spm {
    const struct llama_vocab *vocab;
    token_slot *slots; /* tokens by text */
    uint32_t slot_mask;
    uint32_t token_bytes_max;
    uint64_t *pairs; /* a bit for each pair of characters that stand side by side in a token, and by
                        chance for some others */
    uint32_t pair_mask;
    int32_t byte_tokens[256]; /* -1 = none */
    bool adds_blank;
};

typedef struct symbol {
    uint32_t begin;      /* in the escaped text */
    uint32_t n_bytes;    /* 0 = merged into another */
    uint32_t prev, next; /* NONE at the ends */
} symbol;

typedef struct bigram {
    float score;
    uint32_t left;
    uint32_t n_bytes;
} bigram;

typedef struct merging {
    const quire_spm *spm;
    const quire_tokenize_watch *watch;
    uint32_t steps;
    const char *text; /* escaped */
    uint32_t n_bytes;
    symbol *symbols;
    uint32_t n_symbols;
    uint32_t symbols_cap;
    bigram *heap;
    uint32_t n_heap;
    uint32_t heap_cap;
} merging;

/* ---- the vocabulary ---- */

static uint32_t hash_of(const char *text, uint32_t n_bytes)
{
    const uint64_t hash = quire_hash_add(QUIRE_HASH_INIT, text, n_bytes);

    return (uint32_t)(hash ^ (hash >> 32));
}

static int32_t token_find(const quire_spm *spm, const char *text, uint32_t n_bytes)
{
    const uint32_t hash = hash_of(text, n_bytes);

    if (n_bytes > spm->token_bytes_max) {
        return -1;
    }
    for (uint32_t i = hash & spm->slot_mask; spm->slots[i].n_bytes > 0;
         i = (i + 1) & spm->slot_mask) {
        const token_slot *slot = &spm->slots[i];

        if (slot->hash == hash && slot->n_bytes == n_bytes &&
            memcmp(llama_vocab_get_text(spm->vocab, slot->id), text, n_bytes) == 0) {
            return slot->id;
        }
    }
    return -1;
}

/* Bytes of the character that begins with `lead`, as libllama counts them. */
static uint32_t character_bytes(char lead, size_t left)
{
    static const uint8_t lengths[16] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4 };
    const uint32_t n = lengths[(unsigned char)lead >> 4];

    return n < left ? n : (uint32_t)left;
}

static uint32_t pair_bit(const quire_spm *spm, const char *left, uint32_t n_left, const char *right,
                         uint32_t n_right)
{
    uint32_t a = 0, b = 0;
    uint64_t hash;

    memcpy(&a, left, n_left);
    memcpy(&b, right, n_right);
    hash = (((uint64_t)a << 32) | b) * 0x9e3779b97f4a7c15u;
    return (uint32_t)((hash ^ (hash >> 29)) >> 24) & spm->pair_mask;
}

static void pairs_add(quire_spm *spm, const char *text, uint32_t n_bytes)
{
    uint32_t n_left = character_bytes(text[0], n_bytes);

    for (uint32_t i = 0; i + n_left < n_bytes;) {
        const uint32_t right = i + n_left;
        const uint32_t n_right = character_bytes(text[right], n_bytes - right);
        const uint32_t bit = pair_bit(spm, text + i, n_left, text + right, n_right);

        spm->pairs[bit / 64] |= UINT64_C(1) << bit % 64;
        i = right;
        n_left = n_right;
    }
}

static int tokens_add(quire_spm *spm)
{
    const int32_t n_vocab = llama_vocab_n_tokens(spm->vocab);

    for (int32_t id = 0; id < n_vocab; id++) {
        const char *text = llama_vocab_get_text(spm->vocab, id);
        const size_t n_bytes = strlen(text);
        token_slot slot = { .n_bytes = (uint32_t)n_bytes, .id = id };
        uint32_t i;

        if (n_bytes == 0) {
            continue;
        }
        QUIRE_FAIL_IF(n_bytes > INT32_MAX, QUIRE_LIMIT);
        slot.hash = hash_of(text, slot.n_bytes);
        for (i = slot.hash & spm->slot_mask; spm->slots[i].n_bytes > 0;) {
            i = (i + 1) & spm->slot_mask;
        }
        spm->slots[i] = slot;
        if (slot.n_bytes > spm->token_bytes_max) {
            spm->token_bytes_max = slot.n_bytes;
        }
        pairs_add(spm, text, slot.n_bytes);
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        const char character = (char)byte;
        char hex[8];
        int32_t id;

        (void)snprintf(hex, sizeof(hex), "<0x%02X>", byte);
        id = token_find(spm, hex, 6);
        spm->byte_tokens[byte] = id >= 0 ? id : token_find(spm, &character, 1);
    }
    return QUIRE_OK;
}

/* Whether libllama puts a blank before a text. Its interface does not tell, so a text is tried. */
static int adds_blank_find(quire_spm *spm)
{
    const quire_tokenize_opts opts = { 0 };
    const quire_tokenize_watch watch = { &opts, UINT64_MAX };
    quire_token_list list = { .tokens_max = SIZE_MAX };
    int32_t tokens[8];
    const int32_t n = llama_tokenize(spm->vocab, "a", 1, tokens, 8, false, false);
    int rc = quire_spm_tokenize(spm, "a", 1, &watch, &list);

    if (rc == QUIRE_OK) {
        spm->adds_blank =
            n != (int32_t)list.n || memcmp(tokens, list.tokens, list.n * sizeof(tokens[0])) != 0;
    }
    free(list.tokens);
    return rc;
}

static uint32_t power_of_two(uint64_t n)
{
    uint32_t power = 64;

    while (power < n && power < UINT32_C(1) << 30) {
        power *= 2;
    }
    return power;
}

int quire_spm_create(quire_spm **out, const struct llama_vocab *vocab)
{
    quire_spm *spm = calloc(1, sizeof(*spm));
    const uint64_t n_vocab = (uint64_t)llama_vocab_n_tokens(vocab);
    int rc = QUIRE_NOMEM;

    *out = NULL;
    QUIRE_FAIL_IF(spm == NULL, QUIRE_NOMEM);
    spm->vocab = vocab;
    spm->token_bytes_max = 1;
    spm->slot_mask = power_of_two(2 * n_vocab) - 1;
    spm->pair_mask = power_of_two(PAIR_BITS_PER_TOKEN * n_vocab) - 1;
    spm->slots = calloc((size_t)spm->slot_mask + 1, sizeof(*spm->slots));
    spm->pairs = calloc(((size_t)spm->pair_mask + 1) / 64, sizeof(*spm->pairs));
    if (spm->slots != NULL && spm->pairs != NULL && (rc = tokens_add(spm)) == QUIRE_OK &&
        (rc = adds_blank_find(spm)) == QUIRE_OK) {
        *out = spm;
        return QUIRE_OK;
    }
    quire_spm_destroy(spm);
    return rc;
}

void quire_spm_destroy(quire_spm *spm)
{
    if (spm == NULL) {
        return;
    }
    free(spm->pairs);
    free(spm->slots);
    free(spm);
}

/* ---- merging ---- */

static int merging_step(merging *m)
{
    if (++m->steps < QUIRE_TOKENIZE_STEPS) {
        return QUIRE_OK;
    }
    m->steps = 0;
    return quire_tokenize_watch_check(m->watch);
}

/* The order of merges: the highest score first; of equal scores the leftmost pair. */
static bool is_above(const bigram *a, const bigram *b)
{
    return a->score > b->score || (a->score == b->score && a->left < b->left);
}

static int heap_push(merging *m, bigram item)
{
    uint32_t i = m->n_heap;

    if (i == m->heap_cap) {
        const uint32_t cap = i > 0 ? 2 * i : 64;
        bigram *more = i <= INT32_MAX ? realloc(m->heap, cap * sizeof(*more)) : NULL;

        QUIRE_FAIL_IF(more == NULL, QUIRE_NOMEM);
        m->heap = more;
        m->heap_cap = cap;
    }
    m->n_heap++;
    while (i > 0 && is_above(&item, &m->heap[(i - 1) / 2])) {
        m->heap[i] = m->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    m->heap[i] = item;
    return QUIRE_OK;
}

static bigram heap_pop(merging *m)
{
    const bigram top = m->heap[0];
    const bigram last = m->heap[--m->n_heap];
    uint32_t i = 0;

    for (;;) {
        uint32_t child = 2 * i + 1;

        if (child + 1 < m->n_heap && is_above(&m->heap[child + 1], &m->heap[child])) {
            child++;
        }
        if (child >= m->n_heap || !is_above(&m->heap[child], &last)) {
            break;
        }
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

static int bigram_try(merging *m, uint32_t left)
{
    const uint32_t right = left != NONE ? m->symbols[left].next : NONE;
    uint32_t n_bytes;
    int32_t token;

    if (right == NONE) {
        return QUIRE_OK;
    }
    n_bytes = m->symbols[left].n_bytes + m->symbols[right].n_bytes;
    token = token_find(m->spm, m->text + m->symbols[left].begin, n_bytes);
    if (token < 0) {
        return QUIRE_OK;
    }
    return heap_push(m, (bigram){ llama_vocab_get_score(m->spm->vocab, token), left, n_bytes });
}

static int symbols_merge(merging *m)
{
    m->n_heap = 0;
    for (uint32_t i = 0; i + 1 < m->n_symbols; i++) {
        QUIRE_TRY(bigram_try(m, i));
        QUIRE_TRY(merging_step(m));
    }
    while (m->n_heap > 0) {
        const bigram best = heap_pop(m);
        symbol *left = &m->symbols[best.left];
        symbol *right;

        QUIRE_TRY(merging_step(m));
        /* Symbols only grow, so a symbol that has changed has another length. */
        if (left->n_bytes == 0 || left->next == NONE) {
            continue;
        }
        right = &m->symbols[left->next];
        if (left->n_bytes + right->n_bytes != best.n_bytes) {
            continue;
        }
        left->n_bytes = best.n_bytes;
        right->n_bytes = 0;
        left->next = right->next;
        if (left->next != NONE) {
            m->symbols[left->next].prev = best.left;
        }
        QUIRE_TRY(bigram_try(m, left->prev));
        QUIRE_TRY(bigram_try(m, best.left));
    }
    return QUIRE_OK;
}

static int symbol_emit(const merging *m, const symbol *s, quire_token_list *list)
{
    const char *text = m->text + s->begin;
    const int32_t token = token_find(m->spm, text, s->n_bytes);

    if (token >= 0) {
        return quire_token_list_add(list, token);
    }
    for (uint32_t i = 0; i < s->n_bytes; i++) {
        const int32_t byte_token = m->spm->byte_tokens[(unsigned char)text[i]];

        QUIRE_FAIL_IF(byte_token < 0, QUIRE_UNSUPP);
        QUIRE_TRY(quire_token_list_add(list, byte_token));
    }
    return QUIRE_OK;
}

static int part_emit(merging *m, quire_token_list *list)
{
    QUIRE_TRY(symbols_merge(m));
    for (uint32_t i = 0; i != NONE; i = m->symbols[i].next) {
        QUIRE_TRY(symbol_emit(m, &m->symbols[i], list));
    }
    m->n_symbols = 0;
    return QUIRE_OK;
}

static int symbol_add(merging *m, uint32_t begin, uint32_t n_bytes)
{
    const uint32_t i = m->n_symbols;

    if (i == m->symbols_cap) {
        const uint32_t cap = i > 0 ? 2 * i : 64;
        symbol *more = i <= INT32_MAX ? realloc(m->symbols, cap * sizeof(*more)) : NULL;

        QUIRE_FAIL_IF(more == NULL, QUIRE_NOMEM);
        m->symbols = more;
        m->symbols_cap = cap;
    }
    m->symbols[i] = (symbol){ begin, n_bytes, i > 0 ? i - 1 : NONE, NONE };
    if (i > 0) {
        m->symbols[i - 1].next = i;
    }
    m->n_symbols++;
    return QUIRE_OK;
}

static bool may_merge(const merging *m, uint32_t left, uint32_t n_left, uint32_t right,
                      uint32_t n_right)
{
    const uint32_t bit = pair_bit(m->spm, m->text + left, n_left, m->text + right, n_right);

    return (m->spm->pairs[bit / 64] >> bit % 64 & 1) != 0;
}

static int parts_emit(merging *m, quire_token_list *list)
{
    uint32_t n_last = 0;

    for (uint32_t i = 0; i < m->n_bytes; i += n_last) {
        const uint32_t n = character_bytes(m->text[i], m->n_bytes - i);

        if (i > 0 && !may_merge(m, i - n_last, n_last, i, n)) {
            QUIRE_TRY(part_emit(m, list));
        }
        QUIRE_TRY(symbol_add(m, i, n));
        QUIRE_TRY(merging_step(m));
        n_last = n;
    }
    return m->n_symbols > 0 ? part_emit(m, list) : QUIRE_OK;
}

/* The text with U+2581 for blanks. */
static char *text_escape(const quire_spm *spm, const char *text, size_t n, uint32_t *n_escaped)
{
    const size_t n_before = spm->adds_blank ? BLANK_BYTES : 0;
    size_t n_blanks = 0;
    char *escaped;
    char *to;

    for (size_t i = 0; i < n; i++) {
        n_blanks += text[i] == ' ';
    }
    if (n > (NONE - n_before) / BLANK_BYTES) {
        return NULL;
    }
    escaped = malloc(n_before + n + n_blanks * (BLANK_BYTES - 1) + 1);
    if (escaped == NULL) {
        return NULL;
    }
    memcpy(escaped, BLANK, n_before);
    to = escaped + n_before;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == ' ') {
            memcpy(to, BLANK, BLANK_BYTES);
            to += BLANK_BYTES;
        } else {
            *to++ = text[i];
        }
    }
    *n_escaped = (uint32_t)(to - escaped);
    return escaped;
}

int quire_spm_tokenize(const quire_spm *spm, const char *text, size_t text_bytes,
                       const quire_tokenize_watch *watch, quire_token_list *list)
{
    merging m = { .spm = spm, .watch = watch };
    char *escaped;
    int rc;

    /* No token has more bytes. */
    QUIRE_FAIL_IF(text_bytes / spm->token_bytes_max > list->tokens_max - list->n, QUIRE_RANGE);
    escaped = text_escape(spm, text, text_bytes, &m.n_bytes);
    QUIRE_FAIL_IF(escaped == NULL, QUIRE_NOMEM);
    m.text = escaped;
    rc = parts_emit(&m, list);
    free(m.heap);
    free(m.symbols);
    free(escaped);
    return rc;
}
