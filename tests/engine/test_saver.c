/* test_saver.c - sessions, pins and the reuse model come back after a restart; items that are
 * damaged, expired, deleted or not wanted do not; a disk that fails costs only the copy.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_fixture.h"

#include "base/clock.h"
#include "core/prefix/prefix_learned.h"
#include "doze.h"
#include "engine/pins.h"
#include "file_kit.h"
#include "store/memory_store.h"
#include "store/state/state_dir.h"

#include <dirent.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_CTX    512u
#define N_PROMPT 200u
#define US_PER_S 1000000u

/* The parts of a test that outlive a restart: a directory, a store, the time of day. */
typedef struct place {
    char path[256];
    quire_store *store;
    _Atomic uint64_t wall_us; /* offset of the wall clock */
    quire_engine_opts opts;
    _Atomic uint32_t n_lines;
    char line[512]; /* the last one that was logged */
} place;

static uint64_t wall_of(void *ctx)
{
    return atomic_load(&((place *)ctx)->wall_us) + quire_clock_ns() / 1000u;
}

static void log_line(void *ctx, const char *line)
{
    place *p = ctx;

    (void)snprintf(p->line, sizeof p->line, "%s", line);
    atomic_fetch_add(&p->n_lines, 1);
}

static void place_make(place *p)
{
    const quire_memory_store_opts store = { .outlives = true };

    memset(p, 0, sizeof *p);
    kit_dir_make(p->path);
    assert_int_equal(quire_memory_store_create(&p->store, &store), QUIRE_OK);
    atomic_store(&p->wall_us, (uint64_t)1000000 * US_PER_S);
    p->opts = (quire_engine_opts)QUIRE_ENGINE_OPTS_INIT;
    p->opts.tier.store = p->store;
    p->opts.precache.is_off = true; /* pages are read by the turns of these tests alone */
    p->opts.saver = (quire_saver_opts){
        .dir = p->path,
        .keeps = { true, true, true },
        .round_us = 1000,
        .log = log_line,
        .log_ctx = p,
        .wall_us = wall_of,
        .wall_ctx = p,
    };
}

static void place_end(place *p)
{
    quire_memory_store_destroy(p->store);
    kit_dir_remove(p->path);
}

static engine_bench open_at(place *p)
{
    quire_runtime_opts runtime = bench_runtime_opts(N_CTX, 8);

    runtime.kv_budget_bytes = (uint64_t)8 << 20; /* pins may have half of it */
    return bench_tiny(&p->opts, &runtime);
}

static quire_saver_stats saver_of(const engine_bench *b)
{
    quire_engine_stats stats;

    quire_engine_stats_get(b->engine, &stats);
    return stats.saver;
}

static void wait_items(const engine_bench *b, uint64_t n)
{
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && saver_of(b).items != n; i++) {
        test_doze_ms();
    }
    assert_int_equal(saver_of(b).items, n);
}

static void wait_written(const engine_bench *b, uint64_t n)
{
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && saver_of(b).written_total < n; i++) {
        test_doze_ms();
    }
    assert_int_equal(saver_of(b).written_total, n);
}

/* ---- sessions ---- */

static uint64_t now_us(void)
{
    return quire_clock_ns() / 1000u;
}

/* A turn of a session: a prompt of tokens that follow from seed. Returns how many were cached. */
static uint32_t turn(const engine_bench *b, const char *tenant, const char *id, uint64_t seed)
{
    const quire_chat_message messages[] = { { "user", id, NULL },
                                            { "assistant", "so it is", NULL } };
    quire_sessions *sessions = quire_engine_sessions(b->engine);
    quire_error err = QUIRE_ERROR_INIT;
    quire_request_params params;
    quire_request *request;
    int32_t text[N_PROMPT];
    int32_t *tokens;
    uint32_t n_tokens, n_cached;

    tokens_make(text, N_PROMPT, seed);
    params = params_greedy(text, N_PROMPT, 2);
    params.tenant = tenant;
    params.tenant_bytes = (uint32_t)strlen(tenant);
    assert_int_equal(quire_sessions_enter(sessions, tenant, params.tenant_bytes, id, now_us(),
                                          &params.session, &err),
                     QUIRE_OK);
    request = submit(b, &params);
    n_cached = finish(request)->n_cached_tokens;
    tokens = quire_request_tokens_take(request, &n_tokens);
    quire_request_release(request);
    assert_int_equal(
        quire_sessions_commit(sessions, params.session, messages, 2, tokens, n_tokens, now_us()),
        QUIRE_OK);
    quire_sessions_leave(sessions, params.session, now_us());
    return n_cached;
}

