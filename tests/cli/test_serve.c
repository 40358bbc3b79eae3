/* test_serve.c - quire serve, end to end: settings, refusals, ready, drain, stop.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gguf_edit.h"
#include "program.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* ---- a client of few words ---- */

static int connect_to(uint16_t port)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof(to)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static void send_request(int fd, const char *method, const char *path, const char *key,
                         const char *body)
{
    char text[2048];
    int n = snprintf(text, sizeof(text),
                     "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n%s%s%s"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     method, path, key != NULL ? "Authorization: Bearer " : "",
                     key != NULL ? key : "", key != NULL ? "\r\n" : "", strlen(body), body);

    assert_true(n > 0 && n < (int)sizeof(text));
    assert_int_equal(send(fd, text, (size_t)n, MSG_NOSIGNAL), n);
}

/* All of a reply until the server closes. Memory: free(). */
static char *read_reply(int fd)
{
    size_t cap = 1 << 22;
    size_t n = 0;
    char *text = malloc(cap);
    ssize_t got;

    assert_non_null(text);
    while (n < cap - 1 && (got = recv(fd, text + n, cap - 1 - n, 0)) > 0) {
        n += (size_t)got;
    }
    text[n] = '\0';
    close(fd);
    return text;
}

/* Status of a whole exchange. */
static int ask(uint16_t port, const char *method, const char *path, const char *key,
               const char *body)
{
    int fd = connect_to(port);
    char *reply;
    int status = 0;

    assert_true(fd >= 0);
    send_request(fd, method, path, key, body);
    reply = read_reply(fd);
    assert_int_equal(sscanf(reply, "HTTP/1.1 %d", &status), 1);
    free(reply);
    return status;
}

/* Wait for the line that says where. */
static uint16_t ready_port(const program_running *running)
{
    char *line = program_line(running->out);
    unsigned port = 0;

    assert_int_equal(sscanf(line, "ready: http://127.0.0.1:%u", &port), 1);
    free(line);
    assert_true(port > 0 && port <= 65535);
    return (uint16_t)port;
}

/* A streamed request that goes on for a while; its first event has come. */
static int begin_stream(uint16_t port, const char *max_tokens)
{
    char body[256];
    char got[4096];
    size_t n = 0;
    int fd = connect_to(port);

    assert_true(fd >= 0);
    (void)snprintf(body, sizeof(body),
                   "{\"prompt\": \"a quire\", \"stream\": true, \"ignore_eos\": true, "
                   "\"max_tokens\": %s}",
                   max_tokens);
    send_request(fd, "POST", "/v1/completions", NULL, body);
    do {
        assert_true(n < sizeof(got) - 1);
        assert_int_equal(recv(fd, got + n, 1, 0), 1);
        got[++n] = '\0';
    } while (strstr(got, "data: ") == NULL);
    assert_memory_equal(got, "HTTP/1.1 200", 12);
    return fd;
}

/* ---- settings ---- */

/* What runs fits the limit; what is cached beside it would not. */
static void a_budget_beyond_the_memory_is_noted(void **state)
{
#define BEYOND                                                                                     \
    "serve", "-m", program_model(), "--memory-limit", "300MB", "--kv-budget", "400MB", "-np", "1", \
        "--check-config"
    program_result cached = program_expect(0, PROGRAM(BEYOND));
    program_result uncached = program_expect(0, PROGRAM(BEYOND, "--no-prefix-cache"));

    (void)state;
    assert_says(cached.out, "# a kv_budget of 400 MB, weights and buffers are ");
    assert_says(cached.out, " more than the memory limit, and cached texts fill all of the budget");
    assert_null(strstr(uncached.out, "# a kv_budget of "));
    program_free(&cached);
    program_free(&uncached);
}

