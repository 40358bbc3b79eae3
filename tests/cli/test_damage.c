/* test_damage.c - model files that are damaged by structure: `quire info` refuses what `quire run`
 * refuses, with the same message, which names the key or the tensor at fault.
 *
 * The two commands run in this process, from their options to their last line, so that a file takes
 * milliseconds; a sample of the files goes to the program itself. A model that info accepts must
 * open, read a prompt and make two tokens. In the environment, QUIRE_DAMAGES=N tries every N-th
 * damage of each model, and QUIRE_DAMAGES_SHOWN=1 prints each damage with its message.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include <cmocka.h>

#include "arch_cases.h"
#include "cli/commands/commands.h"
#include "cli/settings/settings.h"
#include "gguf_gen.h"
#include "model/archs.h"
#include "model_damage.h"
#include "program.h"
#include "rounds.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define COUNT(list)    (sizeof(list) / sizeof((list)[0]))
#define ARENA_BYTES    (8u << 20)
#define MESSAGE_MAX    4096u
#define FAILURES_SHOWN 40u
#define ARCH_STRIDE    401u
#define NAMED_OF_MIN   100u
#define PROMPT         "A cat, 12 dogs."

typedef struct outcome {
    int exit_status;
    char message[MESSAGE_MAX]; /* the last line of stderr */
} outcome;

/* A model, the damage of the moment, and what came of all of them. */
typedef struct experiment {
    const char *name;
    uint8_t *bytes; /* of the whole file */
    gguf_pieces whole;
    piece_arena names;
    model_damage damage;
    int fd; /* of the damaged file */
    uint32_t n, n_refused, n_failures;
    uint32_t n_at, n_named; /* refused for one key or tensor; with its name */
} experiment;

/* ---- the commands in this process ---- */

static const char *file_path(int fd)
{
    static char path[32];

    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return path;
}

static void file_write(int fd, const uint8_t *bytes, size_t n)
{
    assert_int_equal(ftruncate(fd, (off_t)n), 0);
    assert_int_equal(pwrite(fd, bytes, n, 0), (ssize_t)n);
}

/* The last line of a file, without its end. */
static void last_line(int fd, char *out)
{
    const off_t end = lseek(fd, 0, SEEK_END);
    const off_t from = end > (off_t)MESSAGE_MAX - 1 ? end - (off_t)MESSAGE_MAX + 1 : 0;
    ssize_t n = pread(fd, out, MESSAGE_MAX - 1, from);
    char *line;

    assert_true(n >= 0);
    out[n] = '\0';
    if (n > 0 && out[n - 1] == '\n') {
        out[n - 1] = '\0';
    }
    line = strrchr(out, '\n');
    if (line != NULL) {
        memmove(out, line + 1, strlen(line));
    }
}

static int command_status(const quire_command *command, int argc, char *const *argv)
{
    quire_error err = QUIRE_ERROR_INIT;
    void *args = malloc(command->args_bytes);
    int status = -1;

    assert_non_null(args);
    quire_options_init(command, args);
    if (quire_settings_parse(command, &quire_command_serve, argc, argv, args, &err) == QUIRE_OK) {
        status = command->run(args);
    } else {
        (void)fprintf(stderr, "quire: %s\n", err.message);
    }
    free(args);
    return status;
}

/* With stdout and stderr in files in memory. */
static void command_run(const quire_command *command, int argc, char *const *argv, outcome *out)
{
    static int nothing = -1, said = -1;
    int kept[2];

    if (said < 0) {
        nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
        said = memfd_create("stderr", MFD_CLOEXEC);
        assert_true(nothing >= 0 && said >= 0);
    }
    (void)fflush(NULL);
    kept[0] = dup(STDOUT_FILENO);
    kept[1] = dup(STDERR_FILENO);
    assert_int_equal(ftruncate(said, 0), 0);
    (void)lseek(said, 0, SEEK_SET);
    (void)dup2(nothing, STDOUT_FILENO);
    (void)dup2(said, STDERR_FILENO);
    out->exit_status = command_status(command, argc, argv);
    (void)fflush(NULL);
    (void)dup2(kept[0], STDOUT_FILENO);
    (void)dup2(kept[1], STDERR_FILENO);
    (void)close(kept[0]);
    (void)close(kept[1]);
    last_line(said, out->message);
}

