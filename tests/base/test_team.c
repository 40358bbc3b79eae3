/* test_team.c - members of a team meet, sleep, are woken; teams of all sizes, side by side.
 *
 * How many members a run has is the team's choice when the machine is busy (team_size.h). The first
 * run of a new team has all of them, so properties that need all members are tested in a first run.
 *
 * SPDX-License-Identifier: MIT */
#include "base/team.h"

#include "quire/status.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define MEMBERS_MAX 8u
#define ROUNDS      500u

static uint32_t threads_before_failure = UINT32_MAX;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
                          void *arg)
{
    if (threads_before_failure == 0) {
        return 11; /* EAGAIN */
    }
    threads_before_failure--;
    return __real_pthread_create(thread, attr, fn, arg);
}

static quire_team *team_new(uint32_t n_threads)
{
    quire_team *team;

    assert_int_equal(quire_team_create(&team, n_threads), QUIRE_OK);
    return team;
}

/* ---- members that take part ---- */

typedef struct roll {
    uint32_t size;
    uint32_t n_calls[MEMBERS_MAX];
    pthread_t threads[MEMBERS_MAX];
    bool blocks_signals[MEMBERS_MAX];
} roll;

static void roll_call(void *ctx)
{
    roll *r = ctx;
    const uint32_t i = quire_team_index();
    sigset_t blocked;

    if (i == 0) {
        r->size = quire_team_size();
    }
    r->n_calls[i]++;
    r->threads[i] = pthread_self();
    (void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    r->blocks_signals[i] = sigismember(&blocked, SIGINT) == 1;
}

static void roll_check(const roll *r, uint32_t n)
{
    assert_int_equal(r->size, n);
    for (uint32_t i = 0; i < MEMBERS_MAX; i++) {
        assert_int_equal(r->n_calls[i], i < n ? 1 : 0);
    }
}

static void test_first_run_has_all(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MEMBERS_MAX; n++) {
        quire_team *team = team_new(n);
        roll r = { 0 };

        quire_team_run(team, 0, roll_call, &r);
        roll_check(&r, n);
        assert_true(pthread_equal(r.threads[0], pthread_self()));
        for (uint32_t i = 1; i < n; i++) {
            assert_false(pthread_equal(r.threads[i], r.threads[i - 1]));
            assert_true(r.blocks_signals[i]);
        }
        assert_false(r.blocks_signals[0]);
        assert_int_equal(quire_team_stats_get(team).runs_total, 1);
        assert_int_equal(quire_team_stats_get(team).small_runs_total, 0);
        quire_team_destroy(team);
    }
}

static void test_a_run_can_ask_for_fewer(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= MEMBERS_MAX; n++) {
        quire_team *team = team_new(5);
        roll few = { 0 };
        roll next = { 0 };

        quire_team_run(team, n, roll_call, &few);
        roll_check(&few, n < 5 ? n : 5);
        quire_team_run(team, 0, roll_call, &next);
        roll_check(&next, next.size);
        quire_team_destroy(team);
    }
}

static void test_outside_of_runs(void **state)
{
    (void)state;
    assert_int_equal(quire_team_index(), 0);
    assert_int_equal(quire_team_size(), 1);
    quire_team_meet();
}

static void test_errors(void **state)
{
    quire_team *team;

    (void)state;
    assert_int_equal(quire_team_create(&team, 0), QUIRE_INVAL);
    assert_null(team);
    assert_int_equal(quire_team_create(&team, QUIRE_TEAM_THREADS_MAX + 1), QUIRE_INVAL);
    assert_null(team);
    for (uint32_t n = 0; n < 3; n++) {
        threads_before_failure = n;
        assert_int_equal(quire_team_create(&team, 4), QUIRE_NOMEM);
        assert_null(team);
    }
    threads_before_failure = UINT32_MAX;
    quire_team_destroy(NULL);
}

/* ---- meeting ---- */

typedef struct phases {
    uint32_t at[MEMBERS_MAX]; /* written by its member, read by the others after they met */
    uint32_t n_wrong[MEMBERS_MAX];
} phases;

static void go_through_phases(void *ctx)
{
    phases *p = ctx;
    const uint32_t me = quire_team_index();
    const uint32_t n = quire_team_size();

    for (uint32_t phase = 1; phase <= ROUNDS; phase++) {
        p->at[me] = phase;
        quire_team_meet();
        for (uint32_t i = 0; i < n; i++) {
            p->n_wrong[me] += p->at[i] != phase;
        }
        quire_team_meet();
    }
}

static void test_members_meet(void **state)
{
    (void)state;
    for (uint32_t n = 2; n <= MEMBERS_MAX; n += 3) {
        quire_team *team = team_new(n);
        phases p = { 0 };

        quire_team_run(team, 0, go_through_phases, &p);
        for (uint32_t i = 0; i < MEMBERS_MAX; i++) {
            assert_int_equal(p.at[i], i < n ? ROUNDS : 0);
            assert_int_equal(p.n_wrong[i], 0);
        }
        quire_team_destroy(team);
    }
}