static void checked_settings_say_where_from(void **state)
{
    static const char text[] =
        "kv: q8\ninference_params:\n  max_batch_size: 3\n  max_seq_len: 128\n"
        "  cache_memory_ratio: 0.25\n  prefetch_steps: 2\napi_keys:\n"
        "  - { key: abc, tenant: a }\n  - { key: ops, admin: true }\n";
    const char *file = program_file("quire.yaml", text, sizeof(text) - 1);
    char log_file[512];
    program_result result;
    json_t *document;

    (void)state;
    (void)snprintf(log_file, sizeof(log_file), "%.500s.log", file);
    result =
        program_expect(0, PROGRAM("serve", "-m", program_model(), "--config", file, "--kv", "q4",
                                  "--host", "0.0.0.0", "--log-file", log_file, "--check-config"));
    assert_int_equal(access(log_file, F_OK), -1); /* tried, and left as it was */
    assert_says(result.out, "kv: q4  # flag, --kv\n");
    assert_says(result.out, "max_batch_size: 3  # file, inference_params.max_batch_size\n");
    assert_says(result.out, "port: 8080  # default\n");
    assert_says(result.out, "session_ttl: 30m  # default\n");
    assert_says(result.out, "# effective: model random, KV q4, 128 tokens of context, ");
    assert_says(result.out, "2 keys, 1 of them for administration");
    assert_says(result.out, "# prefetch_steps has no effect without cache_dir, store or "
                            "cache_host_memory\n");
    assert_null(strstr(result.out, "abc"));
    assert_null(strstr(result.out, "# a kv_budget of "));
    program_free(&result);

    document = program_json(PROGRAM("serve", "-m", program_model(), "--config", file, "--kv-budget",
                                    "64MiB", "--check-config", "--json"));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(document, "effective"),
                                                        "kv_budget_bytes")),
                     67108864);
    json_decref(document);
}

static json_int_t budget_for(const char *ratio)
{
    json_t *document =
        program_json(PROGRAM("serve", "-m", program_model(), "--memory-limit", "1GiB",
                             "--cache-memory-ratio", ratio, "--check-config", "--json"));
    json_int_t bytes = json_integer_value(
        json_object_get(json_object_get(document, "effective"), "kv_budget_bytes"));

    json_decref(document);
    return bytes;
}

/* KV bytes of a text in q8, by quire info. */
static json_int_t kv_bytes_of(const char *model, const char *n_ctx)
{
    json_t *document = program_json(PROGRAM("info", model, "--kv", "q8", "-c", n_ctx, "--json"));
    const json_int_t bytes =
        json_integer_value(json_object_get(json_object_get(document, "need"), "kv_bytes"));

    json_decref(document);
    return bytes;
}

/* The effective context and KV budget of a model with recurrent layers. */
static json_int_t recurrent_ctx(const char *ratio, json_int_t *budget_bytes)
{
    json_t *document = program_json(
        PROGRAM("serve", "-m", program_model_family("qwen35"), "--memory-limit", "512MiB", "--kv",
                "q8", "--cache-memory-ratio", ratio, "--check-config", "--json"));
    const json_t *effective = json_object_get(document, "effective");
    const json_int_t n_ctx = json_integer_value(json_object_get(effective, "ctx_size"));

    *budget_bytes = json_integer_value(json_object_get(effective, "kv_budget_bytes"));
    json_decref(document);
    return n_ctx;
}

/* A budget that has room for a text of the trained context, and not for cached states beside it:
 * the context is shorter by default. */
static void the_context_leaves_room_for_states(void **state)
{
    const json_int_t least = kv_bytes_of(program_model_family("qwen35"), "64");
    const json_int_t whole = kv_bytes_of(program_model_family("qwen35"), "512");
    json_int_t all, budget, n_ctx;
    char text[24];

    (void)state;
    assert_int_equal(recurrent_ctx("1", &all), 512);
    (void)snprintf(text, sizeof text, "%.9f", (double)(whole + (whole - least) / 4) / (double)all);
    n_ctx = recurrent_ctx(text, &budget);
    assert_true(budget >= whole);
    assert_in_range(n_ctx, 64, 511);
    (void)snprintf(text, sizeof text, "%lld", (long long)n_ctx);
    assert_true(kv_bytes_of(program_model_family("qwen35"), text) <= budget - (budget - least) / 2);
}

static void the_budget_is_a_share_of_what_is_left(void **state)
{
    const json_int_t half = budget_for("0.5");
    const json_int_t all = budget_for("1");

    (void)state;
    assert_true(half > 1000000 && all < (1 << 30));
    assert_in_range(all - 2 * half, 0, 1); /* rounded */
}

