/* test_cluster.c - the cluster of docs/cluster.md (scripts/cluster.sh): three servers with a
 * cluster of Redis behind HAProxy. A node is killed; its sessions go on at others, from the shared
 * store.
 *
 * The script starts this program once more, beside HAProxy: with CLUSTER_HOST in the environment it
 * asks, without it starts the cluster. Without root, or one of the programs, it is skipped.
 *
 * SPDX-License-Identifier: MIT */
#include "served.h"

#include <ctype.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* No multiple of NODES: nodes in turn would look like sessions that stay. */
#define SESSIONS    16u
#define NODES       3u
#define PAGE_TOKENS 64
#define ABSENT      77 /* exit status of the script where something is missing */

#define DURABLE          "quire_tier_copied_pages_total{result=\"durable\"}"
#define SLOW             "quire_tier_fetches_total{result=\"slow\"}"
#define SKIPPED          "quire_tier_fetches_total{result=\"skipped\"}"
#define FETCHED          "quire_tier_fetched_tokens_total"
#define READS_OF(result) "quire_tier_reads_total{store=\"valkey\",result=\"" result "\"}"
#define READS            READS_OF("ok")
#define ABSENT_READS     READS_OF("absent")
#define CLOSED_READS     READS_OF("closed")

typedef struct answer {
    uint32_t node; /* 0..NODES - 1 */
    char text[256];
    json_int_t prompt_tokens;
    json_int_t cached_tokens;
    json_int_t total_tokens;
} answer;

static answer firsts[SESSIONS];
static uint32_t killed; /* the node that is killed first */

/* ---- beside HAProxy ---- */

/* HAProxy, for one session; of static memory, until the next call. */
static const served_at *front(uint32_t session)
{
    static char headers[256];
    static served_at at;

    (void)snprintf(headers, sizeof headers,
                   "Authorization: Bearer %s\r\nX-Session-Id: session-%u\r\n",
                   getenv("QUIRE_API_KEY"), session);
    at.address = getenv("CLUSTER_HOST");
    at.port = (uint16_t)strtoul(getenv("CLUSTER_PORT"), NULL, 10);
    at.headers = headers;
    return &at;
}

static double node_metric(uint32_t node, const char *name)
{
    char address[16];
    char headers[128];
    const served_at at = { .address = address, .port = 8080, .headers = headers };

    (void)snprintf(address, sizeof address, "10.77.0.1%u", node + 1);
    (void)snprintf(headers, sizeof headers, "Authorization: Bearer %s\r\n",
                   getenv("QUIRE_API_KEY"));
    return served_metric_at(&at, name);
}

/* kill -9 of a process of the cluster; N counts from 1. */
static void kill_member(const char *kind, uint32_t number)
{
    char path[128];
    char line[32] = "";
    FILE *file;

    (void)snprintf(path, sizeof path, "%s/%s%u.pid", getenv("CLUSTER_DIR"), kind, number);
    file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    assert_int_equal(fclose(file), 0);
    assert_int_equal(kill((pid_t)strtol(line, NULL, 10), SIGKILL), 0);
}

/* The header that HAProxy adds. */
static uint32_t node_of(const char *reply)
{
    static const char name[] = "\r\nx-quire-node: node";
    const char *at = strstr(reply, name);

    assert_non_null(at);
    assert_true(isdigit((unsigned char)at[sizeof name - 1]));
    return (uint32_t)(at[sizeof name - 1] - '1');
}

static void answer_read(const char *reply, answer *out)
{
    json_t *document = json_loads(served_body(reply), 0, NULL);
    const json_t *usage = json_object_get(document, "usage");
    const json_t *choice = json_array_get(json_object_get(document, "choices"), 0);
    const json_t *details = json_object_get(usage, "prompt_tokens_details");

    assert_non_null(details);
    out->node = node_of(reply);
    (void)snprintf(
        out->text, sizeof out->text, "%s",
        json_string_value(json_object_get(json_object_get(choice, "message"), "content")));
    out->prompt_tokens = json_integer_value(json_object_get(usage, "prompt_tokens"));
    out->total_tokens = json_integer_value(json_object_get(usage, "total_tokens"));
    out->cached_tokens = json_integer_value(json_object_get(details, "cached_tokens"));
    json_decref(document);
}

