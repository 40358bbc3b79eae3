/* replicas_kit.h - an engine with two devices, for the tests of it.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_REPLICAS_KIT_H
#define QUIRE_TESTS_REPLICAS_KIT_H

#include "device/mock_device.h"
#include "engine_fixture.h"

#define N_CTX    512u
#define N_PROMPT 200u /* tokens: three full pages and an open one */
#define N_TOKENS 12u
#define N_FULL   (N_PROMPT / 64 * 64) /* tokens of a prompt in full pages */
#define N_SEQS   6u
#define DEVICES  2u

/* The devices, if they are mocks. */
extern quire_device *replica_mocks[DEVICES];

typedef struct replicas {
    engine_bench b; /* its runtime is the first device's */
    quire_runtime *second;
} replicas;

/* Options of the next engine: */
extern quire_store *replicas_second_store; /* NULL = none */
extern quire_prefix_watcher replicas_second_watcher;
extern bool replicas_first_is_cpu;
extern uint32_t replicas_second_set; /* of weights: bench_sets */

quire_runtime_opts replica_runtime_opts(const char *device);
/* An engine with two devices of this name; budget_bytes of the second one's KV, 0 = enough. */
replicas replicas_open_with(const char *device, const quire_engine_opts *engine,
                            uint64_t budget_bytes);
replicas replicas_open(const char *device, const quire_engine_opts *engine);
void replicas_close(replicas *r);

/* Requests of a class go to the device of its number. */
extern const quire_binding replica_bindings[DEVICES];

/* A greedy request of N_TOKENS tokens, with the text of this seed. */
quire_request *replicas_ask(const replicas *r, uint64_t seed);

typedef struct answer {
    int32_t tokens[N_TOKENS];
    uint32_t n_cached;
    uint32_t n_recomputed;
} answer;

/* Wait for the whole answer, and release the request. */
answer answer_take(quire_request *request);

/* The answer to the text of a seed, in the class of a device. */
answer ask_at(const replicas *r, uint32_t device, uint64_t seed);

#endif /* QUIRE_TESTS_REPLICAS_KIT_H */
