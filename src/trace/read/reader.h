/* reader.h - common parts of the readers: lines, complaints, fields, keys of blocks.
 *
 * The reader of a format is one function that parses one line and adds its requests. A fault in a
 * line goes to quire_reader_bad(), which counts the fault and decides whether reading continues.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_READER_H
#define QUIRE_TRACE_READER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/rng.h"
#include "trace/id_map.h"
#include "trace/read/read.h"

#define QUIRE_TRACE_TOKENS_MAX (1u << 30)                    /* of one prompt or answer */
#define QUIRE_TRACE_TIME_MAX   1e17                          /* us; three thousand years */
#define QUIRE_TRACE_LATEST_S   (QUIRE_TRACE_TIME_MAX * 1e-6) /* of times that are made up */

typedef struct quire_reader {
    FILE *file;
    const char *name;
    const quire_trace_read_opts *opts;
    quire_trace *trace;
    quire_trace_report *report;
    quire_error *err;
    char *line; /* [line_bytes], then '\0' */
    size_t line_bytes;
    size_t line_capacity;
    uint64_t line_number; /* of line, from 1 */
    bool is_cut;          /* the line has no end: the file may be truncated */
    bool is_quiet;        /* bad lines are not counted: the file is read again */
    uint64_t *keys;       /* [keys_capacity] of the request at hand */
    uint32_t keys_capacity;
    double token_bytes;  /* of texts: how many bytes stand for a token */
    uint64_t text_bytes; /* of the first reading: token_bytes follows from these */
    uint64_t text_tokens;
    quire_id_map tenants;
    quire_id_map sessions;
    uint32_t *session_numbers; /* [sessions_capacity]: of a chat, its session */
    uint32_t sessions_capacity;
    bool has_columns;
    uint32_t columns[3]; /* of CSV: where time, input and output are */
    bool has_header;     /* of a recorded trace */
    uint64_t recording;  /* which of the file's: the line of its header */
    quire_rng rng;       /* of times that are made up */
    double clock_s;      /* when the last conversation came */
    double time_unit_us; /* of Mooncake's timestamps; 0: there are none */
    bool has_input;      /* lines say how long prompts are */
    bool has_output;     /* and answers */
} quire_reader;

typedef struct quire_reader_format {
    quire_trace_format format;
    bool has_contents;
    /* Whether a line is of this format. json: its document, NULL when it is none. */
    bool (*detect)(const char *line, const json_t *json);
    /* Add the requests of the current line. Errors: only those that end the reading. */
    int (*line)(quire_reader *reader);
    /* Before the first line; may be NULL. */
    int (*begin)(quire_reader *reader);
    /* The requests of an element, where the file is one JSON array; NULL: it may be none. */
    int (*element)(quire_reader *reader, const json_t *element);
} quire_reader_format;

extern const quire_reader_format quire_reader_mooncake;
extern const quire_reader_format quire_reader_azure;
extern const quire_reader_format quire_reader_aibrix;
extern const quire_reader_format quire_reader_sharegpt;
extern const quire_reader_format quire_reader_recorded;

/* ---- lines ---- */

/* The next line that is not empty; 1, or 0 at the end. Errors: QUIRE_IO, QUIRE_NOMEM,
 * QUIRE_CORRUPT. */
int quire_reader_next(quire_reader *reader);
/* From the beginning again. Errors: QUIRE_IO. */
int quire_reader_rewind(quire_reader *reader);

/* Report a fault of the current line. QUIRE_OK: continue; QUIRE_CORRUPT: too many faults. */
__attribute__((format(printf, 2, 3))) int quire_reader_bad(quire_reader *reader, const char *format,
                                                           ...);

/* Whether the file begins with this, blanks aside. */
bool quire_reader_begins(quire_reader *reader, char c);
/* Go through a file that is one JSON array, an element at a time. Invalid JSON ends the reading, as
 * one bad line, because the next element's beginning is unknown. Errors: as element,
 * quire_reader_next(). */
int quire_reader_elements(quire_reader *reader,
                          int (*element)(quire_reader *reader, const json_t *element));

/* The line as JSON; numbers of 19 digits and more that jansson has no integers for have become
 * texts. NULL when it is none: error says why. flags: jansson's. */
json_t *quire_reader_load(quire_reader *reader, size_t flags, json_error_t *error);
/* The line as a JSON object. *out is NULL when it is none, which has been reported then; the caller
 * lets go of it. Errors: as quire_reader_bad(). */
int quire_reader_json(quire_reader *reader, json_t **out);

/* ---- fields ---- */

/* The first of two names that is there (the second may be NULL), as a whole number from min to max
 * (1.0 counts). */
bool quire_reader_count(const json_t *object, const char *const names[2], uint64_t min,
                        uint64_t max, uint64_t *out);
/* A time in units of unit_us microseconds. */
bool quire_reader_time(const json_t *object, const char *name, double unit_us, uint64_t *out);

/* When the next conversation comes, in seconds: a Poisson process. */
double quire_reader_arrival(quire_reader *reader);
/* A duration with this mean, as in such a process. */
double quire_reader_exponential(quire_reader *reader, double mean);

/* Make room for n keys. Errors: QUIRE_NOMEM. */
int quire_reader_keys(quire_reader *reader, uint64_t n);

/* The number of a session, from 1, or of a tenant, from 0, by any key. Errors: QUIRE_NOMEM,
 * QUIRE_LIMIT. */
int quire_reader_session(quire_reader *reader, uint64_t key, uint32_t *out);
int quire_reader_tenant(quire_reader *reader, uint64_t key, uint32_t *out);

/* Add a request, unless there are requests_max; keys as they stand in reader->keys. Errors:
 * QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_reader_add(quire_reader *reader, const quire_trace_request *request);

/* ---- texts ---- */

/* Keys of a text, in pieces of block_tokens tokens; *n_blocks and, where it is 0, *n_tokens are
 * filled in. Errors: QUIRE_NOMEM. */
int quire_reader_text(quire_reader *reader, const char *text, size_t text_bytes,
                      quire_trace_request *request);
/* A number for a text. */
uint64_t quire_reader_hash(const void *text, size_t text_bytes);
/* Number of tokens for text_bytes bytes, at least 1 unless text_bytes is 0. */
uint32_t quire_reader_text_tokens(const quire_reader *reader, size_t text_bytes);

#endif /* QUIRE_TRACE_READER_H */
