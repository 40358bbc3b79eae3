/* program.c - see program.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "program.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "arch_cases.h"
#include "gguf_gen.h"
#include "gguf_gen_scheme.h"

#define ARGS_MAX  34
#define PATHS_MAX 32

static char folder[64];
static char paths[PATHS_MAX][160];
static size_t n_paths;

static char *read_back(int fd, size_t *n_bytes)
{
    off_t n = lseek(fd, 0, SEEK_END);
    char *text;

    assert_true(n >= 0);
    text = malloc((size_t)n + 1);
    assert_non_null(text);
    assert_int_equal(pread(fd, text, (size_t)n, 0), n);
    text[n] = '\0';
    if (n_bytes != NULL) {
        *n_bytes = (size_t)n;
    }
    return text;
}

static int temporary(void)
{
    FILE *file = tmpfile();
    int fd;

    assert_non_null(file);
    fd = dup(fileno(file));
    assert_true(fd >= 0);
    fclose(file);
    return fd;
}

/* Start the program with these three; the caller waits. */
static pid_t start(program_args args, int in, int out, int err)
{
    const char *program = getenv("QUIRE_PROGRAM");
    char *argv[ARGS_MAX] = { NULL };
    size_t n = 0;
    pid_t pid;

    argv[n++] = strdup(program != NULL ? program : QUIRE_PROGRAM);
    for (size_t i = 0; i < 32 && args.words[i] != NULL; i++) {
        argv[n++] = strdup(args.words[i]);
    }
    (void)fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(in, STDIN_FILENO);
        dup2(out, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        /* All else is closed, so that a pipe of ours has no second end in the program. */
        for (int fd = 3; fd < 64; fd++) {
            close(fd);
        }
        execv(argv[0], argv);
        _exit(127);
    }
    for (size_t i = 0; i < n; i++) {
        free(argv[i]);
    }
    return pid;
}

static int wait_for(pid_t pid)
{
    int status = 0;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static size_t bytes_of(const char *text)
{
    return text != NULL ? strlen(text) : 0;
}

/* A file that holds input, at its start. */
static int temporary_with(const char *input, size_t n_bytes)
{
    int fd = temporary();

    if (n_bytes > 0) {
        assert_int_equal(write(fd, input, n_bytes), (ssize_t)n_bytes);
        lseek(fd, 0, SEEK_SET);
    }
    return fd;
}

static program_result run(const char *input, size_t n_bytes, int out, program_args args)
{
    program_result result = { 0 };
    int in = temporary_with(input, n_bytes);
    int err = temporary();

    result.exit_status = wait_for(start(args, in, out, err));
    result.err = read_back(err, NULL);
    close(in);
    close(err);
    return result;
}

program_result program_run_with_bytes(const char *input, size_t n_bytes, program_args args)
{
    int out = temporary();
    program_result result = run(input, n_bytes, out, args);

    result.out = read_back(out, &result.out_bytes);
    close(out);
    return result;
}

program_result program_run_with(const char *input, program_args args)
{
    return program_run_with_bytes(input, bytes_of(input), args);
}

program_result program_run(program_args args)
{
    return program_run_with(NULL, args);
}

program_result program_run_to(const char *path, program_args args)
{
    int out = open(path, O_WRONLY);
    program_result result;

    assert_true(out >= 0);
    result = run(NULL, 0, out, args);
    close(out);
    return result;
}

program_result program_run_unread(program_args args)
{
    int ends[2];
    program_result result;

    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    result = run(NULL, 0, ends[1], args);
    close(ends[1]);
    return result;
}

program_result program_run_interrupted(const char *input, program_args args)
{
    program_result result = { 0 };
    int in = temporary_with(input, bytes_of(input));
    int err = temporary();
    int ends[2];
    char byte;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    assert_true(fcntl(ends[0], F_SETFD, FD_CLOEXEC) == 0);
    pid = start(args, in, ends[1], err);
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    assert_int_equal(kill(pid, SIGINT), 0);
    while (read(ends[0], &byte, 1) > 0) {
    }
    result.exit_status = wait_for(pid);
    result.err = read_back(err, NULL);
    close(ends[0]);
    close(in);
    close(err);
    return result;
}

static program_running start_with(int in, program_args args)
{
    program_running running = { 0 };
    int out[2];
    int err[2];

    assert_int_equal(pipe(out), 0);
    assert_int_equal(pipe(err), 0);
    running.pid = start(args, in, out[1], err[1]);
    running.out = out[0];
    running.err = err[0];
    close(out[1]);
    close(err[1]);
    close(in);
    return running;
}

program_running program_start(program_args args)
{
    return start_with(temporary(), args);
}

/* A new terminal's two ends. */
static int open_terminal(int *other)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);

    assert_true(terminal >= 0 && grantpt(terminal) == 0 && unlockpt(terminal) == 0);
    *other = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    assert_true(*other >= 0);
    return terminal;
}

program_running program_start_on_terminal(program_args args)
{
    int other;
    int terminal = open_terminal(&other);
    program_running running = start_with(other, args);

    running.in = terminal;
    return running;
}

