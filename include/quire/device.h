/* quire/device.h - a device: memory for pages, a queue of copies, and attention on pages there.
 *
 * A cache keeps its pages in extents (quire/cache.h). A device gives the memory of such extents,
 * moves bytes between its own memory and the host's, and computes the attention of a step on the
 * pages that lie in its memory. The CPU is a device whose memory is the host's. libquire's devices
 * and their limits: docs/gpu.md.
 *
 *   open   ->  alloc   extents, and pinned memory for data on the way
 *              copy    pages there and back; record, wait: an event behind them
 *   a step ->  plan    the batch's tables, once for all layers
 *              enter   the rows of a layer: q, k_new, v_new
 *              append  K and V of the rows into their pages       (as quire_attn_append())
 *              attn    attention of the rows over their pages     (as quire_attn_run())
 *              leave   the result back to the caller
 *   sync   ->  everything is done
 *   close
 *
 * Order. Work is queued: copy, enter, append and attn return before their work is done. A device
 * does its work in the order of the calls, so attn sees the writes of append, and a copy out of a
 * page sees both. record() gives an event; wait() returns when all work before the event is done.
 * leave() waits for the result that it returns. On the CPU each call has done its work when it
 * returns.
 *
 * Ownership. Memory belongs to the device that gave it, and ends with quire_device_free() or with
 * the device. The caller frees no memory that queued work uses, and changes no bytes that a queued
 * copy reads. plan() borrows the batch, and all it points to, until the last leave() of the step:
 * page addresses included, which are those of the device's memory. enter() takes copies of the
 * rows: the caller's may change as soon as it has returned, unless the device is the CPU's, which
 * reads them in place until leave().
 *
 * Threads. One thread owns a device and makes all calls, with one exception: append() and attn()
 * are called by all threads of a step, as quire_attn_append() and quire_attn_run() are, with a
 * barrier between two calls. A device with a queue of its own has its work from thread 0, and the
 * other threads return at once. A step on such a device may as well have one thread.
 *
 * Errors. A call that cannot be queued says so itself and has no effect. Work that fails later is
 * reported once, by the first wait(), leave() or sync() that waits for it: QUIRE_IO (a copy; its
 * target then holds anything). append() and attn() return nothing; their failures come the same
 * way. Memory that is used up is QUIRE_NOMEM: the device goes on, and the caller frees memory or
 * does with less.
 *
 * Loss. A device can be lost at any time: a driver was reset, a card fell out. From then on every
 * call returns QUIRE_LOST, the memory's contents are gone, and queued work may be done or not. A
 * lost device takes free() and close(), and nothing repairs it: the owner opens another one.
 *
 * Results. Each device has kernels of its own, and they have a rounding of their own
 * (quire_device_info.rounding): pages that two devices computed from the same tokens may differ in
 * bits, and so may results on the same pages. The same calls on the same device give the same bits.
 * quire/attn.h ("Dependence") lists the inputs that a result depends on, for all devices. How far a
 * result may be from quire_attn_ref() is the table of tests/device.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_H
#define QUIRE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quire/alloc.h"
#include "quire/attn.h"
#include "quire/error.h"

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

typedef struct quire_device quire_device;

/* Tokens per partial on a card, where `split_entries` is 0: a constant, so that bits do not depend
 * on the batch (quire/attn.h, "Dependence"). docs/gpu.md has the arithmetic. */
#define QUIRE_DEVICE_SPLIT_TOKENS 256u

typedef struct quire_device_opts {
    uint32_t struct_bytes;
    uint64_t memory_bytes_max; /* limit of all memory from alloc(); 0 = the device's memory */
    /* The limits of a step. `isa` is the CPU's alone; `memory` is the device's own choice. */
    quire_attn_workspace_opts attn;
} quire_device_opts;

#define QUIRE_DEVICE_OPTS_INIT                                                                     \
    {                                                                                              \
        .struct_bytes = (uint32_t)sizeof(quire_device_opts),                                       \
        .attn = QUIRE_ATTN_WORKSPACE_OPTS_INIT                                                     \
    }

