/* document.c - see document.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "document.h"
#include "quire/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *file_text(const char *path)
{
    quire_bytes text = { 0 };
    FILE *file = fopen(path, "r");
    char block[4096];
    size_t n;

    if (file == NULL) {
        fail_msg("cannot open %s", path);
    }
    while ((n = fread(block, 1, sizeof block, file)) > 0) {
        (void)quire_bytes_add(&text, block, n);
    }
    (void)fclose(file);
    assert_int_equal(text.status, QUIRE_OK);
    return text.data;
}

/* text, with [from, to) replaced by made. */
static void write_part(const char *path, const char *text, const char *from, const char *to,
                       const quire_bytes *made)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    (void)fprintf(file, "%.*s%.*s%s", (int)(from - text), text, (int)made->n, made->data, to);
    assert_int_equal(fclose(file), 0);
}

void document_part(const char *file, const char *name, const quire_bytes *made)
{
    char path[512];
    char begin[128];
    char end[128];
    char *text;
    const char *from;
    const char *to;

    (void)snprintf(path, sizeof path, "%s/docs/%s", QUIRE_SOURCE_DIR, file);
    (void)snprintf(begin, sizeof begin, "<!-- %s: made by make docs -->\n\n", name);
    (void)snprintf(end, sizeof end, "\n<!-- end of %s -->", name);
    text = file_text(path);
    from = strstr(text, begin);
    to = from != NULL ? strstr(from, end) : NULL;
    if (to == NULL) {
        fail_msg("docs/%s has no part between the marks of '%s'", file, name);
    }
    from += strlen(begin);
    if (getenv("QUIRE_WRITE_DOCS") != NULL) {
        write_part(path, text, from, to, made);
    } else if ((size_t)(to - from) != made->n || memcmp(from, made->data, made->n) != 0) {
        fail_msg("docs/%s, part '%s', differs from the table: make docs", file, name);
    }
    free(text);
}
