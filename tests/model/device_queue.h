/* device_queue.h - a device of ggml that works as late as it may, over the backend of the CPU:
 * queued work waits until the host waits for it. A host that reads too early, or overwrites the
 * source of a queued copy, gets wrong numbers. Its memory can be hidden from the host, and any of
 * its calls can throw an exception of C++, as ggml does for a card.
 *
 * The calls of ggml are wrapped (the link option --wrap, CMakeLists.txt), so ggml needs no device.
 * The host's part of a compute buffer is another memory than the device's, as with a card, if the
 * build has found the header of ggml that describes types of buffers.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DEVICE_QUEUE_H
#define QUIRE_TESTS_DEVICE_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "model/runtime.h"

#include <ggml-backend.h>

typedef enum device_queue_mode {
    DEVICE_QUEUE_NONE,   /* calls go to ggml as they are, of any device */
    DEVICE_QUEUE_PLAIN,  /* the host waits for all that is queued */
    DEVICE_QUEUE_EVENTS, /* it may wait for a part */
    DEVICE_QUEUE_TWO,    /* the same, and copies to the device overtake its operations */
    DEVICE_QUEUE_MODES
} device_queue_mode;

typedef struct device_queue_counts {
    uint32_t waits;    /* of the host, by any call */
    uint32_t events;   /* of them for a part of the queue */
    uint32_t graphs;   /* that the device computed */
    uint32_t hosts;    /* graphs that the host computed */
    uint32_t beside;   /* of the host's: while a graph of the device was queued */
    uint32_t copies;   /* queued, both ways */
    uint32_t blocking; /* copies that were not queued */
    uint32_t layers;   /* whose attention was queued */
} device_queue_counts;

/* Set the mode of runtimes that are opened next. The queue must be empty. */
void device_queue_set(device_queue_mode mode);

/* Hide a buffer of weights: the host sees no memory of its own there, and the wrong bytes. NULL:
 * none is hidden any more. */
void device_queue_hide(ggml_backend_buffer_t buffer);

/* The counts since the last call. */
device_queue_counts device_queue_counts_take(void);

/* Whether host and device have a memory each. */
bool device_queue_has_two_memories(void);

/* The n-th call of the device's from now on throws, and so do all later ones, as those of a lost
 * card; 0: none. What is queued then is never done. Calls are graphs, copies, marks, waits, and in
 * front of the first step the opening of devices and backends, room in buffers, and writes to them.
 */
#define DEVICE_QUEUE_THROWN "vk::Queue::submit: ErrorDeviceLost"
void device_queue_fail(uint32_t n);
/* The calls since then. */
uint32_t device_queue_calls(void);

/* Let a runtime's append and attention be queued there, too: the CPU's, done as late as all other
 * work. Of one runtime at a time, with one thread, before its first step. */
void device_queue_attend(quire_runtime *runtime);

/* The number of queued operations. */
uint32_t device_queue_length(void);

#endif /* QUIRE_TESTS_DEVICE_QUEUE_H */
