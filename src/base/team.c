/* team.c - see team.h.
 *
 * Members wait for changes of two words. Bit 0 of a word is set when a member sleeps on it, so that
 * a change wakes members only if one sleeps:
 *
 *   start    { count of runs, members of the newest run, asleep }: workers wait for its change
 *   meeting  { count of meetings, asleep }: members wait for its change; the last one changes it
 *
 * The arguments of a run (fn, ctx) are written before `start` changes and stay until all members
 * have met at its end. A worker that is not in a run may see the run's word late or never, without
 * harm: a word that includes a member stays until this member has met the others.
 *
 * SPDX-License-Identifier: MIT */
#include "base/team.h"

#include "base/check.h"
#include "base/clock.h"
#include "base/team_size.h"

#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINE_BYTES 64 /* keeps frequent writes of one member away from data of others */

#define ASLEEP        1u
#define MEETING_STEP  2u
#define MEMBERS_SHIFT 1
#define MEMBERS_MASK  0x7ffu
#define RUN_STEP      0x1000u
#define RUN_OF_NOBODY 0u /* the final word: workers end */

_Static_assert(QUIRE_TEAM_THREADS_MAX <= MEMBERS_MASK, "members fit the start word");

/* How long members poll. Sleeping and waking takes about as long as POLL_MEET_NS, so no wait costs
 * more than twice as much as the better choice. Workers between runs poll for as long as a caller
 * is busy with a token: choosing it, writing it out. */
#define POLL_MEET_NS  50000u
#define POLL_START_NS 200000u
#define POLLS_UNTIMED 32  /* a microsecond or two, in which no clock is read */
#define POLLS_TIMED   16u /* between two looks at the clock */

typedef struct member {
    _Alignas(LINE_BYTES) quire_team *team;
    uint32_t index;
    bool is_started;
    pthread_t thread;
    uint64_t polled_ns; /* in the run at hand */
    uint64_t work_ns;   /* of the run that ended; written before the end, read after it */
    _Atomic uint64_t sleeps_total;
} member;

struct quire_team {
    _Alignas(LINE_BYTES) _Atomic uint32_t start;
    _Alignas(LINE_BYTES) _Atomic uint32_t meeting;
    _Alignas(LINE_BYTES) _Atomic uint32_t n_arrived;
    _Alignas(LINE_BYTES) quire_team_fn *fn;
    void *ctx;
    uint32_t n_threads;
    member *members; /* [n_threads] */
    quire_team_sizer sizer;
    _Atomic uint64_t runs_total;
    _Atomic uint64_t small_runs_total;
};

/* The run that this thread is in: NULL and 0 members outside. */
static _Thread_local member *current;
static _Thread_local uint32_t current_members;

