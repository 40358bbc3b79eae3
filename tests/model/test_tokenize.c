/* test_tokenize.c - long runs of one kind of character, which libllama's regular expressions
 * recurse through: they give tokens on any stack, those of libllama on a large one, or a status.
 *
 * The linker redirects mmap, munmap and pthread_create here (--wrap): to fail them, to see that
 * every mapping goes, and to measure how much of a stack was used.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/backend.h"
#include "model/model_internal.h"
#include "model/text.h"
#include "model_fixture.h"
#include "rounds.h"
#include "vocab_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RUN_SHORT      30000
#define RUN_LONG       TEST_ROUNDS(60000, 20000)
#define UNIT_BYTES_MAX 8
#define LARGE_STACK    ((size_t)1 << 30) /* 300,000 characters take 92 MiB of it */
#define SMALL_STACK    ((size_t)128 << 10)

/* ---- wrapped functions; only mappings for stacks (MAP_STACK) of the library are looked at ---- */

void *__real_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *addr, size_t length);
int __wrap_munmap(void *addr, size_t length);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg);

static bool is_mmap_failing, is_create_failing;
static void *stack_map;        /* the one that lives */
static size_t stack_map_bytes; /* of the last one */
static size_t stack_used_bytes;
static int n_stacks, n_threads;

static void watch_reset(void)
{
    stack_map_bytes = stack_used_bytes = 0;
    n_stacks = n_threads = 0;
}

void *__wrap_mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
{
    void *map;

    if ((flags & MAP_STACK) == 0) {
        return __real_mmap(addr, length, prot, flags, fd, offset);
    }
    if (is_mmap_failing) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    map = __real_mmap(addr, length, prot, flags, fd, offset);
    if (map != MAP_FAILED) {
        assert_null(stack_map);
        stack_map = map;
        stack_map_bytes = length;
        n_stacks++;
    }
    return map;
}

static size_t resident_bytes(void *map, size_t length)
{
    const size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    const size_t n_pages = length / page_bytes;
    unsigned char *pages = calloc(n_pages, 1);
    size_t n = 0;

    assert_non_null(pages);
    assert_int_equal(mincore(map, length, pages), 0);
    for (size_t i = 0; i < n_pages; i++) {
        n += pages[i] & 1;
    }
    free(pages);
    return n * page_bytes;
}

int __wrap_munmap(void *addr, size_t length)
{
    if (addr == stack_map && addr != NULL) {
        assert_int_equal(length, stack_map_bytes);
        stack_used_bytes = resident_bytes(addr, length);
        stack_map = NULL;
    }
    return __real_munmap(addr, length);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *),
                          void *arg)
{
    if (is_create_failing) {
        return EAGAIN;
    }
    n_threads++;
    return __real_pthread_create(thread, attr, start, arg);
}

/* A generated BPE vocabulary split in the way of a named pre-tokenizer. */
static quire_model generated_open(const char *pre)
{
    quire_model model;
    gguf_gen_opts opts;

    assert_true(gguf_gen_shape("tiny-qwen2", &opts));
    vocab_open(&model, fixture_generate(&opts), pre);
    fixture_generated_remove();
    assert_int_equal(llama_vocab_type(model.vocab), LLAMA_VOCAB_TYPE_BPE);
    return model;
}

/* ---- texts ---- */

/* `count` times unit. Memory: free(). */
static char *run_of(const char *unit, size_t count, size_t *n_bytes)
{
    const size_t n_unit = strlen(unit);
    char *text = malloc(n_unit * count);

    assert_non_null(text);
    assert_in_range(n_unit, 1, UNIT_BYTES_MAX);
    for (size_t i = 0; i < count; i++) {
        memcpy(text + i * n_unit, unit, n_unit);
    }
    *n_bytes = n_unit * count;
    return text;
}

typedef struct job {
    const quire_model *model;
    const char *text;
    size_t n_bytes;
    int32_t *tokens;
    size_t cap;
    int64_t n;
} job;

static void *job_libllama(void *arg)
{
    job *j = arg;

    j->n = llama_tokenize(j->model->vocab, j->text, (int32_t)j->n_bytes, j->tokens, (int32_t)j->cap,
                          false, true);
    return NULL;
}

static void *job_quire(void *arg)
{
    job *j = arg;

    j->n = quire_model_tokenize(j->model, j->text, j->n_bytes, false, true, j->tokens, j->cap);
    return NULL;
}

