/* test_cache_dir.c - pages on disk, end to end: run, chat and serve find the pages again that they
 * computed, also after a kill. Refusals name the directory's rules.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"
#include "served.h"

#include "rounds.h"
#include "seed.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- directories ---- */

static char dir[512];

/* An empty path for a directory; the program makes it. */
static const char *new_dir(const char *name)
{
    (void)snprintf(dir, sizeof dir, "%s", program_path(name));
    return dir;
}

static uint32_t remove_dir(void)
{
    return served_remove_dir(dir);
}

/* ---- run and chat ---- */

static json_t *run(const char *prompt, const char *kv)
{
    return program_json(PROGRAM("run", "-m", program_model(), "-t", "1", "-f", prompt, "-n", "8",
                                "--temp", "0", "--kv", kv, "--cache-dir", dir, "--json"));
}

static json_int_t number(const json_t *document, const char *name)
{
    const json_t *value = json_object_get(document, name);

    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static void run_reads_what_it_has_written(void **state)
{
    static const char *const formats[] = { "f16", "q8", "q4" };
    const char *prompt = program_text("prompt.txt", 220);

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        const bool is_sealed = strcmp(formats[i], "q4") == 0;
        json_t *first;
        json_t *again;
        struct stat info;
        json_int_t n_prompt;

        (void)new_dir("run-cache");
        first = run(prompt, formats[i]);
        again = run(prompt, formats[i]);
        n_prompt = number(first, "prompt_tokens");
        assert_true(n_prompt > 64);
        assert_int_equal(number(first, "stored_tokens"), 0);
        /* The last token is always computed; sealed formats keep full pages only. */
        assert_int_equal(number(again, "stored_tokens"),
                         is_sealed ? (n_prompt - 1) / 64 * 64 : n_prompt - 1);
        assert_string_equal(json_string_value(json_object_get(first, "text")),
                            json_string_value(json_object_get(again, "text")));
        assert_int_equal(stat(dir, &info), 0);
        assert_int_equal(info.st_mode & 0777, 0700); /* the texts are the user's */
        json_decref(first);
        json_decref(again);
        assert_true(remove_dir() > 0);
    }
}

/* A text whose KV is four times the budget: the answer is the same, the second time from the
 * directory. With --kv-overflow refuse the program refuses the text. */
static void run_larger_than_memory(void **state)
{
    const char *prompt = program_text("long.txt", 3500);
    json_t *whole, *first, *again;
    program_result refused;

    (void)state;
    (void)new_dir("overflow-cache");
    whole = program_json(PROGRAM("run", "-m", program_model_deep(), "-t", "1", "-f", prompt, "-n",
                                 "8", "--temp", "0", "-c", "4096", "--json"));
    first = program_json(PROGRAM("run", "-m", program_model_deep(), "-t", "1", "-f", prompt, "-n",
                                 "8", "--temp", "0", "-c", "4096", "--kv-budget", "1MiB",
                                 "--cache-dir", dir, "--json"));
    again = program_json(PROGRAM("run", "-m", program_model_deep(), "-t", "1", "-f", prompt, "-n",
                                 "8", "--temp", "0", "-c", "4096", "--kv-budget", "1MiB",
                                 "--cache-dir", dir, "--json"));
    assert_true(number(whole, "prompt_tokens") > 3000);
    assert_string_equal(json_string_value(json_object_get(whole, "text")),
                        json_string_value(json_object_get(first, "text")));
    assert_string_equal(json_string_value(json_object_get(whole, "text")),
                        json_string_value(json_object_get(again, "text")));
    assert_int_equal(number(again, "stored_tokens"), number(again, "prompt_tokens") - 1);
    json_decref(whole);
    json_decref(first);
    json_decref(again);

    refused = program_expect(
        1, PROGRAM("run", "-m", program_model_deep(), "-p", "a", "-n", "1", "--cache-dir", prompt));
    assert_says(refused.err, "long.txt is a file, not a cache directory");
    program_free(&refused);
    refused =
        program_run(PROGRAM("run", "-m", program_model_deep(), "-f", prompt, "-c", "4096",
                            "--kv-budget", "1MiB", "--cache-dir", dir, "--kv-overflow", "refuse"));
    assert_int_equal(refused.exit_status, 1);
    assert_says(refused.err, "--kv-budget");
    program_free(&refused);
    assert_true(remove_dir() > 0);
}

