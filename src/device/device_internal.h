/* device_internal.h - the functions of a device behind quire/device.h; for src/device alone.
 *
 * device.c checks arguments, counts memory, and answers for a lost device. So the functions here
 * get arguments that are in order, of a device that is not known to be lost.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_DEVICE_INTERNAL_H
#define QUIRE_DEVICE_DEVICE_INTERNAL_H

#include "device/device_ahead.h"
#include "quire/device.h"

/* As the public functions of the same names. */
typedef struct quire_device_ops {
    bool is_in_place; /* rows are read where they are, by all threads; enter and leave are NULL */
    void (*close)(quire_device *device);
    void (*info)(const quire_device *device, quire_device_info *out);
    const void *(*queue_owner)(const quire_device *device); /* NULL: its queue is its own */
    /* NULL: nobody's queue can be beside. */
    int (*queue_share)(quire_device *device, const void *owner, void *before, void *behind);
    int (*alloc)(quire_device *device, quire_device_kind kind, uint64_t bytes,
                 quire_device_memory *out);
    void (*free)(quire_device *device, quire_device_memory *memory);
    int (*copy)(quire_device *device, const quire_device_piece *pieces, uint32_t n_pieces);
    int (*record)(quire_device *device, quire_device_event *out);
    int (*wait)(quire_device *device, quire_device_event event);
    /* The second queue, for copies; NULL if rows are read in place. copy_beside() queues copies
     * that begin when all work queued so far is done; *out is their number. Work that is queued
     * behind join() begins when the copies up to that number are done. wait_beside(): until they
     * are. */
    int (*copy_beside)(quire_device *device, const quire_device_piece *pieces, uint32_t n_pieces,
                       quire_device_event *out);
    int (*join)(quire_device *device, quire_device_event event);
    int (*wait_beside)(quire_device *device, quire_device_event event);
    int (*check)(const quire_device *device, const quire_attn_layer *layer);
    int (*plan)(quire_device *device, const quire_attn_batch *batch);
    int (*enter)(quire_device *device, const quire_attn_layer *layer, quire_attn_layer *own);
    void (*append)(quire_device *device, const quire_attn_layer *own, uint32_t thread,
                   uint32_t n_threads);
    void (*attn)(quire_device *device, const quire_attn_layer *own, uint32_t call, uint32_t thread,
                 uint32_t n_threads);
    int (*leave)(quire_device *device, const quire_attn_layer *layer, const quire_attn_layer *own);
    /* As quire_attn_device.queue(); for devices with a queue_owner() alone. */
    int (*queue)(quire_device *device, const quire_attn_layer *layer, unsigned what);
} quire_device_ops;

/* Memory that the device gave to a cache: device_pages.c. */
typedef struct quire_device_extents {
    quire_device_memory *items; /* by address */
    uint32_t n;
    uint32_t max;
    quire_device_kind kind; /* pinned memory has addresses of the host */
} quire_device_extents;

/* The beginning of every device. */
struct quire_device {
    const quire_device_ops *ops;
    quire_allocator allocator; /* for memory other than pages */
    uint64_t memory_bytes_max; /* 0: no bound of the owner's */
    uint64_t used_bytes;
    uint32_t n_groups;             /* of tables of a sequence */
    quire_device_event last_event; /* that record() has given */
    bool is_lost;
    int step_status; /* of the step at hand, seen through quire_device_attention() */
    quire_device_extents extents;
    quire_device_extents pinned; /* where pages outside of the device lie */
    quire_device_memory stage;   /* pinned: bytes of pages on their way, in parts */
    quire_device_ahead ahead;
};

/* The fields that all devices have alike. */
void quire_device_init(quire_device *device, const quire_device_ops *ops,
                       const quire_device_opts *opts);

/* Note the loss. Returns QUIRE_LOST. */
int quire_device_lose(quire_device *device);

/* Attention of a layer on a device with a queue, as thread 0 of a step has it done: the work is
 * queued; *own is for finish(), which waits for the result. A failure goes to step_status. */
void quire_device_step_queue(quire_device *device, const quire_attn_layer *layer, uint32_t call,
                             quire_attn_layer *own);
void quire_device_step_finish(quire_device *device, const quire_attn_layer *layer,
                              const quire_attn_layer *own);

/* A layer whose rows are on the device, as quire_attn_device.queue(); its work is not waited for.
 * Errors: as quire_device_enter(). */
int quire_device_queue(quire_device *device, const quire_attn_layer *layer, unsigned what);

/* As sync(), but bytes that wait to go to pages (device_ahead.h) go on waiting. */
int quire_device_drain(quire_device *device);

/* Wait for all work of the first queue, that of steps. */
int quire_device_drain_steps(quire_device *device);

/* The piece of memory that an address lies in. */
const quire_device_memory *quire_device_place(const quire_device_extents *extents,
                                              const unsigned char *addr, uint64_t *offset);

/* Free the memory that device_pages.c has taken. The cache has ended. */
void quire_device_pages_end(quire_device *device);

/* The CPU. Its pages claim to lie in `memory`: the host's, or that of a device built over this one.
 */
int quire_cpu_device_open(quire_device **out, const quire_device_opts *opts, quire_memory memory,
                          quire_error *err);

#endif /* QUIRE_DEVICE_DEVICE_INTERNAL_H */
