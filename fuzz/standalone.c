/* standalone.c - runs a fuzz target without libFuzzer, so that its corpus is part of every test
 * run.
 *
 *   fuzz_x [-runs=N] [-seed=S] FILE|DIRECTORY...
 *
 * Replays each file (a directory: its files in name order), then N inputs made from them by seeded
 * mutation: bits flipped, bytes set, blocks removed, repeated or taken from another file. This
 * finds less than libFuzzer, which is guided by coverage, but it needs no clang and is the same
 * every time. When an input fails, it is left in the file crash-input of the current directory.
 *
 * Exit status: 0 all inputs ran, 1 an input could not be read, 2 usage.
 *
 * SPDX-License-Identifier: MIT */
#include "base/rng.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define INPUT_BYTES_MAX (16u << 20)
#define MUTATIONS_MAX   8u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

typedef struct input {
    uint8_t *data;
    size_t size_bytes;
} input;

static struct {
    input *items;
    size_t n;
    size_t capacity;
} corpus;

/* The input that runs now, for the crash handler. */
static const uint8_t *volatile running_data;
static volatile size_t running_bytes;

/* Only async-signal-safe calls: the process is about to die of the same signal. Sanitizers report
 * first and then raise SIGABRT only when told to, so under them this is best effort. */
static void save_crash_input(int signal_number)
{
    int fd = open("crash-input", O_WRONLY | O_CREAT | O_TRUNC, 0644);

    if (fd >= 0) {
        const uint8_t *data = running_data;
        size_t left = running_bytes;

        while (left > 0) {
            ssize_t n = write(fd, data, left);

            if (n <= 0) {
                break;
            }
            data += n;
            left -= (size_t)n;
        }
        (void)close(fd);
    }
    (void)signal(signal_number, SIG_DFL);
    (void)raise(signal_number);
}

/* The target sees a heap block of exactly size_bytes, so that a sanitizer sees reads beyond it. */
static void run_one(const uint8_t *data, size_t size_bytes)
{
    uint8_t *copy = malloc(size_bytes > 0 ? size_bytes : 1);

    if (copy == NULL) {
        (void)fprintf(stderr, "fuzz: out of memory\n");
        exit(1);
    }
    memcpy(copy, data, size_bytes);
    running_data = copy;
    running_bytes = size_bytes;
    (void)LLVMFuzzerTestOneInput(copy, size_bytes);
    running_bytes = 0;
    free(copy);
}

static bool corpus_add(const uint8_t *data, size_t size_bytes)
{
    uint8_t *copy = malloc(size_bytes + 1);

    if (copy == NULL) {
        return false;
    }
    memcpy(copy, data, size_bytes);
    if (corpus.n == corpus.capacity) {
        size_t capacity = corpus.capacity > 0 ? corpus.capacity * 2 : 64;
        input *items = realloc(corpus.items, capacity * sizeof(*items));

        if (items == NULL) {
            free(copy);
            return false;
        }
        corpus.items = items;
        corpus.capacity = capacity;
    }
    corpus.items[corpus.n++] = (input){ copy, size_bytes };
    return true;
}

static bool file_load(const char *path)
{
    FILE *file = fopen(path, "rb");
    uint8_t *data = malloc(INPUT_BYTES_MAX);
    bool is_ok = false;

    if (file != NULL && data != NULL) {
        size_t n = fread(data, 1, INPUT_BYTES_MAX, file);

        is_ok = ferror(file) == 0 && corpus_add(data, n);
    }
    if (!is_ok) {
        (void)fprintf(stderr, "fuzz: cannot read %s: %s\n", path, strerror(errno));
    }
    free(data);
    if (file != NULL) {
        (void)fclose(file);
    }
    return is_ok;
}

static bool path_load(const char *path)
{
    struct stat st;
    struct dirent **names;
    bool is_ok = true;
    int n;

    if (stat(path, &st) != 0) {
        (void)fprintf(stderr, "fuzz: cannot read %s: %s\n", path, strerror(errno));
        return false;
    }
    if (!S_ISDIR(st.st_mode)) {
        return file_load(path);
    }
    n = scandir(path, &names, NULL, alphasort);
    if (n < 0) {
        (void)fprintf(stderr, "fuzz: cannot list %s: %s\n", path, strerror(errno));
        return false;
    }
    for (int i = 0; i < n; i++) {
        char name[4096];
        int length = snprintf(name, sizeof(name), "%s/%s", path, names[i]->d_name);

        if (names[i]->d_name[0] != '.') {
            is_ok = length > 0 && (size_t)length < sizeof(name) && path_load(name) && is_ok;
        }
        free(names[i]);
    }
    free(names);
    return is_ok;
}