static void a_context_that_memory_does_not_hold_is_cut(void **state)
{
    program_result result = program_expect(
        0, PROGRAM("serve", "-m", program_model(), "--kv", "f32", "--memory-limit", "64MiB",
                   "--cache-memory-ratio", "0.001", "--max-batch-size", "1", "--check-config"));

    unsigned n_ctx = 0;

    (void)state;
    assert_says(result.err, "the trained context of 512 tokens does not fit in memory");
    assert_says(result.out, "KV f32, ");
    assert_int_equal(sscanf(strstr(result.out, "KV f32, "), "KV f32, %u tokens", &n_ctx), 1);
    assert_true(n_ctx > 0 && n_ctx < 512 && n_ctx % 64 == 0);
    program_free(&result);
}

static void what_is_printed_can_be_read(void **state)
{
    program_result first =
        program_expect(0, PROGRAM("serve", "-m", program_model(), "-c", "256", "--check-config"));
    const char *file = program_file("printed.yaml", first.out, first.out_bytes);
    program_result again = program_expect(0, PROGRAM("serve", "--config", file, "--check-config"));

    (void)state;
    assert_says(again.out, "ctx_size: 256  # file, ctx_size\n");
    program_free(&first);
    program_free(&again);
}

/* Every refusal is one line on stderr, with nothing on stdout. */
static void refused(void **state)
{
    static const char unknown[] = "prot: 80\n";
    static const char no_key[] = "api_keys: [ { tenant: a } ]\n";
    static const char two_keys[] = "api_keys: [ { key: a }, { key: a } ]\n";
    static const char no_env[] = "api_keys: [ { key_env: NOBODY_SET_THIS } ]\n";
    static const char no_file[] = "api_keys: [ { key_file: /nowhere } ]\n";
    const char *m = program_model();
    const struct {
        int exit_status;
        program_args args;
        const char *says;
    } cases[] = {
        { 2, PROGRAM("serve"), "-m FILE is missing" },
        { 2, PROGRAM("serve", "-m", m, "--prot", "1"), "did you mean --port?" },
        { 2, PROGRAM("serve", "-m", m, "--port", "70000"), "--port '70000' is out of range" },
        { 2, PROGRAM("serve", "-m", m, "--session-ttl", "soon"), "30s, 15m or 2h" },
        { 2, PROGRAM("serve", "-m", m, "--chat-template", "chatlm"), "did you mean chatml?" },
        { 2, PROGRAM("serve", "-m", m, "--chat-template", "?"), "one of bailing, " },
        { 2,
          PROGRAM("serve", "-m", m, "--chat-template", "chatml", "--chat-template-file",
                  "/nowhere.jinja"),
          "chat_template and chat_template_file are both given" },
        { 1, PROGRAM("serve", "-m", m, "--chat-template-file", "/nowhere.jinja"),
          QUIRE_HAS_JINJA ? "cannot open /nowhere.jinja" : "this program was built without" },
        { 1,
          PROGRAM("serve", "-m", m, "--check-config", "--chat-template-file",
                  program_file("open.jinja", "{% if %}", 8)),
          QUIRE_HAS_JINJA ? "open.jinja: chat template: " : "this program was built without" },
        { 2,
          PROGRAM("serve", "-m", m, "--config",
                  program_file("unknown.yaml", unknown, sizeof(unknown) - 1)),
          "unknown.yaml: unknown key 'prot' (did you mean port?)" },
        { 2,
          PROGRAM("serve", "-m", m, "--config",
                  program_file("no_key.yaml", no_key, sizeof(no_key) - 1)),
          "no_key.yaml: api_keys[1] needs one of key, key_env and key_file" },
        { 2,
          PROGRAM("serve", "-m", m, "--config",
                  program_file("two_keys.yaml", two_keys, sizeof(two_keys) - 1)),
          "api_keys[2]: the same key is given before" },
        { 2,
          PROGRAM("serve", "-m", m, "--config",
                  program_file("no_env.yaml", no_env, sizeof(no_env) - 1)),
          "NOBODY_SET_THIS is not in the environment" },
        { 2,
          PROGRAM("serve", "-m", m, "--config",
                  program_file("no_file.yaml", no_file, sizeof(no_file) - 1)),
          "api_keys[1]: cannot open /nowhere" },
        { 2, PROGRAM("serve", "-m", m, "--host", "0.0.0.0"), "0.0.0.0" },
        { 2, PROGRAM("serve", "-m", m, "--host", "example.invalid"), "example.invalid" },
        { 2, PROGRAM("serve", "-m", m, "--api-key", "a b"), "without blanks" },
        { 2, PROGRAM("serve", "-m", m, "--api-key", ""), "--api-key is empty" },
        { 1, PROGRAM("serve", "-m", "/nowhere.gguf"), "/nowhere.gguf" },
        { 1, PROGRAM("serve", "-m", m, "-c", "1000000", "--memory-limit", "64MiB"), "of KV" },
        { 1, PROGRAM("serve", "-m", m, "--memory-limit", "1M"), "the limit is 1.00 MB" },
        { 1, PROGRAM("serve", "-m", m, "--log-file", "/nowhere/log"), "log_file: cannot open" },
        { 1, PROGRAM("serve", "-m", m, "--record", "/nowhere/trace"), "/nowhere/trace" },
        { 2, PROGRAM("serve", "-m", m, "--record-plain"), "record_plain needs record" },
        { 2, PROGRAM("serve", "-m", m, "--pinned-floor", "1G"), "give pinned_ceiling too" },
        { 2, PROGRAM("serve", "-m", m, "--auto-tune", "--recent-memory", "0"), "recent_memory" },
        { 2, PROGRAM("serve", "-m", m, "--tune-ttl-min", "2h", "--tune-ttl-max", "1h"),
          "tune_ttl_min is more than tune_ttl_max" },
        { 1, PROGRAM("serve", "-m", m, "--check-config", "--log-file", "/nowhere/log"),
          "log_file: cannot open" },
        { 1, PROGRAM("serve", "-m", m, "--check-config", "--record", "/nowhere/trace"),
          "record: cannot open /nowhere/trace" },
        { 1,
          PROGRAM("serve", "-m", m, "--check-config", "--record",
                  program_file("letter.txt", "a letter\n", 9)),
          "letter.txt: the file is no recording" },
        { 1, PROGRAM("serve", "-m", m, "--check-config", "--kv-budget", "8MiB", "--pinned", "8MiB"),
          "pinned: 8.39 MB of a KV budget of 8.39 MB leave nothing to other classes" },
        { 1,
          PROGRAM("serve", "-m", m, "--check-config", "--kv-budget", "8MiB", "--pinned-ceiling",
                  "8MiB", "--dynamic-floor", "7MiB"),
          "dynamic_floor: 7.34 MB are not what" },
        { 2, PROGRAM("serve", "-m", m, "--recent-memory", "1"), "0, or at least 4096 bytes" },
        { 2, PROGRAM("serve", "-m", m, "--tune-interval", "1ms"), "0, or at least 1s" },
        { 2, PROGRAM("serve", "-m", m, "--auto-tune", "--tune-interval", "0"),
          "auto_tune needs a tune_interval" },
        { 2, PROGRAM("serve", "-m", m, "--context-overflow", "compress"), "compress" },
        { 2, PROGRAM("serve", "-m", m, "--class-aging", "0"), "from 0.001 to 86400 seconds" },
    };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        program_result result = program_expect(cases[i].exit_status, cases[i].args);

        assert_says(result.err, cases[i].says);
        assert_string_equal(result.out, "");
        assert_ptr_equal(strchr(result.err, '\n'), result.err + strlen(result.err) - 1);
        program_free(&result);
    }
}

