/* soak_fixture.h - parts of all soaks: texts with the answers of a request alone, and requests in
 * flight that are compared with them.
 *
 * cmocka's assertions belong to the main thread, so functions for the clients' threads return a
 * verdict.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_SOAK_FIXTURE_H
#define QUIRE_TESTS_SOAK_FIXTURE_H

#include "base/rng.h"
#include "engine_fixture.h"

#define SOAK_N_CTX      512u
#define SOAK_TOKENS_MAX 2048u /* of a text */
#define SOAK_TEXTS_MAX  12u
#define SOAK_ANSWER_MAX 60u

typedef struct soak_texts {
    uint32_t n;
    uint32_t answer_tokens;  /* of each answer */
    uint32_t own_tokens_max; /* behind a common beginning; 0 = 150 */
    int32_t tokens[SOAK_TEXTS_MAX][SOAK_TOKENS_MAX];
    uint32_t n_tokens[SOAK_TEXTS_MAX];
    int32_t answers[SOAK_TEXTS_MAX][SOAK_ANSWER_MAX];
} soak_texts;

typedef struct soak_flight {
    quire_request *request;
    uint32_t text;
    uint32_t n_tokens;
    bool has_values; /* of the prompt */
} soak_flight;

/* Make texts and the answers of the plain loop. Text i begins with the first i % 3 * n_same tokens
 * of a common beginning. n, answer_tokens and own_tokens_max are set by the caller. */
void soak_texts_make(soak_texts *texts, const engine_bench *bench, uint32_t n_same, quire_rng *rng);

/* A request for a random text: one in ten leaves nothing in the cache, one in eight wants the
 * log-probabilities of its prompt, one in four is tenant "a"'s, the others are "b"'s. */
quire_request_params soak_params(const soak_texts *texts, quire_rng *rng, soak_flight *flight);

/* Wait for all tokens and the end. Returns how many tokens differ from the answer; -1 when the
 * request did not end as it should, or a value of its prompt is missing. */
int soak_flight_finish(const soak_texts *texts, const soak_flight *flight);

#endif /* QUIRE_TESTS_SOAK_FIXTURE_H */