static void info(const char *path, outcome *out)
{
    char *argv[] = { (char *)(uintptr_t)path, "-t", "1" };

    command_run(&quire_command_info, (int)COUNT(argv), argv, out);
}

static void run(const char *path, outcome *out)
{
    char *argv[] = {
        "-m",           (char *)(uintptr_t)path,
        "-p",           (char *)(uintptr_t)PROMPT,
        "-n",           "2",
        "-t",           "1",
        "--temp",       "0",
        "--ignore-eos",
    };

    command_run(&quire_command_run, (int)COUNT(argv), argv, out);
}

/* ---- what is expected ---- */

/* Whether a message names a key or a tensor, or the part of the file that is none of these. A
 * message of libllama's own means that no check of Quire's came before it. */
static bool names_fault(const char *message, const gguf_pieces *whole)
{
    static const char *const parts[] = {
        "general.",       "tokenizer.", "split.",  "blk.",       "token_embd",
        "output",         "rope_",      "GGUF",    "holds 0 ",   "tensors; expected",
        "keys; expected", "key ",       "tensor ", "the header", "the padding",
    };

    if (strstr(message, "libllama cannot") != NULL) {
        return false;
    }
    for (size_t i = 0; i < COUNT(parts); i++) {
        if (strstr(message, parts[i]) != NULL) {
            return true;
        }
    }
    for (int a = 0; a < (int)QUIRE_ARCH_COUNT; a++) {
        char prefix[80];
        const char *at;

        (void)snprintf(prefix, sizeof(prefix), "%s.", quire_arch_row_get((quire_arch)a)->name);
        at = strstr(message, prefix);
        if (at != NULL && at > message && (at[-1] == ' ' || at[-1] == '(')) {
            return true;
        }
    }
    for (uint32_t i = 0; i < whole->n_keys; i++) {
        if (strstr(message, whole->keys[i].name) != NULL) {
            return true;
        }
    }
    for (uint32_t i = 0; i < whole->n_tensors; i++) {
        if (strstr(message, whole->tensors[i].name) != NULL) {
            return true;
        }
    }
    return false;
}

static const char *fault(const outcome *informed, const outcome *ran, const gguf_pieces *whole,
                         const char *path)
{
    if (informed->exit_status != 0 && informed->exit_status != 1) {
        return "info's exit status";
    }
    if (informed->exit_status == 0 && ran->exit_status == 1 &&
        strncmp(ran->message, "quire: the prompt has ", 22) == 0) {
        return NULL; /* a model of a short context, whose prompt is too long */
    }
    if (informed->exit_status != ran->exit_status) {
        return "info and run differ";
    }
    if (informed->exit_status == 0) {
        return NULL;
    }
    if (strcmp(informed->message, ran->message) != 0) {
        return "the messages differ";
    }
    if (strncmp(informed->message, "quire: ", 7) != 0 ||
        strncmp(informed->message + 7, path, strlen(path)) != 0) {
        return "the file is not named";
    }
    return names_fault(informed->message + 7 + strlen(path), whole) ? NULL : "nothing is named";
}

/* ---- models ---- */

static uint8_t *file_read(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    uint8_t *bytes;

    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *n = (size_t)ftell(file);
    rewind(file);
    bytes = malloc(*n);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *n, file), *n);
    (void)fclose(file);
    return bytes;
}