/* ---- waiting ---- */

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void word_sleep(_Atomic uint32_t *word, uint32_t value)
{
    (void)syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void word_change(_Atomic uint32_t *word, uint32_t value)
{
    if ((atomic_exchange(word, value) & ASLEEP) != 0) {
        (void)syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    }
}

static bool is_changed(_Atomic uint32_t *word, uint32_t seen)
{
    return (atomic_load_explicit(word, memory_order_acquire) & ~ASLEEP) != seen;
}

/* Whether the word changed within `limit_ns` from `seen`, which has no ASLEEP. */
static bool poll(member *m, _Atomic uint32_t *word, uint32_t seen, uint64_t limit_ns)
{
    uint64_t begin_ns, now_ns;
    bool changed = false;

    for (uint32_t i = 0; i < POLLS_UNTIMED; i++) {
        if (is_changed(word, seen)) {
            return true;
        }
        relax();
    }
    begin_ns = now_ns = quire_clock_ns();
    while (!changed && now_ns - begin_ns < limit_ns) {
        for (uint32_t i = 0; i < POLLS_TIMED && !changed; i++) {
            relax();
            changed = is_changed(word, seen);
        }
        now_ns = quire_clock_ns();
    }
    m->polled_ns += now_ns - begin_ns;
    return changed;
}

static void wait_change(member *m, _Atomic uint32_t *word, uint32_t seen, uint64_t poll_ns)
{
    uint32_t value = seen;

    if (poll(m, word, seen, poll_ns)) {
        return;
    }
    atomic_fetch_add_explicit(&m->sleeps_total, 1, memory_order_relaxed);
    if (!atomic_compare_exchange_strong(word, &value, seen | ASLEEP) && value != (seen | ASLEEP)) {
        return;
    }
    while (!is_changed(word, seen)) {
        word_sleep(word, seen | ASLEEP);
    }
}

static void meet(member *m, uint32_t n_members)
{
    quire_team *team = m->team;
    /* The word cannot change before this member has arrived. */
    const uint32_t seen = atomic_load_explicit(&team->meeting, memory_order_relaxed) & ~ASLEEP;

    if (atomic_fetch_add(&team->n_arrived, 1) + 1 == n_members) {
        atomic_store_explicit(&team->n_arrived, 0, memory_order_relaxed);
        word_change(&team->meeting, seen + MEETING_STEP);
    } else {
        wait_change(m, &team->meeting, seen, POLL_MEET_NS);
    }
}

/* ---- runs ---- */

/* This member's part of a run, up to and with the meeting at its end. */
static void take_part(member *m, uint32_t n_members)
{
    const uint64_t begin_ns = quire_clock_thread_ns();

    m->polled_ns = 0;
    current = m;
    current_members = n_members;
    m->team->fn(m->team->ctx);
    current = NULL;
    current_members = 0;
    m->work_ns = quire_clock_thread_ns() - begin_ns;
    m->work_ns -= m->polled_ns < m->work_ns ? m->polled_ns : m->work_ns;
    meet(m, n_members);
}

static void *work(void *opaque)
{
    member *m = opaque;
    uint32_t seen = 0;
    uint32_t n_members;

    for (;;) {
        wait_change(m, &m->team->start, seen, POLL_START_NS);
        seen = atomic_load_explicit(&m->team->start, memory_order_acquire) & ~ASLEEP;
        n_members = seen >> MEMBERS_SHIFT & MEMBERS_MASK;
        if (n_members == RUN_OF_NOBODY) {
            return NULL;
        }
        if (m->index < n_members) {
            take_part(m, n_members);
        }
    }
}

/* The next start word. */
static uint32_t start_of(quire_team *team, uint32_t n_members)
{
    const uint32_t old = atomic_load_explicit(&team->start, memory_order_relaxed);

    return ((old & ~(RUN_STEP - 1)) + RUN_STEP) | n_members << MEMBERS_SHIFT;
}

static void run_alone(quire_team_fn *fn, void *ctx)
{
    member *outer = current;
    const uint32_t outer_members = current_members;

    current = NULL;
    current_members = 0;
    fn(ctx);
    current = outer;
    current_members = outer_members;
}

/* The caller's work. */
static uint64_t run_alone_timed(quire_team_fn *fn, void *ctx)
{
    const uint64_t begin_ns = quire_clock_thread_ns();

    run_alone(fn, ctx);
    return quire_clock_thread_ns() - begin_ns;
}

/* The members' work together. */
static uint64_t run_together(quire_team *team, uint32_t n_members, quire_team_fn *fn, void *ctx)
{
    uint64_t work_ns = 0;

    team->fn = fn;
    team->ctx = ctx;
    word_change(&team->start, start_of(team, n_members));
    take_part(&team->members[0], n_members);
    for (uint32_t i = 0; i < n_members; i++) {
        work_ns += team->members[i].work_ns;
    }
    return work_ns;
}

void quire_team_run(quire_team *team, uint32_t n_members_max, quire_team_fn *fn, void *ctx)
{
    uint32_t n_asked = team->n_threads;
    uint32_t n_members;
    uint64_t begin_ns, end_ns, work_ns;

    atomic_fetch_add_explicit(&team->runs_total, 1, memory_order_relaxed);
    if (n_members_max > 0 && n_members_max < n_asked) {
        n_asked = n_members_max;
    }
    if (n_asked == 1 || current != NULL) {
        run_alone(fn, ctx);
        return;
    }
    begin_ns = quire_clock_ns();
    n_members = quire_team_sizer_begin(&team->sizer, begin_ns);
    if (n_members < n_asked) {
        atomic_fetch_add_explicit(&team->small_runs_total, 1, memory_order_relaxed);
    } else {
        n_members = n_asked;
    }
    work_ns = n_members > 1 ? run_together(team, n_members, fn, ctx) : run_alone_timed(fn, ctx);
    end_ns = quire_clock_ns();
    if (n_members == team->sizer.n_members) {
        quire_team_sizer_end(&team->sizer, end_ns, end_ns - begin_ns, work_ns);
    }
}

uint32_t quire_team_index(void)
{
    return current != NULL ? current->index : 0;
}

uint32_t quire_team_size(void)
{
    return current != NULL ? current_members : 1;
}

void quire_team_meet(void)
{
    if (current != NULL) {
        meet(current, current_members);
    }
}

/* ---- life ---- */

static int workers_start(quire_team *team)
{
    for (uint32_t i = 1; i < team->n_threads; i++) {
        member *m = &team->members[i];

        if (pthread_create(&m->thread, NULL, work, m) != 0) {
            return QUIRE_NOMEM;
        }
        m->is_started = true;
    }
    return QUIRE_OK;
}

int quire_team_create(quire_team **out, uint32_t n_threads)
{
    quire_team *team;
    sigset_t all, before;
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(n_threads == 0 || n_threads > QUIRE_TEAM_THREADS_MAX, QUIRE_INVAL);
    team = aligned_alloc(LINE_BYTES, sizeof *team);
    QUIRE_FAIL_IF(team == NULL, QUIRE_NOMEM);
    *team = (quire_team){ .n_threads = n_threads };
    quire_team_sizer_init(&team->sizer, n_threads);
    team->members = aligned_alloc(LINE_BYTES, n_threads * sizeof *team->members);
    if (team->members == NULL) {
        free(team);
        return QUIRE_NOMEM;
    }
    for (uint32_t i = 0; i < n_threads; i++) {
        team->members[i] = (member){ .team = team, .index = i };
    }
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = workers_start(team);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc < 0) {
        quire_team_destroy(team);
        return rc;
    }
    *out = team;
    return QUIRE_OK;
}

void quire_team_destroy(quire_team *team)
{
    if (team == NULL) {
        return;
    }
    word_change(&team->start, start_of(team, RUN_OF_NOBODY));
    for (uint32_t i = 1; i < team->n_threads; i++) {
        if (team->members[i].is_started) {
            (void)pthread_join(team->members[i].thread, NULL);
        }
    }
    free(team->members);
    free(team);
}

quire_team_stats quire_team_stats_get(const quire_team *team)
{
    quire_team_stats stats = {
        .runs_total = atomic_load_explicit(&team->runs_total, memory_order_relaxed),
        .small_runs_total = atomic_load_explicit(&team->small_runs_total, memory_order_relaxed),
    };

    for (uint32_t i = 0; i < team->n_threads; i++) {
        stats.sleeps_total +=
            atomic_load_explicit(&team->members[i].sleeps_total, memory_order_relaxed);
    }
    return stats;
}
