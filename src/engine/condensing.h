/* condensing.h - texts of requests that keep a share of their tokens, in the pages that all
 * requests share: where a text is condensed, how many tokens it holds, and the condensing itself.
 *
 *   text      0 ........... chunk ......... 2 chunk ....... 3 chunk ...... n
 *   before the token at position k * chunk is computed, condensing number k takes place:
 *   sequence  [ kept(k) tokens of each lane, of the first k * chunk ][ the rest, in full ]
 *
 * The places depend on the text alone, and so does the number of kept tokens, which is the same for
 * all lanes. Thus the kept pages are a function of the text, the policy with its parameters, the
 * chunk and the model: requests of one policy share them as they share other pages. Condensing
 * number k reads the result of number k - 1: k is the text's count of generations.
 *
 * Each lane keeps tokens of its own. kept(k) is the share of the text so far, and at least the
 * tokens that the policy protects, rounded up to whole pages.
 *
 * The policies are those that score by keys or positions, since pages hold these alone: keydiff,
 * window, last, stride, random.
 *
 * Thread: any; quire_condense(): the owner of the runtime.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_CONDENSING_H
#define QUIRE_ENGINE_CONDENSING_H

#include "model/runtime.h"
#include "quire/error.h"
#include "retain/policy.h"

typedef struct quire_condensing {
    quire_retain_spec spec;
    uint32_t chunk; /* tokens, a multiple of page_tokens; 0: the text keeps all tokens */
    uint32_t page_tokens;
    char text[QUIRE_RETAIN_TEXT_MAX]; /* quire_retain_text() */
} quire_condensing;

/* Whether texts in shared pages can be condensed by a policy. `setting` begins the message:
 * "--retain", or "retain:". Errors: QUIRE_UNSUPP (the policy or one of its parameters); err names
 * it. */
int quire_condensing_policy_check(const quire_retain_spec *spec, const char *setting,
                                  quire_error *err);

/* Whether texts of a runtime can be condensed so. Errors: also QUIRE_UNSUPP for the model, its
 * formats or the runtime: quire_runtime_rows_check(). */
int quire_condensing_check(const quire_runtime *runtime, const quire_retain_spec *spec,
                           const char *setting, quire_error *err);

void quire_condensing_init(quire_condensing *out, const quire_retain_spec *spec, uint32_t chunk,
                           uint32_t page_tokens);

/* Whether both condense every text alike. */
bool quire_condensing_is_same(const quire_condensing *a, const quire_condensing *b);

/* Condensings before the token at a position is computed. */
static inline uint32_t quire_condensing_before(const quire_condensing *c, uint32_t position)
{
    return c->chunk != 0 ? position / c->chunk : 0;
}

/* Tokens that each lane holds after condensing number k; 0 for k = 0. Cost: O(k). */
uint32_t quire_condensing_kept(const quire_condensing *c, uint32_t k);

/* Tokens that left the sequence in the first k condensings: a multiple of page_tokens. */
static inline uint32_t quire_condensing_gone(const quire_condensing *c, uint32_t k)
{
    return k * c->chunk - quire_condensing_kept(c, k);
}

/* Tokens that a text condensed k times is made of, at least. */
static inline uint32_t quire_condensing_made_of(const quire_condensing *c, uint32_t k)
{
    return k * c->chunk;
}

/* The most tokens that the pages of a text of n_tokens tokens have room for at a time: before the
 * last condensing the tokens held, and beside them the kept ones. */
uint32_t quire_condensing_need(const quire_condensing *c, uint32_t n_tokens);

/* Condensing number k: `from` holds the kept(k - 1) + chunk tokens before it, and the empty
 * sequence `to` gets the kept(k) tokens of it in pages of its own. Errors: those of
 * quire_seq_reserve(), QUIRE_NOMEM; then `to` has no tokens. */
int quire_condense(const quire_condensing *c, quire_runtime *runtime, uint32_t k, quire_seq_id from,
                   quire_seq_id to);

#endif /* QUIRE_ENGINE_CONDENSING_H */
