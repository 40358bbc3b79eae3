/* test_server_engine.c - the server with the real engine: answers, reuse, tenants.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine_server.h"

#include "base/bytes.h"
#include "base/clock.h"
#include "doze.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define N_CTX  1024
#define GREEDY "\"temperature\":0,\"max_tokens\":8,\"ignore_eos\":true"
#define STORY                                                                                      \
    "\"messages\":[{\"role\":\"system\",\"content\":\"You tell short stories about the sea.\"},"   \
    "{\"role\":\"user\",\"content\":\"Tell me about a boat that could not sink.\"}]"

static engine_server s;

static int start(void **state)
{
    (void)state;
    engine_server_start(&s, N_CTX, NULL, 0);
    return 0;
}

static int start_with_room(void **state)
{
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;

    (void)state;
    opts.n_contexts = 4;
    engine_server_start_with(&s, N_CTX, &opts);
    return 0;
}

/* Texts keep half of their tokens, unless a request says something else. */
static int start_retaining(void **state)
{
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;

    (void)state;
    opts.n_contexts = 4;
    opts.engine.retain_chunk = 128;
    assert_int_equal(quire_retain_parse("keydiff:0.5,recent=32", &opts.server.retain, &err),
                     QUIRE_OK);
    engine_server_start_with(&s, N_CTX, &opts);
    return 0;
}

/* Generated tokens read a quarter of the pages of two layers, unless a request says something
 * else. */
static int start_attending(void **state)
{
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;

    (void)state;
    opts.n_contexts = 4;
    opts.engine.retain_chunk = 128;
    opts.server.attend_share = 0.25;
    opts.n_layer = QUIRE_ATTEND_DENSE + 2;
    engine_server_start_with(&s, N_CTX, &opts);
    return 0;
}

/* Full contexts are condensed, unless a request says something else. */
static int start_condensing(void **state)
{
    engine_server_opts opts = ENGINE_SERVER_OPTS_INIT;

    (void)state;
    opts.n_contexts = 4;
    opts.server.context_overflow = QUIRE_CONTEXT_CONDENSE;
    engine_server_start_with(&s, N_CTX, &opts);
    return 0;
}

static int start_with_keys(void **state)
{
    (void)state;
    engine_server_start_with_tenants(&s, N_CTX);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    engine_server_stop(&s);
    return 0;
}

static char *text_of(json_t *reply, const char *path)
{
    char *text = strdup(json_string_at(reply, path));

    json_decref(reply);
    return text;
}

/* ---- answers ---- */

static void answers_the_same_from_the_cache(void **state)
{
    const char *body = "{" STORY "," GREEDY ",\"explain_cache\":true}";
    json_t *cold = post(&s, 200, CHAT, body);
    json_t *warm = post(&s, 200, CHAT, body);

    (void)state;
    assert_int_equal(completion_tokens(cold), 8);
    assert_string_equal(json_string_at(cold, "choices.0.finish_reason"), "length");
    assert_int_equal(cached_tokens(cold), 0);
    assert_string_equal(json_string_at(cold, "quire.cache.end"), "new");
    assert_int_equal(cached_tokens(warm), prompt_tokens(cold) - 1);
    assert_int_equal(json_int_at(warm, "timings.cache_n"), cached_tokens(warm));
    assert_int_equal(json_int_at(warm, "timings.prompt_n"), 1);
    assert_string_equal(json_string_at(warm, "choices.0.message.content"),
                        json_string_at(cold, "choices.0.message.content"));
    json_decref(cold);
    json_decref(warm);
}

typedef struct pieces {
    char text[4096];
    bool is_done;
} pieces;

static void add_piece(void *ctx, const char *data)
{
    pieces *p = ctx;
    json_t *root = json_loads(data, 0, NULL);

    if (root == NULL) {
        p->is_done = strcmp(data, "[DONE]") == 0;
        return;
    }
    text_append(p->text, sizeof p->text, json_string_at(root, "choices.0.text"));
    json_decref(root);
}

