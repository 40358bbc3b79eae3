/* tier_kit.h - common parts of the tests of pages below memory.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_TIER_KIT_H
#define QUIRE_TESTS_TIER_KIT_H

#include "engine_fixture.h"

#include "store/memory_store.h"

#define N_CTX    1024u
#define N_PROMPT 300u
#define N_TOKENS 12u
#define PAGE     64u
#define N_FULL   (N_PROMPT / PAGE * PAGE)

/* A store in memory that outlives the engines that use it: quire_memory_store_destroy(). */
quire_store *tier_store_new(void);
/* An engine over the store, with KV of one format. */
engine_bench tier_bench(quire_store *store, quire_format format, bool copies_all);
/* Run a request to its end; got is [max_tokens]. Returns its cached tokens. */
uint32_t tier_run(const engine_bench *b, const quire_request_params *params, int32_t *got);
/* The same, with a check of the answer [N_TOKENS] against reference(), and of the cached tokens. */
void tier_expect(const engine_bench *b, const quire_request_params *params, uint32_t n_cached,
                 int32_t *got);
/* Drop all pages in memory, and none below. */
void tier_forget(const engine_bench *b);
/* Wait until the store has n records: idle time copies. */
void tier_wait_records(const engine_bench *b, uint64_t n);

#endif /* QUIRE_TESTS_TIER_KIT_H */