#define WITH_MAX 6u

/* --check-config refuses with the words with which a start refuses. Other lines may come first: the
 * model is described then. */
static void refused_by_both(const char *model, const char *const *with, const char *says)
{
    for (int is_check = 1; is_check >= 0; is_check--) { /* a start would go on */
        program_args args = PROGRAM("serve", "-m", model, "--port", "0");
        uint32_t n = 5;
        program_result result;

        for (uint32_t j = 0; j < WITH_MAX && with[j] != NULL; j++) {
            args.words[n++] = with[j];
        }
        args.words[n] = is_check ? "--check-config" : NULL;
        result = program_run(args);
        assert_int_not_equal(result.exit_status, 0);
        assert_says(result.err, says);
        assert_string_equal(result.out, "");
        program_free(&result);
    }
}

static void a_check_refuses_what_a_start_does(void **state)
{
    const struct {
        const char *says, *model;
        const char *with[WITH_MAX];
    } cases[] = {
        { "layers share K and V", program_model_shared(), { "--attend", "top:0.5" } },
        { "--retain snap keeps tokens by lane",
          program_model(),
          { "--retain", "snap", "--kv-layers", "0=q8;*=f16" } },
        { "takes as many pages as the tokens themselves",
          program_model(),
          { "--retain", "snap:0.9", "--retain-chunk", "128" } },
        { "layers kept whole", program_model(), { "--retain", "entropy:0.1" } },
        { "--retain and --kv-events: events name whole texts",
          program_model(),
          { "--retain", "keydiff", "--kv-events", "tcp://127.0.0.1:1" } },
        { "--context-overflow sinks turns K every 64 tokens: in q4",
          program_model(),
          { "--kv", "q4", "--context-overflow", "sinks" } },
        { "--context-overflow condense works with models whose layers see the whole text",
          program_model_latent(),
          { "--kv", "f16", "--context-overflow", "condense" } },
        { "--context-overflow sinks turns K every 64 tokens: in q8",
          program_model(),
          { "--context-overflow", "sinks" } },
        { "--context-overflow sinks with 128 tokens kept needs a context of at least 384 tokens",
          program_model(),
          { "-c", "256", "--kv=f16", "--context-overflow=sinks", "--context-keep", "65" } },
        { "condense with 256 first tokens kept and the last 200 (recent of keydiff) needs a "
          "context",
          program_model(),
          { "--kv=f16", "--context-overflow=condense", "--context-keep", "250", "--retain",
            "keydiff:0.5,recent=200" } },
        { "--context-overflow condense by snap needs more than keys and positions",
          program_model(),
          { "--kv=f16", "--context-overflow=condense", "--retain", "snap:0.5" } },
        { "--context-overflow shift and --kv-overflow: K of offloaded pages cannot be turned",
          program_model(),
          { "--kv=f16", "--context-overflow=shift", "--kv-overflow=tier", "--cache-dir",
            program_path("pages") } },
        { "a context of 512 tokens needs", program_model(), { "--kv-budget", "1KiB" } },
        { "more than attention can plan",
          program_model(),
          { "--max-batch-size", "4096", "--chunk-tokens", "65536" } },
        { "pinned_ceiling: 9.44 MB are more than the KV budget of 8.39 MB",
          program_model(),
          { "--kv-budget", "8MiB", "--pinned-ceiling", "9MiB" } },
        { "kv_overflow_disk: 1.02 kB have no room for 8 pages",
          program_model(),
          { "--cache-dir", program_path("pages"), "--kv-overflow-disk", "1KiB" } },
        { "cannot make the cache directory /nowhere/a",
          program_model(),
          { "--cache-dir", "/nowhere/a" } },
        { "cannot read the cache directory /nowhere",
          program_model(),
          { "--cache-dir", "/nowhere", "--cache-dir-readonly" } },
    };
    const char *const alone[WITH_MAX] = { NULL };

    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        refused_by_both(cases[i].model, cases[i].with, cases[i].says);
    }
    assert_int_equal(setenv("QUIRE_ISA", "z80", 1), 0);
    refused_by_both(program_model(), alone, "QUIRE_ISA is 'z80': this machine has the kernels");
    assert_int_equal(unsetenv("QUIRE_ISA"), 0);
    assert_int_equal(access(program_path("pages"), F_OK), -1); /* no attempt leaves anything */
}

