/* sim_time.c - TIME mode.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/sim_internal.h"

int quire_sim_time(const quire_trace *trace, const quire_sim_opts *opts, quire_sim_result *out,
                   quire_error *err)
{
    (void)trace;
    (void)opts;
    (void)out;
    return quire_error_set(err, QUIRE_UNSUPP, "no simulation of time in this build");
}