typedef struct expected {
    const char *id;
    uint64_t seed;
    uint32_t n_turns;
    uint64_t idle_us; /* at least */
} expected;

static void expect_session(void *ctx, const quire_session_info *info)
{
    const expected *e = ctx;
    int32_t text[N_PROMPT];

    tokens_make(text, N_PROMPT, e->seed);
    assert_string_equal(info->id, e->id);
    assert_int_equal(info->n_turns, e->n_turns);
    assert_int_equal(info->n_messages, 2);
    assert_string_equal(info->messages[0].content, e->id);
    assert_string_equal(info->messages[1].role, "assistant");
    assert_string_equal(info->messages[1].content, "so it is");
    assert_int_equal(info->text_bytes, strlen(e->id) + 5 + 10 + 9 + 1);
    assert_int_equal(info->n_tokens, N_PROMPT + 1);
    assert_memory_equal(info->tokens, text, sizeof text);
    assert_true(quire_session_age_us(info->used_us, now_us()) >= e->idle_us);
    assert_false(info->is_in_use);
}

static int look(const engine_bench *b, const char *tenant, const expected *e)
{
    return quire_sessions_look(quire_engine_sessions(b->engine), tenant, (uint32_t)strlen(tenant),
                               e->id, expect_session, (void *)(uintptr_t)e);
}

static int first_id(void *ctx, const quire_session_info *info)
{
    (void)snprintf(ctx, 16, "%s", info->id);
    return 1;
}

/* Sessions go on: names, tenants, content, order and times as before, pages from the store. */
static void test_sessions(void **state)
{
    const expected a = { "a", 1, 2, (uint64_t)60 * US_PER_S }, b_ = { "b", 3, 1, 0 },
                   other = { "a", 2, 1, 0 };
    engine_bench b;
    char newest[16];
    place p;

    (void)state;
    place_make(&p);
    b = open_at(&p);
    assert_int_equal(turn(&b, "t1", "a", 9), 0);
    assert_int_equal(turn(&b, "t2", "a", 2), 0); /* of another tenant */
    assert_int_equal(turn(&b, "t1", "b", 3), 0);
    assert_int_equal(turn(&b, "t1", "a", 1), 0);
    bench_close(&b);

    atomic_fetch_add(&p.wall_us, (uint64_t)60 * US_PER_S);
    b = open_at(&p);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_SESSION], 3);
    assert_int_equal(quire_sessions_count(quire_engine_sessions(b.engine)), 3);
    assert_int_equal(look(&b, "t1", &a), QUIRE_OK);
    assert_int_equal(look(&b, "t2", &other), QUIRE_OK);
    assert_int_equal(look(&b, "t1", &b_), QUIRE_OK);
    assert_int_equal(look(&b, "t2", &b_), QUIRE_NOTFOUND);
    assert_int_equal(
        quire_sessions_visit(quire_engine_sessions(b.engine), NULL, 0, first_id, newest), 1);
    assert_string_equal(newest, "a");
    assert_int_equal(turn(&b, "t1", "a", 1), N_PROMPT - 1); /* fetched */
    assert_int_equal(stats_now(b.engine).tier.fetched_tokens_total, N_PROMPT - 1);
    bench_close(&b);

    p.opts.sessions.sessions_max = 2; /* those used last */
    b = open_at(&p);
    assert_int_equal(saver_of(&b).refused_total[QUIRE_STATE_LIMIT_RESULT], 1);
    assert_int_equal(quire_sessions_count(quire_engine_sessions(b.engine)), 2);
    assert_int_equal(look(&b, "t2", &other), QUIRE_NOTFOUND);
    bench_close(&b);
    place_end(&p);
}

