/* team.h - threads that compute together and meet hundreds of times in a step.
 *
 * A team belongs to one thread, its caller. A run has the caller and workers execute one function;
 * inside it the members meet (a barrier). The caller is member 0.
 *
 *   caller   run ----> fn ----> meet ----> fn ----> end ----> (its own work) ----> run
 *   worker   wait ---> fn ----> meet ----> fn ----> end ----> wait ------------->
 *
 * Waiting: a member polls for a bounded time and then sleeps until it is woken. On an idle machine
 * others arrive within microseconds, so members rarely sleep. On a busy machine the others may be
 * without a processor for milliseconds; polling longer would take processor time from them.
 *
 * Size: a run on a busy machine can take longer than one thread would, because every meeting waits
 * for the member that has no processor. So the team compares each run's time with the processor
 * time of its work (team_size.h), and runs with fewer members until a later trial goes well. The
 * function must therefore ask for the number of members, and give the same result for any number.
 *
 * Thread: a team is used by one thread at a time; teams of different threads are independent.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_TEAM_H
#define QUIRE_BASE_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#define QUIRE_TEAM_THREADS_MAX 512u

typedef struct quire_team quire_team;

typedef void quire_team_fn(void *ctx);

typedef struct quire_team_stats {
    uint64_t runs_total;
    uint64_t small_runs_total; /* with fewer members than were asked for */
    uint64_t sleeps_total;     /* waits that outlasted polling, of all members */
} quire_team_stats;

/* Start n_threads - 1 workers, which block all signals. Errors: QUIRE_INVAL (n_threads outside 1 ..
 * QUIRE_TEAM_THREADS_MAX), QUIRE_NOMEM (also when the system starts no more threads). */
int quire_team_create(quire_team **out, uint32_t n_threads);

/* Ends and joins the workers. Accepts NULL. */
void quire_team_destroy(quire_team *team);

/* Call fn(ctx) on at most n_members_max members (0: no limit of the call) and return when all have
 * returned. A run from within a run has one member. Cost: some microseconds when workers poll, some
 * tens when they sleep. */
void quire_team_run(quire_team *team, uint32_t n_members_max, quire_team_fn *fn, void *ctx);

/* Of the run that the calling thread is in; outside of runs index 0 of 1 member. */
uint32_t quire_team_index(void);
uint32_t quire_team_size(void);

/* Return when all members of the calling thread's run are here; at once outside of runs. */
void quire_team_meet(void);

/* Thread: any; the figures of a run under way may be missing. */
quire_team_stats quire_team_stats_get(const quire_team *team);

#endif /* QUIRE_BASE_TEAM_H */