/* Open a device by name: "cpu", "vulkan0" to "vulkan9" in the order of Vulkan's loader, or "cuda0"
 * to "cuda9" in the order of CUDA's driver. *err, which may be NULL, names the reason. Errors:
 * QUIRE_NOTFOUND (no such device here), QUIRE_INVAL (limits), QUIRE_UNSUPP (not in this build, or
 * the device lacks a feature), QUIRE_NOMEM. Memory: quire_device_close(). */
int quire_device_open(quire_device **out, const char *name, const quire_device_opts *opts,
                      quire_error *err);

/* Waits for queued work, and ends the memory that the device gave. Accepts NULL. */
void quire_device_close(quire_device *device);

typedef struct quire_device_info {
    char name[16];         /* as open() takes it */
    char description[128]; /* for people: the card, the driver */
    uint32_t card;         /* its place among all cards that its driver's loader lists */
    const char *isa;       /* its kind of kernels: "avx512", "vulkan" and so on. Static */
    char rounding[64];     /* all that the bits of its results depend on: isa, and with Vulkan card
                              and driver. Part of the identity of pages */
    char card_rounding[192]; /* with CUDA, on what the bits of others' kernels there depend: the
                                card's model, its compute capability, the driver's version. Part of
                                that identity where ggml computes layers there. "" elsewhere */
    bool is_software;        /* the CPU computes for it: the CPU itself, or Mesa's lavapipe */
    quire_memory memory;     /* in which it reads pages: quire_page_addr.memory */
    uint64_t memory_bytes;   /* that alloc() may give; 0 = not known */
    uint64_t free_bytes;     /* of it, now and for this process; UINT64_MAX = not known */
    uint64_t used_bytes;     /* that it has given */
    bool is_lost;
} quire_device_info;
void quire_device_info_get(const quire_device *device, quire_device_info *out);

/* info.is_lost alone, without a question to the driver: for each step. */
bool quire_device_is_lost(const quire_device *device);

/* Whose work layers with rows on the device come between (quire_attn_device.queue()): that of an
 * owner in this process (ggml's backend of the card, in programs with -ngl). NULL: nobody's. */
const void *quire_device_queue_owner(const quire_device *device);

/* Give a device an owner whose work is in another queue of the same card (CUDA: another stream).
 * Two events of the driver's order both queues. The owner records `before` behind the work that a
 * layer needs, then calls queue(), then has its queue wait for `behind`, which the device records
 * behind the layer. The host waits for neither. The events live until the last queue() has
 * returned. Errors: QUIRE_UNSUPP (the device has no queue beside another one), QUIRE_LOST. */
int quire_device_queue_share(quire_device *device, const void *owner, void *before, void *behind);

/* ---- memory ---- */

typedef enum quire_device_kind {
    QUIRE_DEVICE_PAGES, /* the device reads and writes it fast: extents */
    QUIRE_DEVICE_PINNED /* the host's, where copies are as fast as the link: the ends of copies */
} quire_device_kind;

/* A piece of memory, aligned to 64 bytes. Its contents are anything until they are written. */
typedef struct quire_device_memory {
    unsigned char
        *addr; /* as the device sees it, for quire_page_addr.extent; NULL: not for pages */
    unsigned char *host; /* as the host sees it; NULL: by copy() alone */
    uint64_t bytes;
    void *ctx; /* the device's */
} quire_device_memory;

/* Errors: QUIRE_INVAL (0 bytes), QUIRE_NOMEM, QUIRE_LOST. Then *out is empty. */
int quire_device_alloc(quire_device *device, quire_device_kind kind, uint64_t bytes,
                       quire_device_memory *out);

/* No queued work may use it; of a lost device the call waits for that work, if the card goes on
 * with it. *memory becomes empty; empty memory is accepted. */
void quire_device_free(quire_device *device, quire_device_memory *memory);

/* Bytes from one piece of a device's memory to another one, or to another place of the same that
 * does not overlap. */
typedef struct quire_device_piece {
    const quire_device_memory *to;
    uint64_t to_offset;
    const quire_device_memory *from;
    uint64_t from_offset;
    uint64_t bytes;
} quire_device_piece;

