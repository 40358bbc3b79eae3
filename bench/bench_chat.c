/* bench_chat.c - the cost of template and parsing in a request with a long history, by step.
 *
 *   bench_chat [-m VOCABULARY.gguf] [-n TOKENS] [-t TURNS] [-r ROUNDS] TEMPLATE.jinja...
 *
 * An agent's history: TURNS calls of tools with their results, TOKENS * 4 bytes in all. For each
 * template, medians over ROUNDS in milliseconds of processor time:
 *
 *   load      the template, once at the start of a server
 *   body      the request's JSON to messages and tools
 *   prompt    messages to the text of the prompt, and the rules of the answer
 *   said      the look-up of earlier answers in the text
 *   tokens    text to tokens, with those of the history known except for the last turn
 *   behind    the history with the answer in it (model/chat_ended.h)
 *   request   the sum of all but load
 *
 * Without -m the vocabulary is a small one without special tokens, whose tokens are shorter.
 *
 * SPDX-License-Identifier: MIT */
#include "chat_history.h"

#include "base/bytes.h"
#include "engine/kept_tokens.h"
#include "model/backend.h"
#include "model/chat_ended.h"
#include "model/model_internal.h"
#include "server/chat_request.h"
#include "server/said.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS_MAX 101u

enum {
    LOAD,
    BODY,
    PROMPT,
    SAID,
    TOKENS,
    BEHIND,
    REQUEST,
    N_STEPS
};

static const char *const step_names[N_STEPS] = { "load",   "body",   "prompt", "said",
                                                 "tokens", "behind", "request" };

typedef struct bench {
    quire_model *model;
    chat_history history;
    char *body; /* the request */
    unsigned n_rounds;
    uint32_t n_tokens; /* of the last prompt */
    double ms[N_STEPS][ROUNDS_MAX];
} bench;

