/* block_state.c - the state of a text between two chunks, which is also its file. See
 * quire/block_state.h.
 *
 * SPDX-License-Identifier: MIT */
#include "quire/block_state.h"

#include "base/check.h"
#include "base/ckd.h"
#include "base/hash128.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC       "QBLOCK\r\n" /* a transfer as text damages it */
#define MAGIC_BYTES 8u
#define LANES_MAX   (1u << 20)
#define TOKENS_MAX  (1u << 30)

/* ---- parts ---- */

/* A walk over the parts. */
typedef struct cursor {
    unsigned char *memory; /* NULL: sizes alone are wanted */
    size_t at;
    size_t n_max; /* the parts end here */
    bool is_over; /* they do not */
} cursor;

/* The next part: n items of item_bytes bytes. */
static unsigned char *take(cursor *c, uint64_t n, uint64_t item_bytes)
{
    const size_t at = c->at;
    size_t bytes;

    if (c->is_over || n > SIZE_MAX || item_bytes > SIZE_MAX ||
        !quire_ckd_mul((size_t)n, (size_t)item_bytes, &bytes) || bytes > c->n_max - at ||
        c->n_max - at - bytes < 8) {
        c->is_over = true;
        return c->memory;
    }
    c->at += (bytes + 7) / 8 * 8;
    return c->memory != NULL ? c->memory + at : NULL;
}

/* A lane's parts, after its numbers. */
static void take_lane(const quire_block_state *s, quire_block_lane *lane, cursor *c)
{
    const uint64_t n = lane->n_tokens;
    const uint64_t n_pages = quire_block_n_pages(lane->n_tokens);
    const unsigned char *worth, *hot;

    lane->positions = (const int32_t *)(const void *)take(c, n, sizeof(int32_t));
    worth = take(c, s->has_worth ? n : 0, sizeof(float));
    lane->worth = s->has_worth ? (const float *)(const void *)worth : NULL;
    lane->pages = take(c, n_pages, s->page_bytes);
    hot = take(c, n_pages, s->hot_bytes);
    lane->hot_pages = s->hot_bytes > 0 ? hot : NULL;
}

static uint32_t n_lanes_of(const quire_block_state *s)
{
    return s->n_layers * s->n_kv_head;
}

/* Set the pointers of all parts. is_read: the lanes' numbers come from the memory. */
static void take_all(quire_block_state *s, cursor *c, bool is_read)
{
    (void)take(c, QUIRE_BLOCK_HEAD_BYTES, 1);
    s->tokens = (const int32_t *)(const void *)take(c, s->n_text, sizeof(int32_t));
    for (uint32_t i = 0; i < n_lanes_of(s) && !c->is_over; i++) {
        const unsigned char *numbers = take(c, 2, 8);

        if (is_read && !c->is_over) {
            const uint64_t n = quire_le_get(numbers, 8);

            c->is_over = n > s->n_text;
            s->lanes[i].n_tokens = (uint32_t)n;
            s->lanes[i].n_queries = quire_le_get(numbers + 8, 8);
        }
        take_lane(s, &s->lanes[i], c);
    }
    s->extra = (const float *)(const void *)take(c, s->n_extra, sizeof(float));
}

/* ---- making ---- */

uint32_t quire_block_n_pages(uint32_t n_tokens)
{
    return (n_tokens + QUIRE_BLOCK_PAGE_TOKENS - 1) / QUIRE_BLOCK_PAGE_TOKENS;
}

void *quire_block_part(const quire_block_state *s, const void *part)
{
    return s->memory + ((const unsigned char *)part - s->memory);
}

int quire_block_state_alloc(quire_block_state *s, const uint32_t *n_tokens)
{
    cursor c = { .n_max = SIZE_MAX / 2 };

    s->memory = NULL;
    s->lanes = calloc(n_lanes_of(s), sizeof *s->lanes);
    QUIRE_FAIL_IF(s->lanes == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < n_lanes_of(s); i++) {
        s->lanes[i].n_tokens = n_tokens[i];
    }
    take_all(s, &c, false);
    QUIRE_FAIL_IF(c.is_over, QUIRE_LIMIT);
    s->n_bytes = c.at + QUIRE_HASH128_BYTES;
    s->memory = calloc(1, s->n_bytes);
    QUIRE_FAIL_IF(s->memory == NULL, QUIRE_NOMEM);
    c = (cursor){ .memory = s->memory, .n_max = SIZE_MAX / 2 };
    take_all(s, &c, false);
    return QUIRE_OK;
}

#define N_NUMBERS 16u

/* The numbers of the head, behind the magic and the version. */
static void numbers_of(const quire_block_state *s, uint64_t n[N_NUMBERS])
{
    const uint64_t all[N_NUMBERS] = {
        s->n_bytes,   s->identity[0], s->identity[1], s->chunk,      s->n_layers,  s->n_kv_head,
        s->n_text,    s->n_condensed, s->generations, s->n_repeated, s->has_worth, s->page_bytes,
        s->hot_bytes, s->n_extra,     s->maps[0],     s->maps[1]
    };

    memcpy(n, all, sizeof all);
}