program_running program_start_on_whole_terminal(program_args args)
{
    program_running running = { 0 };
    int other;
    int out[2];

    running.in = open_terminal(&other);
    assert_int_equal(pipe(out), 0);
    running.pid = start(args, other, out[1], other);
    running.out = out[0];
    running.err = dup(running.in);
    close(out[1]);
    close(other);
    return running;
}

void program_await(int fd, char awaited)
{
    char byte;

    do {
        assert_int_equal(read(fd, &byte, 1), 1);
    } while (byte != awaited);
}

char *program_line(int fd)
{
    size_t cap = 256;
    size_t n = 0;
    char *line = malloc(cap);

    assert_non_null(line);
    for (;;) {
        if (n + 1 == cap) {
            cap *= 2;
            line = realloc(line, cap);
            assert_non_null(line);
        }
        if (read(fd, line + n, 1) != 1) {
            line[n] = '\0';
            fail_msg("the stream ended after '%s'", line);
        }
        if (line[n] == '\n') {
            line[n] = '\0';
            return line;
        }
        n++;
    }
}

char *program_line_with(int fd, const char *part)
{
    for (;;) {
        char *line = program_line(fd);

        if (strstr(line, part) != NULL) {
            return line;
        }
        free(line);
    }
}

int program_end(program_running *running)
{
    char byte;
    int status;

    /* Read the rest of its stderr: a full pipe would block the program. */
    while (read(running->err, &byte, 1) > 0) {
    }
    status = wait_for(running->pid);
    close(running->out);
    close(running->err);
    if (running->in > 0) {
        close(running->in);
    }
    return status;
}

/* shown NULL: no signal. */
static program_result run_on_terminal(const char *shown, program_args args)
{
    program_result result = { 0 };
    int in = temporary();
    int out = temporary();
    size_t cap = 1 << 20;
    size_t n = 0;
    ssize_t got;
    int other;
    int terminal = open_terminal(&other);
    bool is_signalled = shown == NULL;
    pid_t pid;

    pid = start(args, in, out, other);
    close(other);
    result.err = malloc(cap);
    assert_non_null(result.err);
    /* Reading fails once the program has closed its end. */
    while (n < cap - 1 && (got = read(terminal, result.err + n, cap - 1 - n)) > 0) {
        n += (size_t)got;
        result.err[n] = '\0';
        if (!is_signalled && strstr(result.err, shown) != NULL) {
            is_signalled = true;
            assert_int_equal(kill(pid, SIGINT), 0);
        }
    }
    result.err[n] = '\0';
    result.exit_status = wait_for(pid);
    result.out = read_back(out, &result.out_bytes);
    close(terminal);
    close(out);
    close(in);
    return result;
}

program_result program_run_on_terminal(program_args args)
{
    return run_on_terminal(NULL, args);
}

program_result program_interrupt_at(const char *shown, program_args args)
{
    return run_on_terminal(shown, args);
}

void program_free(program_result *result)
{
    free(result->out);
    free(result->err);
    memset(result, 0, sizeof(*result));
}

program_result program_expect(int exit_status, program_args args)
{
    program_result result = program_run(args);

    if (result.exit_status != exit_status) {
        fail_msg("exit status %d, not %d; stderr: %s", result.exit_status, exit_status, result.err);
    }
    return result;
}

json_t *program_json(program_args args)
{
    program_result result = program_expect(0, args);
    json_error_t error;
    json_t *document = json_loads(result.out, JSON_ALLOW_NUL, &error);

    if (document == NULL) {
        fail_msg("not JSON: %s (line %d) in: %s", error.text, error.line, result.out);
    }
    program_free(&result);
    return document;
}

void assert_says(const char *text, const char *part)
{
    if (text == NULL || strstr(text, part) == NULL) {
        fail_msg("'%s' lacks '%s'", text != NULL ? text : "", part);
    }
}

const char *program_path(const char *name)
{
    const char *dir = getenv("TMPDIR");

    if (folder[0] == '\0') {
        (void)snprintf(folder, sizeof(folder), "%s/quire-cli-XXXXXX", dir != NULL ? dir : "/tmp");
        assert_non_null(mkdtemp(folder));
    }
    for (size_t i = 0; i < n_paths; i++) {
        if (strcmp(strrchr(paths[i], '/') + 1, name) == 0) {
            return paths[i];
        }
    }
    assert_true(n_paths < PATHS_MAX);
    (void)snprintf(paths[n_paths], sizeof(paths[0]), "%s/%s", folder, name);
    return paths[n_paths++];
}