/* By default, a text larger than memory runs with a model whose layers share KV, too, and its text
 * is that of a run in memory. */
static void shared_kv_is_streamed(void **state)
{
    const char *prompt = program_text("long.txt", 3500);
    const char *m = program_model_shared_deep();
    json_t *whole, *first, *again;

    (void)state;
    (void)new_dir("shared-overflow");
    whole = program_json(PROGRAM("run", "-m", m, "-t", "1", "-f", prompt, "-n", "8", "--temp", "0",
                                 "-c", "4096", "--json"));
    first =
        program_json(PROGRAM("run", "-m", m, "-t", "2", "-f", prompt, "-n", "8", "--temp", "0",
                             "-c", "4096", "--kv-budget", "512KiB", "--cache-dir", dir, "--json"));
    again =
        program_json(PROGRAM("run", "-m", m, "-t", "1", "-f", prompt, "-n", "8", "--temp", "0",
                             "-c", "4096", "--kv-budget", "512KiB", "--cache-dir", dir, "--json"));
    assert_true(number(whole, "prompt_tokens") > 3000);
    assert_true(json_equal(json_object_get(whole, "text"), json_object_get(first, "text")));
    assert_true(json_equal(json_object_get(whole, "text"), json_object_get(again, "text")));
    assert_int_equal(number(again, "stored_tokens"), number(again, "prompt_tokens") - 1);
    json_decref(whole);
    json_decref(first);
    json_decref(again);
    assert_true(remove_dir() > 0);
}

/* A model of which each layer has a window: it has no pages that could be streamed. By default,
 * texts larger than memory are refused as without a directory; asked to stream, the program refuses
 * the model. */
static void windows_alone_are_not_streamed(void **state)
{
    static const char *const says[] = { "--kv-budget",
                                        "no layer of this quire model reads the whole text" };
    static const char *const choices[] = { "auto", "tier" };
    const char *m = program_model_narrow();
    program_running running;
    program_result result;
    char text[256];
    uint16_t port;

    (void)state;
    (void)new_dir("windows-overflow");
    running = program_start(PROGRAM("serve", "-m", m, "-t", "1", "--port", "0", "--kv", "f32",
                                    "--cache-dir", dir, "--log-level", "errors"));
    free(program_line_with(running.err, "warning: no layer of this model reads the whole text"));
    port = served_port(&running);
    assert_int_equal(served_complete(port, text, sizeof text), 0);
    assert_true(served_complete(port, text, sizeof text) > 64);
    served_end(&running, SIGTERM);
    for (size_t i = 0; i < 2; i++) {
        result = program_expect(1, PROGRAM("serve", "-m", m, "-t", "1", "--port", "0", "--kv",
                                           "f32", "-c", "512", "--kv-budget", "8KiB", "--cache-dir",
                                           dir, "--kv-overflow", choices[i]));
        assert_says(result.err, says[i]);
        program_free(&result);
        result = program_expect(1, PROGRAM("run", "-m", m, "-p", "a", "-n", "1", "--kv", "f32",
                                           "-c", "512", "--kv-budget", "8KiB", "--cache-dir", dir,
                                           "--kv-overflow", choices[i]));
        assert_says(result.err, says[i]);
        program_free(&result);
    }
    (void)remove_dir();
}

/* The text that a server with --attend and this budget answers with; n_left gets the layers of
 * pages that steps left in the file. */
