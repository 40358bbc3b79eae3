/* trace_args.h - options of the commands that read a trace.
 *
 * Thread: the main thread only.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_TRACE_ARGS_H
#define QUIRE_CLI_TRACE_ARGS_H

#include <stdint.h>

#include "cli/settings/options.h"
#include "trace/read/read.h"

typedef struct quire_trace_args {
    const char *path;
    int format; /* quire_trace_format */
    int64_t block_tokens;
    int64_t requests_max;
    int64_t bad_lines_max;
    int64_t seed;
    double arrivals_per_s;
    uint64_t think_us;
} quire_trace_args;

extern const char *const quire_trace_format_choices[];

/* clang-format off */
/* For a struct `args_type` with a member `trace`. */
#define QUIRE_ROWS_TRACE(args_type)                                                                \
    { .names = { "--trace" }, .type = QUIRE_OPT_TEXT, .is_required = true, .unit = "FILE",         \
      .offset = offsetof(args_type, trace.path), .help = "file with the trace" },                  \
    { .names = { "--format" }, .type = QUIRE_OPT_CHOICE, .choices = quire_trace_format_choices,    \
      .initial = "auto", .offset = offsetof(args_type, trace.format),                              \
      .help = "format of the trace; auto: detect it" },                                            \
    { .names = { "--block-tokens" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 65536, \
      .initial = "64", .offset = offsetof(args_type, trace.block_tokens),                          \
      .help = "tokens in a block, if the trace has texts or lengths instead of blocks" },          \
    { .names = { "--requests" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,                   \
      .max = QUIRE_TRACE_REQUESTS_MAX, .initial_text = "all",                                      \
      .offset = offsetof(args_type, trace.requests_max), .help = "read the first N requests" },    \
    { .names = { "--bad-lines" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0, .max = 1e15,     \
      .initial = "1000", .offset = offsetof(args_type, trace.bad_lines_max),                       \
      .help = "give up after more than N bad lines" },                                             \
    { .names = { "-s", "--seed" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,                 \
      .max = 4294967294.0, .initial = "1", .offset = offsetof(args_type, trace.seed),              \
      .help = "seed of all random choices: equal seeds give equal figures" },                      \
    { .names = { "--arrivals" }, .type = QUIRE_OPT_REAL, .unit = "RATE", .min = 1e-6, .max = 1e6,  \
      .initial = "1", .offset = offsetof(args_type, trace.arrivals_per_s),                         \
      .help = "conversations per second, if the trace has no times" },                             \
    { .names = { "--think" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 0, .max = 1e7,    \
      .initial = "30s", .offset = offsetof(args_type, trace.think_us),                             \
      .help = "mean time between an answer and the next turn, if the trace has no times" }
/* clang-format on */

/* Read the trace. Reports bad lines, and a trace whose blocks cannot be told apart, on stderr.
 * report may be NULL. Errors: as quire_trace_read(). Memory: quire_trace_fini() after QUIRE_OK. */
int quire_trace_args_read(const quire_trace_args *args, quire_trace *out,
                          quire_trace_report *report, quire_error *err);

#endif /* QUIRE_CLI_TRACE_ARGS_H */