static void copy_file(const char *from, const char *to)
{
    char buffer[65536];
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    size_t n;

    assert_non_null(in);
    assert_non_null(out);
    while ((n = fread(buffer, 1, sizeof buffer, in)) > 0) {
        assert_int_equal(fwrite(buffer, 1, n, out), n);
    }
    (void)fclose(in);
    assert_int_equal(fclose(out), 0);
}

/* The items of a kind, copied to or from another directory. Returns their number. */
static uint32_t copy_items(const char *from, const char *to)
{
    DIR *dir = opendir(from);
    const struct dirent *entry;
    uint32_t n = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL) {
        char a[1024], b[1024];

        if (strncmp(entry->d_name, "state-", 6) == 0) {
            (void)snprintf(a, sizeof a, "%s/%s", from, entry->d_name);
            (void)snprintf(b, sizeof b, "%s/%s", to, entry->d_name);
            copy_file(a, b);
            n++;
        }
    }
    (void)closedir(dir);
    return n;
}

/* A turn is on disk soon after it ended; so is the end of a session. A killed process
 * leaves the directory as it is while the engine runs. */
static void test_kill(void **state)
{
    const quire_invalidate what = {
        .what = QUIRE_INVALIDATE_SESSION, .tenant = "t", .tenant_bytes = 1, .session_id = "gone"
    };
    const expected kept = { "kept", 1, 1, 0 }, gone = { "gone", 2, 1, 0 };
    char with[256], without[256];
    quire_prefix_dropped dropped;
    engine_bench b;
    place p;

    (void)state;
    place_make(&p);
    kit_dir_make(with);
    kit_dir_make(without);
    p.opts.saver.keeps[QUIRE_STATE_REUSE] = false;
    b = open_at(&p);
    (void)turn(&b, "t", "kept", 1);
    (void)turn(&b, "t", "gone", 2);
    wait_items(&b, 2);
    assert_int_equal(copy_items(p.path, with), 2);
    assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
    wait_items(&b, 1);
    assert_int_equal(copy_items(p.path, without), 1);
    bench_close(&b);

    p.opts.saver.dir = with;
    b = open_at(&p);
    assert_int_equal(look(&b, "t", &kept), QUIRE_OK);
    assert_int_equal(look(&b, "t", &gone), QUIRE_OK);
    bench_close(&b);
    p.opts.saver.dir = without;
    b = open_at(&p);
    assert_int_equal(look(&b, "t", &kept), QUIRE_OK);
    assert_int_equal(look(&b, "t", &gone), QUIRE_NOTFOUND);
    bench_close(&b);
    kit_dir_remove(with);
    kit_dir_remove(without);
    place_end(&p);
}

/* Sessions that were idle for their time to live before the start do not come back. */
static void test_expired(void **state)
{
    const expected a = { "a", 1, 1, 0 };
    engine_bench b;
    place p;

    (void)state;
    place_make(&p);
    p.opts.sessions.ttl_us = (uint64_t)600 * US_PER_S;
    b = open_at(&p);
    (void)turn(&b, "t", "a", 1);
    bench_close(&b);
    atomic_fetch_add(&p.wall_us, (uint64_t)300 * US_PER_S);
    b = open_at(&p);
    assert_int_equal(look(&b, "t", &a), QUIRE_OK);
    bench_close(&b);
    atomic_fetch_add(&p.wall_us, (uint64_t)300 * US_PER_S); /* its time goes on over restarts */
    b = open_at(&p);
    assert_int_equal(look(&b, "t", &a), QUIRE_NOTFOUND);
    assert_int_equal(saver_of(&b).refused_total[QUIRE_STATE_EXPIRED_RESULT], 1);
    assert_int_equal(atomic_load(&p.n_lines), 0); /* which is no trouble */
    bench_close(&b);
    place_end(&p);
}

/* ---- pins ---- */

