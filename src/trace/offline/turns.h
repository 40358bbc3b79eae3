/* turns.h - which requests of a trace are turns of one conversation.
 *
 * Where the trace names sessions, these count. Elsewhere a request continues the session of an
 * earlier one when it begins with the whole prompt of that one (its full blocks: what followed it
 * filled the last one up), and when nobody but that session has used the last of those blocks: a
 * short prompt that is no more than what everybody begins with is continued by nobody. Of several
 * that would do the longest counts, and a session is continued from its last turn only: who goes
 * back to an earlier one begins another.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_TURNS_H
#define QUIRE_TRACE_TURNS_H

#include "trace/trace.h"

typedef struct quire_turns {
    quire_allocator allocator;
    uint32_t *sessions; /* [n_requests], from 1; 0 where lengths alone are known and no session */
    uint32_t n_sessions;
    bool is_inferred;
} quire_turns;

/* allocator NULL = C library. Errors: QUIRE_NOMEM. */
int quire_turns_init(quire_turns *turns, const quire_trace *trace,
                     const quire_allocator *allocator);
void quire_turns_fini(quire_turns *turns);

#endif /* QUIRE_TRACE_TURNS_H */