static void a_port_in_use_is_said(void **state)
{
    struct sockaddr_in at = { .sin_family = AF_INET };
    socklen_t n = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char port[16];
    program_result result;

    (void)state;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    (void)snprintf(port, sizeof(port), "%u", ntohs(at.sin_port));
    result = program_expect(1, PROGRAM("serve", "-m", program_model(), "--port", port));
    assert_says(result.err, port);
    assert_says(result.err, "in use; --port names another, 0 a free one\n");
    program_free(&result);
    close(fd);
}

/* ---- running ---- */

static void a_named_template_serves_chat(void **state)
{
    program_running running =
        program_start(PROGRAM("serve", "-m", program_model(), "-t", "1", "--port", "0",
                              "--chat-template", "chatml", "--log-level", "errors"));
    char byte;

    (void)state;
    assert_int_equal(ask(ready_port(&running), "POST", "/v1/chat/completions", NULL,
                         "{\"max_tokens\": 1, \"messages\": [ { \"role\": \"user\", "
                         "\"content\": \"a\" } ] }"),
                     200);
    assert_int_equal(kill(running.pid, SIGTERM), 0);
    assert_int_equal(read(running.err, &byte, 1), 0); /* not a word */
    assert_int_equal(program_end(&running), 0);
}

#if QUIRE_HAS_JINJA
/* A template that Jinja refuses and libllama recognises. */
static void a_template_that_does_not_run_is_warned_of(void **state)
{
    const gguf_edit_key change = { "tokenizer.chat_template", EDIT_STR, 0,
                                   "{% for m in messages %}<|im_start|>", 0 };
    const gguf_gen_opts opts = gguf_edit_small("tiny-qwen2");
    const char *path = program_path("template.gguf");
    program_running running;
    gguf_edit edit;
    char *line;

    (void)state;
    gguf_edit_open(&edit, &opts);
    gguf_edit_apply(&edit, &change);
    gguf_edit_save(&edit, path);
    gguf_edit_close(&edit);
    running = program_start(
        PROGRAM("serve", "-m", path, "-t", "1", "--port", "0", "--log-level", "errors"));
    line = program_line_with(running.err, "warning: ");
    assert_says(line, "messages are written by a built-in template, without tools");
    free(line);
    assert_int_equal(ask(ready_port(&running), "POST", "/v1/chat/completions", NULL,
                         "{\"max_tokens\": 1, \"messages\": [ { \"role\": \"user\", "
                         "\"content\": \"a\" } ] }"),
                     200);
    assert_int_equal(kill(running.pid, SIGTERM), 0);
    assert_int_equal(program_end(&running), 0);
}
#endif

