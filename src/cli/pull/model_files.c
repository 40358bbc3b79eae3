/* model_files.c - see model_files.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/pull/model_files.h"

#include "base/check.h"
#include "base/text_buffer.h"
#include "cli/pull/model_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define SUFFIX       ".gguf"
#define SUFFIX_BYTES 5u
/* "-00001-of-00002" */
#define PART_BYTES 15u
#define PATH_BYTES 4096u /* longer than any path of a list */

/* Quantizations for a name without a selector, best first: a size that most machines can use, then
 * sizes near it, then large ones. */
static const char *const preferred[] = { "Q4_K_M", "Q4_K_S", "Q4_0", "IQ4_XS", "Q5_K_M",
                                         "Q5_0",   "Q8_0",   "Q6_K", "F16",    "BF16" };
#define N_PREFERRED (sizeof(preferred) / sizeof(preferred[0]))

quire_model_file *quire_model_files_add(quire_model_files *files, const char *path)
{
    quire_model_file *file;

    if (files->n == QUIRE_MODEL_FILES_MAX) {
        return NULL;
    }
    if (files->n == files->capacity) {
        const size_t capacity = files->capacity != 0 ? 2 * files->capacity : 16;
        quire_model_file *list = realloc(files->list, capacity * sizeof(*list));

        if (list == NULL) {
            return NULL;
        }
        files->list = list;
        files->capacity = capacity;
    }
    file = &files->list[files->n];
    memset(file, 0, sizeof(*file));
    file->path = strdup(path);
    if (file->path == NULL) {
        return NULL;
    }
    files->n++;
    return file;
}

void quire_model_files_fini(quire_model_files *files)
{
    for (size_t i = 0; i < files->n; i++) {
        free(files->list[i].path);
    }
    free(files->list);
    memset(files, 0, sizeof(*files));
}

/* ---- sets ---- */

static bool is_gguf(const char *path)
{
    const size_t n = strlen(path);

    return n > SUFFIX_BYTES && strcasecmp(path + n - SUFFIX_BYTES, SUFFIX) == 0;
}

/* Five digits as a number; -1 if they are none. */
static int32_t five_digits(const char *text)
{
    int32_t value = 0;

    for (size_t i = 0; i < 5; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return -1;
        }
        value = 10 * value + (text[i] - '0');
    }
    return value;
}

/* "-00001-of-00002" in a path, NULL if it has none. */
static const char *part_of(const char *path)
{
    const size_t n = strlen(path);
    const char *at;

    if (n <= SUFFIX_BYTES + PART_BYTES) {
        return NULL;
    }
    at = path + n - SUFFIX_BYTES - PART_BYTES;
    return at[0] == '-' && strncmp(at + 6, "-of-", 4) == 0 && five_digits(at + 1) > 0 &&
                   five_digits(at + 10) > 0
               ? at
               : NULL;
}

uint32_t quire_model_parts(const char *path)
{
    const char *part = is_gguf(path) ? part_of(path) : NULL;
    int32_t n;

    if (part == NULL) {
        return 1;
    }
    n = five_digits(part + 10);
    return five_digits(part + 1) == 1 && n <= (int32_t)QUIRE_MODEL_PARTS_MAX ? (uint32_t)n : 0;
}

void quire_model_part_set(char *path, uint32_t i)
{
    char *part = path + strlen(path) - SUFFIX_BYTES - PART_BYTES;

    QUIRE_CHECK(part_of(path) != NULL && i >= 1 && i <= QUIRE_MODEL_PARTS_MAX);
    for (size_t digit = 5; digit >= 1; digit--) {
        part[digit] = (char)('0' + i % 10);
        i /= 10;
    }
}

const quire_model_file *quire_model_files_find(const quire_model_files *files, const char *path)
{
    for (size_t i = 0; i < files->n; i++) {
        if (strcmp(files->list[i].path, path) == 0) {
            return &files->list[i];
        }
    }
    return NULL;
}

