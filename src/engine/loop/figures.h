/* figures.h - what the loop counts, and why the last requests found what they found.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_FIGURES_H
#define QUIRE_ENGINE_FIGURES_H

#include "engine/loop/request.h"

typedef struct quire_explained {
    quire_explanation explanation;
    uint32_t tenant_bytes;
    unsigned char tenant[QUIRE_PREFIX_SALT_MAX];
} quire_explained;

typedef struct quire_figures {
    quire_engine_stats now; /* the engine's thread's */
    /* Under the inbox's lock. */
    quire_engine_stats shared;  /* as after the last round */
    quire_explained *explained; /* [explain_max], a ring */
    uint32_t explained_next;
    uint32_t n_explained;
} quire_figures;

void quire_figures_init(quire_figures *figures, uint32_t n_classes);
/* Make the thread's figures visible. Thread: the engine's. */
void quire_loop_stats_publish(quire_loop *loop);

/* ---- explain.c. Thread: the engine's ---- */

/* From a match at admission; times come at the end. */
void quire_explanation_begin(quire_explanation *explanation, const quire_request *request,
                             const quire_prefix_match *match, uint64_t now_us);
/* Costs, as far as they are known. */
void quire_loop_explanation_update(quire_loop *loop, quire_request *request);
/* Keep it for quire_engine_explain(). */
void quire_loop_explanation_keep(quire_loop *loop, quire_request *request);

#endif /* QUIRE_ENGINE_FIGURES_H */
