/* saver_life.h - the saver for engine.c: see engine/saver.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_SAVER_LIFE_H
#define QUIRE_ENGINE_SAVER_LIFE_H

#include "engine/adapt/adapt.h"
#include "engine/loop/loop.h"
#include "engine/saver.h"

typedef struct quire_saver quire_saver;

/* Create a saver by the loop's options and bring back what its directory has; *out is NULL without
 * a directory. Thread: the owner's, before the loop starts. Errors: QUIRE_NOMEM, QUIRE_INVAL. */
int quire_saver_create(quire_saver **out, quire_loop *loop, quire_adapt *adapt, quire_error *err);
/* Start to write changes. If no thread can be started, nothing is written; the log says so, and a
 * failure is counted. Thread: the owner's, after the loop has started. NULL is allowed. */
void quire_saver_start(quire_saver *saver);
/* Write the last changes, and end. Thread: the owner's, before the loop stops: the loop ends what
 * runs, also pins that are being computed. NULL is allowed. */
void quire_saver_destroy(quire_saver *saver);

/* Thread: any. saver may be NULL. */
void quire_saver_stats_get(quire_saver *saver, quire_saver_stats *out);

#endif /* QUIRE_ENGINE_SAVER_LIFE_H */