/* ---- choosing ---- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL ? slash + 1 : path;
}

static bool is_model(const char *path)
{
    const char *name = base_name(path);

    return is_gguf(path) && quire_model_parts(path) > 0 && strncasecmp(name, "mmproj", 6) != 0 &&
           strcasestr(name, "imatrix") == NULL;
}

/* Whether a file's name ends with a quantisation, after one of the characters that stand before. */
static bool has_quantisation(const char *path, const char *quantisation)
{
    const char *name = base_name(path);
    const char *end = part_of(path) != NULL ? part_of(path) : path + strlen(path) - SUFFIX_BYTES;
    const size_t n = strlen(quantisation);

    return (size_t)(end - name) > n && strncasecmp(end - n, quantisation, n) == 0 &&
           strchr("-._", end[-(ptrdiff_t)n - 1]) != NULL;
}

static bool is_selected(const char *path, const char *selector)
{
    return is_gguf(selector)
               ? strcmp(path, selector) == 0 ||
                     (strchr(selector, '/') == NULL && strcmp(base_name(path), selector) == 0)
               : has_quantisation(path, selector);
}

/* Names of the models there, for a message. */
static void list_models(const quire_model_files *files, char *buffer, size_t buffer_bytes)
{
    quire_text text = { buffer, buffer_bytes, 0 };
    size_t n = 0;

    buffer[0] = '\0';
    for (size_t i = 0; i < files->n; i++) {
        if (is_model(files->list[i].path)) {
            quire_text_add(&text, "%s%s", n > 0 ? ", " : "", files->list[i].path);
            n++;
        }
    }
}

/* The best of the files that a selector means; n_found counts those as good. */
static size_t best_of(const quire_model_files *files, const char *selector, size_t *n_found)
{
    size_t best = files->n;
    size_t best_bytes = SIZE_MAX;

    *n_found = 0;
    for (size_t i = 0; i < files->n; i++) {
        const char *path = files->list[i].path;
        const size_t n = strlen(path);

        if (!is_model(path) || (selector != NULL && !is_selected(path, selector)) ||
            n > best_bytes) {
            continue;
        }
        *n_found = n == best_bytes ? *n_found + 1 : 1;
        best = i;
        best_bytes = n;
    }
    return best;
}

static size_t count_models(const quire_model_files *files, size_t *last)
{
    size_t n = 0;

    for (size_t i = 0; i < files->n; i++) {
        if (is_model(files->list[i].path)) {
            *last = i;
            n++;
        }
    }
    return n;
}

static int check_set(const quire_model_files *files, const char *first, const char *place,
                     quire_error *err)
{
    const uint32_t n_parts = quire_model_parts(first);
    char path[PATH_BYTES];

    QUIRE_CHECK(strlen(first) < sizeof(path));
    (void)snprintf(path, sizeof(path), "%s", first);
    for (uint32_t i = 2; i <= n_parts; i++) {
        quire_model_part_set(path, i);
        if (quire_model_files_find(files, path) == NULL) {
            return quire_error_set(err, QUIRE_NOTFOUND, "%s: part %u of %u of %s is missing", place,
                                   i, n_parts, first);
        }
    }
    return QUIRE_OK;
}

int quire_model_files_choose(const quire_model_files *files, const char *selector,
                             const char *place, size_t *out, quire_error *err)
{
    char names[320];
    size_t n_found = 0;
    size_t n_models = count_models(files, out);

    if (n_models == 0) {
        return quire_error_set(err, QUIRE_NOTFOUND, "%s: there is no GGUF model", place);
    }
    if (selector[0] != '\0') {
        *out = best_of(files, selector, &n_found);
    } else if (n_models == 1) {
        n_found = 1;
    } else {
        for (size_t i = 0; i < N_PREFERRED && n_found == 0; i++) {
            *out = best_of(files, preferred[i], &n_found);
        }
    }
    if (n_found != 1) {
        list_models(files, names, sizeof(names));
        if (n_found == 0 && selector[0] != '\0') {
            return quire_error_set(err, QUIRE_NOTFOUND, "%s has no model %s; it has %s", place,
                                   selector, names);
        }
        return quire_error_set(err, QUIRE_INVAL, "%s has several models%s%s: name one of %s", place,
                               selector[0] != '\0' ? " " : "", selector, names);
    }
    return check_set(files, files->list[*out].path, place, err);
}
