/* report.c - the data of a page, and the page as a file.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/traces/report.h"

#include "base/check.h"
#include "cli/commands/new_file.h"
#include "cli/commands/talk.h"
#include "trace/offline/html.h"

#include <stdlib.h>
#include <string.h>

#define BARS_MAX          160u
#define BARS_EXACT        24u /* where each value has its own */
#define BARS_PER_DOUBLING 4u

/* Any bytes as a text; null for NULL. */
static json_t *text_of(const char *text)
{
    return text != NULL ? quire_json_bytes(text, strlen(text)) : json_null();
}

json_t *quire_report_new(const char *title, const char *about)
{
    return json_pack("{s:o, s:o, s:[], s:[]}", "title", text_of(title), "about", text_of(about),
                     "tiles", "parts");
}

void quire_report_tile(json_t *report, const char *name, const char *value, const char *note)
{
    json_array_append_new(json_object_get(report, "tiles"),
                          json_pack("{s:o, s:o, s:o}", "name", text_of(name), "value",
                                    text_of(value), "note", text_of(note)));
}

static json_t *add_part(json_t *report, const char *kind, const quire_report_head *head)
{
    json_t *part = json_pack("{s:s, s:s, s:s, s:o, s:o}", "id", head->id, "kind", kind, "size",
                             head->size != NULL ? head->size : "", "title", text_of(head->title),
                             "note", text_of(head->note));

    json_array_append_new(json_object_get(report, "parts"), part);
    return part;
}

static json_t *axis_json(const quire_report_axis *axis)
{
    return json_pack("{s:o, s:s, s:o, s:s, s:o}", "label", text_of(axis->label), "format",
                     axis->format, "unit", text_of(axis->unit), "scale",
                     axis->is_log ? "log" : "linear", "high",
                     axis->high > 0.0 ? json_real(axis->high) : json_null());
}

/* As many bars as show a shape and no noise. */
static uint32_t bars_max(const quire_dist *dist)
{
    const uint64_t least = dist->min > 0 ? dist->min : 1;
    const uint64_t most = dist->max > least ? dist->max : least;
    const uint32_t doublings =
        (uint32_t)(__builtin_clzll(least) - __builtin_clzll(most)); /* least <= most */
    const uint32_t n = BARS_EXACT + BARS_PER_DOUBLING * (doublings + 1);

    return n < BARS_MAX ? n : BARS_MAX;
}

json_t *quire_report_plot(json_t *report, const char *kind, const quire_report_head *head,
                          const quire_report_axis *x, const quire_report_axis *y)
{
    json_t *plot = add_part(report, kind, head);

    json_object_set_new(plot, "x", axis_json(x));
    json_object_set_new(plot, "y", axis_json(y));
    json_object_set_new(plot, "series", json_array());
    json_object_set_new(plot, "marks", json_array());
    return plot;
}

json_t *quire_report_series(json_t *plot, const char *name, const char *style)
{
    json_t *points = json_array();

    json_array_append_new(
        json_object_get(plot, "series"),
        json_pack("{s:o, s:s, s:o}", "name", text_of(name), "style", style, "points", points));
    return points;
}

void quire_report_point(json_t *points, double x, double y)
{
    json_array_append_new(points, json_pack("[o, o]", quire_json_real(x), quire_json_real(y)));
}

void quire_report_mark(json_t *plot, const char *name, double x)
{
    json_array_append_new(json_object_get(plot, "marks"),
                          json_pack("{s:o, s:o}", "name", text_of(name), "x", quire_json_real(x)));
}

void quire_report_dist(json_t *report, const quire_report_head *head, const quire_report_axis *x,
                       const quire_dist *dist, double unit)
{
    static const struct {
        const char *name;
        double q;
    } marks[] = { { "p50", 0.5 }, { "p90", 0.9 }, { "p99", 0.99 } };
    const quire_report_axis y = { .label = "share", .format = "share" };
    quire_dist_bar bars[BARS_MAX];
    const uint32_t n = quire_dist_bars(dist, bars, bars_max(dist));
    json_t *plot = quire_report_plot(report, "bars", head, x, &y);
    json_t *list = json_array();

    for (uint32_t i = 0; i < n; i++) {
        json_array_append_new(
            list, json_pack("[o, o, I]", quire_json_real((double)bars[i].low / unit),
                            quire_json_real((double)bars[i].high / unit), (json_int_t)bars[i].n));
    }
    json_object_set_new(plot, "bars", list);
    for (size_t i = 0; n > 0 && i < sizeof(marks) / sizeof(marks[0]); i++) {
        quire_report_mark(plot, marks[i].name,
                          (double)quire_dist_quantile(dist, marks[i].q) / unit);
    }
}

json_t *quire_report_table(json_t *report, const quire_report_head *head)
{
    json_t *rows = json_array();

    json_object_set_new(add_part(report, "table", head), "rows", rows);
    return rows;
}

void quire_report_text(json_t *report, const quire_report_head *head, const char *text)
{
    json_object_set_new(add_part(report, "text", head), "text", text_of(text));
}

int quire_report_write(const json_t *report, const char *path, quire_error *err)
{
    char *json = report != NULL ? json_dumps(report, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    quire_bytes page = { 0 };
    quire_new_file file = { 0 };
    int rc = QUIRE_NOMEM;

    if (json != NULL) {
        rc = quire_html_write(&page, json, strlen(json));
    }
    free(json);
    if (rc < 0) {
        quire_bytes_fini(&page);
        return quire_error_set(err, rc, "out of memory");
    }
    rc = quire_new_file_open(&file, path, err);
    if (rc == QUIRE_OK && fwrite(page.data, 1, page.n, file.stream) != page.n) {
        rc = quire_new_file_fail(&file, err);
    }
    if (rc == QUIRE_OK) {
        rc = quire_new_file_finish(&file, err);
    }
    quire_new_file_discard(&file);
    quire_bytes_fini(&page);
    return rc;
}
