/* condense_kit.h - common parts of the tests of condensed texts: engines, requests with a policy,
 * and the answers of `quire run --retain`.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_CONDENSE_KIT_H
#define QUIRE_TESTS_CONDENSE_KIT_H

#include "engine_fixture.h"

#define N_CTX    1024u
#define CHUNK    128u
#define N_PROMPT 600u
#define N_TOKENS 60u
#define KEYDIFF  "keydiff:0.5,recent=32"
#define STRIDE   "stride:0.5,recent=32"

typedef struct setting {
    const char *policy; /* NULL: the text keeps all tokens */
    quire_format format;
    uint32_t chunk;        /* between two condensings; 0 = CHUNK */
    uint32_t chunk_tokens; /* of a step; 0 = the default */
    uint32_t n_ctx;        /* 0 = N_CTX */
    uint32_t n_pages;      /* that memory has room for; 0 = of 4 contexts */
    bool no_prefix_cache;
    quire_store *store;    /* NULL: none. It gets all pages */
    uint32_t maps;         /* seed of the maps of `predict`; 0 = none */
    double attend_share;   /* pages have bounds, and the model has 4 layers; 0 = neither */
    uint32_t page_tokens;  /* 0 = 64 */
    quire_format v_format; /* with has_v_format: V's, and format is K's */
    bool has_v_format;
    uint32_t kv_recent; /* with has_kv_recent; else the default */
    bool has_kv_recent;
    const int32_t *windows; /* [4] of the model's layers; NULL: none has one */
    const char *device;     /* "mock", or another name; NULL: the CPU */
    uint32_t n_threads;     /* 0 = 1 */
    bool has_classes;       /* those of quire_classes_default(), else one */
} setting;

extern quire_device *condense_mock; /* opened last */

/* Whether there is a "vulkan0"; a line says why not. */
bool condense_has_vulkan(void);

engine_bench condense_bench(const setting *s);

/* Maps of hidden states to scores for the model of the bench. Memory: static, until the next call
 * with another seed. */
const quire_predictor *maps_of(const engine_bench *b, uint32_t seed);

/* Also "recent=0", which no option allows: then quire run condenses at the same places in sealed
 * formats, too. */
quire_retain_spec spec_of(const char *policy);

/* Tokens with the log-probabilities of each: any changed bit of KV shows. */
typedef struct answer {
    int32_t tokens[N_TOKENS];
    float logprobs[N_TOKENS];
    uint32_t n;
} answer;

/* The answer of a request that ends by its length, and release. Returns the number of cached
 * tokens.
 */
uint32_t answer_read(quire_request *request, answer *out);
/* The answer of a request. Tests compare hits with the answer of a miss. Returns the number of
 * cached tokens. */
uint32_t answer_take(const engine_bench *b, const char *policy, const int32_t *prompt,
                     uint32_t n_prompt, answer *out);

/* The tokens that `quire run` generates, with lanes of their own for the policy or the share. */
void expect(const engine_bench *b, const setting *s, const int32_t *prompt, uint32_t n_prompt,
            answer *out);

/* policy NULL: none. */
quire_request *ask(const engine_bench *b, const char *policy, const int32_t *prompt,
                   uint32_t n_prompt);
/* Submit a request whose generated tokens attend to a share of the pages. */
quire_request *ask_attending(const engine_bench *b, double share, const int32_t *prompt,
                             uint32_t n_prompt);
/* Compare the answer; returns how many tokens of the prompt the cache had. */
uint32_t answer_check(quire_request *request, const answer *want);
/* Both. */
uint32_t check(const engine_bench *b, const char *policy, const int32_t *prompt, uint32_t n_prompt,
               const answer *want);

/* Requests with the same prompt at once: policies and want are [n]. */
typedef struct sides {
    const char *const *policies; /* NULL among them: none */
    const answer *want;
    uint32_t n; /* SIDES_MAX at most */
    const int32_t *prompt;
    uint32_t n_prompt;
} sides;

#define SIDES_MAX 8u

/* Compare their answers in each of n_rounds rounds, for which memory must be too short: pages have
 * been evicted at the end. */
void check_side_by_side(const engine_bench *b, const sides *s, uint32_t n_rounds);
/* The answer for a text of which nothing is cached, in an engine of its own with enough memory. */
void condense_miss(const setting *s, const int32_t *prompt, uint32_t n_prompt, answer *out);

#endif /* QUIRE_TESTS_CONDENSE_KIT_H */
