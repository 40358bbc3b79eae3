/* figures.h - the loop's statistics, and explanations of the last requests' cache hits.
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
    quire_engine_stats shared;  /* copy made after the last round */
    quire_explained *explained; /* [explain_max], a ring */
    uint32_t explained_next;
    uint32_t n_explained;
} quire_figures;

void quire_figures_init(quire_figures *figures, uint32_t n_classes);
/* Make the thread's figures visible. Thread: the engine's. */
void quire_loop_stats_publish(quire_loop *loop);

/* ---- explain.c. Thread: the engine's ---- */

/* Begin an explanation from the match at admission; times are added at the end. */
void quire_explanation_begin(quire_explanation *explanation, const quire_request *request,
                             const quire_prefix_match *match, uint64_t now_us);
/* Fill in the costs known so far. */
void quire_loop_explanation_update(quire_loop *loop, quire_request *request);
/* Keep the explanation for quire_engine_explain(). */
void quire_loop_explanation_keep(quire_loop *loop, quire_request *request);

#endif /* QUIRE_ENGINE_FIGURES_H */