static quire_engine_pin pin_make(const engine_bench *b, const char *tenant, const char *name,
                                 uint64_t ttl_s)
{
    quire_error err = QUIRE_ERROR_INIT;
    int32_t text[N_PROMPT];
    quire_engine_pin_params params = { .name = name,
                                       .tokens = text,
                                       .n_tokens = N_PROMPT,
                                       .ttl_s = ttl_s,
                                       .tenant = tenant,
                                       .tenant_bytes = (uint32_t)strlen(tenant) };
    quire_engine_pin pin;

    tokens_make(text, N_PROMPT, strlen(name) + tenant[0]);
    if (quire_engine_pin_create(b->engine, &params, &pin, NULL, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return pin;
}

static int pin_get(const engine_bench *b, const char *tenant, const char *name,
                   quire_engine_pin *pin)
{
    const quire_engine_pin_name what = { tenant, (uint32_t)strlen(tenant), name };

    return quire_engine_pin_get(b->engine, &what, pin);
}

static quire_engine_pin pin_wait(const engine_bench *b, const char *tenant, const char *name)
{
    quire_engine_pin pin = { .state = QUIRE_ENGINE_PIN_COMPUTING };

    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && pin.state != QUIRE_ENGINE_PIN_HELD; i++) {
        assert_int_equal(pin_get(b, tenant, name, &pin), QUIRE_OK);
        test_doze_ms();
    }
    assert_int_equal(pin.state, QUIRE_ENGINE_PIN_HELD);
    return pin;
}

/* A pin comes back as a wish: its room is taken at once, its pages come from the store. */
static void test_pins(void **state)
{
    const quire_engine_pin_name dropped = { "t", 1, "dropped" };
    quire_engine_pin pin;
    engine_bench b;
    place p;

    (void)state;
    place_make(&p);
    b = open_at(&p);
    (void)pin_make(&b, "t", "for-ever", 0);
    (void)pin_make(&b, "u", "for-ever", 0);
    (void)pin_make(&b, "t", "an-hour", 3600);
    (void)pin_make(&b, "t", "a-minute", 60);
    (void)pin_make(&b, "t", "dropped", 0);
    assert_int_equal(quire_engine_pin_drop(b.engine, &dropped), QUIRE_OK);
    bench_close(&b);

    atomic_fetch_add(&p.wall_us, (uint64_t)600 * US_PER_S);
    b = open_at(&p);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_PIN], 3);
    assert_int_equal(saver_of(&b).refused_total[QUIRE_STATE_EXPIRED_RESULT], 1);
    assert_int_equal(pin_get(&b, "t", "a-minute", &pin), QUIRE_NOTFOUND);
    assert_int_equal(pin_get(&b, "t", "dropped", &pin), QUIRE_NOTFOUND);
    pin = pin_wait(&b, "t", "for-ever");
    assert_int_equal(pin.n_held_tokens, N_PROMPT);
    assert_int_equal(pin.ttl_s, 0);
    (void)pin_wait(&b, "u", "for-ever");
    pin = pin_wait(&b, "t", "an-hour");
    assert_int_equal(pin.ttl_s, 3600);
    assert_in_range(pin.left_s, 2900, 3000);
    assert_int_equal(stats_now(b.engine).tier.fetched_tokens_total, 3 * (N_PROMPT - 1));
    bench_close(&b);

    /* Without the store they are computed. */
    p.opts.tier.store = NULL;
    b = open_at(&p);
    (void)pin_wait(&b, "t", "for-ever");
    assert_in_range(pin_wait(&b, "t", "an-hour").left_s, 2900, 3000);
    bench_close(&b);
    place_end(&p);
}

/* A pin of a policy comes back with its policy: the kept pages come from the store. */
static void test_pin_of_a_policy(void **state)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    int32_t text[N_PROMPT];
    quire_engine_pin_params params = {
        .name = "kept", .tokens = text, .n_tokens = N_PROMPT, .retain = &spec
    };
    quire_engine_pin pin;
    engine_bench b;
    place p;

    (void)state;
    assert_int_equal(quire_retain_parse("keydiff:0.5,recent=16", &spec, &err), QUIRE_OK);
    tokens_make(text, N_PROMPT, 1);
    place_make(&p);
    p.opts.retain_chunk = 128;
    p.opts.n_running_max = 4;
    b = open_at(&p);
    assert_int_equal(quire_engine_pin_create(b.engine, &params, &pin, NULL, &err), QUIRE_OK);
    assert_int_equal(pin.n_held_tokens, 64 + N_PROMPT - 128);
    bench_close(&b);
    b = open_at(&p);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_PIN], 1);
    pin = pin_wait(&b, "", "kept");
    assert_int_equal(pin.n_tokens, N_PROMPT);
    assert_int_equal(pin.n_held_tokens, 64 + N_PROMPT - 128);
    assert_true(strncmp(pin.retain, "keydiff:0.5,", 12) == 0);
    assert_int_equal(stats_now(b.engine).condensings_total, 0);
    bench_close(&b);
    /* An engine that condenses no texts does not take it for another pin. */
    p.opts.retain_chunk = 0;
    b = open_at(&p);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_PIN], 0);
    bench_close(&b);
    place_end(&p);
}

