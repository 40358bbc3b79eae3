/* page_curve_kept.h - a measured curve as JSON, and its file in the cache folder.
 *
 * A server takes the size of its pages from kept curves, so that the size is the same after each
 * start: pages in a store are found by texts cut at the same places. A file is
 * ${XDG_CACHE_HOME:-~/.cache}/quire/pages/KEY.json; the key is made of all that the curve is
 * measured for (page_tune.h).
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_PAGE_CURVE_KEPT_H
#define QUIRE_CLI_PAGE_CURVE_KEPT_H

#include <jansson.h>

#include "cli/measuring/page_curve.h"

/* One member of `memories` in the output of quire tune-pages --json. NULL when out of memory. */
json_t *quire_page_curve_json(const char *memory, const quire_page_curve *curve);

/* The reverse; the choice is made anew. Errors: QUIRE_INVAL (not of quire_page_curve_json()). */
int quire_page_curve_parse(quire_page_curve *out, const json_t *json);

/* Errors: QUIRE_NOTFOUND (no file, or none that quire_page_curve_parse() takes; no cache folder).
 */
int quire_page_curve_load(quire_page_curve *out, uint64_t key);

/* Replaces a file of this key. Errors: quire_place_cached(), QUIRE_IO, QUIRE_NOMEM. */
int quire_page_curve_save(const char *memory, const quire_page_curve *curve, uint64_t key,
                          quire_error *err);

#endif /* QUIRE_CLI_PAGE_CURVE_KEPT_H */
