/* team_size.h - how many members of a team take part in the next run.
 *
 * A run of m members that takes the time t and does work w (processor time without polling) has the
 * use of w / t processors. With less than m / 2 processors, the machine is busy with other work.
 * For a pause, runs then have only as many members as had processors. For example, one of two
 * members has no processor for 4 ms: the run takes 5 ms for 2 ms of work, which one member alone
 * does in 2 ms.
 *
 * After the pause all members try again, unless the small runs had less than three quarters of
 * their processors: then the machine is still busy and the pause goes on. A trial that fails costs
 * at most the time that it took. The pause is a multiple of that time, and the multiple doubles
 * with each trial that fails in a row. So one disturbance of an idle machine is soon forgotten, and
 * on a busy machine trials take a small share of the time.
 *
 * Pure: time is an argument.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_BASE_TEAM_SIZE_H
#define QUIRE_BASE_TEAM_SIZE_H

#include <stdint.h>

#define QUIRE_TEAM_WINDOW_NS      2000000u /* shorter runs are judged together */
#define QUIRE_TEAM_PATIENCE_FIRST 2u
#define QUIRE_TEAM_PATIENCE_MAX   64u
#define QUIRE_TEAM_PAUSE_NS_MAX   5000000000u

typedef struct quire_team_sizer {
    uint32_t n_threads; /* of the team */
    uint32_t n_members; /* of the next run; fewer than n_threads: in a pause */
    uint32_t patience;  /* the multiple of the next failing trial */
    uint64_t time_ns;   /* of runs of this size that are not judged yet */
    uint64_t work_ns;
    uint64_t pause_ns; /* the last one */
    uint64_t retry_ns; /* when it ends */
} quire_team_sizer;

void quire_team_sizer_init(quire_team_sizer *sizer, uint32_t n_threads);

/* Members of a run that begins now. */
uint32_t quire_team_sizer_begin(quire_team_sizer *sizer, uint64_t now_ns);

/* A run of that many members has ended: it took time_ns, the work of its members together is
 * work_ns. */
void quire_team_sizer_end(quire_team_sizer *sizer, uint64_t now_ns, uint64_t time_ns,
                          uint64_t work_ns);

#endif /* QUIRE_BASE_TEAM_SIZE_H */
