/* graph_run.c - computes a graph, by the host alone or by host and device in turns.
 *
 * The device's work is queued: a segment, the copies of its results to the host, a mark behind
 * these. The host waits for the mark before its own segment, and queues the copies of its results
 * without a wait. So a turn of the device costs one wait:
 *
 *   host     compute, queue copies  | queue ops, copies, mark | wait | compute, queue copies
 *   device                            copies, ops, copies, mark  early ops of the next turn ..
 *
 * Append and attention in the device's turn are queued, too, behind ggml's operations that were
 * submitted, and in front of those that come: both are in one queue. In between a step can be given
 * up.
 *
 * A copy is queued from and to memory that no operation uses until it is done: the allocator sees
 * it as an operation at the end of its segment, and the queue runs in order. A device that runs
 * copies to it beside its operations (another queue) runs them beside early operations alone, which
 * the allocator sees behind these copies (graph_split.c).
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_build.h"
#include "model/graph_split.h"

/* The sides of a step. */
typedef struct step_sides {
    const quire_graph *graph;
    const quire_backend *host;
    quire_backend_device *device;
} step_sides;

static enum ggml_status layer_queue(const step_sides *s, const quire_graph_work *work)
{
    if (quire_backend_gives_up(s->host)) {
        return GGML_STATUS_ABORTED;
    }
    quire_backend_device_submit(s->device);
    if (s->device->is_lost) {
        return GGML_STATUS_FAILED;
    }
    quire_graph_work_queue(s->graph, work);
    return GGML_STATUS_SUCCESS;
}

/* Behind the first layer the device has work in any case, and a graph is submitted whole. */
static enum ggml_status queue(const step_sides *s, const quire_graph_work *works, uint32_t n)
{
    enum ggml_status status = GGML_STATUS_SUCCESS;

    for (uint32_t i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        if (works[i].cgraph == NULL) {
            status = layer_queue(s, &works[i]);
            continue;
        }
        if (i > 0) {
            quire_backend_device_gather(s->device);
        }
        status = quire_backend_device_compute(s->device, works[i].cgraph);
    }
    return status;
}

static enum ggml_status early_queue(const step_sides *s, const quire_graph_segment *segment)
{
    return segment != NULL ? queue(s, segment->early, segment->n_early) : GGML_STATUS_SUCCESS;
}

/* next: the device's segment behind it, or NULL. */
static enum ggml_status host_turn(const step_sides *s, const quire_graph_segment *segment,
                                  const quire_graph_segment *next, bool waits)
{
    const bool has_event = s->device->event != NULL;
    enum ggml_status status = GGML_STATUS_SUCCESS;

    if (waits) { /* without events for early operations, too, if they were queued before */
        status = has_event ? early_queue(s, next) : status;
        quire_backend_device_join(s->device);
        status = !has_event ? early_queue(s, next) : status;
        status = s->device->is_lost ? GGML_STATUS_FAILED : status; /* nothing came from there */
    }
    if (status == GGML_STATUS_SUCCESS && segment->n_rest > 0) {
        status = quire_backend_compute(s->host, segment->rest->cgraph);
    }
    for (uint32_t i = 0; i < segment->n_copies && status == GGML_STATUS_SUCCESS; i++) {
        const struct ggml_tensor *from = segment->copies[i]->src[0];

        quire_backend_device_set(s->device, segment->copies[i], from->data);
    }
    return status;
}

/* is_last: nobody waits for a mark behind it. */
static enum ggml_status device_turn(const step_sides *sides, const quire_graph_segment *s,
                                    bool is_last)
{
    quire_backend_device *device = sides->device;
    const enum ggml_status status = queue(sides, s->rest, s->n_rest);

    for (uint32_t i = 0; i < s->n_copies && status == GGML_STATUS_SUCCESS; i++) {
        quire_backend_device_get(device, s->copies[i]->src[0], s->copies[i]->data);
    }
    if (!is_last) {
        quire_backend_device_mark(device);
    }
    return status;
}

enum ggml_status quire_graph_compute(const quire_graph *graph, const quire_backend *host,
                                     quire_backend_device *device)
{
    const step_sides sides = { .graph = graph, .host = host, .device = device };
    const quire_graph_segment *s = graph->segments;
    enum ggml_status status = GGML_STATUS_SUCCESS;

    if (graph->n_segments == 0) {
        return quire_backend_compute(host, graph->cgraph);
    }
    for (uint32_t i = 0; i < graph->n_segments && status == GGML_STATUS_SUCCESS; i++) {
        status = i % 2 == QUIRE_GRAPH_HOST
                     ? host_turn(&sides, &s[i], i + 1 < graph->n_segments ? &s[i + 1] : NULL, i > 0)
                     : device_turn(&sides, &s[i], i + 1 == graph->n_segments);
    }
    quire_backend_device_finish(device); /* also of a step that failed: its copies are queued */
    return device->is_lost ? GGML_STATUS_FAILED : status;
}
