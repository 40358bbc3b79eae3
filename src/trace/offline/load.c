/* load.c - a sweep over beginnings and ends.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/offline/load.h"

#include "base/check.h"
#include "quire/status.h"
#include "trace/array.h"

#include <string.h>

/* A request that runs. */
typedef struct running {
    uint64_t end_us;
    uint64_t tokens;
    uint32_t class_index;
} running;

typedef struct sweep {
    quire_load *load;
    running *heap; /* [n], the first to end on top */
    uint32_t n;
    uint64_t now_us;
    uint64_t held_tokens;
    uint64_t held_class_tokens[QUIRE_TRACE_CLASSES_MAX];
    uint32_t n_classes;
} sweep;

static void heap_add(sweep *s, running added)
{
    uint32_t at = s->n++;

    while (at > 0 && s->heap[(at - 1) / 2].end_us > added.end_us) {
        s->heap[at] = s->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->heap[at] = added;
}

static void heap_take(sweep *s)
{
    const running moved = s->heap[--s->n];
    uint32_t at = 0;

    for (uint32_t child; (child = 2 * at + 1) < s->n; at = child) {
        if (child + 1 < s->n && s->heap[child + 1].end_us < s->heap[child].end_us) {
            child++;
        }
        if (s->heap[child].end_us >= moved.end_us) {
            break;
        }
        s->heap[at] = s->heap[child];
    }
    s->heap[at] = moved;
}

/* Advance the time with the current running requests. */
static void advance(sweep *s, uint64_t to_us)
{
    const uint64_t us = to_us - s->now_us;

    quire_dist_add_n(&s->load->running, s->n, us);
    quire_dist_add_n(&s->load->held_tokens, s->held_tokens, us);
    for (uint32_t c = 0; c < s->n_classes; c++) {
        quire_dist_add_n(&s->load->held_class_tokens[c], s->held_class_tokens[c], us);
    }
    s->now_us = to_us;
}

static void end_until(sweep *s, uint64_t time_us)
{
    while (s->n > 0 && s->heap[0].end_us <= time_us) {
        const running ended = s->heap[0];

        advance(s, ended.end_us);
        heap_take(s);
        s->held_tokens -= ended.tokens;
        s->held_class_tokens[ended.class_index] -= ended.tokens;
    }
    advance(s, time_us);
}

static void begin(sweep *s, const quire_trace_request *request, double takes_us)
{
    const uint64_t tokens = (uint64_t)request->n_input_tokens + request->n_output_tokens;
    quire_load_bin *bin = &s->load->bins[request->time_us / s->load->bin_us];

    heap_add(s, (running){ request->time_us + (uint64_t)takes_us, tokens, request->class_index });
    s->held_tokens += tokens;
    s->held_class_tokens[request->class_index] += tokens;
    bin->requests++;
    bin->input_tokens += request->n_input_tokens;
    bin->output_tokens += request->n_output_tokens;
    bin->running_max = s->n > bin->running_max ? s->n : bin->running_max;
    bin->held_tokens_max =
        s->held_tokens > bin->held_tokens_max ? s->held_tokens : bin->held_tokens_max;
}

/* Bins of a width that people use. */
static uint64_t bin_width_us(uint64_t span_us)
{
    static const uint32_t widths_s[] = {
        1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 86400
    };

    for (size_t i = 0; i < sizeof(widths_s) / sizeof(widths_s[0]); i++) {
        if (span_us / ((uint64_t)widths_s[i] * 1000000u) < QUIRE_LOAD_BINS_MAX) {
            return (uint64_t)widths_s[i] * 1000000u;
        }
    }
    return span_us / QUIRE_LOAD_BINS_MAX + 1;
}

int quire_load_measure(quire_load *load, const quire_trace *trace, const uint32_t *new_tokens,
                       const quire_load_cost *cost, const quire_allocator *allocator)
{
    const uint64_t span_us =
        trace->n_requests > 0 ? trace->requests[trace->n_requests - 1].time_us : 0;
    sweep s = { .load = load,
                .n_classes = trace->n_classes > 0 ? trace->n_classes : 1,
                .heap = quire_array_alloc(allocator, trace->n_requests, sizeof(*s.heap)) };

    QUIRE_FAIL_IF(s.heap == NULL, QUIRE_NOMEM);
    memset(load, 0, sizeof(*load));
    load->bin_us = bin_width_us(span_us);
    load->n_bins = (uint32_t)(span_us / load->bin_us) + 1;
    for (uint32_t r = 0; r < trace->n_requests; r++) {
        const quire_trace_request *request = &trace->requests[r];

        end_until(&s, request->time_us);
        begin(&s, request,
              (double)new_tokens[r] * cost->prefill_token_us +
                  (double)request->n_output_tokens * cost->decode_token_us);
    }
    if (trace->n_requests > 0) {
        end_until(&s, span_us + 1); /* the last requests count too */
    }
    quire_array_free(allocator, s.heap);
    return QUIRE_OK;
}
