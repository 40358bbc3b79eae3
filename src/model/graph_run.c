/* graph_run.c - computes a graph, by the host alone or by host and device in turns.
 *
 * The device's work is queued: a segment, the copies of its results to the host, a mark behind
 * these. The host waits for the mark before its own segment, and queues the copies of its results
 * without a wait. So a turn of the device costs one wait:
 *
 *   host     compute, queue copies  | queue ops, copies, mark | wait | compute, queue copies
 *   device                            copies, ops, copies, mark  early ops of the next turn ..
 *
 * A copy is queued from and to memory that no operation uses until it is done: the allocator sees
 * it as an operation at the end of its segment, and the queue runs in order. A device that runs
 * copies to it beside its operations (another queue) runs them beside early operations alone, which
 * the allocator sees behind these copies (graph_split.c).
 *
 * SPDX-License-Identifier: MIT */
#include "model/graph.h"

#include "model/graph_split.h"

static enum ggml_status queue(quire_backend_device *device, struct ggml_cgraph *cgraph)
{
    return cgraph != NULL ? quire_backend_device_compute(device, cgraph) : GGML_STATUS_SUCCESS;
}

/* next: the device's segment behind it, or NULL. */
static enum ggml_status host_turn(const quire_graph_segment *s, const quire_graph_segment *next,
                                  const quire_backend *host, quire_backend_device *device,
                                  bool waits)
{
    enum ggml_status status = GGML_STATUS_SUCCESS;

    if (waits) { /* without events for early operations, too, if they were queued before */
        status = next != NULL && device->event != NULL ? queue(device, next->early) : status;
        quire_backend_device_join(device);
        status = next != NULL && device->event == NULL ? queue(device, next->early) : status;
        status = device->is_lost ? GGML_STATUS_FAILED : status; /* nothing came from there */
    }
    if (status == GGML_STATUS_SUCCESS && s->rest != NULL) {
        status = quire_backend_compute(host, s->rest);
    }
    for (uint32_t i = 0; i < s->n_copies && status == GGML_STATUS_SUCCESS; i++) {
        const struct ggml_tensor *from = s->copies[i]->src[0];

        quire_backend_device_set(device, s->copies[i], from->data);
    }
    return status;
}

static enum ggml_status device_turn(const quire_graph_segment *s, quire_backend_device *device)
{
    const enum ggml_status status = queue(device, s->rest);

    for (uint32_t i = 0; i < s->n_copies && status == GGML_STATUS_SUCCESS; i++) {
        quire_backend_device_get(device, s->copies[i]->src[0], s->copies[i]->data);
    }
    quire_backend_device_mark(device);
    return status;
}

enum ggml_status quire_graph_compute(const quire_graph *graph, const quire_backend *host,
                                     quire_backend_device *device)
{
    const quire_graph_segment *s = graph->segments;
    enum ggml_status status = GGML_STATUS_SUCCESS;

    if (graph->n_segments == 0) {
        return quire_backend_compute(host, graph->cgraph);
    }
    for (uint32_t i = 0; i < graph->n_segments && status == GGML_STATUS_SUCCESS; i++) {
        status = i % 2 == QUIRE_GRAPH_HOST
                     ? host_turn(&s[i], i + 1 < graph->n_segments ? &s[i + 1] : NULL, host, device,
                                 i > 0)
                     : device_turn(&s[i], device);
    }
    quire_backend_device_finish(device); /* also of a step that failed: its copies are queued */
    return device->is_lost ? GGML_STATUS_FAILED : status;
}