static void a_stream_says_what_the_whole_says(void **state)
{
    char *whole = text_of(post(&s, 200, TEXT, "{\"prompt\":\"Once upon a time\"," GREEDY "}"),
                          "choices.0.text");
    http_reply reply =
        http_post(s.port, TEXT, "{\"prompt\":\"Once upon a time\",\"stream\":true," GREEDY "}");
    pieces heard = { "", false };

    (void)state;
    assert_int_equal(reply.status, 200);
    (void)http_events(&reply, add_piece, &heard);
    assert_true(heard.is_done);
    assert_string_equal(heard.text, whole);
    http_reply_free(&reply);
    free(whole);
}

static void several_answers_share_their_prompt(void **state)
{
    json_t *reply =
        post(&s, 200, CHAT, "{" STORY ",\"n\":4,\"seed\":5,\"max_tokens\":6,\"ignore_eos\":true}");
    quire_engine_stats stats;

    (void)state;
    assert_int_equal(json_array_size(json_at(reply, "choices")), 4);
    assert_int_equal(completion_tokens(reply), 24);
    quire_engine_stats_get(s.bench.engine, &stats);
    /* The prompt once, and its last token for the three others. */
    assert_true(stats.computed_prompt_tokens_total <= (uint64_t)prompt_tokens(reply) + 3);
    json_decref(reply);
}