static char *attending_answer(const char *budget, const char *overflow, double *n_left)
{
    program_running running =
        program_start(PROGRAM("serve", "-m", program_model_deep(), "-t", "1", "--port", "0", "-c",
                              "4096", "--kv", "f16", "--kv-budget", budget, "--cache-dir", dir,
                              "--kv-overflow", overflow, "--attend", "top:0.25"));
    const uint16_t port = served_port(&running);
    char body[3200];
    json_t *reply;
    char *text;
    int n = snprintf(body, sizeof body,
                     "{\"max_tokens\":8,\"temperature\":0,\"ignore_eos\":true,\"prompt\":\"");

    for (uint32_t i = 0; n < 2800; i++) {
        body[n++] = (char)('a' + i * i % 23 + i % 3);
    }
    (void)snprintf(body + n, sizeof body - (size_t)n, "\"}");
    reply = json_loads(served_ask(port, "POST", "/v1/completions", body), 0, NULL);
    text = strdup(json_string_value(
        json_object_get(json_array_get(json_object_get(reply, "choices"), 0), "text")));
    *n_left = served_metric(port, "quire_kv_offload_chosen_total{pages=\"left\"}");
    json_decref(reply);
    served_end(&running, SIGTERM);
    return text;
}

/* A text larger than memory whose tokens choose pages: the same answer, by default and with the
 * option. Pages that no token chose stay in the file. */
static void serve_attends_beyond_memory(void **state)
{
    static const char *const choices[] = { "auto", "tier" };
    double n_left;
    char *whole;

    (void)state;
    (void)new_dir("attend-cache");
    whole = attending_answer("64MiB", "auto", &n_left);
    assert_true(n_left == 0);
    for (size_t i = 0; i < 2; i++) {
        char *text;

        (void)remove_dir();
        (void)new_dir("attend-cache");
        text = attending_answer("1MiB", choices[i], &n_left);
        assert_string_equal(text, whole);
        assert_true(n_left > 0);
        free(text);
    }
    free(whole);
    (void)remove_dir();
}

/* The bytes that a step of a bench reads from the file: none with all KV in memory; with memory for
 * a third of the KV, more than half. */
static void bench_larger_than_memory(void **state)
{
    json_t *all, *part, *in_memory, *on_disk;

    (void)state;
    (void)new_dir("overflow-bench");
    all = program_json(PROGRAM("bench", program_model_deep(), "-t", "1", "--fill", "fast", "-d",
                               "3072", "-p", "0", "-n", "2", "-r", "1", "--cache-dir", dir,
                               "--json"));
    in_memory = json_array_get(all, 0);
    part = program_json(PROGRAM("bench", program_model_deep(), "-t", "1", "--fill", "fast", "-d",
                                "3072", "-p", "0", "-n", "2", "-r", "1", "--cache-dir", dir,
                                "--kv-budget", "512KiB", "--json"));
    on_disk = json_array_get(part, 0);
    assert_int_equal(number(in_memory, "step_file_bytes"), 0);
    assert_true(number(on_disk, "step_file_bytes") > number(in_memory, "kv_computed_bytes") / 2);
    assert_true(number(on_disk, "step_file_bytes") < number(in_memory, "kv_computed_bytes"));
    json_decref(all);
    json_decref(part);
    (void)remove_dir();
}

/* Another format, or another model, finds nothing and disturbs nothing. */
static void formats_do_not_mix(void **state)
{
    const char *prompt = program_text("prompt.txt", 220);
    json_t *documents[4];

    (void)state;
    (void)new_dir("mixed-cache");
    documents[0] = run(prompt, "q8");
    documents[1] = run(prompt, "f16");
    documents[2] = run(prompt, "q8");
    documents[3] = run(prompt, "f16");
    assert_int_equal(number(documents[1], "stored_tokens"), 0);
    assert_true(number(documents[2], "stored_tokens") > 64);
    assert_true(number(documents[3], "stored_tokens") > 64);
    for (uint32_t i = 0; i < 4; i++) {
        json_decref(documents[i]);
    }
    (void)remove_dir();
}

