/* team_size.c - see team_size.h.
 *
 * SPDX-License-Identifier: MIT */
#include "base/team_size.h"

#include <stdbool.h>

/* Shares of one processor for each member: the least share of a run of all members, and the share
 * that small runs have when the machine is not busy. */
#define SHARE_ENOUGH 0.5
#define SHARE_FREE   0.75

static void window_clear(quire_team_sizer *s)
{
    s->time_ns = 0;
    s->work_ns = 0;
}

/* Whether the runs of the window had less than `share` of a processor for each member. */
static bool had_less(const quire_team_sizer *s, double share)
{
    return (double)s->work_ns < share * (double)s->time_ns * s->n_members;
}

void quire_team_sizer_init(quire_team_sizer *s, uint32_t n_threads)
{
    *s = (quire_team_sizer){ .n_threads = n_threads,
                             .n_members = n_threads,
                             .patience = QUIRE_TEAM_PATIENCE_FIRST };
}

uint32_t quire_team_sizer_begin(quire_team_sizer *s, uint64_t now_ns)
{
    if (s->n_members < s->n_threads && now_ns >= s->retry_ns) {
        if (had_less(s, SHARE_FREE)) {
            s->retry_ns = now_ns + s->pause_ns;
        } else {
            s->n_members = s->n_threads;
        }
        window_clear(s);
    }
    return s->n_members;
}

/* As many members as had a processor; the window holds a trial that failed. */
static void pause_begin(quire_team_sizer *s, uint64_t now_ns)
{
    const uint64_t n = (s->work_ns + s->time_ns / 2) / s->time_ns;
    const uint64_t pause_ns = s->time_ns * s->patience;

    s->n_members = n > 0 ? (uint32_t)n : 1;
    s->pause_ns = pause_ns < QUIRE_TEAM_PAUSE_NS_MAX ? pause_ns : QUIRE_TEAM_PAUSE_NS_MAX;
    s->retry_ns = now_ns + s->pause_ns;
    if (s->patience < QUIRE_TEAM_PATIENCE_MAX) {
        s->patience *= 2;
    }
}

void quire_team_sizer_end(quire_team_sizer *s, uint64_t now_ns, uint64_t time_ns, uint64_t work_ns)
{
    s->time_ns += time_ns;
    s->work_ns += work_ns;
    if (s->n_members < s->n_threads || s->time_ns < QUIRE_TEAM_WINDOW_NS) {
        return;
    }
    if (had_less(s, SHARE_ENOUGH)) {
        pause_begin(s, now_ns);
    } else {
        s->patience = QUIRE_TEAM_PATIENCE_FIRST;
    }
    window_clear(s);
}
