/* page_curve_kept.c - see page_curve_kept.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/page_curve_kept.h"

#include "base/check.h"
#include "cli/commands/new_file.h"
#include "cli/commands/places.h"
#include "cli/commands/talk.h"
#include "cli/measuring/calibration_place.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- JSON ---- */

json_t *quire_page_curve_json(const char *memory, const quire_page_curve *curve)
{
    json_t *points = json_array();

    for (uint32_t i = 0; i < QUIRE_PAGE_POINTS; i++) {
        const quire_page_point *p = &curve->points[i];

        (void)json_array_append_new(
            points, json_pack("{s:i, s:I, s:o, s:o, s:o}", "page_tokens", (int)p->page_tokens,
                              "piece_bytes", (json_int_t)p->piece_bytes, "in_bytes_per_second",
                              quire_json_real(p->in), "out_bytes_per_second",
                              quire_json_real(p->out), "attention_bytes_per_second",
                              p->attention > 0.0 ? quire_json_real(p->attention) : json_null()));
    }
    return json_pack("{s:s, s:i, s:b, s:b, s:o}", "memory", memory, "page_tokens",
                     (int)curve->points[curve->choice].page_tokens, "has_share",
                     (int)curve->has_share, "is_cached", (int)curve->is_cached, "curve", points);
}

/* A rate; null, of attention alone, is none. */
static int rate_parse(double *out, const json_t *json, bool may_be_null)
{
    *out = 0.0;
    if (may_be_null && json_is_null(json)) {
        return QUIRE_OK;
    }
    *out = json_number_value(json);
    QUIRE_FAIL_IF(!json_is_number(json) || !isfinite(*out) || *out <= 0.0, QUIRE_INVAL);
    return QUIRE_OK;
}

static int point_parse(quire_page_point *out, const json_t *json)
{
    const json_int_t bytes = json_integer_value(json_object_get(json, "piece_bytes"));

    QUIRE_FAIL_IF(json_integer_value(json_object_get(json, "page_tokens")) != out->page_tokens ||
                      bytes <= 0,
                  QUIRE_INVAL);
    out->piece_bytes = (uint64_t)bytes;
    QUIRE_TRY(rate_parse(&out->in, json_object_get(json, "in_bytes_per_second"), false));
    QUIRE_TRY(rate_parse(&out->out, json_object_get(json, "out_bytes_per_second"), false));
    return rate_parse(&out->attention, json_object_get(json, "attention_bytes_per_second"), true);
}

int quire_page_curve_parse(quire_page_curve *out, const json_t *json)
{
    const json_t *points = json_object_get(json, "curve");

    *out = (quire_page_curve){ .is_cached = json_is_true(json_object_get(json, "is_cached")) };
    QUIRE_FAIL_IF(json_array_size(points) != QUIRE_PAGE_POINTS, QUIRE_INVAL);
    for (uint32_t i = 0; i < QUIRE_PAGE_POINTS; i++) {
        out->points[i].page_tokens = quire_page_point_tokens(i);
        QUIRE_TRY(point_parse(&out->points[i], json_array_get(points, i)));
    }
    out->choice = quire_page_curves_choose(out, 1, &out->has_share);
    return QUIRE_OK;
}

/* ---- files ---- */

static int path_of(char buffer[QUIRE_PLACE_MAX], uint64_t key, quire_error *err)
{
    char name[32];

    (void)snprintf(name, sizeof(name), "pages/%016" PRIx64 ".json", key);
    return quire_place_cached(buffer, name, err);
}

int quire_page_curve_load(quire_page_curve *out, uint64_t key)
{
    char path[QUIRE_PLACE_MAX];
    json_t *json;
    int rc;

    QUIRE_FAIL_IF(path_of(path, key, NULL) < 0, QUIRE_NOTFOUND);
    json = json_load_file(path, 0, NULL);
    rc = quire_page_curve_parse(out, json);
    json_decref(json);
    return rc < 0 ? QUIRE_NOTFOUND : QUIRE_OK;
}

int quire_page_curve_save(const char *memory, const quire_page_curve *curve, uint64_t key,
                          quire_error *err)
{
    char path[QUIRE_PLACE_MAX];
    json_t *json;
    quire_new_file file = { .stream = NULL };
    int rc;

    QUIRE_TRY(path_of(path, key, err));
    QUIRE_TRY(quire_calibration_folders(path, err));
    json = quire_page_curve_json(memory, curve);
    if (json == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    rc = quire_new_file_open(&file, path, err);
    errno = 0;
    if (rc == QUIRE_OK && json_dumpf(json, file.stream, JSON_COMPACT) != 0) {
        rc = quire_new_file_fail(&file, err);
    }
    json_decref(json);
    rc = rc == QUIRE_OK ? quire_new_file_finish(&file, err) : rc;
    quire_new_file_discard(&file);
    return rc;
}
