/* test_server_tokenize.c - the end of tokenizing before all tokens are there: a text that a
 * tokenizer cannot take, the bound on time, a client that leaves.
 *
 * The linker redirects the functions that tokenize (--wrap). They run, and their question whether
 * to go on is answered by a gate of the test. The clock is redirected too, so no test waits.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "doze.h"
#include "model/text.h"
#include "server_fixture.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define HI "hello there"

/* The requests that tokenize a text: path, what stands before and behind the text, the field. */
typedef struct request {
    const char *path;
    const char *before;
    const char *behind;
    const char *field;
} request;

static const request requests[] = {
    { CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}", "messages" },
    { TEXT, "{\"prompt\":\"", "\"}", "prompt" },
    { TEXT, "{\"prompt\":[5,\"", "\"]}", "prompt" },
    { "/tokenize", "{\"content\":\"", "\"}", "content" },
};
#define N_REQUESTS (sizeof requests / sizeof requests[0])

static server_fixture f;

/* ---- the gate ---- */

typedef enum gate_kind {
    GATE_NONE,
    GATE_AWAITS_CANCEL, /* the first question waits until the server wants the end */
    GATE_TAKES_TIME     /* the time for the text is over after the first question */
} gate_kind;

static atomic_int gate;
static atomic_uint n_begun;           /* texts with a gate whose first question has come */
static atomic_uint n_cancelled;       /* texts with a gate whose tokenizing was cancelled */
static _Thread_local time_t passed_s; /* that this thread's clock is ahead */

int __real_clock_gettime(clockid_t clock, struct timespec *at);
int __wrap_clock_gettime(clockid_t clock, struct timespec *at);
int __wrap_clock_gettime(clockid_t clock, struct timespec *at)
{
    const int rc = __real_clock_gettime(clock, at);

    at->tv_sec += passed_s;
    return rc;
}

/* The server's options, and those with the gate in place of the server's question. */
typedef struct gated {
    const quire_tokenize_opts *server;
    quire_tokenize_opts own;
    bool is_in;
} gated;

static bool gate_is_canceled(void *ctx)
{
    const quire_tokenize_opts *opts = ((const gated *)ctx)->server;

    if (atomic_load(&gate) == GATE_TAKES_TIME) {
        passed_s = QUIRE_TOKENIZE_TIME_MAX_S + 1;
        return false;
    }
    (void)atomic_fetch_add(&n_begun, 1);
    while (!opts->is_canceled(opts->ctx)) {
        test_doze();
    }
    return true;
}

/* One of the functions may call the other by its redirected name: a text has one gate. */
static void gate_enter(gated *g, const quire_tokenize_opts *opts)
{
    g->server = opts;
    g->own = *opts;
    g->is_in = atomic_load(&gate) != GATE_NONE && opts->is_canceled != NULL &&
               opts->is_canceled != gate_is_canceled;
    if (g->is_in) {
        g->own.is_canceled = gate_is_canceled;
        g->own.ctx = g;
    }
}

static int gate_leave(const gated *g, int rc)
{
    if (g->is_in) {
        passed_s = 0;
        (void)atomic_fetch_add(&n_cancelled, rc == QUIRE_CANCELED);
    }
    return rc;
}

int __real_quire_model_tokenize_all(const quire_model *model, const char *text, size_t text_bytes,
                                    const quire_tokenize_opts *opts, int32_t **tokens,
                                    size_t *n_tokens, quire_error *err);
int __wrap_quire_model_tokenize_all(const quire_model *model, const char *text, size_t text_bytes,
                                    const quire_tokenize_opts *opts, int32_t **tokens,
                                    size_t *n_tokens, quire_error *err);
int __wrap_quire_model_tokenize_all(const quire_model *model, const char *text, size_t text_bytes,
                                    const quire_tokenize_opts *opts, int32_t **tokens,
                                    size_t *n_tokens, quire_error *err)
{
    gated g;

    gate_enter(&g, opts);
    return gate_leave(&g, __real_quire_model_tokenize_all(model, text, text_bytes, &g.own, tokens,
                                                          n_tokens, err));
}

int __real_quire_model_tokenize_end(const quire_model *model, const quire_text_from *text,
                                    const quire_tokenize_opts *opts, quire_tokenized *out,
                                    quire_error *err);
int __wrap_quire_model_tokenize_end(const quire_model *model, const quire_text_from *text,
                                    const quire_tokenize_opts *opts, quire_tokenized *out,
                                    quire_error *err);
