/* sim_classes.h - service classes of a simulation: NAME:RANK[:SHARE[:TTL]],...
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SIM_CLASSES_H
#define QUIRE_CLI_SIM_CLASSES_H

#include "quire/error.h"
#include "trace/sim/sim.h"

typedef struct quire_sim_classes {
    quire_sim_class list[QUIRE_TRACE_CLASSES_MAX];
    uint32_t n; /* 0 = none were given */
} quire_sim_classes;

/* text NULL: none. Errors: QUIRE_INVAL, QUIRE_RANGE, QUIRE_LIMIT; err names the class. */
int quire_sim_classes_parse(quire_sim_classes *out, const char *text, quire_error *err);

/* Put them in the order of the trace's classes. One that was not given has rank 0 and nothing
 * reserved. Errors: QUIRE_INVAL (the trace has no class of that name). */
int quire_sim_classes_match(quire_sim_classes *classes, const quire_trace *trace, quire_error *err);

#endif /* QUIRE_CLI_SIM_CLASSES_H */
