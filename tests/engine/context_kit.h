/* context_kit.h - common parts of the tests of texts that are longer than the context: engines,
 * answers, and those of a plain loop that shifts or condenses at the same places.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_CONTEXT_KIT_H
#define QUIRE_TESTS_CONTEXT_KIT_H

#include "device/mock_device.h"
#include "engine_fixture.h"
#include "model/context_overflow.h"
#include "retain/policy.h"

#define N_CTX    512u
#define N_PROMPT 300u
#define N_TOKENS 500u
#define N_LONG   1300u

#define CONTEXT_SIDES_MAX 6u /* of context_several() */

typedef struct setting {
    quire_format format;
    quire_context_overflow overflow;
    uint32_t keep;
    const char *retain;   /* of condense; NULL = the default */
    uint32_t page_tokens; /* 0 = 64 */
    uint32_t chunk_tokens;
    uint32_t n_seqs;     /* 0 = 8 */
    uint32_t n_contexts; /* that memory has room for; 0 = 1 */
    bool no_prefix_cache;
    bool has_below; /* texts larger than memory may have pages in a file, or in the host's memory */
    const char *device; /* of the KV; NULL: the CPU */
    uint32_t recent;    /* with has_recent: --kv-recent; else the default */
    bool has_recent;
} setting;

extern quire_device *context_mock; /* opened last */

/* Files of has_below lie in test_dir. */
engine_bench context_bench(const setting *s);

/* Tokens with the log-probabilities of each: any changed bit of KV shows. */
typedef struct answer {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
    uint32_t n;
} answer;

/* The tokens that a lone sequence generates on the CPU when it drops tokens whenever it is full. */
void expect(const engine_bench *b, const setting *s, const int32_t *prompt, uint32_t n_prompt,
            uint32_t n, answer *out);

quire_request *ask(const engine_bench *b, const setting *s, const int32_t *prompt,
                   uint32_t n_prompt, uint32_t n);
void answer_take(quire_request *request, answer *out);
void assert_same(const answer *got, const answer *want);
/* Ask, compare, and return how many tokens the cache had. */
uint32_t check(const engine_bench *b, const setting *s, const int32_t *prompt, uint32_t n_prompt,
               const answer *want);
/* Ask for n texts at once, in memory that has room for fewer: some are preempted, and computed
 * again with the same bits. */
void context_several(const setting *s, uint32_t n);

#endif /* QUIRE_TESTS_CONTEXT_KIT_H */
