/* bpe_words.c - cutting texts into words, and counting them; see bpe.h.
 *
 * SPDX-License-Identifier: MIT */
#include "train/bpe_words.h"

#include "base/check.h"
#include "base/hash.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS_FIRST 4096u

/* ---- the cut ---- */

typedef enum sign {
    SIGN_SPACE,
    SIGN_LETTER,
    SIGN_DIGIT,
    SIGN_OTHER
} sign;

/* The kind of the character at text; *n its bytes. Of characters beyond ASCII, U+0080 to U+00BF,
 * U+2000 to U+206F and U+3000 to U+303F are signs; a byte that begins none counts as one too. */
static sign sign_at(const unsigned char *text, size_t n_bytes, size_t *n)
{
    unsigned char c = text[0];
    size_t length = c < 0xc0 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;

    *n = length <= n_bytes ? length : 1;
    for (size_t i = 1; i < *n; i++) {
        *n = (text[i] & 0xc0) == 0x80 ? *n : 1;
    }
    if (c < 0x80) {
        bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');

        return c == ' ' || (c >= '\t' && c <= '\r') ? SIGN_SPACE
               : is_letter                          ? SIGN_LETTER
               : c >= '0' && c <= '9'               ? SIGN_DIGIT
                                                    : SIGN_OTHER;
    }
    if (*n == 1 || c == 0xc2 || (c == 0xe2 && (text[1] == 0x80 || text[1] == 0x81)) ||
        (c == 0xe3 && text[1] == 0x80)) {
        return SIGN_OTHER;
    }
    return SIGN_LETTER;
}

/* 's, 't, 're, 've, 'm, 'll, 'd: bytes, or 0. */
static size_t contraction(const char *text, size_t n_bytes)
{
    static const char *const endings[] = { "'s", "'t", "'re", "'ve", "'m", "'ll", "'d" };

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        size_t n = strlen(endings[i]);

        if (n <= n_bytes && memcmp(text, endings[i], n) == 0) {
            return n;
        }
    }
    return 0;
}

/* White space: all of a run but its last character when a word follows, so that a blank goes with
 * the word. */
static size_t space_next(const unsigned char *text, size_t n_bytes)
{
    size_t end = 0, n;

    while (end < n_bytes && sign_at(text + end, n_bytes - end, &n) == SIGN_SPACE) {
        end++;
    }
    return end == n_bytes || end == 1 ? end : end - 1;
}

size_t quire_bpe_word_next(const char *text, size_t n_bytes)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t end = contraction(text, n_bytes), n;
    sign kind;

    if (end > 0) {
        return end;
    }
    end = n_bytes > 1 && at[0] == ' ' ? 1 : 0;
    kind = sign_at(at + end, n_bytes - end, &n);
    if (kind == SIGN_SPACE) {
        return space_next(at, n_bytes);
    }
    while (end < n_bytes && sign_at(at + end, n_bytes - end, &n) == kind) {
        if (end + n > QUIRE_BPE_WORD_BYTES_MAX) {
            break;
        }
        end += n;
    }
    return end;
}

/* ---- counting ---- */

int quire_bpe_words_create(quire_bpe_words **out, uint32_t words_max, quire_error *err)
{
    quire_bpe_words *w = calloc(1, sizeof(*w));

    if (w != NULL) {
        w->words_max = words_max;
        w->n_slots = SLOTS_FIRST;
        w->slots = calloc(w->n_slots, sizeof(*w->slots));
    }
    if (w == NULL || w->slots == NULL) {
        free(w);
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    *out = w;
    return QUIRE_OK;
}

void quire_bpe_words_destroy(quire_bpe_words *w)
{
    if (w != NULL) {
        free(w->slots);
        free(w->words);
        quire_bytes_fini(&w->bytes);
        free(w);
    }
}

/* The slot of a word, or the free one where it belongs. */
static uint32_t *slot_of(const quire_bpe_words *w, const char *word, size_t n)
{
    uint64_t hash = quire_hash_add(QUIRE_HASH_INIT, word, n);

    for (uint32_t i = (uint32_t)(hash ^ hash >> 32);; i++) {
        uint32_t *slot = &w->slots[i & (w->n_slots - 1)];
        const quire_bpe_word *there;

        if (*slot == 0) {
            return slot;
        }
        there = &w->words[*slot - 1];
        if (there->n_bytes == n && memcmp(w->bytes.data + there->at, word, n) == 0) {
            return slot;
        }
    }
}

/* Fill the slots anew, of which there are n_slots now. */
static int slots_fill(quire_bpe_words *w, uint32_t n_slots)
{
    uint32_t *slots = calloc(n_slots, sizeof(*slots));

    QUIRE_FAIL_IF(slots == NULL, QUIRE_NOMEM);
    free(w->slots);
    w->slots = slots;
    w->n_slots = n_slots;
    for (uint32_t i = 0; i < w->n; i++) {
        *slot_of(w, w->bytes.data + w->words[i].at, w->words[i].n_bytes) = i + 1;
    }
    return QUIRE_OK;
}

/* Forget the rarest words until a quarter is free. Each round forgets words that are one time more
 * frequent. */
static int forget(quire_bpe_words *w)
{
    while (w->n > w->words_max - (w->words_max + 3) / 4) {
        uint32_t n = 0;
        size_t n_bytes = 0;

        w->forgotten++;
        for (uint32_t i = 0; i < w->n; i++) {
            quire_bpe_word word = w->words[i];

            if (word.count > w->forgotten) {
                memmove(w->bytes.data + n_bytes, w->bytes.data + word.at, word.n_bytes);
                word.at = n_bytes;
                n_bytes += word.n_bytes;
                w->words[n++] = word;
            }
        }
        w->n = n;
        w->bytes.n = n_bytes;
    }
    return slots_fill(w, w->n_slots);
}

static int word_new(quire_bpe_words *w, const char *word, size_t n)
{
    if (w->n == w->words_max) {
        QUIRE_TRY(forget(w));
    }
    if (w->n == w->words_cap) {
        uint32_t cap = w->words_cap > 0 ? 2 * w->words_cap : SLOTS_FIRST;
        quire_bpe_word *words = realloc(w->words, cap * sizeof(*words));

        QUIRE_FAIL_IF(words == NULL, QUIRE_NOMEM);
        w->words = words;
        w->words_cap = cap;
    }
    if (w->n >= w->n_slots / 2) {
        QUIRE_TRY(slots_fill(w, 2 * w->n_slots));
    }
    w->words[w->n] = (quire_bpe_word){ (uint32_t)n, w->bytes.n, 1 };
    QUIRE_TRY(quire_bytes_add(&w->bytes, word, n));
    w->n++;
    *slot_of(w, word, n) = w->n;
    return QUIRE_OK;
}

int quire_bpe_words_add(quire_bpe_words *w, const char *text, size_t n_bytes, quire_error *err)
{
    for (size_t at = 0; at < n_bytes;) {
        size_t n = quire_bpe_word_next(text + at, n_bytes - at);
        size_t kept = n < QUIRE_BPE_WORD_BYTES_MAX ? n : QUIRE_BPE_WORD_BYTES_MAX;
        uint32_t slot = *slot_of(w, text + at, kept);

        if (slot > 0) {
            w->words[slot - 1].count++;
        } else if (word_new(w, text + at, kept) < 0) {
            return quire_error_set(err, QUIRE_NOMEM, "out of memory");
        }
        at += n;
    }
    return QUIRE_OK;
}