static void chat_goes_on_tomorrow(void **state)
{
    static const char first[] = "tell me a long story about the river and the tree\n";
    static const char both[] = "tell me a long story about the river and the tree\nand then\n";
    program_result a;
    program_result b;

    (void)state;
    (void)new_dir("chat-cache");
    a = program_run_with(first,
                         PROGRAM("chat", "-m", program_model(), "-t", "1", "-n", "8", "--temp", "0",
                                 "--chat-template", "chatml", "--cache-dir", dir));
    assert_int_equal(a.exit_status, 0);
    b = program_run_with(both,
                         PROGRAM("chat", "-m", program_model(), "-t", "1", "-n", "8", "--temp", "0",
                                 "--chat-template", "chatml", "--cache-dir", dir));
    assert_int_equal(b.exit_status, 0);
    assert_memory_equal(a.out, b.out, a.out_bytes); /* the first answer is the same */
    program_free(&a);
    program_free(&b);
    (void)remove_dir();
}

/* ---- serve ---- */

static program_running start(uint16_t *port)
{
    program_running running = program_start(PROGRAM(
        "serve", "-m", program_model(), "-t", "1", "--port", "0", "--kv", "f32", "--cache-dir", dir,
        "--cache-disk", "512MiB", "--store-all", "--log-level", "errors"));

    *port = served_port(&running);
    return running;
}

/* By default, requests whose texts drop tokens run beside the file for larger texts. */
static void serve_drops_tokens(void **state)
{
    static const char *const fields[] = { "\"retain\":\"keydiff:0.5\"",
                                          "\"context_overflow\":\"shift\"",
                                          "\"context_overflow\":\"condense\"" };
    program_running running;
    uint16_t port;

    (void)state;
    (void)new_dir("drop-cache");
    running = program_start(PROGRAM("serve", "-m", program_model(), "-t", "1", "--port", "0",
                                    "--kv", "f16", "--cache-dir", dir, "--cache-disk", "512MiB"));
    port = served_port(&running);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        char body[256];
        const char *reply;

        (void)snprintf(body, sizeof body, "{\"prompt\":\"the river\",\"max_tokens\":2,%s}",
                       fields[i]);
        reply = served_ask(port, "POST", "/v1/completions", body);
        if (strstr(reply, "\"choices\"") == NULL) {
            fail_msg("%s", reply);
        }
    }
    served_end(&running, SIGTERM);
    (void)remove_dir();
}

/* A server finds its texts again after SIGTERM and after SIGKILL. */
static void serve_survives(void **state)
{
    static const int signals[] = { SIGTERM, SIGKILL };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char first[256], again[256];
        program_running running;
        uint16_t port;

        (void)new_dir("serve-cache");
        running = start(&port);
        assert_int_equal(served_complete(port, first, sizeof first), 0);
        while (served_metric(port, "quire_tier_copied_pages_total{result=\"durable\"}") < 2.0) {
            served_doze();
        }
        assert_int_equal(kill(running.pid, signals[i]), 0);
        assert_int_equal(program_end(&running), i == 0 ? 0 : 128 + SIGKILL);

        running = start(&port);
        assert_true(served_complete(port, again, sizeof again) >= 128);
        assert_string_equal(first, again);
        assert_true(served_metric(port, "quire_tier_fetched_tokens_total") >= 128.0);
        assert_true(served_metric(port, "quire_tier_reads_total{store=\"file\",result=\"ok\"}") >=
                    2.0);
        assert_true(served_metric(port, "quire_tier_degraded{store=\"file\"}") == 0.0);
        assert_int_equal(kill(running.pid, SIGTERM), 0);
        assert_int_equal(program_end(&running), 0);
        (void)remove_dir();
    }
}

/* Of models whose layers keep a window, or a state, a server finds what a hit needs after a
 * restart: as many tokens as in memory, with the same answer. */
