/* trace_args.c - reading the trace that a command was given.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/traces/trace_args.h"

#include "base/check.h"
#include "cli/commands/talk.h"

#include <inttypes.h>

const char *const quire_trace_format_choices[] = {
#define X(sym, val, name) [val] = (name),
    QUIRE_TRACE_FORMAT_MAP(X)
#undef X
        [QUIRE_TRACE_FORMAT_COUNT] = NULL,
};

int quire_trace_args_read(const quire_trace_args *args, quire_trace *out,
                          quire_trace_report *report, quire_error *err)
{
    quire_trace_read_opts opts = QUIRE_TRACE_READ_OPTS_INIT;
    quire_trace_report unseen;

    report = report != NULL ? report : &unseen;
    opts.format = (quire_trace_format)args->format;
    opts.block_tokens = (uint32_t)args->block_tokens;
    opts.seed = (uint64_t)args->seed;
    opts.arrivals_per_s = args->arrivals_per_s;
    opts.think_s = (double)args->think_us * 1e-6;
    opts.bad_lines_max = (uint64_t)args->bad_lines_max;
    if (args->requests_max > 0) {
        opts.requests_max = (uint32_t)args->requests_max;
    }
    QUIRE_TRY(quire_trace_read(args->path, &opts, out, report, err));
    for (uint32_t i = 0; i < report->n_named; i++) {
        quire_say("%s", report->named[i]);
    }
    if (report->n_bad > 0) {
        quire_say("%s: %" PRIu64 " bad lines left out", args->path, report->n_bad);
    }
    if (report->n_fitted > 0) {
        quire_say("%s: %" PRIu64 " lines, the first of them %" PRIu64 ", have a length that "
                  "their blocks of %" PRIu32 " tokens do not make: the blocks count",
                  args->path, report->n_fitted, report->fitted_first, out->block_tokens);
    }
    if (report->has_no_times) {
        quire_say("%s has no times: they are made up", args->path);
    }
    if (!out->has_contents) {
        quire_say("%s has times and lengths alone: every block counts as new, so hit rates say "
                  "nothing about it",
                  args->path);
    }
    return QUIRE_OK;
}
