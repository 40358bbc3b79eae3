/* serve_page_curve.c - see serve_page_curve.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_page_curve.h"

#include "base/check.h"
#include "cli/commands/device_choice.h"
#include "cli/commands/opened.h"
#include "cli/measuring/page_tune.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(QUIRE_PAGE_TUNE_DEVICES >= QUIRE_REPLICAS_MAX &&
                   QUIRE_REPLICAS_MAX >= QUIRE_DEVICE_SPLIT_MAX,
               "all devices are measured");

/* ---- the file ---- */

static bool are_points(const json_t *points)
{
    size_t i;
    json_t *point;

    json_array_foreach(points, i, point)
    {
        if (!json_is_integer(json_object_get(point, "page_tokens"))) {
            return false;
        }
    }
    return json_is_array(points);
}

/* Whether it has the members that readers count on. */
static bool is_curve(json_t *root)
{
    const json_t *memories = json_object_get(root, "memories");
    size_t i;
    json_t *memory;

    if (!json_is_integer(json_object_get(root, "page_tokens")) || !json_is_array(memories)) {
        return false;
    }
    json_array_foreach(memories, i, memory)
    {
        if (!json_is_string(json_object_get(memory, "memory")) ||
            !are_points(json_object_get(memory, "curve"))) {
            return false;
        }
    }
    return true;
}

int quire_serve_page_curve_read(const quire_serve_args *args, char **text, quire_error *err)
{
    json_t *root;
    char *file;
    size_t n;

    *text = NULL;
    if (args->page_curve == NULL) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_read_file(args->page_curve, &file, &n, err));
    root = json_loadb(file, n, 0, NULL);
    free(file);
    if (!is_curve(root)) {
        json_decref(root);
        return quire_error_set(err, QUIRE_INVAL,
                               "page_curve: %.200s is not what quire tune-pages --json prints",
                               args->page_curve);
    }
    *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return *text != NULL ? QUIRE_OK : quire_error_set(err, QUIRE_NOMEM, "out of memory");
}

/* ---- the size ---- */

static quire_format format_of(const quire_kv_args *kv)
{
    if (kv->layers != NULL || kv->choice.is_auto) {
        return QUIRE_FORMAT_Q8;
    }
    return kv->has_k ? kv->k : kv->choice.pair.k;
}

/* The names of all devices, of a split too, whose names are kept in *split. Returns their
 * number. */
static uint32_t names_get(const quire_serve_args *args, const quire_serve_devices *devices,
                          quire_split_choice *split, const char *names[QUIRE_REPLICAS_MAX])
{
    const uint32_t n = devices->n > 1 ? devices->n : 1;
    quire_error unused = QUIRE_ERROR_INIT; /* the settings were checked */

    (void)quire_split_choice_read(split, &args->common, &unused);
    for (uint32_t i = 0; i < split->n; i++) {
        names[i] = split->names[i];
    }
    if (split->n > 0) {
        return split->n;
    }
    names[0] = quire_device_choose(args->common.device);
    for (uint32_t i = 1; i < n; i++) {
        names[i] = devices->names[i];
    }
    return n;
}

/* Kept curves, and measured ones. The directory of the disk is made later, by its store. */
static int curves_get(json_t **document, const quire_serve_args *args,
                      const quire_serve_devices *devices, quire_error *err)
{
    const char *names[QUIRE_REPLICAS_MAX];
    quire_split_choice split;
    const quire_page_tune tune = {
        .devices = names,
        .n_devices = names_get(args, devices, &split, names),
        .dir = args->cache_dir_readonly ? NULL : args->cache_dir,
        .format = format_of(&args->common.kv),
        .from = args->check_config ? QUIRE_PAGE_TUNE_KEPT : QUIRE_PAGE_TUNE_FIRST,
    };
    const bool is_made = !args->check_config && tune.dir != NULL && mkdir(tune.dir, 0700) == 0;
    int rc;

    rc = quire_page_tune_get(document, &tune, err);
    if (is_made) {
        (void)rmdir(tune.dir);
    }
    return rc;
}

/* The document's size, and its text where there is none yet. Takes the document over. */
static int document_take(quire_serve_args *args, json_t *document, char **text, quire_error *err)
{
    uint32_t page_tokens;
    const int rc = quire_page_tune_size(document, &page_tokens);

    if (rc == QUIRE_OK) {
        args->common.page_tokens = page_tokens;
        *text = *text != NULL ? *text : json_dumps(document, JSON_COMPACT);
    }
    json_decref(document);
    if (rc < 0) {
        return quire_error_set(err, rc,
                               "page_curve: %.200s names a size that pages cannot have: 64 to 1024 "
                               "tokens, a multiple of 64",
                               args->page_curve);
    }
    return *text != NULL ? QUIRE_OK : quire_error_set(err, QUIRE_NOMEM, "out of memory");
}

int quire_serve_page_size_settle(quire_serve_args *args, const quire_serve_devices *devices,
                                 char **text, quire_error *err)
{
    json_t *document = NULL;

    if (!args->is_page_auto) {
        return QUIRE_OK;
    }
    if (*text != NULL) {
        return document_take(args, json_loads(*text, 0, NULL), text, err);
    }
    if (args->check_config) {
        /* A device that is not there is an error of what follows. */
        return curves_get(&document, args, devices, NULL) < 0
                   ? QUIRE_OK
                   : document_take(args, document, text, err);
    }
    QUIRE_TRY(curves_get(&document, args, devices, err));
    return document_take(args, document, text, err);
}

json_t *quire_serve_page_size_json(const quire_serve_args *args, const char *text)
{
    return args->is_page_auto && text == NULL ? json_null()
                                              : json_integer(args->common.page_tokens);
}

void quire_serve_page_size_print(const quire_serve_args *args, const char *text)
{
    if (args->is_page_auto && text == NULL) {
        printf("# page_tokens auto: not measured yet, so all is checked with pages of %lld "
               "tokens\n",
               (long long)args->common.page_tokens);
    } else if (args->is_page_auto) {
        printf("# page_tokens auto: %lld, as measured\n", (long long)args->common.page_tokens);
    }
}

void quire_serve_page_curve_log(const quire_serve_args *args, const char *text,
                                const quire_serve_log *log)
{
    json_t *root = text != NULL ? json_loads(text, 0, NULL) : NULL;
    const json_int_t choice = json_integer_value(json_object_get(root, "page_tokens"));

    if (args->is_page_auto) {
        quire_serve_log_line(log, QUIRE_LOG_INFO, "pages have %lld tokens, as measured%s",
                             (long long)args->common.page_tokens,
                             json_is_false(json_object_get(root, "has_share"))
                                 ? ": no size suits all memories, and this one comes nearest"
                                 : "");
    } else if (choice > args->common.page_tokens &&
               !json_is_false(json_object_get(root, "has_share"))) {
        quire_serve_log_line(log, QUIRE_LOG_ERRORS,
                             "warning: pages have %lld tokens; %lld suit the memories that "
                             "page_curve has measured (--page-tokens)",
                             (long long)args->common.page_tokens, (long long)choice);
    }
    json_decref(root);
}