static void serve_keeps_windows_and_states(void **state)
{
    static const char *const families[] = { "gemma4", "lfm2" };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const char *model = program_model_family(families[i]);
        char first[256], again[256];
        json_int_t n_cached = 0;

        (void)new_dir("families-cache");
        for (uint32_t k = 0; k < 2; k++) {
            program_running running = program_start(
                PROGRAM("serve", "-m", model, "-t", "1", "--port", "0", "--cache-dir", dir,
                        "--cache-disk", "512MiB", "--store-all", "--log-level", "errors"));
            const uint16_t port = served_port(&running);

            if (k == 0) {
                assert_int_equal(served_complete(port, first, sizeof first), 0);
                n_cached = served_complete(port, again, sizeof again);
                assert_true(n_cached >= 64);
                assert_string_equal(first, again);
            }
            assert_int_equal(served_complete(port, again, sizeof again), n_cached);
            assert_string_equal(first, again);
            assert_true(k == 0 ||
                        served_metric(port, "quire_tier_fetched_tokens_total") >= (double)n_cached);
            served_end(&running, SIGTERM);
        }
        assert_true(remove_dir() > 0);
    }
}

/* ---- state that is kept beside pages ---- */

static const char first_turn[] =
    "{\"max_tokens\": 4, \"temperature\": 0, \"session_id\": \"s\", \"messages\": [{\"role\": "
    "\"user\", \"content\": \"the river ran to the sea and the tree saw it all the long day, and a "
    "dog and a cat ran by the old house\"}]}";
static const char next_turn[] =
    "{\"max_tokens\": 4, \"temperature\": 0, \"session_id\": \"s\", \"messages\": [{\"role\": "
    "\"user\", \"content\": \"and then\"}]}";
static const char pin[] = "{\"name\": \"p\", \"text\": \"once upon a time there was a dog and a "
                          "cat and they ran to the sea\", \"background\": false}";

static program_running start_with(uint16_t *port, const char *state)
{
    program_running running = program_start(
        PROGRAM("serve", "-m", program_model(), "-t", "1", "--port", "0", "--kv", "f32",
                "--cache-dir", dir, "--cache-disk", "512MiB", "--chat-template", "chatml",
                "--log-level", "errors", "--cache-state", state));

    *port = served_port(&running);
    return running;
}

/* A number of a session, from GET /v1/cache/sessions/s; -1 = there is none. */
static json_int_t session_number(uint16_t port, const char *name)
{
    json_t *document = json_loads(served_ask(port, "GET", "/v1/cache/sessions/s", ""), 0, NULL);
    const json_t *value = json_object_get(document, name);
    const json_int_t n = json_is_integer(value) ? json_integer_value(value) : -1;

    json_decref(document);
    return n;
}

static bool has_pin(uint16_t port)
{
    return strstr(served_ask(port, "GET", "/v1/cache/pins/p", ""), "\"held\"") != NULL;
}

/* A session and a pin are there after SIGTERM and after SIGKILL; a deleted one is not; with
 * --cache-state none nothing is. */
static void state_survives(void **state)
{
    static const int signals[] = { SIGTERM, SIGKILL };

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        program_running running;
        uint16_t port;

        (void)new_dir("state-cache");
        running = start_with(&port, "sessions,pins");
        (void)served_ask(port, "POST", "/v1/chat/completions", first_turn);
        (void)served_ask(port, "POST", "/v1/cache/pins", pin);
        assert_int_equal(session_number(port, "turns"), 1);
        assert_true(has_pin(port));
        while (served_metric(port, "quire_state_items") < 2.0) {
            served_doze();
        }
        served_end(&running, signals[i]);

        running = start_with(&port, "sessions,pins,reuse");
        assert_true(served_metric(port, "quire_state_restored_total{part=\"session\"}") == 1.0);
        assert_true(served_metric(port, "quire_state_restored_total{part=\"pin\"}") == 1.0);
        assert_int_equal(session_number(port, "turns"), 1);
        assert_int_equal(session_number(port, "messages"), 2);
        (void)served_ask(port, "POST", "/v1/chat/completions", next_turn);
        assert_int_equal(session_number(port, "turns"), 2);
        assert_int_equal(session_number(port, "messages"), 4);
        while (!has_pin(port)) {
            served_doze();
        }
        (void)served_ask(port, "DELETE", "/v1/cache/sessions/s", "");
        served_end(&running, SIGTERM);

        running = start_with(&port, "none");
        assert_int_equal(session_number(port, "turns"), -1);
        assert_false(has_pin(port));
        served_end(&running, SIGTERM);
        running = start_with(&port, "pins"); /* switched off before: the items were removed */
        assert_true(served_metric(port, "quire_state_restored_total{part=\"pin\"}") == 0.0);
        served_end(&running, SIGTERM);
        (void)remove_dir();
    }
}