int __wrap_quire_model_tokenize_end(const quire_model *model, const quire_text_from *text,
                                    const quire_tokenize_opts *opts, quire_tokenized *out,
                                    quire_error *err)
{
    gated g;

    gate_enter(&g, opts);
    return gate_leave(&g, __real_quire_model_tokenize_end(model, text, &g.own, out, err));
}

/* ---- the server ---- */

/* With a BPE vocabulary: its words have a bound. */
static int start(void **state)
{
    gguf_gen_opts shape;

    (void)state;
    assert_true(gguf_gen_shape("tiny-llama", &shape));
    shape.vocab = GGUF_GEN_VOCAB_BPE;
    server_fixture_start_shape(&f, NULL, &shape);
    atomic_store(&gate, GATE_NONE);
    atomic_store(&n_begun, 0);
    atomic_store(&n_cancelled, 0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    server_fixture_stop(&f);
    return 0;
}

/* Memory: free(). */
static char *body_of(const request *r, const char *text)
{
    const size_t size = strlen(r->before) + strlen(text) + strlen(r->behind) + 1;
    char *body = malloc(size);

    assert_non_null(body);
    (void)snprintf(body, size, "%s%s%s", r->before, text, r->behind);
    return body;
}

/* The request is refused with tokenize_limit, and the next one is answered. */
static void is_refused(const request *r, const char *text, const char *message)
{
    char *body = body_of(r, text);
    json_t *reply = http_post_json(f.port, r->path, body, 400);

    assert_string_equal(json_string_at(reply, "error.code"), "tokenize_limit");
    assert_string_equal(json_string_at(reply, "error.param"), r->field);
    if (strstr(json_string_at(reply, "error.message"), message) == NULL) {
        fail_msg("%s: %s", r->path, json_string_at(reply, "error.message"));
    }
    json_decref(reply);
    free(body);
    atomic_store(&gate, GATE_NONE);
    body = body_of(r, HI);
    json_decref(http_post_json(f.port, r->path, body, 200));
    free(body);
}

/* ---- the limits ---- */

static void a_word_has_a_bound(void **state)
{
    const size_t n = QUIRE_TOKENIZE_PIECE_BYTES_MAX + 1;
    char *word = malloc(n + 1);

    (void)state;
    assert_non_null(word);
    memset(word, 'a', n);
    word[n] = '\0';
    for (size_t i = 0; i < N_REQUESTS; i++) {
        is_refused(&requests[i], word, "bytes without a blank or newline between words");
    }
    free(word);
}

static void the_time_has_a_bound(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_REQUESTS; i++) {
        atomic_store(&gate, GATE_TAKES_TIME);
        is_refused(&requests[i], HI, "could not be tokenized in 30 s");
    }
}

/* ---- clients that leave ---- */

/* Leave while the text is tokenized; only the sending side is closed with shuts. */
static void leave(const request *r, bool shuts)
{
    const unsigned begun = atomic_load(&n_begun);
    const unsigned cancelled = atomic_load(&n_cancelled);
    char *body = body_of(r, HI);
    const int fd = http_connect(f.port);

    atomic_store(&gate, GATE_AWAITS_CANCEL);
    http_send_call(fd, &(http_call){ .path = r->path, .body = body });
    while (atomic_load(&n_begun) == begun) {
        test_doze();
    }
    if (shuts) {
        assert_int_equal(shutdown(fd, SHUT_WR), 0);
    } else {
        assert_int_equal(close(fd), 0);
    }
    server_fixture_wait_log(&f, "client=gone");
    assert_int_equal(atomic_load(&n_begun), begun + 1);
    assert_int_equal(atomic_load(&n_cancelled), cancelled + 1);
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 0);
    if (shuts) {
        assert_int_equal(close(fd), 0);
    }
    while (!quire_server_is_idle(f.server)) {
        test_doze();
    }
    (void)pthread_mutex_lock(&f.lock);
    f.log[0] = '\0';
    (void)pthread_mutex_unlock(&f.lock);
    free(body);
}

static void a_client_that_leaves_ends_the_work(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_REQUESTS; i++) {
        leave(&requests[i], false);
        leave(&requests[i], true);
    }
    atomic_store(&gate, GATE_NONE);
    json_decref(http_post_json(f.port, TEXT, "{\"prompt\":\"" HI "\"}", 200));
    assert_int_equal(engine_double_seen(f.engine).n_submitted, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_word_has_a_bound, start, stop),
        cmocka_unit_test_setup_teardown(the_time_has_a_bound, start, stop),
        cmocka_unit_test_setup_teardown(a_client_that_leaves_ends_the_work, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