/* Each member adds its share of 0 .. N - 1. The sum must be right for any number of members. */
#define SUM_N 1000u

typedef struct sum {
    uint64_t parts[MEMBERS_MAX];
    uint32_t n_members;
} sum;

static void add_share(void *ctx)
{
    sum *s = ctx;
    const uint32_t me = quire_team_index();
    const uint32_t n = quire_team_size();
    uint64_t part = 0;

    for (uint32_t i = SUM_N * me / n; i < SUM_N * (me + 1) / n; i++) {
        part += i;
    }
    s->parts[me] = part;
    quire_team_meet();
    if (me == 0) {
        s->n_members = n;
    }
}

/* Not the caller's thread alone calls this, so it asserts nothing. */
static bool sum_is_right(quire_team *team, uint32_t n_members_max)
{
    sum s = { 0 };
    uint64_t total = 0;

    quire_team_run(team, n_members_max, add_share, &s);
    for (uint32_t i = 0; i < s.n_members; i++) {
        total += s.parts[i];
    }
    return total == (uint64_t)SUM_N * (SUM_N - 1) / 2;
}

static void test_runs_follow_each_other(void **state)
{
    quire_team *team = team_new(4);

    (void)state;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        assert_true(sum_is_right(team, i % 6));
    }
    assert_int_equal(quire_team_stats_get(team).runs_total, ROUNDS);
    quire_team_destroy(team);
}

static void *run_many(void *team)
{
    for (uint32_t i = 0; i < ROUNDS; i++) {
        if (!sum_is_right(team, 0)) {
            return team;
        }
    }
    return NULL;
}

static void test_two_teams_at_once(void **state)
{
    quire_team *ours = team_new(3);
    quire_team *theirs = team_new(2);
    pthread_t thread;
    void *failed;

    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, run_many, theirs), 0);
    assert_null(run_many(ours));
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    quire_team_destroy(theirs);
    quire_team_destroy(ours);
}

typedef struct nested {
    quire_team *teams[2];
    roll rolls[2];
    uint32_t size_after;
} nested;

static void run_inside(void *ctx)
{
    nested *n = ctx;

    if (quire_team_index() == 0) {
        quire_team_run(n->teams[0], 0, roll_call, &n->rolls[0]);
        quire_team_run(n->teams[1], 0, roll_call, &n->rolls[1]);
        n->size_after = quire_team_size();
    }
}

static void test_a_run_in_a_run_has_one_member(void **state)
{
    nested n = { .teams = { team_new(2), team_new(3) } };

    (void)state;
    quire_team_run(n.teams[0], 0, run_inside, &n);
    roll_check(&n.rolls[0], 1);
    roll_check(&n.rolls[1], 1);
    assert_int_equal(n.size_after, 2);
    quire_team_destroy(n.teams[0]);
    quire_team_destroy(n.teams[1]);
}

/* ---- sleeping ---- */

static uint64_t sleeps(const quire_team *team)
{
    return quire_team_stats_get(team).sleeps_total;
}

typedef struct delay {
    quire_team *team;
    _Atomic uint64_t sleeps_before; /* plus 1; 0: not known yet */
} delay;

/* The worker comes to the meeting only when the caller sleeps there. */
static void keep_caller_waiting(void *ctx)
{
    delay *d = ctx;

    if (quire_team_index() == 0) {
        atomic_store(&d->sleeps_before, sleeps(d->team) + 1);
    } else {
        while (atomic_load(&d->sleeps_before) == 0 ||
               sleeps(d->team) < atomic_load(&d->sleeps_before)) {
            (void)sched_yield();
        }
    }
    quire_team_meet();
}

static void test_who_waits_long_sleeps(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        delay d = { .team = team_new(2) };

        quire_team_run(d.team, 0, keep_caller_waiting, &d);
        assert_true(sleeps(d.team) >= atomic_load(&d.sleeps_before));
        quire_team_destroy(d.team);
    }
}

static void test_sleeping_workers_wake(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        quire_team *team = team_new(3);
        roll r = { 0 };

        while (sleeps(team) < 2) {
            (void)sched_yield();
        }
        if (i % 2 == 0) {
            quire_team_run(team, 0, roll_call, &r);
            roll_check(&r, 3);
        }
        quire_team_destroy(team);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_run_has_all),
        cmocka_unit_test(test_a_run_can_ask_for_fewer),
        cmocka_unit_test(test_outside_of_runs),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_members_meet),
        cmocka_unit_test(test_runs_follow_each_other),
        cmocka_unit_test(test_two_teams_at_once),
        cmocka_unit_test(test_a_run_in_a_run_has_one_member),
        cmocka_unit_test(test_who_waits_long_sleeps),
        cmocka_unit_test(test_sleeping_workers_wake),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