/* The same request for a session each time: its whole history, and a message. No error is allowed
 * after any kill: HAProxy asks another node. */
static answer session_ask(uint32_t session)
{
    char body[1024];
    const char *reply;
    answer out;

    (void)snprintf(body, sizeof body,
                   "{\"session_id\": \"session-%u\", \"max_tokens\": 6, \"temperature\": 0, "
                   "\"messages\": [{\"role\": \"system\", \"content\": \"%u tales of the sea, the "
                   "river and an old house\"}, {\"role\": \"user\", \"content\": \"why did the dog "
                   "run by the tree?\"}, {\"role\": \"assistant\", \"content\": \"nobody knew it, "
                   "and so it was\"}, {\"role\": \"user\", \"content\": \"and the %u cats?\"}]}",
                   session, session * 1117u, session);
    reply = served_exchange(front(session), "POST", "/v1/chat/completions", body);
    if (strncmp(reply, "HTTP/1.1 200 ", 13) != 0) {
        fail_msg("session %u: %.400s", session, reply);
    }
    answer_read(reply, &out);
    return out;
}

/* Wait until the shared store has all pages of a node's sessions. */
static void node_await(uint32_t node)
{
    double n_pages = 0.0;

    for (uint32_t i = 0; i < SESSIONS; i++) {
        if (firsts[i].node == node) {
            /* The last token was never computed on. */
            n_pages += (double)((firsts[i].total_tokens - 2) / PAGE_TOKENS + 1);
        }
    }
    for (uint32_t lap = 0; node_metric(node, DURABLE) < n_pages; lap++) {
        if (lap == 2000) {
            fail_msg("node%u: %.0f pages durable, expected %.0f", node + 1,
                     node_metric(node, DURABLE), n_pages);
        }
        served_doze();
    }
}

/* A session stays at its node, which has all of the prompt but its last token. */
static void sessions_stay(void **state)
{
    uint32_t n_of_node[NODES] = { 0 };

    (void)state;
    for (uint32_t i = 0; i < SESSIONS; i++) {
        firsts[i] = session_ask(i);
        assert_true(firsts[i].cached_tokens < PAGE_TOKENS);
        assert_true(firsts[i].prompt_tokens >= 3 * PAGE_TOKENS);
        n_of_node[firsts[i].node]++;
    }
    for (uint32_t i = 0; i < SESSIONS; i++) {
        const answer again = session_ask(i);

        assert_int_equal(again.node, firsts[i].node);
        assert_string_equal(again.text, firsts[i].text);
        assert_int_equal(again.cached_tokens, again.prompt_tokens - 1);
    }
    for (uint32_t i = 0; i < NODES; i++) {
        assert_true(n_of_node[i] > 0);
    }
}

typedef struct moves {
    uint32_t n_moved;    /* sessions whose node is dead */
    uint32_t n_computed; /* of these, without a page or more of the prompt */
} moves;

/* A node that waited too long for a page asks for none for a second, and longer from then on. */
static void pause_pass(void)
{
    for (uint32_t i = 0; i < 125; i++) {
        served_doze();
    }
}

/* Ask all sessions after nodes were killed. Those of living nodes are where they were; the others
 * go on elsewhere, with the same answer. is_patient: ask after a pause of reading. */
static moves all_go_on(const bool *is_dead, bool is_patient)
{
    moves out = { 0 };

    for (uint32_t i = 0; i < SESSIONS; i++) {
        const answer again = session_ask(i);

        assert_false(is_dead[again.node]);
        assert_string_equal(again.text, firsts[i].text);
        if (!is_dead[firsts[i].node]) {
            assert_int_equal(again.node, firsts[i].node);
            assert_int_equal(again.cached_tokens, again.prompt_tokens - 1);
            continue;
        }
        out.n_moved++;
        if (again.prompt_tokens - again.cached_tokens > PAGE_TOKENS) {
            out.n_computed++;
            if (is_patient) {
                pause_pass();
            }
        }
    }
    return out;
}

/* The sum of a metric over all living nodes. */
static double sum_of(const bool *is_dead, const char *name)
{
    double n = 0.0;

    for (uint32_t i = 0; i < NODES; i++) {
        n += is_dead[i] ? 0.0 : node_metric(i, name);
    }
    return n;
}

