/* card.h - devices on cards: all that is the same for each interface of drivers. Tables of a batch,
 * rows and parameters of a layer, the choice of workgroups; for src/device alone.
 *
 * An interface (vulkan/, cuda/) has its own queue, memory and kernels behind quire_card_calls. Its
 * kernels take the structs of card_params.h, and divide work in the same way: a workgroup has 64
 * invocations, a split is computed by one workgroup, partial results are merged in ascending order.
 *
 * Each piece of work (a copy, append, attention of a layer) is done in the order of the calls, and
 * sees all work before it. Pieces are counted: an event is the number of the last one. Copies
 * beside are counted apart.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_CARD_H
#define QUIRE_DEVICE_CARD_H

#include "attn/attn_internal.h"
#include "device/card/card_params.h"
#include "device/device_internal.h"
#include "device/device_rows.h"

#define QUIRE_CARD_AREAS 2u

typedef enum quire_card_kernel {
    QUIRE_CARD_ATTN,
    QUIRE_CARD_MERGE,
    QUIRE_CARD_APPEND,
    QUIRE_CARD_SEAL,
    QUIRE_CARD_KERNELS
} quire_card_kernel;

typedef struct quire_card quire_card;

/* A piece of memory: quire_device_memory.ctx. An interface's own struct begins with it. */
typedef struct quire_card_piece {
    struct quire_card_piece *next; /* of those that the device gave */
    struct quire_card_piece *previous;
} quire_card_piece;

/* A dispatch of workgroups. */
typedef struct quire_card_dispatch {
    quire_card_kernel kernel;
    quire_card_constants constants;
    quire_card_push push;
    uint32_t groups[3];
    uint32_t shared_floats; /* that a workgroup needs, where its size is chosen by dispatch */
} quire_card_dispatch;

/* The functions of an interface. Errors: QUIRE_LOST (noted: quire_device_lose()), QUIRE_NOMEM,
 * QUIRE_IO. */
typedef struct quire_card_calls {
    const char *name;   /* of the interface, as in the names of its devices */
    size_t card_bytes;  /* of the own struct for a device, which begins with quire_card */
    size_t piece_bytes; /* of the own struct for memory, which begins with quire_card_piece */
    void (*info)(const quire_card *card, quire_device_info *out);
    const void *(*queue_owner)(const quire_card *card); /* NULL: its queue is its own */
    /* Of an interface whose devices have queues beside the owner's; NULL: there are none. As
     * quire_device_queue_share(). */
    int (*queue_share)(quire_card *card, const void *owner, void *before, void *behind);
    int (*behind_owner)(quire_card *card); /* behind begin: the piece comes behind its work */
    int (*before_owner)(quire_card *card); /* behind end: its later work comes behind the piece */
    int (*queue_open)(quire_card *card);
    void (*close)(quire_card *card); /* the queue, if it is open, and the context */
    int (*piece_make)(quire_card *card, quire_device_kind kind, uint64_t bytes,
                      quire_card_piece *piece, quire_device_memory *out);
    void (*piece_end)(quire_card *card, quire_card_piece *piece); /* of a failed make(), too */
    int (*copy)(quire_card *card, const quire_device_piece *pieces, uint32_t n_pieces);
    int (*wait)(quire_card *card, uint64_t value); /* until n_submitted was done so far */
    /* Copies in the second queue, behind n_submitted of the first one; n_beside counts calls. */
    int (*copy_beside)(quire_card *card, const quire_device_piece *pieces, uint32_t n_pieces);
    int (*join)(quire_card *card, uint64_t value); /* later work is behind n_beside so far */
    int (*wait_beside)(quire_card *card, uint64_t value);
    /* A piece of work that runs kernels: begin, then dispatches and barriers, then end. A dispatch
     * behind a barrier sees the writes of those before. status: of the dispatches; a failure is
     * returned. */
    int (*begin)(quire_card *card);
    /* Bytes of the host's, a multiple of 4, to the begin of memory of the card: between begin and
     * end, for a device with a queue_owner() alone. They may change when it returns. */
    int (*write)(quire_card *card, const quire_device_memory *to, const void *from, uint64_t bytes);
    int (*dispatch)(quire_card *card, const quire_card_dispatch *dispatch);
    void (*barrier)(quire_card *card);
    int (*end)(quire_card *card, int status);
} quire_card_calls;