static void grammars_bind_answers(void **state)
{
    json_t *reply = post(&s, 200, TEXT,
                         "{\"prompt\":\"Is it?\",\"grammar\":\"root ::= \\\"yes\\\" | "
                         "\\\"no\\\"\",\"max_tokens\":8}");
    const char *text = json_string_at(reply, "choices.0.text");

    (void)state;
    assert_true(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
    assert_string_equal(json_string_at(reply, "choices.0.finish_reason"), "stop");
    json_decref(reply);
    reply = post(&s, 400, TEXT, "{\"prompt\":\"Is it?\",\"grammar\":\"root ::= (\"}");
    assert_string_equal(json_string_at(reply, "error.param"), "grammar");
    json_decref(reply);
    reply = post(&s, 400, TEXT, "{\"prompt\":\"Is it?\",\"grammar\":\"root ::= [a]{9999}\"}");
    assert_string_equal(json_string_at(reply, "error.param"), "grammar");
    json_decref(reply);
}

/* Logits divided by the least temperature must stay finite. */
static void the_least_temperature_is_greedy(void **state)
{
    char *greedy = text_of(post(&s, 200, TEXT,
                                "{\"prompt\":\"Once upon\",\"temperature\":0,\"max_tokens\":12,"
                                "\"ignore_eos\":true}"),
                           "choices.0.text");
    char *least = text_of(post(&s, 200, TEXT,
                               "{\"prompt\":\"Once upon\",\"temperature\":1e-40,\"max_tokens\":12,"
                               "\"ignore_eos\":true}"),
                          "choices.0.text");

    (void)state;
    assert_string_equal(least, greedy);
    free(greedy);
    free(least);
}

static void stop_texts_end_answers(void **state)
{
    json_t *body = json_pack("{s:s,s:s,s:i,s:i,s:b}", "prompt", "Once upon a time", "grammar",
                             "root ::= [a-z]+", "temperature", 0, "max_tokens", 8, "ignore_eos", 1);
    char *text = json_dumps(body, 0);
    char *whole = text_of(post(&s, 200, TEXT, text), "choices.0.text");
    const char stop_text[2] = { whole[strlen(whole) / 2], '\0' };
    json_t *reply;

    (void)state;
    free(text);
    (void)json_object_set_new(body, "stop", json_string(stop_text));
    text = json_dumps(body, 0);
    reply = post(&s, 200, TEXT, text);
    *strchr(whole, stop_text[0]) = '\0';
    assert_string_equal(json_string_at(reply, "choices.0.text"), whole);
    assert_string_equal(json_string_at(reply, "choices.0.finish_reason"), "stop");
    json_decref(reply);
    json_decref(body);
    free(text);
    free(whole);
}

static void logprobs_are_the_models(void **state)
{
    json_t *reply = post(&s, 200, CHAT,
                         "{" STORY "," GREEDY ",\"logprobs\":true,"
                         "\"top_logprobs\":3}");
    json_t *content = json_at(reply, "choices.0.logprobs.content");

    (void)state;
    assert_int_equal(json_array_size(content), 8);
    for (size_t i = 0; i < 8; i++) {
        json_t *entry = json_array_get(content, i);
        const double own = json_number_value(json_at(entry, "logprob"));

        assert_true(own <= 0.0);
        assert_int_equal(json_array_size(json_at(entry, "top_logprobs")), 3);
        /* The likeliest may be the end of the text, which ignore_eos passes over. */
        assert_true(json_number_value(json_at(entry, "top_logprobs.0.logprob")) >= own);
    }
    json_decref(reply);
}

static void a_prompt_beyond_the_context_is_refused(void **state)
{
    quire_bytes words = { 0 };
    json_t *reply;

    (void)state;
    (void)quire_bytes_addf(&words, "{\"prompt\":\"");
    for (int i = 0; i < N_CTX; i++) {
        (void)quire_bytes_addf(&words, "q ");
    }
    assert_int_equal(quire_bytes_addf(&words, "\"}"), QUIRE_OK);
    reply = post(&s, 400, TEXT, words.data);
    assert_string_equal(json_string_at(reply, "error.code"), "context_length_exceeded");
    assert_string_equal(json_string_at(reply, "error.param"), "prompt");
    json_decref(reply);
    quire_bytes_fini(&words);
}

/* A request with a prompt of so many words. Memory: free(). */
static char *long_text(int n_words, const char *fields)
{
    quire_bytes body = { 0 };

    (void)quire_bytes_addf(&body, "{%s\"prompt\":\"", fields);
    for (int i = 0; i < n_words; i++) {
        (void)quire_bytes_addf(&body, "%c ", 'a' + i * 7 % 26);
    }
    assert_int_equal(quire_bytes_addf(&body, "\"}"), QUIRE_OK);
    return body.data;
}

static void a_full_context_goes_on(void **state)
{
    char *body = long_text(N_CTX + 100, GREEDY ",\"context_overflow\":\"shift\",");
    json_t *cold = post(&s, 200, TEXT, body);
    json_t *warm = post(&s, 200, TEXT, body);
    json_t *reply;
    http_reply metrics;

    (void)state;
    assert_true(prompt_tokens(cold) > N_CTX);
    assert_int_equal(completion_tokens(cold), 8);
    assert_int_equal(cached_tokens(cold), 0);
    assert_int_equal(cached_tokens(warm), N_CTX);
    assert_true(json_int_at(cold, "quire.dropped_tokens") >= prompt_tokens(cold) + 7 - N_CTX);
    assert_int_equal(json_int_at(warm, "quire.dropped_tokens"),
                     json_int_at(cold, "quire.dropped_tokens"));
    assert_string_equal(json_string_at(warm, "choices.0.text"),
                        json_string_at(cold, "choices.0.text"));
    json_decref(cold);
    json_decref(warm);
    free(body);
    metrics = http_get(s.port, "/metrics");
    assert_non_null(strstr(metrics.body, "\nquire_context_shifts_total 2\n"));
    assert_null(strstr(metrics.body, "\nquire_context_dropped_tokens_total 0\n"));
    http_reply_free(&metrics);

    body = long_text(10, GREEDY ",\"context_overflow\":\"sinks\",\"context_keep\":1000,");
    reply = post(&s, 400, TEXT, body);
    assert_string_equal(json_string_at(reply, "error.param"), "context_overflow");
    assert_string_equal(json_string_at(reply, "error.message"),
                        "context_overflow: sinks with 1024 tokens kept needs a context of at least "
                        "1280 tokens: raise -c");
    json_decref(reply);
    free(body);
    body = long_text(17 * N_CTX, GREEDY ",\"context_overflow\":\"shift\",");
    reply = post(&s, 400, TEXT, body);
    assert_string_equal(json_string_at(reply, "error.param"), "prompt");
    assert_string_equal(json_string_at(reply, "error.message"),
                        "prompt: more than 16384 tokens, 16 times the context");
    json_decref(reply);
    free(body);
}

static void a_full_context_is_condensed(void **state)
{
    static const struct {
        const char *fields;
        const char *param;
        const char *message;
    } refusals[] = {
        { "\"context_keep\":1000,", "context_overflow",
          "context_overflow: condense with 1024 tokens kept needs a context of at least 1280" },
        { "\"retain\":\"snap\",", "context_overflow",
          "context_overflow: condense by snap needs more than keys and positions" },
        { "\"retain\":\"keydiff,full_layers=0\",", "context_overflow",
          "context_overflow: condense by keydiff: all heads keep the same number of tokens" },
        { "\"retain\":\"none\",", "retain", "" },
    };
    char *body = long_text(2 * N_CTX, GREEDY ",\"context_overflow\":\"condense\","
                                             "\"retain\":\"stride:0.5\",");
    json_t *cold = post(&s, 200, TEXT, body);
    json_t *warm = post(&s, 200, TEXT, body);
    json_t *other;
    http_reply metrics;

    (void)state;
    free(body);
    assert_true(json_int_at(cold, "quire.condensings") > 2);
    assert_int_equal(json_int_at(warm, "quire.condensings"),
                     json_int_at(cold, "quire.condensings"));
    assert_true(json_int_at(cold, "quire.dropped_tokens") >= prompt_tokens(cold) + 7 - N_CTX);
    assert_int_equal(cached_tokens(warm), N_CTX);
    assert_string_equal(json_string_at(warm, "choices.0.text"),
                        json_string_at(cold, "choices.0.text"));
    other = get(&s, 200, "/v1/cache/stats");
    assert_int_equal(json_int_at(other, "condensed.context_whole_total"), 2);
    assert_int_equal(json_int_at(other, "condensed.context_again_total"),
                     2 * (json_int_at(cold, "quire.condensings") - 1));
    json_decref(other);
    json_decref(cold);
    json_decref(warm);
    metrics = http_get(s.port, "/metrics");
    assert_non_null(strstr(metrics.body, "\nquire_context_condensings_total{input=\"whole\"} 2\n"));
    assert_null(strstr(metrics.body, "\nquire_context_condensings_total{input=\"condensed\"} 0\n"));
    http_reply_free(&metrics);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        char fields[128];

        (void)snprintf(fields, sizeof fields, "\"context_overflow\":\"condense\",%s",
                       refusals[i].fields);
        body = long_text(10, fields);
        other = post(&s, 400, TEXT, body);
        assert_string_equal(json_string_at(other, "error.param"), refusals[i].param);
        assert_non_null(strstr(json_string_at(other, "error.message"), refusals[i].message));
        json_decref(other);
        free(body);
    }
}

