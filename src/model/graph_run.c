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
 * submitted, and in front of those that come: both are in one queue, or in two that wait for each
 * other's events. In between a step can be given up.
 *
 * A copy is queued from and to memory that no operation uses until it is done: the allocator sees
 * it as an operation at the end of its segment, and the queue runs in order. A device that runs
 * copies to it beside its operations (another queue) runs them beside early operations alone, which
 * the allocator sees behind these copies (graph_split.c).
 *
 * Several devices have a queue each. The host waits for the device whose turn ended. Copies to one
 * whose turn is not the next are done before the host goes on, as it may use their sources again.
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph_build.h"
#include "model/graph_split.h"

/* The sides of a step. */
typedef struct step_sides {
    const quire_graph *graph;
    const quire_backend *host;
    quire_backend_device *devices; /* [n_devices] */
    uint32_t n_devices;
} step_sides;

static quire_backend_device *device_of(const step_sides *s, uint32_t side)
{
    return &s->devices[side - QUIRE_GRAPH_DEVICE];
}

static enum ggml_status layer_queue(const step_sides *s, quire_backend_device *device,
                                    const quire_graph_work *work)
{
    if (quire_backend_gives_up(s->host)) {
        return GGML_STATUS_ABORTED;
    }
    quire_backend_device_submit(device);
    if (device->is_lost) {
        return GGML_STATUS_FAILED;
    }
    quire_graph_work_queue(s->graph, work);
    quire_backend_device_resume(device);
    return device->is_lost ? GGML_STATUS_FAILED : GGML_STATUS_SUCCESS;
}

/* Behind the first layer the device has work in any case, and a small graph is submitted whole. */
static enum ggml_status queue(const step_sides *s, quire_backend_device *device,
                              const quire_graph_work *works, uint32_t n)
{
    enum ggml_status status = GGML_STATUS_SUCCESS;

    for (uint32_t i = 0; i < n && status == GGML_STATUS_SUCCESS; i++) {
        if (works[i].cgraph == NULL) {
            status = layer_queue(s, device, &works[i]);
            continue;
        }
        if (i > 0 && works[i].is_small) {
            quire_backend_device_gather(device);
        }
        status = quire_backend_device_compute(device, works[i].cgraph);
    }
    return status;
}

static enum ggml_status early_queue(const step_sides *s, const quire_graph_segment *segment)
{
    return segment != NULL ? queue(s, device_of(s, segment->side), segment->early, segment->n_early)
                           : GGML_STATUS_SUCCESS;
}

/* Wait for the device whose turn was before. next: the device's segment behind the host's, or NULL.
 * Without events early operations of the same device come behind the wait. */
static enum ggml_status turn_join(const step_sides *s, const quire_graph_segment *before,
                                  const quire_graph_segment *next)
{
    quire_backend_device *device = device_of(s, before->side);
    const bool goes_on = device->event != NULL;
    enum ggml_status status = goes_on ? early_queue(s, next) : GGML_STATUS_SUCCESS;

    quire_backend_device_join(device);
    status = !goes_on ? early_queue(s, next) : status;
    return device->is_lost ? GGML_STATUS_FAILED : status; /* nothing came from there */
}

/* Queue the copies of the host's results. */
static void copies_queue(const step_sides *s, const quire_graph_segment *segment,
                         const quire_graph_segment *next)
{
    bool has_copies[QUIRE_GRAPH_SIDES] = { false };

    for (uint32_t i = 0; i < segment->n_copies; i++) {
        const struct ggml_tensor *from = segment->copies[i]->src[0];
        const uint32_t side = (uint32_t)segment->copies_to[i];

        has_copies[side] = true;
        quire_backend_device_set(device_of(s, side), segment->copies[i], from->data);
    }
    for (uint32_t side = QUIRE_GRAPH_DEVICE; side < QUIRE_GRAPH_SIDES; side++) {
        if (has_copies[side] && (next == NULL || next->side != side)) {
            quire_backend_device_finish(device_of(s, side));
        }
    }
}

/* before, next: the devices' segments around it, or NULL. */
static enum ggml_status host_turn(const step_sides *s, const quire_graph_segment *segment,
                                  const quire_graph_segment *before,
                                  const quire_graph_segment *next)
{
    enum ggml_status status = before != NULL ? turn_join(s, before, next) : GGML_STATUS_SUCCESS;

    if (status == GGML_STATUS_SUCCESS && segment->n_rest > 0) {
        status = quire_backend_compute(s->host, segment->rest->cgraph);
    }
    if (status == GGML_STATUS_SUCCESS) {
        copies_queue(s, segment, next);
    }
    return status;
}

/* is_last: nobody waits for a mark behind it. */
static enum ggml_status device_turn(const step_sides *sides, const quire_graph_segment *s,
                                    bool is_last)
{
    quire_backend_device *device = device_of(sides, s->side);
    const enum ggml_status status = queue(sides, device, s->rest, s->n_rest);

    for (uint32_t i = 0; i < s->n_copies && status == GGML_STATUS_SUCCESS; i++) {
        quire_backend_device_get(device, s->copies[i]->src[0], s->copies[i]->data);
    }
    if (!is_last) {
        quire_backend_device_mark(device);
    }
    return status;
}

enum ggml_status quire_graph_compute(const quire_graph *graph, const quire_backend *host,
                                     quire_backend_device *devices, uint32_t n_devices)
{
    const step_sides sides = {
        .graph = graph, .host = host, .devices = devices, .n_devices = n_devices
    };
    const quire_graph_segment *s = graph->segments;
    enum ggml_status status = GGML_STATUS_SUCCESS;

    if (graph->n_segments == 0) {
        return quire_backend_compute(host, graph->cgraph);
    }
    for (uint32_t i = 0; i < graph->n_segments && status == GGML_STATUS_SUCCESS; i++) {
        const bool is_last = i + 1 == graph->n_segments;

        status = s[i].side == QUIRE_GRAPH_HOST ? host_turn(&sides, &s[i], i > 0 ? &s[i - 1] : NULL,
                                                           is_last ? NULL : &s[i + 1])
                                               : device_turn(&sides, &s[i], is_last);
    }
    for (uint32_t i = 0; i < n_devices; i++) { /* also of a step that failed: copies are queued */
        quire_backend_device_finish(&devices[i]);
        status = devices[i].is_lost ? GGML_STATUS_FAILED : status;
    }
    return status;
}
