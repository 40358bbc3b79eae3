/* serve_page_curve.h - the curves that quire tune-pages measured, for the server's views, and the
 * size of its pages by them (--page-tokens auto).
 *
 *   --page-curve FILE given   its size and curves
 *   else                      kept curves, of those memories that the server has for pages: its
 *                             devices, the host, and the disk of --cache-dir unless that is read
 *                             alone. Missing ones are measured at the start, for some seconds,
 *                             and kept (page_tune.h)
 *
 * The number format of the measurement is that of K, and q8 where layers differ. Settings are
 * checked with pages of 64 tokens while no curve is known.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_PAGE_CURVE_H
#define QUIRE_CLI_SERVE_PAGE_CURVE_H

#include "cli/serving/serve_args.h"
#include "cli/serving/serve_devices.h"
#include "cli/serving/serve_log.h"

/* Read the file of --page-curve into one line of JSON; *text is NULL without the setting. Errors:
 * as quire_read_file(), QUIRE_INVAL (not a document of quire tune-pages). Memory: free(*text). */
int quire_serve_page_curve_read(const quire_serve_args *args, char **text, quire_error *err);

/* Without --page-tokens auto, nothing. Else set args->common.page_tokens, and *text, if it is NULL,
 * to the curves; with args->check_config only if they are known. The curves' document gives the
 * size where *text is not NULL. Errors: QUIRE_INVAL (a size in *text that pages cannot have), those
 * of quire_page_tune_get(). Memory: free(*text). */
int quire_serve_page_size_settle(quire_serve_args *args, const quire_serve_devices *devices,
                                 char **text, quire_error *err);

/* For --check-config. The size as JSON; null while --page-tokens auto has no curve. */
json_t *quire_serve_page_size_json(const quire_serve_args *args, const char *text);
/* A line of text about --page-tokens auto. */
void quire_serve_page_size_print(const quire_serve_args *args, const char *text);

/* Log the size of --page-tokens auto; else warn if pages are smaller than the measured choice. */
void quire_serve_page_curve_log(const quire_serve_args *args, const char *text,
                                const quire_serve_log *log);

#endif /* QUIRE_CLI_SERVE_PAGE_CURVE_H */
