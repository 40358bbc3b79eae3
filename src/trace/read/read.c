/* read.c - opens a trace, finds out its format, and reads it line by line.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/read/read.h"

#include "base/check.h"
#include "trace/read/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define DETECT_LINES     50u /* looked at before a file is given up */
#define BLOCK_DEFAULT    64u
#define TOKEN_BYTES      4.0 /* per token, for texts without a stated length in tokens */
#define BLOCK_TOKENS_MAX 65536u

static const quire_reader_format *const formats[] = {
    &quire_reader_recorded, &quire_reader_mooncake, &quire_reader_aibrix,
    &quire_reader_sharegpt, &quire_reader_azure,
};
#define N_FORMATS (sizeof(formats) / sizeof(formats[0]))

static const char *const names[QUIRE_TRACE_FORMAT_COUNT] = {
#define X(sym, val, name) [val] = (name),
    QUIRE_TRACE_FORMAT_MAP(X)
#undef X
};

const char *quire_trace_format_name(quire_trace_format format)
{
    return (unsigned)format < QUIRE_TRACE_FORMAT_COUNT ? names[format] : "unknown";
}

static const quire_reader_format *format_get(quire_trace_format format)
{
    for (size_t i = 0; i < N_FORMATS; i++) {
        if (formats[i]->format == format) {
            return formats[i];
        }
    }
    return NULL;
}

/* The format of the first line that is of one; NULL when none of them is. */
static int detect(quire_reader *r, const quire_reader_format **out)
{
    *out = NULL;
    r->is_quiet = true;
    for (uint32_t n = 0; n < DETECT_LINES && *out == NULL; n++) {
        int rc = quire_reader_next(r);
        json_error_t error;
        json_t *json;

        if (rc <= 0) {
            QUIRE_TRY(rc);
            break;
        }
        json = quire_reader_load(r, 0, &error);
        for (size_t i = 0; i < N_FORMATS && *out == NULL; i++) {
            *out = formats[i]->detect(r->line, json) ? formats[i] : NULL;
        }
        json_decref(json);
    }
    r->is_quiet = false;
    return quire_reader_rewind(r);
}

static int format_find(quire_reader *r, const quire_reader_format **out)
{
    *out = format_get(r->opts->format);
    if (r->opts->format == QUIRE_TRACE_FORMAT_AUTO && quire_reader_begins(r, '[')) {
        *out = &quire_reader_sharegpt; /* the only one that is not made of lines */
    } else if (r->opts->format == QUIRE_TRACE_FORMAT_AUTO) {
        QUIRE_TRY(detect(r, out));
    }
    if (*out == NULL && getc(r->file) == EOF) {
        return quire_error_set(r->err, QUIRE_UNSUPP, "%s: no trace that is known: it is empty",
                               r->name);
    }
    if (*out == NULL) {
        return quire_error_set(r->err, QUIRE_UNSUPP,
                               "%s: no trace that is known: neither Mooncake, AIBrix or recorded "
                               "JSON Lines, nor a CSV with a header of Azure or Splitwise, nor "
                               "ShareGPT JSON",
                               r->name);
    }
    return QUIRE_OK;
}

static int lines_read(quire_reader *r, const quire_reader_format *format)
{
    int rc;

    if (format->begin != NULL) {
        QUIRE_TRY(format->begin(r));
    }
    if (format->element != NULL && quire_reader_begins(r, '[')) {
        return quire_reader_elements(r, format->element);
    }
    while (r->trace->n_requests < r->opts->requests_max && (rc = quire_reader_next(r)) != 0) {
        QUIRE_TRY(rc);
        QUIRE_TRY(format->line(r));
    }
    return QUIRE_OK;
}

static int read_all(quire_reader *r)
{
    const quire_reader_format *format;

    QUIRE_TRY(quire_reader_rewind(r));
    QUIRE_TRY(format_find(r, &format));
    r->report->format = format->format;
    r->trace->has_contents = format->has_contents;
    QUIRE_TRY(lines_read(r, format));
    r->trace->n_lines = r->line_number;
    r->trace->n_bad_lines = r->report->n_bad;
    if (r->trace->n_requests == 0) {
        return quire_error_set(r->err, QUIRE_CORRUPT, "%s: no request in it%s%.240s", r->name,
                               r->report->n_named > 0 ? ", the first bad line: " : "",
                               r->report->n_named > 0 ? r->report->named[0] : "");
    }
    r->trace->n_tenants = r->trace->n_tenants > 0 ? r->trace->n_tenants : 1;
    r->trace->n_classes = r->trace->n_classes > 0 ? r->trace->n_classes : 1;
    quire_trace_finish(r->trace);
    return QUIRE_OK;
}

static int opts_check(const quire_trace_read_opts *opts, quire_error *err)
{
    if (opts->block_tokens > BLOCK_TOKENS_MAX || !(opts->arrivals_per_s > 0.0) ||
        !(opts->think_s >= 0.0) || opts->line_bytes_max == 0 || opts->requests_max == 0 ||
        (unsigned)opts->format >= QUIRE_TRACE_FORMAT_COUNT) {
        return quire_error_set(err, QUIRE_INVAL, "options of a trace out of range");
    }
    return QUIRE_OK;
}

int quire_trace_read_stream(FILE *file, const quire_trace_read_opts *opts, quire_trace *out,
                            quire_trace_report *report, quire_error *err)
{
    static const quire_trace_read_opts defaults = QUIRE_TRACE_READ_OPTS_INIT;
    quire_trace_report unseen;
    quire_reader r = { .file = file, .trace = out, .err = err, .token_bytes = TOKEN_BYTES };
    int rc;

    r.opts = opts != NULL ? opts : &defaults;
    r.name = r.opts->name != NULL ? r.opts->name : "trace";
    r.report = report != NULL ? report : &unseen;
    memset(r.report, 0, sizeof(*r.report));
    quire_trace_init(out, r.opts->allocator);
    QUIRE_TRY(opts_check(r.opts, err));
    out->block_tokens = r.opts->block_tokens > 0 ? r.opts->block_tokens : BLOCK_DEFAULT;
    r.rng.state = r.opts->seed;
    quire_id_map_init(&r.sessions, NULL);
    quire_id_map_init(&r.tenants, NULL);
    rc = read_all(&r);
    quire_id_map_fini(&r.tenants);
    quire_id_map_fini(&r.sessions);
    free(r.session_numbers);
    free(r.keys);
    free(r.line);
    if (rc < 0) {
        quire_trace_fini(out);
    }
    return rc;
}

int quire_trace_read(const char *path, const quire_trace_read_opts *opts, quire_trace *out,
                     quire_trace_report *report, quire_error *err)
{
    quire_trace_read_opts named = QUIRE_TRACE_READ_OPTS_INIT;
    FILE *file = fopen(path, "rb");
    int rc;

    if (opts != NULL) {
        named = *opts;
    }
    if (named.name == NULL) {
        named.name = path;
    }
    quire_trace_init(out, named.allocator);
    if (file == NULL) {
        return quire_error_set_errno(err, errno, "%s: cannot be opened", path);
    }
    rc = quire_trace_read_stream(file, &named, out, report, err);
    (void)fclose(file);
    return rc;
}
