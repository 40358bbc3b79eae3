/* analyze_out.h - the results of `quire analyze`, and their forms of output.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_ANALYZE_OUT_H
#define QUIRE_CLI_ANALYZE_OUT_H

#include <jansson.h>
#include <stdio.h>

#include "cli/traces/sim_grid.h"
#include "trace/offline/recommend.h"
#include "trace/offline/shards.h"
#include "trace/read/read.h"

typedef struct quire_analyzed {
    const char *path;
    const quire_trace *trace;
    quire_trace_format format;
    quire_analysis *analysis;
    quire_mrc mrc;
    quire_shards *shards;
    double shards_error;  /* the greatest, over the capacities of the table */
    double token_bytes;   /* of layers that keep all tokens; 0 = not known */
    quire_sim_kv kv;      /* windows and states; all 0 = none */
    double text_bytes;    /* of them, of a cached request */
    double running_bytes; /* of them, of a running request */
    double block_bytes;   /* of a cached block, its share of them included; 0 = not known */
    uint64_t capacities[QUIRE_SIM_COLUMNS_MAX]; /* of LRU's curve; those of the grid besides */
    uint32_t n_capacities;
    quire_sim_grid grid; /* of all policies; without columns when there are no contents */
    uint32_t column;     /* of the grid: the recommended capacity */
    quire_recommendation recommendation;
    quire_sim_result timeline; /* of the default policy at that capacity; n_points 0 = none */
} quire_analyzed;

/* "12,031 requests in 59m, ..." into a buffer; returns it. */
char *quire_analyzed_title(const quire_analyzed *a, char *text, size_t text_bytes);

/* The text in two halves: figures of the trace, then results of the simulations. */
void quire_analyzed_print_trace(const quire_analyzed *a, FILE *out);
void quire_analyzed_print_policies(const quire_analyzed *a, FILE *out);

/* One document; NULL when there is no memory. */
json_t *quire_analyzed_json(const quire_analyzed *a);

/* The data of the page (report.h); NULL when there is no memory. yaml: the recommendation. */
json_t *quire_analyzed_report(const quire_analyzed *a, const char *yaml);

#endif /* QUIRE_CLI_ANALYZE_OUT_H */