/* A class that is no longer there, and a pin that there is no more room for. */
static void test_pins_refused(void **state)
{
    engine_bench b;
    place p;

    (void)state;
    place_make(&p);
    p.opts.saver.keeps[QUIRE_STATE_REUSE] = false;
    p.opts.classes = (quire_classes){ .n = 1, .items = { { .name = "old", .weight = 1 } } };
    b = open_at(&p);
    (void)pin_make(&b, "t", "a", 0);
    bench_close(&b);
    p.opts.classes.items[0].name[0] = 'n';
    b = open_at(&p);
    assert_int_equal(saver_of(&b).refused_total[QUIRE_STATE_LIMIT_RESULT], 1);
    assert_non_null(strstr(p.line, "there is no class 'old' any more"));
    wait_items(&b, 0);
    bench_close(&b);
    place_end(&p);
}

/* ---- the reuse model ---- */

typedef struct learned {
    unsigned char bytes[QUIRE_PREFIX_LEARNED_MAX];
    size_t n;
} learned;

static void learned_take(void *ctx, quire_cache *cache, quire_prefix *tree)
{
    learned *l = ctx;

    (void)cache;
    l->n = quire_prefix_learned_bytes(tree);
    quire_prefix_learned_save(tree, l->bytes);
}

static void test_reuse(void **state)
{
    static learned before, after, fresh;
    engine_bench b;
    place p;

    (void)state;
    place_make(&p);
    b = open_at(&p);
    assert_int_equal(engine_call(b.engine, learned_take, &fresh), QUIRE_OK);
    for (uint64_t i = 0; i < 20; i++) {
        (void)turn(&b, "t", "a", 1 + i % 3);
    }
    bench_close(&b);
    b = open_at(&p);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_REUSE], 1);
    assert_int_equal(engine_call(b.engine, learned_take, &before), QUIRE_OK);
    bench_close(&b);
    assert_true(before.n > 0 && before.n == fresh.n);
    assert_memory_not_equal(before.bytes, fresh.bytes, fresh.n);
    b = open_at(&p); /* nothing was learned meanwhile: the same again */
    assert_int_equal(engine_call(b.engine, learned_take, &after), QUIRE_OK);
    assert_memory_equal(before.bytes, after.bytes, after.n);
    bench_close(&b);

    p.opts.cache_policy = QUIRE_EVICT_LRU; /* which learns nothing */
    b = open_at(&p);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_REUSE], 0);
    bench_close(&b);
    place_end(&p);
}

/* ---- parts, read-only ---- */

static void test_parts(void **state)
{
    engine_bench b;
    place p;

    (void)state;
    place_make(&p);
    b = open_at(&p);
    (void)turn(&b, "t", "a", 1);
    (void)pin_make(&b, "t", "a", 0);
    bench_close(&b);

    p.opts.saver.is_readonly = true;
    for (uint32_t i = 0; i < 2; i++) { /* it writes nothing, so twice */
        b = open_at(&p);
        assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_SESSION], 1);
        assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_PIN], 1);
        assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_REUSE], 1);
        (void)turn(&b, "t", "b", 2);
        bench_close(&b);
    }
    p.opts.saver.is_readonly = false;
    p.opts.saver.keeps[QUIRE_STATE_SESSION] = false; /* items of this kind are removed */
    b = open_at(&p);
    assert_int_equal(quire_sessions_count(quire_engine_sessions(b.engine)), 0);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_PIN], 1);
    (void)turn(&b, "t", "c", 2);
    bench_close(&b);
    p.opts.saver.keeps[QUIRE_STATE_SESSION] = true;
    p.opts.saver.keeps[QUIRE_STATE_PIN] = false;
    b = open_at(&p);
    assert_int_equal(quire_sessions_count(quire_engine_sessions(b.engine)), 0);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_PIN], 0);
    bench_close(&b);
    p.opts.saver.dir = NULL;
    b = open_at(&p);
    assert_false(saver_of(&b).is_on);
    bench_close(&b);
    place_end(&p);
}

