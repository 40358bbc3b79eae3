/* test_shared_store.c - servers that share pages through --store, end to end: one server finds
 * pages that another computed, alone or behind a directory. An absent store changes no answer.
 *
 * SPDX-License-Identifier: MIT */
#include "served.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "store/redis_kit.h"

#define READS "quire_tier_reads_total{store=\"valkey\",result=\"ok\"}"

static redis_server shared;

/* Further words of a command line; dir may be NULL. A server with a directory has two devices of
 * one identity, which have one connection. */
static program_running start(uint16_t *port, const char *dir)
{
    program_args args = PROGRAM("serve", "-m", program_model(), "-t", "1", "--port", "0", "--kv",
                                "f32", "--store", shared.url, "--store-key-file", redis_secret(),
                                "--store-all", "--log-level", "errors", "--store-timeout", "10s");
    program_running running;
    uint32_t n = 0;

    while (args.words[n] != NULL) {
        n++;
    }
    if (dir != NULL) {
        args.words[n++] = "--cache-dir";
        args.words[n++] = dir;
        args.words[n++] = "--cache-disk";
        args.words[n++] = "512MiB";
        args.words[n++] = "--device";
        args.words[n++] = "cpu,cpu";
        args.words[n++] = "--kv-budget";
        args.words[n++] = "16MiB";
    }
    args.words[n] = NULL;
    running = program_start(args);
    *port = served_port(&running);
    return running;
}

static int end(void **state)
{
    if (shared.pid > 0) {
        redis_stop(&shared);
    }
    (void)redis_kit_end(state);
    return program_clean(state);
}

/* The channel on which the machines tell each other. */
static const char *channel_of(void)
{
    static char channel[64];

    (void)snprintf(channel, sizeof channel, "%s", REDIS_ASK(&shared, "PUBSUB", "CHANNELS"));
    return channel;
}

/* Wait until a metric has a value at least. */
static void metric_await(uint16_t port, const char *name, double value)
{
    for (uint32_t i = 0; served_metric(port, name) < value; i++) {
        assert_true(i < 3000);
        served_doze();
    }
}

/* One server computes and is killed; another one finds the pages. */
static void machines_share(void **state)
{
    char first[256], again[256];
    program_running running;
    uint16_t port;

    (void)state;
    redis_need();
    redis_start(&shared, NULL);
    running = start(&port, NULL);
    assert_int_equal(served_complete(port, first, sizeof first), 0);
    metric_await(port, "quire_tier_copied_pages_total{result=\"durable\"}", 2.0);
    served_end(&running, SIGKILL);
    running = start(&port, NULL);
    assert_true(served_complete(port, again, sizeof again) >= 128);
    assert_string_equal(first, again);
    assert_true(served_metric(port, READS) >= 2.0);
    /* Pages that the server drops are gone for the other servers. */
    (void)served_ask(port, "POST", "/v1/cache/invalidate", "{\"all\": true}");
    metric_await(port, "quire_tier_dropped_records_total{store=\"valkey\"}", 1.0);
    served_end(&running, SIGTERM);
    running = start(&port, NULL);
    assert_int_equal(served_complete(port, again, sizeof again), 0);
    assert_string_equal(first, again);
    served_end(&running, SIGTERM);
    redis_stop(&shared);
    shared.pid = 0;
}

/* Pages dropped on one machine are dropped on the other one, in memory and in its directory. */
static void machines_forget(void **state)
{
    char dir[512];
    char text[256];
    program_running running[2];
    uint16_t port[2];

    (void)state;
    redis_need();
    redis_start(&shared, NULL);
    (void)snprintf(dir, sizeof dir, "%s", program_path("forget-cache"));
    running[0] = start(&port[0], NULL);
    running[1] = start(&port[1], dir);
    for (uint32_t lap = 0;
         strstr(REDIS_ASK(&shared, "PUBSUB", "NUMSUB", channel_of()), "\n2") == NULL; lap++) {
        assert_true(lap < 3000);
        served_doze();
    }
    assert_int_equal(served_complete(port[1], text, sizeof text), 0);
    metric_await(port[1], "quire_tier_records{store=\"file\"}", 2.0);
    assert_true(served_complete(port[1], text, sizeof text) > 0);
    (void)served_ask(port[0], "POST", "/v1/cache/invalidate", "{\"all\": true}");
    metric_await(port[1], "quire_evicted_tokens_total{reason=\"invalidated\"}", 128.0);
    assert_int_equal(served_complete(port[1], text, sizeof text), 0);
    served_end(&running[0], SIGTERM);
    served_end(&running[1], SIGTERM);
    redis_stop(&shared);
    shared.pid = 0;
    (void)served_remove_dir(dir);
}