/* The node of most sessions. */
static uint32_t node_busiest(void)
{
    uint32_t n_of_node[NODES] = { 0 };
    uint32_t best = 0;

    for (uint32_t i = 0; i < SESSIONS; i++) {
        n_of_node[firsts[i].node]++;
    }
    for (uint32_t i = 1; i < NODES; i++) {
        best = n_of_node[i] > n_of_node[best] ? i : best;
    }
    return best;
}

/* Its sessions find nearly all of their prompts in the shared store. A node that expects computing
 * to be faster than reading, or waits for too long, computes: it says so, and does not do so for
 * all. */
static void killed_node(void **state)
{
    bool is_dead[NODES] = { false };
    double reads;
    moves moved;

    (void)state;
    killed = node_busiest();
    node_await(killed);
    is_dead[killed] = true;
    reads = sum_of(is_dead, READS);
    kill_member("node", killed + 1);
    moved = all_go_on(is_dead, true);
    print_message("%u sessions moved, %u of them computed: fetches slow %.0f, skipped %.0f\n",
                  moved.n_moved, moved.n_computed, sum_of(is_dead, SLOW), sum_of(is_dead, SKIPPED));
    if (moved.n_computed >= moved.n_moved) {
        fail_msg(
            "%u sessions, all computed; fetches slow %.0f, skipped %.0f, reads ok %.0f, absent "
            "%.0f, closed %.0f",
            moved.n_moved, sum_of(is_dead, SLOW), sum_of(is_dead, SKIPPED),
            sum_of(is_dead, READS) - reads, sum_of(is_dead, ABSENT_READS),
            sum_of(is_dead, CLOSED_READS));
    }
    assert_true((double)moved.n_computed <= sum_of(is_dead, SLOW) + sum_of(is_dead, SKIPPED));
    assert_true(sum_of(is_dead, READS) >= reads + 3.0 * (moved.n_moved - moved.n_computed));
    assert_true(sum_of(is_dead, FETCHED) >= 3.0 * PAGE_TOKENS * (moved.n_moved - moved.n_computed));
}

/* Another node and one of the caches are killed: lost pages are computed again, and no client sees
 * an error. */
static void killed_cache(void **state)
{
    const uint32_t second = (killed + 1) % NODES;
    bool is_dead[NODES] = { false };

    (void)state;
    is_dead[killed] = true;
    is_dead[second] = true;
    kill_member("cache", 1);
    kill_member("node", second + 1);
    assert_true(all_go_on(is_dead, false).n_moved > 0);
}

static int ask_the_cluster(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sessions_stay),
        cmocka_unit_test(killed_node),
        cmocka_unit_test(killed_cache),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* ---- outside ---- */

/* Run the script to its end; it dies with this program. Returns its exit status. */
static int script_run(const char *const *words)
{
    const pid_t parent = getpid();
    const char *argv[24] = { "sh", QUIRE_SOURCE_DIR "/scripts/cluster.sh" };
    int status = 0;
    pid_t pid;

    for (uint32_t n = 0; words[n] != NULL; n++) {
        argv[2 + n] = words[n];
    }
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent) {
            (void)execv("/bin/sh", (char *const *)(uintptr_t)argv);
        }
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void in_a_cluster(void **state)
{
    char self[512] = "";

    (void)state;
    if (script_run((const char *const[]){ "check", NULL }) == ABSENT) {
        print_message("no root, or a program or namespaces are missing: see above\n");
        skip();
    }
    assert_true(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    assert_int_equal(setenv("QUIRE_PROGRAM", QUIRE_PROGRAM, 0), 0);
    /* Long timeouts for the shared store: the test is not about speed. */
    assert_int_equal(
        script_run((const char *const[]){ "run", self, program_model_deep(), "-t", "1", "--kv",
                                          "f32", "--chat-template", "chatml", "--store-all",
                                          "--store-timeout", "10s", NULL }),
        0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(in_a_cluster) };

    if (getenv("CLUSTER_HOST") != NULL) {
        return ask_the_cluster();
    }
    return cmocka_run_group_tests(tests, NULL, program_clean);
}
