/* bench_tokenize.c - the time to tokenize a text, by class of text.
 *
 *   bench_tokenize [VOCABULARY.gguf]...      without any: one made up for each kind of tokenizer
 *
 * For each vocabulary and class of text: nanoseconds of processor time per byte at 64 KiB by
 * libllama's own call and by Quire's, at 8 MiB by Quire's. Time that grows with the length shows
 * the same figures in both columns; a refusal shows why.
 *
 * SPDX-License-Identifier: MIT */
#include "base/clock.h"
#include "model/backend.h"
#include "model/model_internal.h"
#include "vocab_gen.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define SHORT_BYTES ((size_t)64 << 10)
#define LONG_BYTES  ((size_t)8 << 20)
#define STACK_BYTES ((size_t)256 << 20)

typedef struct text_class {
    const char *name;
    const char *unit; /* repeated; behind the vocabulary's BOS or EOS, if is_special */
    const char *end;  /* once */
    bool is_special;
} text_class;

static const text_class classes[] = {
    { "words", "Some words of text, 12 in all.\n", "", false },
    { "one line of words", "some words without end ", "", false },
    { "special tokens", "", "", true },
    { "special tokens and text", "a", "", true },
    { "one letter", "a", "", false },
    { "blanks", " ", "", false },
    { "blanks, then a digit", " ", "1", false },
    { "newlines", "\n", "", false },
    { "digits", "1", "", false },
    { "punctuation", "!", "", false },
    { "emoji", "\xf0\x9f\x98\x80", "", false },
    { "combining marks", "\xcc\x81", "", false },
    { "letters with marks", "a\xcc\x81", "", false },
    { "Han", "\xe4\xb8\xad", "", false },
    { "JSON without blanks", "{\"key\":[1,23,\"value\"]},", "", false },
};

typedef struct job {
    const quire_model *model;
    const char *text;
    size_t n_bytes;
    int32_t *tokens;
    double seconds;
} job;

static double process_seconds(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *libllama_run(void *arg)
{
    job *j = arg;
    const double begin = process_seconds();

    (void)llama_tokenize(j->model->vocab, j->text, (int32_t)j->n_bytes, j->tokens,
                         (int32_t)(3 * j->n_bytes), false, true);
    j->seconds = process_seconds() - begin;
    return NULL;
}

/* On a stack that its regular expressions fit into. */
static double libllama_ns(const quire_model *model, const char *text, size_t n_bytes)
{
    job j = { .model = model, .text = text, .n_bytes = n_bytes };
    pthread_attr_t attr;
    pthread_t thread;

    j.tokens = malloc(3 * n_bytes * sizeof(*j.tokens));
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, STACK_BYTES);
    if (j.tokens != NULL && pthread_create(&thread, &attr, libllama_run, &j) == 0) {
        (void)pthread_join(thread, NULL);
    }
    (void)pthread_attr_destroy(&attr);
    free(j.tokens);
    return j.seconds * 1e9 / (double)n_bytes;
}

/* Negative: refused. */
static double quire_ns(const quire_model *model, const char *text, size_t n_bytes)
{
    const quire_tokenize_opts opts = { .parse_special = true,
                                       .time_max_s = QUIRE_TOKENIZE_TIME_MAX_S };
    const double begin = process_seconds();
    int32_t *tokens;
    size_t n_tokens;
    const int rc = quire_model_tokenize_all(model, text, n_bytes, &opts, &tokens, &n_tokens, NULL);

    free(tokens);
    return rc < 0 ? rc : (process_seconds() - begin) * 1e9 / (double)n_bytes;
}

static void figure_print(double ns)
{
    if (ns < 0) {
        printf(" %10s", quire_status_name((int)ns));
    } else {
        printf(" %10.0f", ns);
    }
}

static int class_run(const quire_model *model, const text_class *c)
{
    const int32_t bos = llama_vocab_bos(model->vocab);
    const int32_t token = bos >= 0 ? bos : llama_vocab_eos(model->vocab);
    char unit[64];
    const size_t n_unit = (size_t)snprintf(
        unit, sizeof(unit), "%.32s%s",
        c->is_special && token >= 0 ? llama_vocab_get_text(model->vocab, token) : "", c->unit);
    const size_t n_end = strlen(c->end);
    char *text = malloc(LONG_BYTES + n_end);

    if (text == NULL || n_unit == 0) {
        free(text);
        return text == NULL ? QUIRE_NOMEM : QUIRE_OK;
    }
    for (size_t i = 0; i < LONG_BYTES; i++) {
        text[i] = unit[i % n_unit];
    }
    memcpy(text + SHORT_BYTES - n_end, c->end, n_end);
    printf("  %-26s", c->name);
    (void)libllama_ns(model, text, 256); /* make cached parts first */
    figure_print(libllama_ns(model, text, SHORT_BYTES));
    figure_print(quire_ns(model, text, SHORT_BYTES));
    for (size_t i = 0; i < n_end; i++) {
        text[SHORT_BYTES - n_end + i] = unit[(SHORT_BYTES - n_end + i) % n_unit];
    }
    memcpy(text + LONG_BYTES - n_end, c->end, n_end);
    figure_print(quire_ns(model, text, LONG_BYTES));
    printf("\n");
    (void)fflush(stdout);
    free(text);
    return QUIRE_OK;
}

static int vocab_run(const char *path, const char *name)
{
    struct llama_model_params params = llama_model_default_params();
    quire_model model = { 0 };
    int rc = QUIRE_INVAL;

    params.vocab_only = true;
    model.llama = llama_model_load_from_file(path, params);
    if (model.llama == NULL) {
        (void)fprintf(stderr, "%s: no vocabulary\n", path);
        return rc;
    }
    model.vocab = llama_model_get_vocab(model.llama);
    rc = quire_model_tokenizer_create(&model, NULL);
    printf("%s, %d tokens\n  %-26s %10s %10s %10s\n", name, (int)llama_vocab_n_tokens(model.vocab),
           "ns per byte", "libllama", "64 KiB", "8 MiB");
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]) && rc == QUIRE_OK; i++) {
        rc = class_run(&model, &classes[i]);
    }
    quire_tokenizer_destroy(model.tokenizer);
    llama_model_free(model.llama);
    return rc;
}

static int made_up_run(void)
{
    static const char *const names[] = { "SPM", "BPE (qwen2)", "WPM", "UGM" };
    int rc = QUIRE_OK;

    for (unsigned kind = 0; kind < VOCAB_GEN_KINDS && rc == QUIRE_OK; kind++) {
        const vocab_gen_opts opts = {
            .kind = (vocab_gen_kind)kind, .pre = "qwen2", .n_pieces = 2000, .seed = 1
        };
        quire_error err = QUIRE_ERROR_INIT;
        char path[64];

        (void)snprintf(path, sizeof(path), "bench_tokenize_%d.gguf", (int)getpid());
        rc = vocab_gen_write(&opts, path, &err);
        if (rc < 0) {
            (void)fprintf(stderr, "%s\n", err.message);
        } else {
            rc = vocab_run(path, names[kind]);
        }
        (void)unlink(path);
    }
    return rc;
}

int main(int argc, char **argv)
{
    int rc = quire_backend_init(NULL);

    for (int i = 1; i < argc && rc == QUIRE_OK; i++) {
        const char *name = strrchr(argv[i], '/');

        rc = vocab_run(argv[i], name != NULL ? name + 1 : argv[i]);
    }
    if (argc == 1 && rc == QUIRE_OK) {
        rc = made_up_run();
    }
    return rc == QUIRE_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
