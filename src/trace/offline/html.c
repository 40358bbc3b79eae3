/* html.c - puts data into the page's template.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/offline/html.h"

#include "base/check.h"

#include <string.h>

#define PLACE "@DATA@"

/* "<" could begin "</script>" or "<!--". In JSON it occurs only in strings, where an escape may
 * replace it. The separators U+2028 and U+2029 need no escape: this is JSON, not a script. */
static void add_escaped(quire_bytes *out, const char *json, size_t n)
{
    const char *end = json + n;

    while (json < end) {
        const char *less = memchr(json, '<', (size_t)(end - json));

        (void)quire_bytes_add(out, json, (size_t)((less != NULL ? less : end) - json));
        if (less == NULL) {
            return;
        }
        (void)quire_bytes_add(out, "\\u003c", 6);
        json = less + 1;
    }
}

int quire_html_write(quire_bytes *out, const char *json, size_t n)
{
    const char *page = (const char *)quire_report_page;
    const char *place = memmem(page, quire_report_page_bytes, PLACE, strlen(PLACE));

    QUIRE_CHECK(place != NULL);
    (void)quire_bytes_add(out, page, (size_t)(place - page));
    add_escaped(out, json, n);
    place += strlen(PLACE);
    return quire_bytes_add(out, place, quire_report_page_bytes - (size_t)(place - page));
}
