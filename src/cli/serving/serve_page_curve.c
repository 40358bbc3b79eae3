/* serve_page_curve.c - see serve_page_curve.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_page_curve.h"

#include "base/check.h"
#include "cli/commands/opened.h"

#include <jansson.h>
#include <stdlib.h>

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

void quire_serve_page_curve_warn(const quire_serve_args *args, const char *text,
                                 const quire_serve_log *log)
{
    json_t *root = text != NULL ? json_loads(text, 0, NULL) : NULL;
    const json_int_t choice = json_integer_value(json_object_get(root, "page_tokens"));

    if (choice > args->common.page_tokens && !json_is_false(json_object_get(root, "has_share"))) {
        quire_serve_log_line(log, QUIRE_LOG_ERRORS,
                             "warning: pages have %lld tokens; %lld suit the memories that "
                             "page_curve has measured (--page-tokens)",
                             (long long)args->common.page_tokens, (long long)choice);
    }
    json_decref(root);
}