/* Call on a thread with that much stack. */
static int64_t call_on(size_t stack_bytes, void *(*call)(void *), job *j)
{
    pthread_attr_t attr;
    pthread_t thread;

    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, stack_bytes), 0);
    assert_int_equal(__real_pthread_create(&thread, &attr, call, j), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    (void)pthread_attr_destroy(&attr);
    return j->n;
}

/* The tokens spell the text. */
static void spell_check(const job *j)
{
    size_t at = 0;

    for (int64_t i = 0; i < j->n; i++) {
        char piece[256];
        const int64_t n =
            quire_model_token_text(j->model, j->tokens[i], false, piece, sizeof piece);

        assert_in_range(n, 1, sizeof piece);
        assert_in_range(n, 1, j->n_bytes - at);
        assert_memory_equal(piece, j->text + at, (size_t)n);
        at += (size_t)n;
    }
    assert_int_equal(at, j->n_bytes);
}

/* Quire on a small stack gives the tokens of libllama on a large one. */
static void run_check(const quire_model *model, const char *unit, size_t count)
{
    size_t n_bytes;
    char *text = run_of(unit, count, &n_bytes);
    job expected = { .model = model, .text = text, .n_bytes = n_bytes, .cap = n_bytes };
    job got = expected;

    expected.tokens = calloc(n_bytes, sizeof *expected.tokens);
    got.tokens = calloc(n_bytes, sizeof *got.tokens);
    assert_non_null(expected.tokens);
    assert_non_null(got.tokens);
    assert_in_range(call_on(SMALL_STACK, job_quire, &got), 1, n_bytes);
    assert_int_equal(call_on(LARGE_STACK, job_libllama, &expected), got.n);
    assert_memory_equal(got.tokens, expected.tokens, (size_t)got.n * sizeof *got.tokens);
    spell_check(&got);
    free(got.tokens);
    free(expected.tokens);
    free(text);
}

static const char *const units[] = { "a", "1", "!", " ", "\xc3\xa9", "\n", "aB", "\xe4\xb8\xad" };
#define N_UNITS      (sizeof units / sizeof units[0])
#define N_UNITS_LONG 5 /* of these, for long runs */

static void run_checks(const quire_model *model, size_t n_units, size_t count)
{
    for (size_t i = 0; i < n_units; i++) {
        run_check(model, units[i], count);
    }
}

/* One per kind of pattern in libllama: narrow and wide, with and without groups and lookaheads, and
 * two with a splitter written by hand. */
static const char *const pre_names[] = { "default",     "deepseek-llm", "deepseek-coder",
                                         "deepseek-v3", "falcon",       "bloom",
                                         "tekken",      "gpt-4o",       "exaone-moe",
                                         "qwen2",       "llama-bpe" };

static void test_runs_generated(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof pre_names / sizeof pre_names[0]; i++) {
        quire_model model = generated_open(pre_names[i]);

        run_checks(&model, N_UNITS, RUN_SHORT);
        vocab_close(&model);
    }
}

static void test_long_runs_generated(void **state)
{
    static const struct {
        const char *pre, *unit;
    } cases[] = { { "deepseek-coder", "a" }, { "deepseek-llm", "1" }, { "deepseek-llm", " " },
                  { "bloom", "\xc3\xa9" },   { "falcon", "!" },       { "gpt-4o", "aB" } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        quire_model model = generated_open(cases[i].pre);

        run_check(&model, cases[i].unit, RUN_LONG);
        vocab_close(&model);
    }
}

static void test_runs_fixtures(void **state)
{
    static const char *const names[] = { "deepseek-coder", "deepseek-llm", "falcon" };
    bool is_any = false;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        quire_model model;
        char name[64];
        const char *path;

        (void)snprintf(name, sizeof name, "ggml-vocab-%s.gguf", names[i]);
        path = fixture_vocab_path(name);
        if (path == NULL) {
            continue;
        }
        is_any = true;
        vocab_open(&model, path, "");
        run_checks(&model, N_UNITS, RUN_SHORT);
        run_checks(&model, N_UNITS_LONG, RUN_LONG);
        vocab_close(&model);
    }
    if (!is_any) {
        skip();
    }
}

/* Lengths around the one from which a thread is used, and every one below it on a small stack. */
static void test_short_texts(void **state)
{
    quire_model model = generated_open("deepseek-llm");

    (void)state;
    for (size_t count = 1; count <= 600; count += count < 60 || count > 70 ? 7 : 1) {
        watch_reset();
        run_check(&model, "1", count);
        assert_int_equal(n_threads, n_stacks);
        assert_int_equal(n_threads, count > 64 ? 1 : 0);
    }
    vocab_close(&model);
}