static double process_ms(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int fail(const char *what, const quire_error *err)
{
    (void)fprintf(stderr, "%s: %s\n", what, err->message);
    return err->status < 0 ? err->status : QUIRE_INVAL;
}

/* The body of a request for the history. */
static char *make_body(const chat_history *h)
{
    json_t *messages = json_array();
    json_t *body = json_object();
    char *text;

    for (size_t i = 0; i < h->n; i++) {
        json_t *message = h->messages[i].extra != NULL ? json_loads(h->messages[i].extra, 0, NULL)
                                                       : json_object();

        (void)json_object_set_new(message, "role", json_string(h->messages[i].role));
        (void)json_object_set_new(message, "content", json_string(h->messages[i].content));
        (void)json_array_append_new(messages, message);
    }
    (void)json_object_set_new(body, "messages", messages);
    if (h->tools != NULL) {
        (void)json_object_set_new(body, "tools", json_loads(h->tools, 0, NULL));
    }
    text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    return text;
}

static int read_body(const bench *b, quire_chat_request *request)
{
    quire_api_error err = { 0 };
    quire_fields fields = { .object = json_loads(b->body, 0, NULL), .err = &err };
    int rc =
        fields.object != NULL ? quire_chat_request_read(request, &fields, "messages") : QUIRE_NOMEM;

    json_decref(fields.object);
    if (rc < 0) {
        (void)fprintf(stderr, "%s\n", err.message);
    }
    return rc;
}

/* Render the first n messages; is_ended: without the beginning of an answer. */
static int render(const quire_chat_format *format, const quire_chat_request *request, size_t n,
                  bool is_ended, quire_chat_prompt **out)
{
    const quire_chat_ask ask = { .messages = request->messages.list,
                                 .n_messages = n,
                                 .tools = request->tools,
                                 .omits_generation_prompt = is_ended,
                                 .is_text_only = is_ended };
    quire_error err = QUIRE_ERROR_INIT;

    return quire_chat_format_apply(format, &ask, out, &err) < 0 ? fail("apply", &err) : QUIRE_OK;
}

/* The history with an answer in it. */
static int render_ended(const quire_chat_format *format, const quire_chat_request *request,
                        quire_chat_text prompt, quire_bytes *out)
{
    const size_t n = request->messages.n;
    quire_chat_message *messages = calloc(n + 1, sizeof messages[0]);
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_ask ask;
    int rc = QUIRE_NOMEM;

    if (messages != NULL) {
        memcpy(messages, request->messages.list, n * sizeof messages[0]);
        messages[n] = (quire_chat_message){ "assistant", "It is done.", NULL };
        quire_chat_request_ask(request, messages, n + 1, &ask);
        rc = quire_chat_ended_render(format, &ask, prompt, out, NULL, &err);
    }
    free(messages);
    return rc < 0 ? fail("behind", &err) : QUIRE_OK;
}

static int tokenize(bench *b, const quire_kept_tokens *kept, const quire_chat_prompt *prompt,
                    quire_joined_tokens *out)
{
    const quire_tokenize_opts opts = { .time_max_s = QUIRE_TOKENIZE_TIME_MAX_S };
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_rules rules;

    quire_chat_prompt_rules(prompt, &rules);
    return quire_kept_tokens_join(b->model, kept, rules.text.data, rules.text.n, &opts, out, &err) <
                   0
               ? fail("tokens", &err)
               : QUIRE_OK;
}

/* One request. Its history is known except for the last two messages. */
static int round_run(bench *b, const quire_chat_format *format, const quire_kept_tokens *kept,
                     quire_said *said, unsigned r)
{
    quire_chat_request request = QUIRE_CHAT_REQUEST_INIT;
    quire_chat_prompt *prompt = NULL;
    quire_bytes ended = { 0 };
    quire_joined_tokens joined = { 0 };
    quire_said_prompt before = { 0 };
    quire_chat_rules rules;
    double at[N_STEPS + 1];
    int rc;

    at[BODY] = process_ms();
    rc = read_body(b, &request);
    at[PROMPT] = process_ms();
    rc = rc < 0 ? rc : render(format, &request, request.messages.n, false, &prompt);
    at[SAID] = process_ms();
    if (rc == QUIRE_OK) {
        quire_chat_prompt_rules(prompt, &rules);
        rc = quire_said_apply(said, "", 0, rules.text.data, rules.text.n, &before);
    }
    at[TOKENS] = process_ms();
    rc = rc < 0 ? rc : tokenize(b, kept, prompt, &joined);
    at[BEHIND] = process_ms();
    rc = rc < 0 ? rc : render_ended(format, &request, rules.text, &ended);
    at[REQUEST] = process_ms();
    for (unsigned i = BODY; i < REQUEST; i++) {
        b->ms[i][r] = at[i + 1] - at[i];
    }
    b->ms[REQUEST][r] = at[REQUEST] - at[BODY];
    b->n_tokens = joined.n;
    free(joined.tokens);
    quire_said_prompt_fini(&before);
    quire_chat_prompt_destroy(prompt);
    quire_bytes_fini(&ended);
    quire_chat_request_fini(&request);
    return rc;
}

/* The tokens of the history without its last two messages. */
static int kept_make(bench *b, const quire_chat_format *format, quire_joined_tokens *out)
{
    const quire_kept_tokens none = { NULL, 0 };
    quire_chat_request request = QUIRE_CHAT_REQUEST_INIT;
    quire_chat_prompt *prompt = NULL;
    int rc = read_body(b, &request);

    rc = rc < 0 ? rc : render(format, &request, request.messages.n - 2, true, &prompt);
    rc = rc < 0 ? rc : tokenize(b, &none, prompt, out);
    quire_chat_prompt_destroy(prompt);
    quire_chat_request_fini(&request);
    return rc;
}

static int rounds_run(bench *b, const char *text)
{
    quire_chat_format *format = NULL;
    quire_joined_tokens history = { 0 };
    quire_said *said = NULL;
    quire_error err = QUIRE_ERROR_INIT;
    int rc = QUIRE_OK;

    for (unsigned r = 0; r < b->n_rounds && rc == QUIRE_OK; r++) {
        const double begin = process_ms();

        quire_chat_format_destroy(format);
        rc = quire_chat_format_create(&format, b->model, text, &err) < 0 ? fail("load", &err)
                                                                         : QUIRE_OK;
        b->ms[LOAD][r] = process_ms() - begin;
    }
    rc = rc < 0 ? rc : kept_make(b, format, &history);
    rc = rc < 0 ? rc : quire_said_create(&said, QUIRE_SAID_BYTES_MAX);
    for (unsigned r = 0; r < b->n_rounds && rc == QUIRE_OK; r++) {
        const quire_kept_tokens kept = { history.tokens, history.n };

        rc = round_run(b, format, &kept, said, r);
    }
    free(history.tokens);
    quire_said_destroy(said);
    quire_chat_format_destroy(format);
    return rc;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;

    return (x > y) - (x < y);
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    quire_bytes text = { 0 };
    char block[4096];
    size_t n;

    while (file != NULL && (n = fread(block, 1, sizeof block, file)) > 0) {
        (void)quire_bytes_add(&text, block, n);
    }
    if (file != NULL) {
        (void)fclose(file);
    }
    return text.data;
}

static int template_run(bench *b, const char *path)
{
    const char *name = strrchr(path, '/');
    char *text = read_file(path);
    int rc;

    if (text == NULL) {
        (void)fprintf(stderr, "%s: cannot be read\n", path);
        return QUIRE_IO;
    }
    rc = rounds_run(b, text);
    free(text);
    if (rc < 0) {
        return rc;
    }
    printf("| %.*s | %u |", (int)strcspn(name != NULL ? name + 1 : path, "."),
           name != NULL ? name + 1 : path, b->n_tokens);
    for (unsigned i = 0; i < N_STEPS; i++) {
        qsort(b->ms[i], b->n_rounds, sizeof b->ms[i][0], by_value);
        printf(" %.2f |", b->ms[i][b->n_rounds / 2]);
    }
    printf("\n");
    (void)fflush(stdout);
    return QUIRE_OK;
}

static int benches_run(bench *b, char **paths, int n)
{
    int rc = QUIRE_OK;

    printf("| template | tokens |");
    for (unsigned i = 0; i < N_STEPS; i++) {
        printf(" %s |", step_names[i]);
    }
    printf("\n|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    for (int i = 0; i < n; i++) {
        const int one = template_run(b, paths[i]);

        rc = one < 0 ? one : rc;
    }
    return rc;
}

/* The vocabulary alone: templates and texts need nothing else of a model. */
static int vocab_load(const char *path, quire_model *model)
{
    struct llama_model_params params = llama_model_default_params();

    params.vocab_only = true;
    model->llama = llama_model_load_from_file(path, params);
    if (model->llama == NULL) {
        (void)fprintf(stderr, "%s: no vocabulary\n", path);
        return QUIRE_INVAL;
    }
    model->vocab = llama_model_get_vocab(model->llama);
    model->desc.n_vocab = (uint32_t)llama_vocab_n_tokens(model->vocab);
    return quire_model_tokenizer_create(model, NULL);
}

int main(int argc, char **argv)
{
    const char *path = "tests/data/quire-stories.gguf";
    quire_model model = { 0 };
    bench b = { .model = &model, .n_rounds = 21 };
    size_t n_tokens = 50000;
    size_t n_turns = 43;
    int rc = quire_backend_init(NULL);
    int option;

    while ((option = getopt(argc, argv, "m:n:t:r:")) != -1) {
        const unsigned value = optarg != NULL ? (unsigned)strtoul(optarg, NULL, 10) : 0;

        path = option == 'm' ? optarg : path;
        n_tokens = option == 'n' ? value : n_tokens;
        n_turns = option == 't' ? value : n_turns;
        b.n_rounds = option == 'r' && value > 0 && value <= ROUNDS_MAX ? value : b.n_rounds;
    }
    if (optind == argc || rc < 0) {
        (void)fprintf(stderr, "usage: bench_chat [-m VOCABULARY.gguf] [-n TOKENS] [-t TURNS] "
                              "[-r ROUNDS] TEMPLATE.jinja...\n");
        return EXIT_FAILURE;
    }
    rc = vocab_load(path, &model);
    rc = rc < 0 ? rc : chat_history_make(&b.history, n_turns, 4 * n_tokens, true);
    if (rc == QUIRE_OK) {
        b.body = make_body(&b.history);
        rc = b.body != NULL ? benches_run(&b, argv + optind, argc - optind) : QUIRE_NOMEM;
    }
    free(b.body);
    chat_history_fini(&b.history);
    quire_tokenizer_destroy(model.tokenizer);
    llama_model_free(model.llama);
    return rc == QUIRE_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
