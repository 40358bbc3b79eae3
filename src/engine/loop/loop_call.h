/* loop_call.h - run functions on the engine's thread between two steps; for src/engine only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_LOOP_CALL_H
#define QUIRE_ENGINE_LOOP_CALL_H

#include "engine/engine.h"

typedef struct quire_loop quire_loop;

/* Run fn on the engine's thread between two steps, and wait for its end. fn may use the cache, the
 * tree, and the queries and setters of loop.h. It must be quick, and must wait neither for a
 * request nor for the engine's thread (this function, quire_loop_chore_do()). After fn, requests
 * that wait for room are tried again. Errors: QUIRE_AGAIN (the engine has ended). Thread: any but
 * the engine's. */
typedef void (*quire_loop_fn)(void *ctx, quire_cache *cache, quire_prefix *tree);
int quire_loop_call(quire_loop *loop, quire_loop_fn fn, void *ctx);

#endif /* QUIRE_ENGINE_LOOP_CALL_H */