void quire_block_state_seal(quire_block_state *s)
{
    unsigned char *at = s->memory;
    uint64_t n[N_NUMBERS];

    numbers_of(s, n);
    memcpy(at, MAGIC, MAGIC_BYTES);
    at = quire_le_put(at + MAGIC_BYTES, QUIRE_BLOCK_STATE_VERSION, 8);
    for (uint32_t i = 0; i < N_NUMBERS; i++) {
        at = quire_le_put(at, n[i], 8);
    }
    memcpy(at, s->policy, sizeof s->policy);
    QUIRE_CHECK(at + sizeof s->policy <= s->memory + QUIRE_BLOCK_HEAD_BYTES);
    for (uint32_t i = 0; i < n_lanes_of(s); i++) {
        unsigned char *numbers = quire_block_part(s, s->lanes[i].positions);

        numbers = quire_le_put(numbers - 16, s->lanes[i].n_tokens, 8);
        (void)quire_le_put(numbers, s->lanes[i].n_queries, 8);
    }
    quire_hash128(s->memory, s->n_bytes - QUIRE_HASH128_BYTES,
                  s->memory + s->n_bytes - QUIRE_HASH128_BYTES);
}

void quire_block_state_free(quire_block_state *s)
{
    free(s->lanes);
    free(s->memory);
    *s = (quire_block_state){ 0 };
}

/* ---- reading ---- */

/* The head; whether its numbers can be right. */
static bool read_head(quire_block_state *s, size_t n_bytes)
{
    const unsigned char *at = s->memory + MAGIC_BYTES + 8;
    uint64_t n[N_NUMBERS];

    for (uint32_t i = 0; i < N_NUMBERS; i++, at += 8) {
        n[i] = quire_le_get(at, 8);
    }
    memcpy(s->policy, at, sizeof s->policy);
    if (n[0] != n_bytes || memchr(s->policy, '\0', sizeof s->policy) == NULL || n[4] == 0 ||
        n[5] == 0 || n[4] > LANES_MAX || n[5] > LANES_MAX / n[4] || n[6] > TOKENS_MAX ||
        n[7] > n[6] || n[3] > UINT32_MAX || n[8] > UINT32_MAX || n[9] > n[6] || n[10] > 1) {
        return false;
    }
    s->identity[0] = n[1];
    s->identity[1] = n[2];
    s->chunk = (uint32_t)n[3];
    s->n_layers = (uint32_t)n[4];
    s->n_kv_head = (uint32_t)n[5];
    s->n_text = (uint32_t)n[6];
    s->n_condensed = (uint32_t)n[7];
    s->generations = (uint32_t)n[8];
    s->n_repeated = (uint32_t)n[9];
    s->has_worth = n[10] != 0;
    s->page_bytes = n[11];
    s->hot_bytes = n[12];
    s->n_extra = n[13];
    s->maps[0] = n[14];
    s->maps[1] = n[15];
    return true;
}

/* Each lane ends with the tokens that are held in full, or has the last of these alone, and its
 * positions ascend. */
static bool lanes_fit(const quire_block_state *s)
{
    for (uint32_t i = 0; i < n_lanes_of(s); i++) {
        const quire_block_lane *lane = &s->lanes[i];
        uint32_t n_full = s->n_text - s->n_condensed;
        int32_t last = -1;

        for (uint32_t t = 0; t < lane->n_tokens; t++) {
            if (lane->positions[t] <= last || (uint32_t)lane->positions[t] >= s->n_text) {
                return false;
            }
            last = lane->positions[t];
        }
        if (n_full > 0 && lane->n_tokens == 0) {
            return false;
        }
        n_full = n_full < lane->n_tokens ? n_full : lane->n_tokens;
        if (n_full > 0 &&
            (uint32_t)lane->positions[lane->n_tokens - n_full] != s->n_text - n_full) {
            return false;
        }
    }
    return true;
}

/* Whether all parts are there and nothing else. */
static int read_parts(quire_block_state *s, bool *is_right)
{
    cursor c = { .memory = s->memory, .n_max = s->n_bytes - QUIRE_HASH128_BYTES + 8 };

    *is_right = read_head(s, s->n_bytes);
    if (!*is_right) {
        return QUIRE_OK;
    }
    s->lanes = calloc(n_lanes_of(s), sizeof *s->lanes);
    QUIRE_FAIL_IF(s->lanes == NULL, QUIRE_NOMEM);
    take_all(s, &c, true);
    *is_right = !c.is_over && c.at + QUIRE_HASH128_BYTES == s->n_bytes && lanes_fit(s);
    return QUIRE_OK;
}

int quire_block_state_parse(quire_block_state *out, unsigned char *bytes, size_t n_bytes,
                            quire_error *err)
{
    unsigned char hash[QUIRE_HASH128_BYTES];
    uint64_t version;
    bool is_right;

    *out = (quire_block_state){ .memory = bytes, .n_bytes = n_bytes };
    if (n_bytes < QUIRE_BLOCK_HEAD_BYTES + QUIRE_HASH128_BYTES ||
        memcmp(bytes, MAGIC, MAGIC_BYTES) != 0) {
        return quire_error_set(err, QUIRE_CORRUPT, "it is no state of a text");
    }
    version = quire_le_get(bytes + MAGIC_BYTES, 8);
    if (version != QUIRE_BLOCK_STATE_VERSION) {
        return quire_error_set(err, QUIRE_UNSUPP, "its version is %llu, this program reads %u",
                               (unsigned long long)version, QUIRE_BLOCK_STATE_VERSION);
    }
    quire_hash128(bytes, n_bytes - sizeof hash, hash);
    if (memcmp(hash, bytes + n_bytes - sizeof hash, sizeof hash) != 0) {
        return quire_error_set(err, QUIRE_CORRUPT, "it is damaged: its hash is another");
    }
    if (read_parts(out, &is_right) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    return is_right ? QUIRE_OK
                    : quire_error_set(err, QUIRE_CORRUPT, "it is damaged: its parts do not fit");
}