/* Queue copies. The pieces are read before it returns; their bytes are not. Pieces of one call may
 * be copied in any order. Errors: QUIRE_INVAL (beyond the memory), QUIRE_NOMEM, QUIRE_LOST. */
int quire_device_copy(quire_device *device, const quire_device_piece *pieces, uint32_t n_pieces);

/* ---- order ---- */

/* A place in the queue: behind all work that was queued before. 0 is before everything. */
typedef uint64_t quire_device_event;

/* Errors: QUIRE_LOST. */
int quire_device_record(quire_device *device, quire_device_event *out);

/* Wait until all work before the event is done. Errors: QUIRE_INVAL (an event that record() did not
 * give), QUIRE_IO (work before it has failed), QUIRE_LOST. */
int quire_device_wait(quire_device *device, quire_device_event event);

/* Wait until all queued work is done. Errors: as wait(). */
int quire_device_sync(quire_device *device);

/* ---- a step ---- */

/* Whether the device computes a layer: its constants, not its pointers. Once, when a model is
 * opened. Errors: as quire_attn_layer_check(), and QUIRE_UNSUPP for a feature that the device's
 * kernels lack. */
int quire_device_check(const quire_device *device, const quire_attn_layer *layer);

/* Check the batch, and read the fields that attention needs. Pages must lie in the device's memory.
 * Errors: as quire_attn_begin(), QUIRE_LOST. After a failure the step is empty. */
int quire_device_plan(quire_device *device, const quire_attn_batch *batch);

/* The rows of a layer come to the device: q, k_new, v_new, gates, sinks, those that are not NULL.
 * *own is the layer as append() and attn() take it, with rows where the device has them. Room for
 * two layers' rows: a third enter() waits for the end of the first one's work. The layer must
 * satisfy quire_device_check(). Errors: QUIRE_IO (earlier work), QUIRE_LOST. */
int quire_device_enter(quire_device *device, const quire_attn_layer *layer, quire_attn_layer *own);

/* own: of enter(). Threads: see above. */
void quire_device_append(quire_device *device, const quire_attn_layer *own, uint32_t thread,
                         uint32_t n_threads);
void quire_device_attn(quire_device *device, const quire_attn_layer *own, uint32_t call,
                       uint32_t thread, uint32_t n_threads);

/* The rows' result into layer->out. layer: that enter() was given; with `out` NULL there is no
 * result, and nothing to wait for. Errors: QUIRE_IO, QUIRE_LOST; then `out` holds anything. */
int quire_device_leave(quire_device *device, const quire_attn_layer *layer,
                       const quire_attn_layer *own);

/* The device as a step of the model sees it (quire/attn.h), with rows in the host's memory: append
 * and run enter, do their work, and leave. It is valid as long as the device. */
quire_attn_device quire_device_attention(quire_device *device);

/* ---- pages in two memories ---- */

/* A device and the CPU together, for pages of which some lie in the host's memory: plan() divides
 * each table by the memory that the pages' addresses name. The device attends its own pages.
 * Meanwhile the CPU's kernels attend those in the host's memory where they lie, and the results of
 * each row are joined (quire_attn_merge()). A step without pages in the host's memory goes to the
 * device as it is, with the same bits as without this.
 *
 * Limits. The pages of one entry in all groups, those with its hot tiles too, lie in one memory
 * (plan(): QUIRE_UNSUPP). Pages that get K and V of the rows lie in the device's (plan():
 * QUIRE_INVAL).
 *
 * Results depend on the rounding of the device, on the CPU's kernels, and on which entries lie in
 * the host's memory; not on other rows of the batch, nor on the number of threads. K and V that a
 * model computes from such a result in its next layers have other bits than from a step on the
 * device alone. Their pages are not to be shared under the identity of the device's pages. The bits
 * of a page itself do not depend on where it is attended.
 *
 * Thread: open, close, plan and sync: the device's owner. append and run: all threads of a step;
 * each does a share of the host's part. While work is queued, addresses of pages in the host's
 * memory may be changed from layer to layer, those of the device's not. */
typedef struct quire_device_joint quire_device_joint;

/* opts: the limits of a step; those of the device, with n_threads_max as the step has threads.
 * *err, which may be NULL, names the reason. Errors: as quire_attn_workspace_create(), and
 * QUIRE_UNSUPP (the device's memory is the host's, or tables of groups are not alike). Memory:
 * quire_device_joint_close(), before the device is closed. */