static void experiment_open(experiment *x, const char *path, const char *name)
{
    size_t n;

    memset(x, 0, sizeof(*x));
    x->name = name;
    x->bytes = file_read(path, &n);
    x->fd = memfd_create("damaged", MFD_CLOEXEC);
    x->names = (piece_arena){ malloc(ARENA_BYTES), 0, ARENA_BYTES };
    x->damage.arena = (piece_arena){ malloc(ARENA_BYTES), 0, ARENA_BYTES };
    assert_true(x->fd >= 0 && x->names.bytes != NULL && x->damage.arena.bytes != NULL);
    gguf_pieces_read(&x->whole, &x->names, x->bytes, n);
}

static void experiment_close(experiment *x)
{
    (void)close(x->fd);
    free(x->damage.arena.bytes);
    free(x->names.bytes);
    free(x->bytes);
}

static void count(experiment *x, const outcome *informed, const outcome *ran, const char *failure)
{
    const model_damage *d = &x->damage;
    const bool is_refused = informed->exit_status != 0;

    x->n++;
    x->n_refused += is_refused;
    if (is_refused && d->at != NULL) {
        x->n_at++;
        x->n_named += strstr(informed->message, d->at) != NULL;
    }
    if (getenv("QUIRE_DAMAGES_SHOWN") != NULL) {
        (void)printf("%s -> %s\n", d->what, is_refused ? informed->message : "ok");
    }
    if (failure != NULL && x->n_failures++ < FAILURES_SHOWN) {
        (void)printf("%s: %s\n  info %d: %s\n  run %d: %s\n", d->what, failure,
                     informed->exit_status, informed->message, ran->exit_status, ran->message);
    }
}

/* Both commands on the pieces as they are. */
static void damage_try(experiment *x)
{
    const char *path = file_path(x->fd);
    outcome informed, ran;
    size_t n;
    uint8_t *bytes = gguf_pieces_write(&x->damage.pieces, &n);

    file_write(x->fd, bytes, n);
    free(bytes);
    info(path, &informed);
    run(path, &ran);
    count(x, &informed, &ran, fault(&informed, &ran, &x->whole, path));
}

/* Every stride-th damage of the model in a file, from one of the first on. Returns the number of
 * failures. */
static uint32_t damage_model(const char *path, const char *name, uint32_t first, uint32_t stride)
{
    const char *text = getenv("QUIRE_DAMAGES");
    experiment *x = malloc(sizeof(*x));
    uint32_t n_failures;

    stride = text != NULL ? (uint32_t)strtoul(text, NULL, 10) : stride;
    assert_true(x != NULL && stride > 0);
    experiment_open(x, path, name);
    x->damage.pieces = x->whole;
    damage_say(&x->damage, "no damage");
    damage_try(x);
    assert_int_equal(x->n_refused, 0);
    for (uint32_t i = first % stride; i < model_damages(&x->whole); i += stride) {
        if (model_damage_apply(&x->damage, &x->whole, i)) {
            damage_try(x);
        }
    }
    (void)printf("%s: %u files, %u refused; %u for one key or tensor, %u of these by its name; "
                 "%u failures\n",
                 x->name, x->n, x->n_refused, x->n_at, x->n_named, x->n_failures);
    n_failures = x->n_failures;
    if (x->n_at >= NAMED_OF_MIN) {
        /* Both sides have to be reached. Some messages name the tensor that the damaged key no
         * longer goes with. */
        assert_true(x->n_refused < x->n);
        assert_true(10 * x->n_named >= 9 * x->n_at);
    }
    experiment_close(x);
    free(x);
    return n_failures;
}

static gguf_gen_opts small(const char *shape)
{
    gguf_gen_opts opts;

    assert_true(gguf_gen_shape(shape, &opts));
    opts.type = GGML_TYPE_F32;
    opts.n_layer = 1;
    opts.n_embd = 16;
    opts.n_ff = 16;
    opts.n_head = 2;
    opts.n_kv_head = 1;
    opts.d_head = 8;
    opts.n_vocab = 268;
    return opts;
}