/* ---- bounds ---- */

static void test_bound(void **state)
{
    const expected old = { "s0", 1, 1, 0 }, newest = { "s5", 6, 1, 0 };
    engine_bench b;
    place p;

    (void)state;
    place_make(&p);
    p.opts.saver.keeps[QUIRE_STATE_REUSE] = false;
    p.opts.saver.bytes_max = 3 * QUIRE_STATE_FILE_CHARGE;
    b = open_at(&p);
    for (uint64_t i = 0; i < 6; i++) {
        const char id[] = { 's', (char)('0' + i), '\0' };

        (void)turn(&b, "t", id, 1 + i);
    }
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && saver_of(&b).left_out != 3; i++) {
        test_doze_ms();
    }
    assert_int_equal(saver_of(&b).left_out, 3);
    assert_int_equal(saver_of(&b).items, 3);
    assert_true(saver_of(&b).bytes <= p.opts.saver.bytes_max);
    (void)pin_make(&b, "t", "a", 0); /* comes first */
    for (uint32_t i = 0; i < FIXTURE_WAIT_MS && saver_of(&b).left_out != 4; i++) {
        test_doze_ms();
    }
    assert_int_equal(saver_of(&b).items, 3);
    bench_close(&b);
    b = open_at(&p);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_SESSION], 2);
    assert_int_equal(saver_of(&b).restored_total[QUIRE_STATE_PIN], 1);
    assert_int_equal(look(&b, "t", &newest), QUIRE_OK);
    assert_int_equal(look(&b, "t", &old), QUIRE_NOTFOUND);
    bench_close(&b);
    place_end(&p);
}

/* ---- damage ---- */

static void file_change(const char *file, long at, int with)
{
    FILE *f = fopen(file, "r+b");
    int byte;

    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    byte = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ with, f), byte ^ with);
    assert_int_equal(fclose(f), 0);
}

/* The file of a session. */
static void session_file(const place *p, const char *id, char out[1024])
{
    const quire_state_name name = quire_state_name_of(QUIRE_STATE_SESSION, "t", 1, id);
    char file[QUIRE_STATE_FILE_NAME_MAX];
    DIR *dir = opendir(p->path);
    const struct dirent *entry;
    unsigned char none[QUIRE_HASH128_BYTES] = { 0 };

    assert_non_null(dir);
    quire_state_file_name(none, &name, file);
    out[0] = '\0';
    while ((entry = readdir(dir)) != NULL) {
        if (strlen(entry->d_name) == strlen(file) &&
            strcmp(entry->d_name + 38, file + 38) == 0) { /* but for the identity */
            (void)snprintf(out, 1024, "%s/%s", p->path, entry->d_name);
        }
    }
    (void)closedir(dir);
    assert_true(out[0] != '\0');
}

/* Damage costs the item that has it; it is named, counted by reason, and its file goes. */
static void test_damage(void **state)
{
    static const struct {
        long at;
        quire_state_result result;
    } places[] = { { 3, QUIRE_STATE_FOREIGN_RESULT },    { 8, QUIRE_STATE_VERSION_RESULT },
                   { 20, QUIRE_STATE_CHECKSUM_RESULT },  { 60, QUIRE_STATE_TRUNCATED_RESULT },
                   { 70, QUIRE_STATE_CHECKSUM_RESULT },  { 90, QUIRE_STATE_CHECKSUM_RESULT },
                   { 500, QUIRE_STATE_CHECKSUM_RESULT }, { 950, QUIRE_STATE_CHECKSUM_RESULT } };
    const expected good = { "good", 1, 1, 0 }, bad = { "bad", 2, 1, 0 };

    (void)state;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        engine_bench b;
        char file[1024];
        place p;

        place_make(&p);
        p.opts.saver.keeps[QUIRE_STATE_REUSE] = false;
        b = open_at(&p);
        (void)turn(&b, "t", "good", 1);
        (void)turn(&b, "t", "bad", 2);
        bench_close(&b);
        session_file(&p, "bad", file);
        file_change(file, places[i].at, 0x10);
        b = open_at(&p);
        assert_int_equal(look(&b, "t", &good), QUIRE_OK);
        assert_int_equal(look(&b, "t", &bad), QUIRE_NOTFOUND);
        assert_int_equal(saver_of(&b).refused_total[places[i].result], 1);
        assert_int_equal(atomic_load(&p.n_lines), 1);
        assert_non_null(strstr(p.line, strrchr(file, '/') + 1));
        assert_non_null(strstr(p.line, quire_state_result_name(places[i].result)));
        wait_items(&b, 1);
        bench_close(&b);
        /* A file of another version stays: it belongs to that version. */
        assert_int_equal(access(file, F_OK) == 0, places[i].result == QUIRE_STATE_VERSION_RESULT);
        place_end(&p);
    }
}