/* The server's default, and "none" against it. */
static void contexts_are_condensed_by_default(void **state)
{
    char *body = long_text(N_CTX + 100, GREEDY ",");
    json_t *reply = post(&s, 200, TEXT, body);

    (void)state;
    assert_true(json_int_at(reply, "quire.condensings") > 0);
    json_decref(reply);
    free(body);
    body = long_text(N_CTX + 100, GREEDY ",\"retain\":\"none\",");
    reply = post(&s, 400, TEXT, body);
    assert_string_equal(json_string_at(reply, "error.code"), "context_length_exceeded");
    json_decref(reply);
    free(body);
}

/* Pages that generated tokens read and left out so far. */
static void pages_attended(int64_t *n_read, int64_t *n_left)
{
    json_t *stats = get(&s, 200, "/v1/cache/stats");

    *n_read = json_int_at(stats, "attend.read_pages_total");
    *n_left = json_int_at(stats, "attend.left_pages_total");
    json_decref(stats);
}

/* A request without the field gets the default share. A request that drops tokens gets none. */
static void tokens_read_a_share(void **state)
{
    static const struct {
        const char *fields;
        bool attends;
    } answered[] = { { "", true },
                     { "\"attend\":\"none\",", false },
                     { "\"attend\":\"top:1\",", false },
                     { "\"retain\":\"keydiff\",", false },
                     { "\"context_overflow\":\"shift\",", false },
                     { "\"attend\":\"top:0.5\",", true } };
    static const char *const refused[] = { "\"retain\":\"keydiff\"",
                                           "\"context_overflow\":\"shift\"" };
    json_t *other = get(&s, 200, "/props");
    char fields[128];
    char *body;

    (void)state;
    assert_string_equal(json_string_at(other, "quire.attend"), "top:0.25");
    json_decref(other);
    for (size_t i = 0; i < sizeof answered / sizeof answered[0]; i++) {
        int64_t n_read, n_left, n_read_before, n_left_before;

        pages_attended(&n_read_before, &n_left_before);
        (void)snprintf(fields, sizeof fields, GREEDY ",%s", answered[i].fields);
        body = long_text(300, fields);
        json_decref(post(&s, 200, TEXT, body));
        free(body);
        pages_attended(&n_read, &n_left);
        assert_int_equal(n_read > n_read_before, answered[i].attends);
        assert_int_equal(n_left > n_left_before, answered[i].attends);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        (void)snprintf(fields, sizeof fields, "\"attend\":\"top:0.5\",%s,", refused[i]);
        body = long_text(10, fields);
        other = post(&s, 400, TEXT, body);
        assert_string_equal(json_string_at(other, "error.param"), "attend");
        assert_non_null(strstr(json_string_at(other, "error.message"), "cannot go together"));
        json_decref(other);
        free(body);
    }
}