const char *program_file(const char *name, const void *bytes, size_t n_bytes)
{
    const char *path = program_path(name);
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

const char *program_text(const char *name, size_t n_bytes)
{
    static const char *const words[] = { "a quire", " of pages",      ", bound", " and numbered",
                                         ".\n",     " Kl\xc3\xa4nge", " holds",  " what it read" };
    char *text = malloc(n_bytes + 32);
    size_t n = 0;
    const char *path;

    assert_non_null(text);
    for (uint32_t i = 1; n < n_bytes; i = i * 1664525u + 1013904223u) {
        const char *word = words[(i >> 16) % 8];

        memcpy(text + n, word, strlen(word));
        n += strlen(word);
    }
    path = program_file(name, text, n);
    free(text);
    return path;
}

static gguf_gen_opts tiny_opts(uint32_t n_layer, uint32_t n_ctx)
{
    gguf_gen_opts opts;

    assert_true(gguf_gen_shape("tiny-llama", &opts));
    opts.type = GGML_TYPE_F32;
    opts.n_layer = n_layer;
    opts.n_embd = 16;
    opts.n_ff = 32;
    opts.n_head = 2;
    opts.n_kv_head = 1;
    opts.d_head = 8;
    opts.n_vocab = 268;
    opts.n_ctx = n_ctx;
    return opts;
}

/* A model of random weights in a temporary file. */
static const char *model_write(const char *name, const gguf_gen_opts *opts)
{
    quire_error err = QUIRE_ERROR_INIT;
    const char *path = program_path(name);

    if (gguf_gen_write(opts, path, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return path;
}

/* With so many layers; scheme: of gguf_gen_scheme.h, or NULL; yoco comes with windows of 64 tokens.
 */
static const char *model_make(const char *name, uint32_t n_layer, uint32_t n_ctx,
                              const char *scheme)
{
    gguf_gen_opts opts = tiny_opts(n_layer, n_ctx);
    quire_error err = QUIRE_ERROR_INIT;

    opts.window = scheme != NULL && strcmp(scheme, "yoco") == 0 ? 64 : 0;
    if (scheme != NULL && gguf_gen_scheme_apply(&opts, scheme, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return model_write(name, &opts);
}

const char *program_model(void)
{
    static const char *path;

    path = path != NULL ? path : model_make("random.gguf", 2, 512, NULL);
    return path;
}

const char *program_model_deep(void)
{
    static const char *path;

    path = path != NULL ? path : model_make("deep.gguf", 16, 4096, NULL);
    return path;
}

const char *program_model_shared(void)
{
    static const char *path;

    path = path != NULL ? path : model_make("shared.gguf", 4, 512, "fusedkv-lite");
    return path;
}

const char *program_model_shared_deep(void)
{
    static const char *path;

    path = path != NULL ? path : model_make("shared-deep.gguf", 16, 4096, "fusedkv");
    return path;
}

const char *program_model_narrow(void)
{
    static const char *path;
    gguf_gen_opts opts = tiny_opts(4, 512);

    if (path == NULL) {
        assert_int_equal(gguf_gen_scheme_apply(&opts, "gqa", NULL), QUIRE_OK);
        for (uint32_t l = 0; l < opts.n_layer; l++) {
            opts.windows[l] = 64;
        }
        path = model_write("narrow.gguf", &opts);
    }
    return path;
}

const char *program_model_windows(void)
{
    static const char *path;

    path = path != NULL ? path : model_make("windows.gguf", 4, 512, "yoco");
    return path;
}

const char *program_model_sliding(void)
{
    static const char *path;
    gguf_gen_opts opts = tiny_opts(4, 512);

    (void)snprintf(opts.arch, sizeof opts.arch, "gemma2");
    opts.is_tied = true;
    opts.sliding_window = 300;
    path = path != NULL ? path : model_write("sliding.gguf", &opts);
    return path;
}

const char *program_model_unturned(void)
{
    static const char *path;
    gguf_gen_opts opts = tiny_opts(4, 512);

    (void)snprintf(opts.arch, sizeof opts.arch, "smollm3");
    opts.is_tied = true;
    path = path != NULL ? path : model_write("unturned.gguf", &opts);
    return path;
}

const char *program_model_latent(void)
{
    static const char *path;
    gguf_gen_opts opts;

    assert_true(gguf_gen_shape("tiny-deepseek2", &opts));
    path = path != NULL ? path : model_write("latent.gguf", &opts);
    return path;
}

const char *program_model_family(const char *name)
{
    char file[64];
    arch_family family;

    assert_true(arch_family_find(name, &family));
    (void)snprintf(file, sizeof file, "%s.gguf", name);
    return model_write(file, &family.options);
}

const char *program_data(const char *name)
{
    static char buffers[2][512];
    static unsigned next;
    char *buffer = buffers[next++ % 2];

    (void)snprintf(buffer, sizeof(buffers[0]), "%s/tests/data/%s", QUIRE_SOURCE_DIR, name);
    return buffer;
}

int program_no_cache(void **state)
{
    (void)state;
    return setenv("XDG_CACHE_HOME", program_file("no-cache", "", 0), 1); /* a file, no folder */
}

int program_clean(void **state)
{
    (void)state;
    for (size_t i = 0; i < n_paths; i++) {
        (void)unlink(paths[i]);
    }
    if (folder[0] != '\0') {
        (void)rmdir(folder);
    }
    return 0;
}
