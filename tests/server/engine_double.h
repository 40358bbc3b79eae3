/* engine_double.h - a test double of engine.h: answers come from a script.
 *
 * Linked before the engine, it replaces the engine. Tests can then provoke each error of the
 * server, and inspect the server's calls.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_ENGINE_DOUBLE_H
#define QUIRE_TESTS_ENGINE_DOUBLE_H

#include "engine/engine.h"
#include "engine/pins.h"
#include "engine/tuning.h"

typedef struct engine_script {
    const char *const *pieces; /* texts of the tokens */
    uint32_t n_pieces;
    const char *tail;
    quire_finish finish;
    uint32_t n_thought_tokens;
    int status;          /* finish ERROR */
    bool stops_at_first; /* the first stop text ends the answer */
    /* Tokens from this number on, and the end, come only after engine_double_go(). */
    uint32_t hold_at;
    bool holds;
    int submit_status;            /* < 0: refuse */
    uint32_t submit_refused_from; /* the first so many are accepted */
    const char *submit_message;
} engine_script;

/* "Hello" and " there", two tokens, then a stop. */
extern const engine_script engine_script_hello;

#define SEEN_TOKENS_MAX 1024u

/* The last calls of the server. */
typedef struct engine_seen {
    quire_request_params params; /* tokens, stops, tenant: see below; its pointers are gone */
    int32_t tokens[SEEN_TOKENS_MAX];
    char stops[4][64];
    unsigned char tenant[256];
    char grammar[4096];
    char rules_grammar[8192]; /* of the chat format */
    quire_logit_bias bias[8];
    char id[QUIRE_REQUEST_ID_MAX];
    uint32_t n_submitted;
    uint32_t n_cancelled; /* before they were done */
    uint32_t n_released;
} engine_seen;

#define DOUBLE_PINS_MAX 8u

/* The state that engine_double_memory.c has instead of a cache. Set it while no request runs. */
typedef struct engine_memory {
    quire_engine_pin pins[DOUBLE_PINS_MAX];
    uint32_t n_pins;
    quire_engine_pin_params created; /* last; its pointers are gone */
    int32_t tokens[256];
    int create_status; /* < 0: refuse */
    const char *create_message;
    uint64_t missing_bytes;
    uint32_t n_looks; /* that a new pin is computed for; UINT32_MAX: until it goes */
    bool vanishes;    /* at the first look */
    bool is_lost;     /* the device */
    uint32_t n_dropped;
    quire_engine_tuning tuning;
    quire_engine_tune_opts tuned_with;
    int tune_status;
    quire_engine_stats stats; /* replace the double's own figures, if has_stats */
    bool has_stats;
} engine_memory;

/* Memory: the engine's. */
engine_memory *engine_double_memory(quire_engine *engine);

/* Owns its sessions; model is borrowed. */
quire_engine *engine_double_create(const quire_model *model);
void engine_double_destroy(quire_engine *engine);
void engine_double_script(quire_engine *engine, const engine_script *script);
void engine_double_go(quire_engine *engine);
engine_seen engine_double_seen(quire_engine *engine);
/* Wait until so many requests have been cancelled, or released. */
void engine_double_wait_cancelled(quire_engine *engine, uint32_t n);
void engine_double_wait_submitted(quire_engine *engine, uint32_t n);

#endif /* QUIRE_TESTS_ENGINE_DOUBLE_H */
