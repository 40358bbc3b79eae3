/* engine_halves.h - the parts of an engine; for engine.c and tests only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_ENGINE_HALVES_H
#define QUIRE_ENGINE_ENGINE_HALVES_H

#include "engine/engine.h"

typedef struct quire_loop quire_loop;
typedef struct quire_adapt quire_adapt;
typedef struct quire_saver quire_saver;

struct quire_engine {
    quire_loop *loop;   /* serves: engine/loop/loop.h */
    quire_adapt *adapt; /* watches the loop and changes its settings: engine/adapt/adapt.h */
    quire_saver *saver; /* keeps what outlives a restart: engine/saver.h; NULL = nothing is kept */
};

#endif /* QUIRE_ENGINE_ENGINE_HALVES_H */