static void a_text_keeps_a_share(void **state)
{
    static const struct {
        const char *field;
        const char *message;
    } refusals[] = {
        { "\"retain\":\"heavy,granule=3\"", "retain: heavy: in shared pages a lane keeps whole" },
        { "\"retain\":\"keydiff,floor=0\"", "retain: keydiff:0.5," },
        { "\"retain\":\"stride\",\"context_overflow\":\"shift\"",
          "retain: stride and context_overflow: shift cannot go together" },
        { "\"retain\":\"best\"", "" },
        { "\"retain\":5", "" },
    };
    char *body = long_text(400, GREEDY ",");
    json_t *cold = post(&s, 200, TEXT, body);
    json_t *warm = post(&s, 200, TEXT, body);
    json_t *other;
    http_reply metrics;
    int64_t cached;
    char line[80];

    (void)state;
    free(body);
    assert_int_equal(json_int_at(cold, "quire.condensings"), (prompt_tokens(cold) - 1) / 128);
    assert_true(json_int_at(cold, "quire.dropped_tokens") >= 64);
    assert_int_equal(cached_tokens(cold), 0);
    assert_int_equal(cached_tokens(warm), prompt_tokens(warm) - 1);
    assert_string_equal(json_string_at(warm, "choices.0.text"),
                        json_string_at(cold, "choices.0.text"));
    json_decref(cold);
    json_decref(warm);
    body = long_text(400, GREEDY ",\"retain\":\"none\",");
    other = post(&s, 200, TEXT, body);
    assert_null(json_object_get(other, "quire"));
    assert_int_equal(cached_tokens(other), 128);
    json_decref(other);
    free(body);
    other = get(&s, 200, "/props");
    assert_non_null(strstr(json_string_at(other, "quire.retain"), "keydiff:0.5,"));
    json_decref(other);
    other = post(&s, 201, "/v1/cache/pins",
                 "{\"name\":\"p\",\"tenant\":\"\",\"text\":\"a b c d e f g h\"}");
    assert_non_null(strstr(json_string_at(other, "retain"), "keydiff:0.5,"));
    json_decref(other);
    other = post(&s, 201, "/v1/cache/pins",
                 "{\"name\":\"q\",\"tenant\":\"\",\"text\":\"a b\",\"retain\":\"none\"}");
    assert_true(json_is_null(json_at(other, "retain")));
    json_decref(other);
    other = post(&s, 400, "/v1/cache/pins",
                 "{\"name\":\"r\",\"tenant\":\"\",\"text\":\"a b\",\"retain\":\"snap\"}");
    assert_string_equal(json_string_at(other, "error.param"), "retain");
    json_decref(other);
    other = get(&s, 200, "/v1/cache/stats");
    assert_true(json_int_at(other, "condensed.texts") > 0);
    /* One text, whose first condensing read all of its tokens. */
    assert_true(json_int_at(other, "condensed.computed_total") > 1);
    assert_int_equal(json_int_at(other, "condensed.computed_again_total"),
                     json_int_at(other, "condensed.computed_total") - 1);
    assert_int_equal(json_int_at(other, "condensed.found_total"), 1);
    assert_int_equal(json_int_at(other, "condensed.found_again_total"), 1);
    assert_true(json_int_at(other, "condensed.dropped_tokens_total") > 0);
    assert_int_equal(json_int_at(other, "condensed.held_bytes"), 0); /* nothing runs */
    cached = json_int_at(other, "condensed.cached_bytes");           /* but its pages are there */
    assert_true(cached > 0);
    json_decref(other);
    metrics = http_get(s.port, "/metrics");
    assert_non_null(strstr(
        metrics.body, "\nquire_condensings_total{cache_source=\"computed\",input=\"whole\"} 1\n"));
    assert_null(
        strstr(metrics.body,
               "\nquire_condensings_total{cache_source=\"computed\",input=\"condensed\"} 0"));
    assert_non_null(strstr(
        metrics.body, "\nquire_condensings_total{cache_source=\"prefix\",input=\"whole\"} 0\n"));
    assert_non_null(
        strstr(metrics.body,
               "\nquire_condensings_total{cache_source=\"prefix\",input=\"condensed\"} 1\n"));
    assert_null(strstr(metrics.body, "\nquire_condensed_tokens_total 0\n"));
    (void)snprintf(line, sizeof line, "\nquire_condensed_cached_bytes %lld\n", (long long)cached);
    assert_non_null(strstr(metrics.body, line));
    http_reply_free(&metrics);
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        char fields[128];

        (void)snprintf(fields, sizeof fields, "%s,", refusals[i].field);
        body = long_text(10, fields);
        other = post(&s, 400, TEXT, body);
        assert_string_equal(json_string_at(other, "error.param"), "retain");
        assert_non_null(strstr(json_string_at(other, "error.message"), refusals[i].message));
        json_decref(other);
        free(body);
    }
}