/* One edit of buffer, which holds *size_bytes of at most capacity bytes. */
static void mutate_once(quire_rng *rng, uint8_t *buffer, size_t *size_bytes, size_t capacity)
{
    size_t n = *size_bytes;
    size_t at = n > 0 ? quire_rng_below(rng, (uint32_t)n) : 0;
    size_t length = 1 + quire_rng_below(rng, 32);

    switch (quire_rng_below(rng, 6)) {
    case 0:
        if (n > 0) {
            buffer[at] ^= (uint8_t)(1u << quire_rng_below(rng, 8));
        }
        break;
    case 1:
        for (size_t i = at; i < n && i < at + length; i++) {
            buffer[i] = (uint8_t)quire_rng_next(rng);
        }
        break;
    case 2: /* values that sit at the edge of a type */
        if (n > 0) {
            static const uint8_t edges[] = { 0x00, 0x01, 0x7f, 0x80, 0xff };
            uint8_t value = edges[quire_rng_below(rng, sizeof(edges))];

            memset(buffer + at, value, length < n - at ? length : n - at);
        }
        break;
    case 3: /* remove */
        length = length < n - at ? length : n - at;
        memmove(buffer + at, buffer + at + length, n - at - length);
        *size_bytes = n - length;
        break;
    case 4: /* repeat */
        length = length < n - at ? length : n - at;
        length = length < capacity - n ? length : capacity - n;
        memmove(buffer + at + length, buffer + at, n - at);
        *size_bytes = n + length;
        break;
    default: { /* take a block from another input */
        const input *other = &corpus.items[quire_rng_below(rng, (uint32_t)corpus.n)];
        size_t from = other->size_bytes > 0 ? quire_rng_below(rng, (uint32_t)other->size_bytes) : 0;

        length = length < other->size_bytes - from ? length : other->size_bytes - from;
        length = length < capacity - at ? length : capacity - at;
        memcpy(buffer + at, other->data + from, length);
        *size_bytes = at + length > n ? at + length : n;
        break;
    }
    }
}

static bool run_mutations(uint64_t n_runs, uint64_t seed)
{
    quire_rng rng = { seed };
    size_t capacity = 4096;
    uint8_t *buffer;

    for (size_t i = 0; i < corpus.n; i++) {
        capacity = corpus.items[i].size_bytes > capacity ? corpus.items[i].size_bytes : capacity;
    }
    buffer = malloc(capacity);
    if (buffer == NULL) {
        (void)fprintf(stderr, "fuzz: out of memory\n");
        return false;
    }
    for (uint64_t run = 0; run < n_runs; run++) {
        const input *source = &corpus.items[quire_rng_below(&rng, (uint32_t)corpus.n)];
        uint32_t n_edits = 1 + quire_rng_below(&rng, MUTATIONS_MAX);
        size_t size_bytes = source->size_bytes;

        memcpy(buffer, source->data, size_bytes);
        for (uint32_t i = 0; i < n_edits; i++) {
            mutate_once(&rng, buffer, &size_bytes, capacity);
        }
        run_one(buffer, size_bytes);
    }
    free(buffer);
    return true;
}

static int usage(void)
{
    (void)fprintf(stderr, "usage: fuzz_x [-runs=N] [-seed=S] FILE|DIRECTORY...\n");
    return 2;
}

static bool number_parse(const char *text, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(text, &end, 10);
    return errno == 0 && end != text && *end == '\0';
}

int main(int argc, char **argv)
{
    uint64_t n_runs = 0;
    uint64_t seed = 1;
    bool is_ok = true;

    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "-runs=", 6) == 0) {
            is_ok = number_parse(argv[i] + 6, &n_runs) && is_ok;
        } else if (strncmp(argv[i], "-seed=", 6) == 0) {
            is_ok = number_parse(argv[i] + 6, &seed) && is_ok;
        } else if (argv[i][0] == '-') {
            is_ok = false;
        }
    }
    if (!is_ok || argc < 2) {
        return usage();
    }
    (void)signal(SIGABRT, save_crash_input);
    (void)signal(SIGSEGV, save_crash_input);
    (void)signal(SIGFPE, save_crash_input);
    (void)signal(SIGBUS, save_crash_input);

    for (int i = 1; i < argc; i++) {
        is_ok = (argv[i][0] == '-' || path_load(argv[i])) && is_ok;
    }
    /* The empty input is always worth a try. */
    is_ok = corpus_add((const uint8_t *)"", 0) && is_ok;
    for (size_t i = 0; i < corpus.n; i++) {
        run_one(corpus.items[i].data, corpus.items[i].size_bytes);
    }
    is_ok = run_mutations(n_runs, seed) && is_ok;
    (void)fprintf(stderr, "fuzz: %zu inputs, %llu mutations\n", corpus.n,
                  (unsigned long long)n_runs);
    for (size_t i = 0; i < corpus.n; i++) {
        free(corpus.items[i].data);
    }
    free(corpus.items);
    return is_ok ? 0 : 1;
}