static void a_signal_drains(void **state)
{
    program_running running =
        program_start(PROGRAM("serve", "-m", program_model(), "-c", "32768", "--kv-budget", "64MiB",
                              "-t", "1", "--port", "0"));
    uint16_t port = ready_port(&running);
    int stream;
    int fd;
    char *line;
    char *reply;

    (void)state;
    assert_int_equal(ask(port, "GET", "/health", NULL, ""), 200);
    assert_int_equal(ask(port, "GET", "/metrics", NULL, ""), 200);
    stream = begin_stream(port, "20000");
    assert_int_equal(kill(running.pid, SIGTERM), 0);
    /* The number comes from the last snapshot of figures, which may be older than the request. */
    line = program_line_with(running.err, "SIGTERM: requests to finish: ");
    free(line);
    /* New generations are refused while the server still listens. */
    fd = connect_to(port);
    if (fd >= 0) {
        send_request(fd, "POST", "/v1/completions", NULL, "{\"prompt\": \"a\"}");
        reply = read_reply(fd);
        assert_true(reply[0] == '\0' || strncmp(reply, "HTTP/1.1 503", 12) == 0);
        free(reply);
    }
    reply = read_reply(stream);
    assert_says(reply, "\"finish_reason\":\"length\"");
    assert_says(reply, "data: [DONE]");
    free(reply);
    assert_int_equal(program_end(&running), 0);
}

static void a_second_signal_stops(void **state)
{
    program_running running =
        program_start(PROGRAM("serve", "-m", program_model(), "-c", "100000", "--kv-budget",
                              "64MiB", "-t", "1", "--port", "0", "--max-time", "0"));
    int stream = begin_stream(ready_port(&running), "99000");
    char *line;
    char *reply;

    (void)state;
    assert_int_equal(kill(running.pid, SIGTERM), 0);
    line = program_line_with(running.err, "SIGTERM: requests to finish: ");
    free(line);
    assert_int_equal(kill(running.pid, SIGINT), 0);
    reply = read_reply(stream);
    assert_null(strstr(reply, "\"finish_reason\":\"length\""));
    free(reply);
    assert_int_equal(program_end(&running), 1);
}