/* A directory before the shared store: pages fetched from the shared store are kept in the
 * directory, too. */
static void behind_a_directory(void **state)
{
    char dir[512];
    char first[256], again[256];
    program_running running;
    uint16_t port;

    (void)state;
    redis_need();
    redis_start(&shared, NULL);
    (void)snprintf(dir, sizeof dir, "%s", program_path("shared-cache"));
    running = start(&port, NULL);
    assert_int_equal(served_complete(port, first, sizeof first), 0);
    served_end(&running, SIGTERM); /* all is copied at the end */
    running = start(&port, dir);
    assert_true(served_complete(port, again, sizeof again) >= 128);
    assert_string_equal(first, again);
    assert_true(served_metric(port, READS) >= 2.0);
    metric_await(port, "quire_tier_passed_records_total{store=\"file\",result=\"kept\"}", 2.0);
    served_end(&running, SIGTERM);
    /* The shared store dies; the directory has the pages. */
    redis_signal(&shared, SIGKILL);
    running = start(&port, dir);
    assert_true(served_complete(port, again, sizeof again) >= 128);
    assert_string_equal(first, again);
    assert_true(served_metric(port, "quire_tier_degraded{store=\"valkey\"}") == 1.0);
    served_end(&running, SIGTERM);
    redis_stop(&shared);
    shared.pid = 0;
    (void)served_remove_dir(dir);
}

/* A hung store: the answer is the same as without a store. */
static void hung_store(void **state)
{
    char first[256], again[256];
    program_running running;
    uint16_t port;

    (void)state;
    redis_need();
    redis_start(&shared, NULL);
    running = start(&port, NULL);
    assert_int_equal(served_complete(port, first, sizeof first), 0);
    served_end(&running, SIGTERM);
    running = start(&port, NULL);
    redis_signal(&shared, SIGSTOP);
    assert_int_equal(served_complete(port, again, sizeof again), 0);
    assert_string_equal(first, again);
    redis_signal(&shared, SIGCONT);
    served_end(&running, SIGTERM);
    redis_stop(&shared);
    shared.pid = 0;
}

static void settings_are_checked(void **state)
{
    const char *m = program_model();
    const struct {
        const char *words[6];
        const char *says;
    } cases[] = {
        { { "--store", "valkey://x" }, "store needs a store_key_file" },
        { { "--store", "http://x", "--store-key-file", redis_secret() }, "valkey://" },
        { { "--store", "valkey://x", "--store-key-file", "/nowhere/secret" }, "/nowhere/secret" },
        { { "--store", "valkey://x", "--store-key-file", redis_secret(), "--no-prefix-cache" },
          "store needs the prefix cache" },
        { { "--store", "valkey://x", "--store-key-file", redis_secret(), "--store-password-file",
            "/nowhere/word" },
          "/nowhere/word" },
        { { "--store-key-file", redis_secret() }, "store_key_file needs a store" },
        { { "--store-quota", "1G" }, "store_quota needs a store" },
        { { "--store-all" }, "store_all needs a cache_dir, a store or cache_host_memory" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        program_args args = PROGRAM("serve", "-m", m, "--check-config");
        program_result result;

        for (uint32_t k = 0; k < 6 && cases[i].words[k] != NULL; k++) {
            args.words[4 + k] = cases[i].words[k];
        }
        result = program_run(args);
        assert_int_not_equal(result.exit_status, 0);
        if (strstr(result.err, cases[i].says) == NULL) {
            fail_msg("case %zu: %s", i, result.err);
        }
        program_free(&result);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(machines_share),       cmocka_unit_test(machines_forget),
        cmocka_unit_test(behind_a_directory),   cmocka_unit_test(hung_store),
        cmocka_unit_test(settings_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, end);
}