/* ---- a full disk ---- */

static _Atomic bool is_full;

static ssize_t full_pwrite(void *ctx, int fd, const void *buffer, size_t n, uint64_t at)
{
    return atomic_load(&is_full) ? -ENOSPC
                                 : quire_file_ops_default()->pwrite(ctx, fd, buffer, n, at);
}

/* A full disk: said once, nothing lost but the newer copy; deleting works. */
static void test_full(void **state)
{
    const expected a = { "a", 1, 1, 0 }, b_ = { "b", 2, 1, 0 };
    quire_file_ops ops = *quire_file_ops_default();
    const quire_invalidate what = {
        .what = QUIRE_INVALIDATE_SESSION, .tenant = "t", .tenant_bytes = 1, .session_id = "a"
    };
    quire_prefix_dropped dropped;
    engine_bench b;
    place p;

    (void)state;
    place_make(&p);
    ops.pwrite = full_pwrite;
    p.opts.saver.ops = &ops;
    p.opts.saver.keeps[QUIRE_STATE_REUSE] = false;
    b = open_at(&p);
    (void)turn(&b, "t", "a", 1);
    wait_written(&b, 1);
    atomic_store(&is_full, true);
    (void)turn(&b, "t", "b", 2);
    while (saver_of(&b).failures_total == 0) {
        test_doze_ms();
    }
    assert_int_equal(atomic_load(&p.n_lines), 1);
    assert_non_null(strstr(p.line, "No space left on device"));
    bench_close(&b);
    assert_int_equal(atomic_load(&p.n_lines), 1);

    b = open_at(&p);
    assert_int_equal(look(&b, "t", &a), QUIRE_OK);
    assert_int_equal(look(&b, "t", &b_), QUIRE_NOTFOUND);
    assert_int_equal(quire_engine_invalidate(b.engine, &what, &dropped), QUIRE_OK);
    (void)turn(&b, "t", "b", 2);
    bench_close(&b);
    atomic_store(&is_full, false);
    b = open_at(&p);
    assert_int_equal(quire_sessions_count(quire_engine_sessions(b.engine)), 0);
    bench_close(&b);
    place_end(&p);
}

/* A directory that vanishes is written anew when it is there again. */
static void test_vanished(void **state)
{
    const expected a = { "a", 1, 1, 0 }, b_ = { "b", 2, 1, 0 };
    engine_bench b;
    place p;

    (void)state;
    place_make(&p);
    p.opts.saver.keeps[QUIRE_STATE_REUSE] = false;
    b = open_at(&p);
    (void)turn(&b, "t", "a", 1);
    wait_written(&b, 1);
    kit_dir_remove(p.path);
    (void)turn(&b, "t", "b", 2);
    while (saver_of(&b).failures_total == 0) {
        test_doze_ms();
    }
    assert_non_null(strstr(p.line, "No such file or directory"));
    assert_int_equal(mkdir(p.path, 0700), 0);
    bench_close(&b);
    b = open_at(&p);
    assert_int_equal(look(&b, "t", &a), QUIRE_OK);
    assert_int_equal(look(&b, "t", &b_), QUIRE_OK);
    bench_close(&b);
    place_end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_expired),
        cmocka_unit_test(test_pins),
        cmocka_unit_test(test_pin_of_a_policy),
        cmocka_unit_test(test_pins_refused),
        cmocka_unit_test(test_reuse),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_vanished),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