/* The count when the buffer is too small, also from the thread. */
static void test_buffer_too_small(void **state)
{
    quire_model model = generated_open("bloom");
    int32_t tokens[2] = { 0, -7 };
    size_t n_bytes;
    char *text = run_of("1 ", 1000, &n_bytes);

    (void)state;
    assert_int_equal(quire_model_tokenize(&model, text, n_bytes, false, true, tokens, 1), n_bytes);
    assert_int_equal(tokens[1], -7);
    free(text);
    vocab_close(&model);
}

/* Only used parts of the reserved stack become memory. Ordinary text of many words uses next to
 * nothing (a huge page or two where the system uses them). One long word uses less than half: the
 * other half is the margin. */
static void test_stack_is_used_as_needed(void **state)
{
    static const struct {
        const char *unit;
        size_t count;
        size_t piece_bytes_min;
        size_t used_bytes_max;
    } cases[] = { { "word 12", 186000, 65536, (size_t)4 << 20 },
                  { "a", 30000, 30000, (size_t)15 << 20 } };
    quire_model model = generated_open("deepseek-llm");

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        size_t n_bytes;
        char *text = run_of(cases[i].unit, cases[i].count, &n_bytes);
        int32_t *tokens = calloc(n_bytes, sizeof *tokens);

        assert_non_null(tokens);
        watch_reset();
        assert_in_range(quire_model_tokenize(&model, text, n_bytes, false, true, tokens, n_bytes),
                        1, n_bytes);
        assert_int_equal(n_stacks, 1);
        assert_true(stack_map_bytes > cases[i].piece_bytes_min * 1024);
        assert_in_range(stack_used_bytes, 1, cases[i].used_bytes_max);
        assert_null(stack_map);
        free(tokens);
        free(text);
    }
    vocab_close(&model);
}

static void test_no_memory(void **state)
{
    quire_model model = generated_open("deepseek-llm");
    size_t n_bytes;
    char *text = run_of("a\xf5\x80\x80", 1000, &n_bytes); /* is copied, too */
    int32_t *tokens = calloc(n_bytes, sizeof *tokens);

    (void)state;
    assert_non_null(tokens);
    is_mmap_failing = true;
    assert_int_equal(quire_model_tokenize(&model, text, n_bytes, true, true, tokens, n_bytes),
                     QUIRE_NOMEM);
    is_mmap_failing = false;
    is_create_failing = true;
    assert_int_equal(quire_model_tokenize(&model, text, n_bytes, true, true, tokens, n_bytes),
                     QUIRE_NOMEM);
    is_create_failing = false;
    assert_null(stack_map);
    assert_true(quire_model_tokenize(&model, text, n_bytes, true, true, tokens, n_bytes) > 0);
    free(tokens);
    free(text);
    vocab_close(&model);
}

/* SPM vocabularies split nothing: their texts stay on the caller's stack. */
static void test_spm_needs_no_stack(void **state)
{
    quire_model model;
    gguf_gen_opts opts;

    (void)state;
    assert_true(gguf_gen_shape("tiny-llama", &opts));
    vocab_open(&model, fixture_generate(&opts), "");
    fixture_generated_remove();
    assert_int_equal(llama_vocab_type(model.vocab), LLAMA_VOCAB_TYPE_SPM);
    watch_reset();
    for (size_t i = 0; i < 2; i++) {
        size_t n_bytes;
        char *text = run_of(i == 0 ? "a" : "1", RUN_SHORT, &n_bytes);
        job j = { .model = &model, .text = text, .n_bytes = n_bytes, .cap = n_bytes + 1 };

        j.tokens = calloc(j.cap, sizeof *j.tokens);
        assert_non_null(j.tokens);
        assert_in_range(call_on(SMALL_STACK, job_quire, &j), 1, j.cap);
        free(j.tokens);
        free(text);
    }
    assert_int_equal(n_threads, 0);
    vocab_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_generated),   cmocka_unit_test(test_long_runs_generated),
        cmocka_unit_test(test_runs_fixtures),    cmocka_unit_test(test_short_texts),
        cmocka_unit_test(test_buffer_too_small), cmocka_unit_test(test_stack_is_used_as_needed),
        cmocka_unit_test(test_no_memory),        cmocka_unit_test(test_spm_needs_no_stack),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
