/* read.h - traces from files.
 *
 *   mooncake   JSON Lines {timestamp (ms), input_length, output_length, hash_ids}: ids of blocks,
 *              of 512 tokens or of the size implied by the lengths; numbers of any length or texts.
 *              A field other than hash_ids may be missing if all lines lack it. Lines with a
 *              chat_id (Qwen-Bailian) have seconds for times and name their sessions
 *   azure      CSV with a header line: TIMESTAMP,ContextTokens,GeneratedTokens; arrived_at,
 *              num_prefill_tokens,num_decode_tokens (Splitwise); Timestamp, Request tokens,
 *              Response tokens (BurstGPT). Times and lengths alone: has_contents is false
 *   aibrix     JSON Lines {timestamp (ms), requests: [{Prompt Length, Output Length, prompt}]}
 *   sharegpt   JSON, an array (or JSON Lines) of {conversations: [{from, value}, ...]}, whose turns
 *              become requests that go on where the one before ended, or of {input, output_length}
 *   recorded   `quire serve --record FILE` (record.h)
 *
 * Texts have no token ids. They are cut into pieces of bytes that stand for tokens, 4 bytes each,
 * or as many as the file's stated prompt lengths say on average: one number for the whole file, so
 * that equal beginnings are cut at the same places. A block's key is the hash of its bytes.
 *
 * A sharegpt file has no times, nor may a mooncake one. Conversations arrive as a Poisson process,
 * and the next turn comes after times for writing the answer and for thinking; drawn from the seed.
 *
 * A line that is not a request is skipped and counted, and the first few are reported by number;
 * too many end the reading. A file that ends in the middle of a line has one bad line.
 *
 * Memory: besides the trace, one line (at most line_bytes_max) and its parsed JSON. Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_READ_H
#define QUIRE_TRACE_READ_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "quire/error.h"
#include "trace/trace.h"

/*  X(symbol, value, "name") */
#define QUIRE_TRACE_FORMAT_MAP(X)                                                                  \
    X(AUTO, 0, "auto")                                                                             \
    X(MOONCAKE, 1, "mooncake")                                                                     \
    X(AZURE, 2, "azure")                                                                           \
    X(AIBRIX, 3, "aibrix")                                                                         \
    X(SHAREGPT, 4, "sharegpt")                                                                     \
    X(RECORDED, 5, "recorded")

typedef enum quire_trace_format {
#define X(sym, val, name) QUIRE_TRACE_FORMAT_##sym = (val),
    QUIRE_TRACE_FORMAT_MAP(X)
#undef X
    QUIRE_TRACE_FORMAT_COUNT
} quire_trace_format;

/* "mooncake"; "unknown" outside the table. Memory: static. */
const char *quire_trace_format_name(quire_trace_format format);

#define QUIRE_TRACE_NAMED_MAX 10u /* bad lines that are named */
#define QUIRE_TRACE_WHY_MAX   300u

typedef struct quire_trace_read_opts {
    quire_trace_format format;        /* AUTO: detected */
    uint32_t block_tokens;            /* of texts and lengths; 0 = 64. Ids have their own */
    uint64_t seed;                    /* of times that are made up */
    double arrivals_per_s;            /* made-up arrivals of conversations; > 0 */
    double think_s;                   /* mean, before a next turn; >= 0 */
    size_t line_bytes_max;            /* longer lines are bad */
    uint64_t bad_lines_max;           /* more end the reading */
    uint32_t requests_max;            /* the rest of the file is left alone */
    const char *name;                 /* its name in messages; NULL = its path */
    const quire_allocator *allocator; /* of the trace; NULL = C library */
} quire_trace_read_opts;

#define QUIRE_TRACE_READ_OPTS_INIT                                                                 \
    {                                                                                              \
        .seed = 1, .arrivals_per_s = 1.0, .think_s = 30.0, .line_bytes_max = (size_t)16 << 20,     \
        .bad_lines_max = 1000, .requests_max = QUIRE_TRACE_REQUESTS_MAX                            \
    }

typedef struct quire_trace_report {
    quire_trace_format format;
    uint64_t n_bad;
    uint32_t n_named;
    char named[QUIRE_TRACE_NAMED_MAX][QUIRE_TRACE_WHY_MAX]; /* "file:12: why" */
    uint64_t n_fitted;     /* requests whose length was not that of their blocks: it is now */
    uint64_t fitted_first; /* the line of the first of them */
    bool has_no_times;     /* they have been made up */
} quire_trace_report;

/* Read a file that can be read twice (no pipe). out is initialised by the call; after QUIRE_OK it
 * has at least one request, is finished, and ends with quire_trace_fini(). opts NULL = defaults;
 * report may be NULL. Errors: QUIRE_IO, QUIRE_UNSUPP (no known format), QUIRE_CORRUPT (too many bad
 * lines, or no good one), QUIRE_LIMIT, QUIRE_NOMEM, QUIRE_INVAL (opts). */
int quire_trace_read(const char *path, const quire_trace_read_opts *opts, quire_trace *out,
                     quire_trace_report *report, quire_error *err);

/* The same of an open file, from its beginning. It stays open. */
int quire_trace_read_stream(FILE *file, const quire_trace_read_opts *opts, quire_trace *out,
                            quire_trace_report *report, quire_error *err);

#endif /* QUIRE_TRACE_READ_H */
