/* serve_page_curve.h - the curve that quire tune-pages measured, for the server's views.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_PAGE_CURVE_H
#define QUIRE_CLI_SERVE_PAGE_CURVE_H

#include "cli/serving/serve_args.h"
#include "cli/serving/serve_log.h"

/* Read the file of --page-curve into one line of JSON; *text is NULL without the setting. Errors:
 * as quire_read_file(), QUIRE_INVAL (not a document of quire tune-pages). Memory: free(*text). */
int quire_serve_page_curve_read(const quire_serve_args *args, char **text, quire_error *err);

/* Warn if the server's pages are smaller than the measured choice. */
void quire_serve_page_curve_warn(const quire_serve_args *args, const char *text,
                                 const quire_serve_log *log);

#endif /* QUIRE_CLI_SERVE_PAGE_CURVE_H */
