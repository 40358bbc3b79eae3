/* retention_kit.h - common parts of the tests of texts in lanes: a runtime with or without a
 * retention, steps of one text, states, a mock device.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_RETENTION_KIT_H
#define QUIRE_TESTS_RETENTION_KIT_H

#include "device/mock_device.h"
#include "engine/retention.h"
#include "model_fixture.h"

#define N_TOKENS 500u
#define N_VOCAB  320u
#define CHUNK    128u

extern int32_t tokens[N_TOKENS];         /* the text */
extern const quire_predictor *predictor; /* of the retentions that are opened next */
extern quire_device *retention_mock;     /* opened last */

/* Make the text. */
void text_make(uint64_t seed);

/* Maps of the model; seeds give other ones. Memory: quire_predictor_free(). */
quire_predictor *maps_make(const quire_model *model, uint64_t seed);

typedef struct world {
    quire_model *model;
    quire_runtime *runtime;
    quire_retention *retention; /* NULL: all tokens are kept, in full pages */
    quire_seq_id seq;
    uint64_t planned_bytes;
    double attend_share; /* of the retention that is opened next; 0 = all */
} world;

/* policy NULL: without a retention; "all": with one that keeps all tokens. */
void world_open(world *w, const quire_runtime_opts *runtime_opts, const char *policy);
void world_close(world *w);

const float *step(world *w, uint32_t begin, uint32_t n, quire_logits wanted);
/* Logits of all tokens in steps of n. Memory: free(). */
float *read_text(world *w, uint32_t n);

quire_runtime_opts opts_of(quire_format format, uint32_t n_threads);
/* The same with KV on a mock device. */
quire_runtime_opts on_mock(quire_format format);

/* A copy of a state's file. Memory: free(). */
unsigned char *copy_of(const quire_block_state *state);
/* Read half of the text, save; the other half behind the loaded state has the same logits. */
void go_on(world *w, const quire_runtime_opts *opts, const char *policy);

#endif /* QUIRE_TESTS_RETENTION_KIT_H */