int quire_device_joint_open(quire_device_joint **out, quire_device *device,
                            const quire_attn_workspace_opts *opts, quire_error *err);
/* Accepts NULL. */
void quire_device_joint_close(quire_device_joint *joint);

/* It is valid as long as the joint. */
quire_attn_device quire_device_joint_attention(quire_device_joint *joint);

/* ---- layers on several devices ----
 *
 * A split makes several devices one: each has some of the parts of every page (quire/cache.h,
 * "Parts"), those of some layers. Page ids, tables, the prefix tree and budgets know nothing of it.
 * An extent is a range of addresses, and the bytes of a device's parts lie in a piece of memory of
 * that device:
 *
 *   extent of a group   | parts of device 0 | parts of device 1 | tail |
 *   memory              a piece of 0's        a piece of 1's      none
 *
 * A layer is attended by the device that has its sources, and its rows are stored by the device
 * that has its store. Rows pass through the host from one layer to the next, as with one device.
 *
 * Limits. All sources of a layer are on one device (check(): QUIRE_UNSUPP). Pages of running
 * sequences do not lie elsewhere: there is no pinned memory, and no fetch (QUIRE_UNSUPP).
 *
 * Results. A layer has the bits of its device. Devices of one rounding give the bits of one.
 *
 * Loss. When one device is lost, every page has lost a part, and so the split is lost: plan() and
 * sync() return QUIRE_LOST.
 *
 * Thread: as of quire_device. */
#define QUIRE_DEVICE_SPLIT_MAX 8u

typedef struct quire_device_split quire_device_split;

typedef struct quire_device_split_opts {
    uint32_t struct_bytes;
    uint32_t n_devices;                            /* 1 .. _MAX */
    uint32_t n_groups;                             /* of the cache */
    quire_device *devices[QUIRE_DEVICE_SPLIT_MAX]; /* open, with the limits of the step */
    /* Device i has bytes end[g][i - 1] (0 for i = 0) to end[g][i] of an extent of group g. Ends lie
     * between two parts. */
    size_t end[QUIRE_GROUPS_MAX][QUIRE_DEVICE_SPLIT_MAX];
    const quire_allocator *allocator;
} quire_device_split_opts;

#define QUIRE_DEVICE_SPLIT_OPTS_INIT                                                               \
    {                                                                                              \
        .struct_bytes = (uint32_t)sizeof(quire_device_split_opts)                                  \
    }

/* The split owns the devices from now on; after a failure they are still the caller's. *err, which
 * may be NULL, names the reason. Errors: QUIRE_INVAL (options), QUIRE_NOMEM. Memory:
 * quire_device_split_close(), when the cache has ended. */
int quire_device_split_open(quire_device_split **out, const quire_device_split_opts *opts,
                            quire_error *err);
/* Closes the devices, too. Accepts NULL. */
void quire_device_split_close(quire_device_split *split);

uint32_t quire_device_split_count(const quire_device_split *split);
/* i < count. Memory: the split's. */
const quire_device *quire_device_split_device(const quire_device_split *split, uint32_t i);
/* The first one in order that is lost; NULL: none. */
const quire_device *quire_device_split_lost(const quire_device_split *split);

/* Both are valid as long as the split. The memory has extents of a cache's groups alone. */
quire_attn_device quire_device_split_attention(quire_device_split *split);
quire_page_memory quire_device_split_page_memory(quire_device_split *split);

/* The device's memory as that of a cache's pages (quire_cache_opts.memory): a piece of its memory
 * per extent, and copies by way of pinned memory. Bytes from the host wait there, and are queued
 * between the layers of steps whose tables lack their pages, or in front of a step that has one of
 * them; sync() waits for them, too. A copy that fails for another reason than want of memory loses
 * the device, also when it fails late: then a call that waits returns QUIRE_LOST in place of
 * QUIRE_IO. It is valid as long as the device; the cache ends before it. */
quire_page_memory quire_device_page_memory(quire_device *device);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif
#endif /* QUIRE_DEVICE_H */