/* A directory belongs to one process; others may read. */
static void one_process_writes(void **state)
{
    program_running running;
    program_result result;
    char text[256], pid[32];
    uint16_t port;

    (void)state;
    (void)new_dir("one-cache");
    running = start(&port);
    (void)served_complete(port, text, sizeof text);
    result = program_expect(
        1, PROGRAM("run", "-m", program_model(), "-p", "a", "-n", "1", "--cache-dir", dir));
    (void)snprintf(pid, sizeof pid, "%d", (int)running.pid);
    assert_says(result.err, dir);
    assert_says(result.err, pid);
    program_free(&result);
    assert_int_equal(kill(running.pid, SIGTERM), 0);
    assert_int_equal(program_end(&running), 0);
    (void)remove_dir();
}

static void settings_are_checked(void **state)
{
    const char *m = program_model();
    const struct {
        int exit_status;
        program_args args;
        const char *says;
    } cases[] = {
        { 2, PROGRAM("serve", "-m", m, "--store-all"),
          "store_all needs a cache_dir, a store or cache_host_memory" },
        { 2, PROGRAM("serve", "-m", m, "--cache-dir-readonly"),
          "cache_dir_readonly needs a cache_dir" },
        { 2, PROGRAM("serve", "-m", m, "--cache-disk", "1GiB"), "cache_disk needs a cache_dir" },
        { 2, PROGRAM("run", "-m", m, "-p", "a", "--cache-disk", "1GiB"),
          "--cache-disk says how much --cache-dir takes: give --cache-dir too" },
        { 2, PROGRAM("chat", "-m", m, "--cache-disk", "1GiB"), "give --cache-dir too" },
        { 2, PROGRAM("serve", "-m", m, "--cache-dir", "/x", "--no-prefix-cache"),
          "cache_dir needs the prefix cache" },
        { 2, PROGRAM("serve", "-m", m, "--cache-dir", "/x", "--cache-disk", "1MiB"),
          "cache_disk: at least" },
        { 2, PROGRAM("serve", "-m", m, "--cache-dir", "/x", "--cache-disk", "320MiB"),
          "cache_disk: at least" }, /* state has a share of it */
        { 2, PROGRAM("serve", "-m", m, "--cache-dir", "/x", "--cache-state", "pins,session"),
          "cache_state 'pins,session': it is a list of sessions, pins and reuse, or none" },
        { 1, PROGRAM("serve", "-m", m, "--cache-dir", "/nowhere/x"), "/nowhere/x" },
        { 1, PROGRAM("run", "-m", m, "-p", "a", "--cache-dir", "/nowhere/x"), "/nowhere/x" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        program_result result = program_expect(cases[i].exit_status, cases[i].args);

        assert_says(result.err, cases[i].says);
        program_free(&result);
    }
}

/* Flip bits of a segment, anywhere. */
static void segment_damage(const char *path, quire_rng *rng)
{
    const uint32_t n_flips = 1 + quire_rng_below(rng, 3);
    const int fd = open(path, O_RDWR);
    struct stat info;

    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &info), 0);
    for (uint32_t i = 0; i < n_flips; i++) {
        const off_t at = quire_rng_below(rng, (uint32_t)info.st_size);
        unsigned char byte;

        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= (unsigned char)(1u << quire_rng_below(rng, 8));
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    (void)close(fd);
}