static void an_idle_server_ends_at_once(void **state)
{
    program_running running =
        program_start(PROGRAM("serve", "-m", program_model(), "-t", "1", "--port", "0", "--json"));
    char *text = NULL;
    size_t n = 0;
    FILE *all = open_memstream(&text, &n);
    json_t *document;

    (void)state;
    assert_non_null(all);
    /* The document ends with a line of its own. */
    for (bool is_whole = false; !is_whole;) {
        char *line = program_line(running.out);

        (void)fprintf(all, "%s\n", line);
        is_whole = strcmp(line, "}") == 0;
        free(line);
    }
    assert_int_equal(fclose(all), 0);
    document = json_loads(text, 0, NULL);
    assert_non_null(document);
    assert_true(json_integer_value(json_object_get(document, "port")) > 0);
    assert_string_equal(json_string_value(json_object_get(document, "model")), "random");
    json_decref(document);
    free(text);
    assert_int_equal(kill(running.pid, SIGINT), 0);
    assert_int_equal(program_end(&running), 0);
}

/* Lines of a file that is small, parsed. Returns how many; lines[i] is the caller's. */
static size_t read_lines(const char *path, json_t **lines, size_t cap)
{
    FILE *file = fopen(path, "r");
    char line[4096];
    size_t n = 0;

    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL) {
        assert_true(n < cap);
        lines[n] = json_loads(line, 0, NULL);
        assert_non_null(lines[n]);
        n++;
    }
    (void)fclose(file);
    return n;
}

/* A line for each request, with its lengths, class and session, and nothing of its text. */
static void what_is_asked_is_recorded(void **state)
{
    const char *path = program_path("record.jsonl");
    program_running running =
        program_start(PROGRAM("serve", "-m", program_model(), "-t", "1", "--port", "0", "--record",
                              path, "--log-level", "errors"));
    const uint16_t port = ready_port(&running);
    static const char *const bodies[] = {
        "{\"prompt\": \"a quire\", \"max_tokens\": 3, \"ignore_eos\": true}",
        "{\"prompt\": \"a quire\", \"max_tokens\": 3, \"ignore_eos\": true, "
        "\"service_tier\": \"batch\", \"session_id\": \"s\"}",
    };
    json_t *lines[8];

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(ask(port, "POST", "/v1/completions", NULL, bodies[i]), 200);
    }
    assert_int_equal(ask(port, "POST", "/v1/completions", NULL, "{}"), 400); /* not recorded */
    assert_int_equal(kill(running.pid, SIGTERM), 0);
    assert_int_equal(program_end(&running), 0);

    assert_int_equal(read_lines(path, lines, COUNT(lines)), 3);
    assert_int_equal(json_integer_value(json_object_get(lines[0], "quire_trace")), 1);
    assert_int_equal(json_array_size(json_object_get(lines[0], "classes")), 3);
    for (size_t i = 1; i < 3; i++) {
        assert_int_equal(json_integer_value(json_object_get(lines[i], "output")), 3);
        assert_true(json_integer_value(json_object_get(lines[i], "input")) > 1);
        assert_null(json_object_get(lines[i], "tokens"));
    }
    assert_string_equal(json_string_value(json_object_get(lines[1], "blocks")),
                        json_string_value(json_object_get(lines[2], "blocks")));
    assert_int_equal(json_integer_value(json_object_get(lines[1], "class")), 1);
    assert_int_equal(json_integer_value(json_object_get(lines[2], "class")), 2);
    assert_int_equal(json_integer_value(json_object_get(lines[1], "session")), 0);
    assert_int_not_equal(json_integer_value(json_object_get(lines[2], "session")), 0);
    for (size_t i = 0; i < 3; i++) {
        json_decref(lines[i]);
    }
}

