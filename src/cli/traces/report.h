/* report.h - data for the page of trace/offline/html.h, put together part by part.
 *
 * The document:
 *
 *   { title, about,
 *     tiles: [ {name, value, note} ],
 *     parts: [ {id, kind, size, title, note, ...} ] }
 *
 *   kind     fields
 *   lines    x, y: {label, format, scale, unit, low, high}; series: [ {name, style, tint,
 *            points: [[x, y]]} ]; marks: [ {name, x} ]
 *   stacked  the same, drawn as areas one upon the other
 *   bars     x, y; bars: [ [low, high, n] ]; marks
 *   table    rows: [ [cell] ], the first one the heads
 *   text     text, shown as it is
 *
 * format: share (0..1), count, bytes, seconds, nats. scale: linear, log. size: "" (the whole
 * width), half, third. style: "", strong, bound (dashed). tint: the number of the colour, by
 * default the place in the list. scripts/schemes/curves.mjs makes pages of training runs in this
 * form.
 *
 * A part that finds no memory is left out. Memory: one owner, json_decref(). Thread: any one at a
 * time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_REPORT_H
#define QUIRE_CLI_REPORT_H

#include <jansson.h>
#include <stdbool.h>

#include "quire/error.h"
#include "trace/dist.h"

typedef struct quire_report_axis {
    const char *label; /* NULL = none */
    const char *format;
    const char *unit; /* of counts, in full; NULL = none */
    bool is_log;
    double high; /* where it ends; 0 = with the data */
} quire_report_axis;

typedef struct quire_report_head {
    const char *id;
    const char *title;
    const char *note; /* NULL = none */
    const char *size;
} quire_report_head;

json_t *quire_report_new(const char *title, const char *about);
void quire_report_tile(json_t *report, const char *name, const char *value, const char *note);

/* Add a plot of kind lines or stacked and return it, borrowed. */
json_t *quire_report_plot(json_t *report, const char *kind, const quire_report_head *head,
                          const quire_report_axis *x, const quire_report_axis *y);
/* Add a series and return its points, borrowed. */
json_t *quire_report_series(json_t *plot, const char *name, const char *style);
void quire_report_point(json_t *points, double x, double y);
void quire_report_mark(json_t *plot, const char *name, double x);

/* Add a distribution as bars with its p50, p90 and p99; values are divided by `unit` (1e6 makes
 * seconds of microseconds). */
void quire_report_dist(json_t *report, const quire_report_head *head, const quire_report_axis *x,
                       const quire_dist *dist, double unit);

/* Add a table and return its rows, borrowed: arrays of texts. */
json_t *quire_report_table(json_t *report, const quire_report_head *head);
void quire_report_text(json_t *report, const quire_report_head *head, const char *text);

/* Write the page. Errors: QUIRE_NOMEM, QUIRE_IO, QUIRE_INVAL (the path, see new_file.h). */
int quire_report_write(const json_t *report, const char *path, quire_error *err);

#endif /* QUIRE_CLI_REPORT_H */
