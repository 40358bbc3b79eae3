/* read_elements.c - a file that is one JSON array, an element at a time.
 *
 * Such files have hundreds of megabytes in one line, so neither a line nor the whole is held.
 * jansson is given one byte at a time: so it takes none beyond the end of an element.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/read/reader.h"

#include "base/check.h"

#include <errno.h>
#include <string.h>

/* The next byte that is no blank, EOF at the end. */
static int byte_next(quire_reader *r)
{
    int c;

    do {
        c = getc(r->file);
        r->line_number += c == '\n';
    } while (c == ' ' || c == '\t' || c == '\r' || c == '\n');
    return c;
}

bool quire_reader_begins(quire_reader *r, char c)
{
    bool is_so = byte_next(r) == (unsigned char)c;

    return quire_reader_rewind(r) == QUIRE_OK && is_so;
}

/* Bytes of an element for jansson. */
typedef struct element_source {
    quire_reader *reader;
    size_t n_left;
} element_source;

static size_t element_bytes(void *buffer, size_t buffer_bytes, void *opaque)
{
    element_source *source = opaque;
    int c;

    (void)buffer_bytes;
    if (source->n_left == 0) {
        return (size_t)-1;
    }
    c = getc(source->reader->file);
    if (c == EOF) {
        return 0;
    }
    source->n_left--;
    source->reader->line_number += c == '\n';
    *(char *)buffer = (char)c;
    return 1;
}

/* One element; *out NULL when it could not be read, which has been reported. */
static int element_read(quire_reader *r, json_t **out)
{
    element_source source = { r, r->opts->line_bytes_max };
    json_error_t error;

    *out = json_load_callback(element_bytes, &source, JSON_DISABLE_EOF_CHECK, &error);
    if (*out != NULL) {
        return QUIRE_OK;
    }
    if (ferror(r->file)) {
        return quire_error_set_errno(r->err, errno, "%s: cannot be read", r->name);
    }
    r->is_cut = feof(r->file) != 0;
    return source.n_left == 0
               ? quire_reader_bad(r, "an element of more than %zu bytes", r->opts->line_bytes_max)
               : quire_reader_bad(r, "no JSON: %s; the rest is left out", error.text);
}

int quire_reader_elements(quire_reader *r,
                          int (*element)(quire_reader *reader, const json_t *element))
{
    int c = byte_next(r);

    r->line_number++;
    if (c != '[') {
        return quire_reader_bad(r, "no JSON array");
    }
    while (r->trace->n_requests < r->opts->requests_max) {
        json_t *json;
        int rc;

        c = byte_next(r);
        if (c == ']') {
            return QUIRE_OK;
        }
        if (c == ',') {
            continue;
        }
        if (c == EOF || ungetc(c, r->file) == EOF) {
            r->is_cut = true;
            return quire_reader_bad(r, "the array has no end");
        }
        QUIRE_TRY(element_read(r, &json));
        if (json == NULL) {
            return QUIRE_OK;
        }
        rc = element(r, json);
        json_decref(json);
        QUIRE_TRY(rc);
    }
    return QUIRE_OK;
}