/* Unasked, every so often. */
static void the_last_hour_is_looked_at(void **state)
{
    program_running running =
        program_start(PROGRAM("serve", "-m", program_model(), "-t", "1", "--port", "0",
                              "--tune-interval", "1s", "--auto-tune", "--log-level", "errors"));
    const uint16_t port = ready_port(&running);
    bool has_looked = false;

    (void)state;
    assert_int_equal(
        ask(port, "POST", "/v1/completions", NULL, "{\"prompt\": \"a\", \"max_tokens\": 1}"), 200);
    while (!has_looked) {
        const int fd = connect_to(port);
        char *reply;

        send_request(fd, "GET", "/v1/cache/tuning", NULL, "");
        reply = read_reply(fd);
        assert_says(reply, "HTTP/1.1 200");
        has_looked = strstr(reply, "\"requests\":1,") != NULL;
        free(reply);
    }
    assert_int_equal(kill(running.pid, SIGTERM), 0);
    assert_int_equal(program_end(&running), 0);
}

static void keys_and_the_log(void **state)
{
    static const char text[] = "api_keys:\n  - { key_file: KEY, tenant: a }\n"
                               "  - { key: ops-key, admin: true }\nport: 0\nlog_level: requests\n";
    static const char chat[] = "{\"max_tokens\": 1, \"messages\": [ { \"role\": \"user\", "
                               "\"content\": \"a\" } ] }";
    const char *key_path = program_file("key", "team-key\n", 9);
    const char *log_path = program_file("log", "before\n", 7);
    char config[512];
    program_running running;
    uint16_t port;
    FILE *log;
    char lines[4096];
    size_t n;

    (void)state;
    (void)snprintf(config, sizeof(config), "%.*s%s%s", (int)(strstr(text, "KEY") - text), text,
                   key_path, strstr(text, "KEY") + 3);
    running = program_start(PROGRAM("serve", "-m", program_model(), "-t", "1", "--config",
                                    program_file("keys.yaml", config, strlen(config)), "--log-file",
                                    log_path));
    port = ready_port(&running);
    assert_int_equal(ask(port, "GET", "/v1/models", NULL, ""), 401);
    assert_int_equal(ask(port, "GET", "/v1/models", "wrong", ""), 401);
    assert_int_equal(ask(port, "GET", "/v1/models", "team-key", ""), 200);
    assert_int_equal(ask(port, "GET", "/v1/cache/stats", "ops-key", ""), 200);
    assert_int_equal(ask(port, "GET", "/v1/%0Aforged%1B", "team-key", ""), 404);
    assert_true(ask(port, "POST", "/v1/chat/completions", "team-key", chat) >= 400);
    assert_int_equal(
        ask(port, "POST", "/v1/completions", "team-key", "{\"prompt\": \"a\", \"max_tokens\": 1}"),
        200);
    assert_int_equal(kill(running.pid, SIGTERM), 0);
    assert_int_equal(program_end(&running), 0);

    log = fopen(log_path, "r");
    assert_non_null(log);
    n = fread(lines, 1, sizeof(lines) - 1, log);
    lines[n] = '\0';
    fclose(log);
    assert_says(lines, "before\n");
    assert_says(lines, "Z serving random, KV q8, ");
    assert_says(lines, "Z warning: the model's chat template is missing: ");
    assert_says(lines, "--chat-template NAME gives one, such as chatml");
    assert_says(lines, "/v1/models");
    assert_says(lines, "/v1/?forged?");
    assert_says(lines, "Z all requests have finished\n");
    assert_null(strstr(lines, "team-key"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checked_settings_say_where_from),
        cmocka_unit_test(a_budget_beyond_the_memory_is_noted),
        cmocka_unit_test(the_budget_is_a_share_of_what_is_left),
        cmocka_unit_test(the_context_leaves_room_for_states),
        cmocka_unit_test(a_context_that_memory_does_not_hold_is_cut),
        cmocka_unit_test(what_is_printed_can_be_read),
        cmocka_unit_test(refused),
        cmocka_unit_test(a_check_refuses_what_a_start_does),
        cmocka_unit_test(a_port_in_use_is_said),
        cmocka_unit_test(a_signal_drains),
        cmocka_unit_test(a_second_signal_stops),
        cmocka_unit_test(an_idle_server_ends_at_once),
        cmocka_unit_test(a_named_template_serves_chat),
#if QUIRE_HAS_JINJA
        cmocka_unit_test(a_template_that_does_not_run_is_warned_of),
#endif
        cmocka_unit_test(what_is_asked_is_recorded),
        cmocka_unit_test(the_last_hour_is_looked_at),
        cmocka_unit_test(keys_and_the_log),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