static const char *generate(const gguf_gen_opts *opts)
{
    quire_error err = QUIRE_ERROR_INIT;
    const char *path = program_path("whole.gguf");

    if (gguf_gen_write(opts, path, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return path;
}

static void small_models(void **state)
{
    static const char *const shapes[] = { "tiny-llama", "tiny-qwen2" }; /* SPM, BPE */

    uint32_t n_failures = 0;

    (void)state;
    for (size_t i = 0; i < COUNT(shapes); i++) {
        const gguf_gen_opts opts = small(shapes[i]);

        n_failures += damage_model(generate(&opts), shapes[i], 0, TEST_STRIDE(3));
    }
    assert_int_equal(n_failures, 0);
}

static void trained_models(void **state)
{
    static const struct {
        const char *name;
        uint32_t stride;
    } models[] = { { "stories260K-f32.gguf", 3 },
                   { "quire-recall.gguf", 7 },
                   { "quire-stories.gguf", 7 } };

    uint32_t n_failures = 0;

    (void)state;
    for (size_t i = 0; i < COUNT(models); i++) {
        n_failures += damage_model(program_data(models[i].name), models[i].name, 0,
                                   models[i].stride * TEST_STRIDE(7));
    }
    assert_int_equal(n_failures, 0);
}

/* Each architecture, and each of its variants, with other damages than the one before. */
static void architectures(void **state)
{
    const arch_case *c;
    uint32_t n_failures = 0;

    (void)state;
    for (size_t i = 0; (c = arch_case_get(i)) != NULL; i++) {
        const gguf_gen_opts opts = arch_case_options(c);

        if (getenv("QUIRE_DAMAGES") != NULL || test_takes_case()) {
            n_failures += damage_model(generate(&opts), c->what, 17 * (uint32_t)i, ARCH_STRIDE);
        }
    }
    assert_int_equal(n_failures, 0);
}

/* ---- the program itself ---- */

/* It ends as its command does in this process. */
static void expect_same(const program_args args, const outcome *expected, const char *what)
{
    program_result result = program_run(args);
    char line[MESSAGE_MAX + 1];

    (void)snprintf(line, sizeof(line), "%s\n", expected->message);
    if (result.exit_status != expected->exit_status ||
        (expected->exit_status != 0 && (strcmp(result.err, line) != 0 || result.out_bytes != 0))) {
        fail_msg("%s: status %d, '%s'; expected %d, '%s'", what, result.exit_status, result.err,
                 expected->exit_status, expected->message);
    }
    program_free(&result);
}

static void damage_for_program(experiment *x, uint32_t i)
{
    outcome informed, ran;
    const char *path;
    size_t n;
    uint8_t *bytes;

    if (!model_damage_apply(&x->damage, &x->whole, i)) {
        return;
    }
    bytes = gguf_pieces_write(&x->damage.pieces, &n);
    path = program_file("damaged.gguf", bytes, n);
    free(bytes);
    info(path, &informed);
    run(path, &ran);
    expect_same(PROGRAM("info", path), &informed, x->damage.what);
    expect_same(
        PROGRAM("run", path, "-p", PROMPT, "-n", "2", "-t", "1", "--temp", "0", "--ignore-eos"),
        &ran, x->damage.what);
    x->n++;
}

static void program_says_the_same(void **state)
{
    const gguf_gen_opts opts = small("tiny-llama");
    experiment *x = malloc(sizeof(*x));
    uint32_t n;

    (void)state;
    assert_non_null(x);
    experiment_open(x, generate(&opts), "program");
    n = model_damages(&x->whole);
    for (uint32_t i = 0; i < n; i += n / TEST_ROUNDS(97, 5)) {
        damage_for_program(x, i);
    }
    (void)printf("by the program: %u files\n", x->n);
    assert_true(x->n > 1);
    experiment_close(x);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_models),
        cmocka_unit_test(trained_models),
        cmocka_unit_test(architectures),
        cmocka_unit_test(program_says_the_same),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
