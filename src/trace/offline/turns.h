/* turns.h - groups requests of a trace into conversations.
 *
 * The session names of a trace are used if it has any. Otherwise request B continues the session of
 * an earlier request A under two conditions: B begins with all full blocks of A's prompt, and no
 * other session has used the last of these blocks. The second condition excludes short prompts that
 * many sessions begin with. Among several candidates the longest prompt wins. Only the last turn of
 * a session can be continued; a return to an earlier turn begins a new session.
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
