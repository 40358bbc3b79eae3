/* attend_kit.h - common parts of the tests of requests whose generated tokens read a share of the
 * pages.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_ATTEND_KIT_H
#define QUIRE_TESTS_ATTEND_KIT_H

#include "condense_kit.h"

#define SHARE 0.4

/* A prompt, and its answers with a share and without. */
typedef struct attended {
    int32_t tokens[N_PROMPT + N_TOKENS]; /* the prompt; tests append to it */
    answer some;
    answer all;
} attended;

void attended_make(const engine_bench *b, const setting *s, uint64_t seed, attended *t);
/* Ask with the share, or without; compare, and return how many tokens the cache had. */
uint32_t check_some(const engine_bench *b, const attended *t);
uint32_t check_all(const engine_bench *b, const attended *t);
/* A miss and a hit, with the share and without, whichever filled the pages. */
void attend_same_bits(const setting *s);

#endif /* QUIRE_TESTS_ATTEND_KIT_H */