/* A conversation that no longer fits goes on, turn by turn, with the beginning of the text from the
 * cache. */
static void a_session_goes_on_beyond_the_context(void **state)
{
    quire_bytes body = { 0 };
    int64_t n_dropped = 0;

    (void)state;
    for (int i = 0; i < 5; i++) {
        json_t *reply;

        quire_bytes_clear(&body);
        assert_int_equal(
            quire_bytes_addf(&body,
                             "{" GREEDY ",\"session_id\":\"one\",\"context_overflow\":\"shift\","
                             "\"messages\":[{\"role\":\"user\",\"content\":\"%0300d\"}]}",
                             i),
            QUIRE_OK);
        reply = post(&s, 200, CHAT, body.data);
        assert_true(json_is_true(json_at(reply, "quire.session_kept")));
        assert_true(json_int_at(reply, "quire.dropped_tokens") >= n_dropped);
        n_dropped = json_int_at(reply, "quire.dropped_tokens");
        if (n_dropped > 0) {
            assert_true(cached_tokens(reply) > N_CTX / 2);
        }
        json_decref(reply);
    }
    assert_true(n_dropped > 0);
    quire_bytes_fini(&body);
}

/* Special tokens by the hundred thousand, which libllama takes minutes to split, and hold up
 * nobody: the answer comes before the test's time is over. */
static void many_special_tokens_are_refused(void **state)
{
    enum {
        N_SPECIALS = 300000
    };
    quire_bytes body = { 0 };
    json_t *reply;

    (void)state;
    (void)quire_bytes_addf(&body, "{\"prompt\":\"");
    for (int i = 0; i < N_SPECIALS; i++) {
        (void)quire_bytes_add(&body, "<s>", 3);
    }
    assert_int_equal(quire_bytes_addf(&body, "\"}"), QUIRE_OK);
    reply = post(&s, 400, TEXT, body.data);
    assert_string_equal(json_string_at(reply, "error.code"), "context_length_exceeded");
    assert_string_equal(json_string_at(reply, "error.param"), "prompt");
    json_decref(reply);
    quire_bytes_fini(&body);
}

static void what_is_uncached_leaves_nothing(void **state)
{
    (void)state;
    json_decref(post(&s, 200, CHAT, "{" STORY "," GREEDY ",\"cache_prompt\":false}"));
    json_t *reply = post(&s, 200, CHAT, "{" STORY "," GREEDY "}");
    assert_int_equal(cached_tokens(reply), 0);
    json_decref(reply);
}