/* The same bytes at the host and on the card, for the data of a step. */
typedef struct quire_card_twin {
    quire_device_memory pinned;
    quire_device_memory own;
} quire_card_twin;

/* Params, then rows (device_rows.h). */
typedef struct quire_card_area {
    quire_card_twin twin;
    quire_device_rows rows;
    uint64_t last; /* the last work that uses it */
} quire_card_area;

/* The beginning of every device on a card. */
struct quire_card {
    quire_device base;
    const quire_card_calls *calls;
    quire_card_piece *pieces;
    uint64_t n_submitted; /* pieces of work so far */
    uint64_t n_beside;    /* of the second queue */
    int failure;          /* of append() or attn(), not reported yet */

    quire_attn_workspace *workspace; /* checks layers and batches, and lists segments */
    quire_attn_batch batch;
    quire_card_twin plan;
    uint64_t at_entries, at_seqs, at_rows, at_positions; /* addresses, in the plan */
    uint64_t at_biases;                                  /* 0: none */
    uint64_t at_segments[QUIRE_GROUPS_MAX];
    uint64_t at_cascades, at_cascade_rows;
    const quire_card_cascade *cascades; /* of group 0, in the plan at the host */
    uint32_t n_cascades;
    uint32_t n_cascade_splits;               /* the most of one */
    uint32_t n_splits_max[QUIRE_GROUPS_MAX]; /* of a sequence */
    uint32_t n_rows;
    quire_card_twin levels;
    quire_device_memory partials;
    quire_card_area areas[QUIRE_CARD_AREAS];
    uint32_t area;              /* the last one that enter() took */
    uint64_t params;            /* address of those of the layer at hand */
    quire_device_memory queued; /* params, gates and sinks of the layer that queue() took last */
    unsigned char *queued_host; /* the same at the host, which writes them */
};

/* Splits of tables that were read once for several rows so far, in this process. Thread: any. */
uint64_t quire_card_shared_splits(void);

/* ---- card.c: functions of quire_device_ops, and the object ---- */

/* Open device `index` of an interface, whose own struct begins with *init and has its calls and
 * context set. The device owns the context; on error the context is closed. Errors: those of
 * queue_open(), and of quire_attn_workspace_create(). */
int quire_card_open(quire_device **out, quire_card *init, uint32_t index,
                    const quire_device_opts *opts, quire_error *err);

/* ---- card_memory.c ---- */

int quire_card_alloc(quire_card *card, quire_device_kind kind, uint64_t bytes,
                     quire_device_memory *out);
void quire_card_free(quire_card *card, quire_device_memory *memory);
/* Memory of at least so many bytes; none of its work is under way. Its former contents are lost. */
int quire_card_reserve(quire_card *card, quire_device_kind kind, uint64_t bytes,
                       quire_device_memory *memory);
int quire_card_twin_reserve(quire_card *card, uint64_t bytes, quire_card_twin *twin);
/* The first n bytes of a twin to the card, as work of its own. */
int quire_card_twin_send(quire_card *card, const quire_card_twin *twin, uint64_t bytes);
/* Until all work is done. */
int quire_card_wait_all(quire_card *card);

/* ---- card_plan.c ---- */

int quire_card_plan(quire_card *card, const quire_attn_batch *batch);

/* ---- card_step.c ---- */

int quire_card_levels_make(quire_card *card);
int quire_card_enter(quire_card *card, const quire_attn_layer *layer, quire_attn_layer *own);
int quire_card_append(quire_card *card, const quire_attn_layer *own);
int quire_card_attn(quire_card *card, const quire_attn_layer *own);
int quire_card_leave(quire_card *card, const quire_attn_layer *layer, const quire_attn_layer *own);
/* A layer with rows on the card, in one piece of work. */
int quire_card_queue(quire_card *card, const quire_attn_layer *layer, unsigned what);

#endif /* QUIRE_DEVICE_CARD_H */
