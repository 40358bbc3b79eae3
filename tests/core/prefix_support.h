/* prefix_support.h - a cache with a prefix tree on test doubles, and whole requests as one call.
 *
 * Each slot is stamped with a hash of the text up to its token, so that a page with another text's
 * tokens is detected.
 *
 * SPDX-License-Identifier: MIT */
#ifndef TESTS_PREFIX_SUPPORT_H
#define TESTS_PREFIX_SUPPORT_H

#include "base/rng.h"
#include "core/prefix/prefix_internal.h"
#include "core_support.h"
#include "quire/pin.h"
#include "quire/prefix.h"

typedef struct test_prefix {
    test_cache t;
    quire_cache *cache; /* of t */
    quire_prefix *tree;
    uint64_t now_us; /* of the next call; set it */
    uint64_t owner;  /* of the next start */
    bool is_private;
    bool is_miss;
} test_prefix;

/* A running request. */
typedef struct test_run {
    quire_seq_id seq;
    quire_prefix_ref ref;
    quire_prefix_match match;
} test_run;

/* A tree in a cache of n_pages pages of one group. opts may be NULL; the cache and the allocator
 * are filled in. */
void test_prefix_create(test_prefix *p, uint32_t n_pages, const quire_prefix_opts *opts);
/* A tree in a cache made with these options. */
void test_prefix_create_in(test_prefix *p, const quire_cache_opts *cache_opts,
                           const quire_prefix_opts *opts);
void test_prefix_destroy(test_prefix *p);

/* Pins on the tree. pins_max 0 = the default. Memory: quire_pins_destroy(). */
quire_pins *test_pins_create(const test_prefix *p, uint32_t pins_max);

/* The key that the calls below use where they name none. */
quire_prefix_key test_key(void);
/* Keys 0 to 3: two identities and two salts, one of which is a prefix of the other. */
quire_prefix_key test_key_of(uint32_t number);

/* tokens[i] = base + i for i < n: texts of different bases share nothing. */
void test_text(int32_t *tokens, uint32_t n, int32_t base);
/* n_texts texts of n tokens, one behind the other, in random tokens 0 and 1. A text begins like an
 * earlier one. */
void test_texts(quire_rng *rng, int32_t *tokens, uint32_t n_texts, uint32_t n);

/* start: acquire for a text and check the stamps of the hit. extend: append and stamp the rest, and
 * publish the whole text. end: release and close. */
test_run test_run_start(test_prefix *p, const int32_t *tokens, uint32_t n_tokens);
void test_run_extend(test_prefix *p, const test_run *run, const int32_t *tokens, uint32_t n_tokens);
void test_run_end(test_prefix *p, const test_run *run);
/* A whole request; returns the match at its start. */
quire_prefix_match test_run_whole(test_prefix *p, const int32_t *tokens, uint32_t n_tokens);

quire_prefix_match test_lookup(const test_prefix *p, const int32_t *tokens, uint32_t n_tokens);
quire_prefix_stats test_prefix_stats(const test_prefix *p);

/* Stamp the tokens from begin on, check the stamps of all, holes left out. Group 0 has no holes. */
void test_stamp_text(const test_prefix *p, quire_seq_id seq, const int32_t *tokens, uint32_t begin);
void test_check_text(const test_prefix *p, quire_seq_id seq, const int32_t *tokens);
/* Stamp and check a text of test_key_of(key): equal texts of two keys have different stamps. */
void test_stamp_text_of(const test_prefix *p, uint32_t key, quire_seq_id seq, const int32_t *tokens,
                        uint32_t begin);
void test_check_text_of(const test_prefix *p, uint32_t key, quire_seq_id seq,
                        const int32_t *tokens);

/* For a tree whose group 1 has a window: the longest prefix of full pages, in tokens, whose last
 * window is in the tree. Found by a walk over all nodes. */
uint32_t test_naive_tokens(const test_prefix *p, uint32_t key, const int32_t *tokens,
                           uint32_t n_tokens);
/* A sequence that was just filled has the pages of its last window in group 1, and no others. */
void test_check_window(const test_prefix *p, quire_seq_id seq);

#endif /* TESTS_PREFIX_SUPPORT_H */