static void a_client_that_goes_frees_its_pages(void **state)
{
    quire_engine_stats stats;
    const int fd = http_connect(s.port);
    char byte;

    (void)state;
    http_send_call(fd, &(http_call){ .path = TEXT,
                                     .body = "{\"prompt\":\"Once\",\"stream\":true,"
                                             "\"max_tokens\":900,\"ignore_eos\":true}" });
    assert_int_equal(read(fd, &byte, 1), 1);
    (void)close(fd);
    do {
        test_doze();
        stats = stats_now(s.bench.engine);
    } while (stats.finished_cancelled_total == 0);
    assert_int_equal(stats.requests_decoding, 0);
    assert_int_equal(stats.cache.pages_live, 0);
}

/* ---- tenants ---- */

static void no_hit_crosses_a_tenant(void **state)
{
    const char *body = "{" STORY "," GREEDY "}";
    const char *salted = "{" STORY "," GREEDY ",\"cache_salt\":\"x\"}";
    json_t *reply = post(&s, 200, CHAT, body);
    const int64_t n = prompt_tokens(reply);

    (void)state;
    json_decref(reply);
    s.key = KEY_OF_B;
    for (int i = 0; i < 2; i++) {
        reply = post(&s, 200, CHAT, body);
        assert_int_equal(cached_tokens(reply), i == 0 ? 0 : n - 1);
        json_decref(reply);
    }
    s.key = KEY_OF_A;
    reply = post(&s, 200, CHAT, salted);
    assert_int_equal(cached_tokens(reply), 0);
    json_decref(reply);
    reply = post(&s, 200, CHAT, body);
    assert_int_equal(cached_tokens(reply), n - 1);
    json_decref(reply);
}

static void explanations_stay_with_their_tenant(void **state)
{
    char path[128];
    char *id = text_of(post(&s, 200, CHAT, "{" STORY "," GREEDY "}"), "id");
    json_t *reply;

    (void)state;
    (void)snprintf(path, sizeof path, "/v1/cache/explain/%s", id);
    free(id);
    reply = get(&s, 200, path);
    assert_string_equal(json_string_at(reply, "end"), "new");
    assert_true(json_is_null(json_at(reply, "cut_by")));
    json_decref(reply);
    s.key = KEY_OF_B;
    json_decref(get(&s, 404, path));
    json_decref(get(&s, 403, "/v1/cache/explain"));
    s.key = KEY_OF_ADMIN;
    json_decref(get(&s, 200, path));
    reply = get(&s, 200, "/v1/cache/explain?n=5");
    assert_int_equal(json_array_size(json_at(reply, "data")), 1);
    json_decref(reply);
    json_decref(get(&s, 400, "/v1/cache/explain?n=0"));
    json_decref(get(&s, 404, "/v1/cache/explain/none"));
}

static void keys_open_what_is_theirs(void **state)
{
    (void)state;
    s.key = NULL;
    json_decref(get(&s, 401, "/v1/models"));
    json_decref(post(&s, 401, CHAT, "{" STORY "}"));
    json_decref(get(&s, 200, "/health"));
    s.key = "key-of-";
    json_decref(get(&s, 401, "/v1/models"));
    s.key = "key-of-aa";
    json_decref(get(&s, 401, "/v1/models"));
    s.key = KEY_OF_A;
    json_decref(get(&s, 200, "/v1/models"));
    json_decref(get(&s, 403, "/v1/cache/stats"));
    json_decref(get(&s, 403, "/v1/cache/pages"));
    json_decref(post(&s, 403, "/v1/cache/invalidate", "{\"all\":true}"));
    s.key = KEY_OF_ADMIN;
    json_decref(get(&s, 200, "/v1/models"));
    json_decref(post(&s, 403, CHAT, "{" STORY "}"));
    json_decref(get(&s, 200, "/v1/cache/stats"));
}

static void a_foreign_page_is_refused(void **state)
{
    (void)state;
    json_decref(http_json(
        s.port, &(http_call){ .path = "/v1/models", .headers = "Origin: https://example.org\r\n" },
        403));
    json_decref(http_json(
        s.port,
        &(http_call){ .path = "/v1/models", .headers = "Origin: http://localhost:8080\r\n" }, 200));
}

