/* html.h - a report as one self-contained page: web/report.html with its data inside.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_HTML_H
#define QUIRE_TRACE_HTML_H

#include <stddef.h>

#include "base/bytes.h"

/* web/report.html, put into the program at build time (cmake/embed.cmake). */
extern const unsigned char quire_report_page[];
extern const size_t quire_report_page_bytes;

/* Append the page with this JSON document as its data (format: src/cli/traces/report.h). No text of
 * the document can end its HTML element. Errors: QUIRE_NOMEM. */
int quire_html_write(quire_bytes *out, const char *json, size_t n);

#endif /* QUIRE_TRACE_HTML_H */