static void segments_damage(quire_rng *rng)
{
    DIR *d = opendir(dir);
    struct dirent *e;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        char path[1024];

        if (strncmp(e->d_name, "segment-", 8) == 0) {
            (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
            segment_damage(path, rng);
        }
    }
    (void)closedir(d);
}

/* make chaos: the long form. */
static bool is_chaos;

/* Each run uses the records that are still whole, and stores the missing ones again. */
static void damage_changes_no_answer(void **state)
{
    static const char *const formats[] = { "f16", "q8", "q4" };
    const char *prompt = program_text("prompt.txt", 220);
    const int n_rounds = is_chaos ? 100 : TEST_ROUNDS(4, 1);
    quire_rng rng = test_rng(61);
    json_int_t n_read = 0;

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        json_t *first;

        (void)new_dir("damaged-cache");
        first = run(prompt, formats[i]);
        for (int round = 0; round < n_rounds; round++) {
            json_t *again;

            segments_damage(&rng);
            again = run(prompt, formats[i]);
            assert_string_equal(json_string_value(json_object_get(first, "text")),
                                json_string_value(json_object_get(again, "text")));
            n_read += number(again, "stored_tokens");
            json_decref(again);
        }
        json_decref(first);
        (void)remove_dir();
    }
    (void)printf("chaos: answers over damaged directories: %d, %lld stored tokens used, 0 differ\n",
                 3 * n_rounds, (long long)n_read);
}

/* ulimit -f: writing the directory fails, and the answer comes all the same. A text larger than the
 * budget needs its file, and ends with a message that names it. */
static void a_limit_of_file_lengths(void **state)
{
    const char *prompt = program_text("prompt.txt", 220);
    const char *longer = program_text("long.txt", 3500);
    struct rlimit before, limit;
    program_result result;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 4096;
    (void)new_dir("limited-cache");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    result = program_run(PROGRAM("run", "-m", program_model(), "-t", "1", "-f", prompt, "-n", "8",
                                 "--temp", "0", "--cache-dir", dir));
    assert_int_equal(result.exit_status, 0);
    assert_non_null(strstr(result.err, "failed: File too large; nothing is stored"));
    program_free(&result);
    result = program_run(PROGRAM("run", "-m", program_model_deep(), "-t", "1", "-f", longer, "-n",
                                 "8", "-c", "4096", "--kv-budget", "1MiB", "--cache-dir", dir));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(result.exit_status, 1);
    assert_says(result.err, "; overflow file in --cache-dir: write: File too large");
    program_free(&result);
    (void)remove_dir();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(run_reads_what_it_has_written),
        cmocka_unit_test(run_larger_than_memory),
        cmocka_unit_test(shared_kv_is_streamed),
        cmocka_unit_test(windows_alone_are_not_streamed),
        cmocka_unit_test(serve_attends_beyond_memory),
        cmocka_unit_test(bench_larger_than_memory),
        cmocka_unit_test(formats_do_not_mix),
        cmocka_unit_test(chat_goes_on_tomorrow),
        cmocka_unit_test(serve_drops_tokens),
        cmocka_unit_test(serve_survives),
        cmocka_unit_test(serve_keeps_windows_and_states),
        cmocka_unit_test(state_survives),
        cmocka_unit_test(one_process_writes),
        cmocka_unit_test(settings_are_checked),
        cmocka_unit_test(damage_changes_no_answer),
        cmocka_unit_test(a_limit_of_file_lengths),
    };

    /* quire serve refuses variables of this kind that it does not know. */
    is_chaos = getenv("QUIRE_CHAOS") != NULL;
    (void)unsetenv("QUIRE_CHAOS");
    return cmocka_run_group_tests(tests, NULL, program_clean);
}