/* ---- contents of the cache ---- */

static void shows_its_pages_and_figures(void **state)
{
    const uint64_t from_ns = quire_clock_ns();
    json_t *reply;
    http_reply metrics;

    (void)state;
    json_decref(post(&s, 200, CHAT, "{" STORY "," GREEDY ",\"session_id\":\"one\"}"));
    reply = get(&s, 200, "/v1/cache/pages");
    assert_true(json_int_at(reply, "pages_in_use") > 0);
    assert_int_equal(json_array_size(json_at(reply, "pages")), json_int_at(reply, "pages_in_use"));
    assert_int_equal(json_int_at(reply, "pages.0.2"), 2); /* cached */
    assert_int_equal(json_int_at(reply, "pages.0.3"), 64);
    assert_int_equal(json_int_at(reply, "pages.0.4"), json_int_at(reply, "owners.0.owner"));
    assert_in_range(json_int_at(reply, "pages.0.5"), 0, (quire_clock_ns() - from_ns) / 1000000u);
    assert_string_equal(json_string_at(reply, "owners.0.session_id"), "one");
    json_decref(reply);
    reply = get(&s, 200, "/v1/cache/pages?cells=1");
    assert_int_equal(json_array_size(json_at(reply, "pages")), 1);
    assert_true(json_int_at(reply, "every") > 1);
    json_decref(reply);
    json_decref(get(&s, 400, "/v1/cache/pages?cells=x"));
    reply = get(&s, 200, "/v1/cache/stats");
    assert_int_equal(json_int_at(reply, "requests.accepted_total"), 1);
    assert_int_equal(json_int_at(reply, "sessions.open"), 1);
    assert_true(json_int_at(reply, "cache.cached_bytes") > 0);
    json_decref(reply);
    metrics = http_get(s.port, "/metrics");
    assert_non_null(strstr(metrics.body, "quire_generation_tokens_total"));
    http_reply_free(&metrics);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(answers_the_same_from_the_cache, start, stop),
        cmocka_unit_test_setup_teardown(a_stream_says_what_the_whole_says, start, stop),
        cmocka_unit_test_setup_teardown(several_answers_share_their_prompt, start, stop),
        cmocka_unit_test_setup_teardown(grammars_bind_answers, start, stop),
        cmocka_unit_test_setup_teardown(the_least_temperature_is_greedy, start, stop),
        cmocka_unit_test_setup_teardown(stop_texts_end_answers, start, stop),
        cmocka_unit_test_setup_teardown(logprobs_are_the_models, start, stop),
        cmocka_unit_test_setup_teardown(a_prompt_beyond_the_context_is_refused, start, stop),
        cmocka_unit_test_setup_teardown(a_full_context_goes_on, start_with_room, stop),
        cmocka_unit_test_setup_teardown(a_full_context_is_condensed, start_with_room, stop),
        cmocka_unit_test_setup_teardown(contexts_are_condensed_by_default, start_condensing, stop),
        cmocka_unit_test_setup_teardown(a_text_keeps_a_share, start_retaining, stop),
        cmocka_unit_test_setup_teardown(tokens_read_a_share, start_attending, stop),
        cmocka_unit_test_setup_teardown(a_session_goes_on_beyond_the_context, start_with_room,
                                        stop),
        cmocka_unit_test_setup_teardown(many_special_tokens_are_refused, start, stop),
        cmocka_unit_test_setup_teardown(what_is_uncached_leaves_nothing, start, stop),
        cmocka_unit_test_setup_teardown(a_client_that_goes_frees_its_pages, start, stop),
        cmocka_unit_test_setup_teardown(no_hit_crosses_a_tenant, start_with_keys, stop),
        cmocka_unit_test_setup_teardown(explanations_stay_with_their_tenant, start_with_keys, stop),
        cmocka_unit_test_setup_teardown(keys_open_what_is_theirs, start_with_keys, stop),
        cmocka_unit_test_setup_teardown(a_foreign_page_is_refused, start, stop),
        cmocka_unit_test_setup_teardown(shows_its_pages_and_figures, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
