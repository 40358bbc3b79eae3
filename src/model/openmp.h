/* openmp.h - lends a team of threads to ggml, which uses it instead of threads of its own
 * (openmp.c).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_OPENMP_H
#define QUIRE_MODEL_OPENMP_H

#include "base/team.h"

/* Call fn(ctx) on this thread; ggml's parallel regions in it run on `team`. Thread: the team's. */
void quire_openmp_run(quire_team *team, quire_team_fn *fn, void *ctx);

#endif /* QUIRE_MODEL_OPENMP_H */
