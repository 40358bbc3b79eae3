/* engine_halves.h - what an engine consists of; for engine.c and tests only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_ENGINE_HALVES_H
#define QUIRE_ENGINE_ENGINE_HALVES_H

#include "engine/engine.h"

typedef struct quire_loop quire_loop;
typedef struct quire_adapt quire_adapt;

struct quire_engine {
    quire_loop *loop;   /* serves: engine/loop/loop.h */
    quire_adapt *adapt; /* watches it and changes its settings: engine/adapt/adapt.h */
};

#endif /* QUIRE_ENGINE_ENGINE_HALVES_H */
