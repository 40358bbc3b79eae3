/* mock_internal.h - the object behind mock_device.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_MOCK_INTERNAL_H
#define QUIRE_DEVICE_MOCK_INTERNAL_H

#include "base/rng.h"
#include "device/device_internal.h"
#include "device/mock_device.h"

#define QUIRE_MOCK_AREAS 2u

typedef enum quire_mock_kind {
    QUIRE_MOCK_COPY,
    QUIRE_MOCK_APPEND,
    QUIRE_MOCK_ATTN,
    QUIRE_MOCK_JOIN /* no work: copies of the second queue are done first */
} quire_mock_kind;

typedef struct quire_mock_work {
    quire_mock_kind kind;
    uint64_t due; /* tick */
    unsigned char *to;
    const unsigned char *from;
    size_t bytes;
    uint64_t after;         /* in the second queue: work of the first one that is done before; of a
                               join: copies of the second queue */
    quire_attn_layer layer; /* with rows in an area */
    uint32_t call;
} quire_mock_work;

/* Rows of a layer that is inside. */
typedef struct quire_mock_area {
    float *floats; /* [n_floats] */
    size_t n_floats;
    uint64_t last; /* the number of the last work that uses it */
} quire_mock_area;

typedef struct quire_mock_line {
    quire_mock_work *work; /* a ring of work_max */
    uint32_t work_max;
    uint64_t n_done;   /* pieces of work that have left the queue; lost ones too */
    uint64_t n_queued; /* those that were ever queued: the number of the last one */
} quire_mock_line;

typedef struct quire_mock {
    quire_device base;
    quire_device *inner; /* the CPU */
    quire_mock_device_opts opts;
    quire_rng rng;
    uint64_t now; /* tick */
    quire_mock_line line;
    quire_mock_line beside; /* copies that go beside the others */
    uint64_t n_worked;      /* pieces of work of both that were to be done, without joins */
    int failure;            /* of work that is done, not reported yet */
    quire_attn_batch batch;
    quire_mock_area areas[QUIRE_MOCK_AREAS];
    uint32_t area; /* the last one that enter() took */
} quire_mock;

/* Room in a queue for n more pieces of work. Errors: QUIRE_NOMEM. */
int quire_mock_reserve(quire_mock *mock, quire_mock_line *line, uint32_t n);

/* Queue a piece of work. Errors: QUIRE_NOMEM. */
int quire_mock_queue(quire_mock *mock, quire_mock_line *line, const quire_mock_work *work);

/* Let time pass until work `number` of the first queue is done. Returns the failure to report. */
int quire_mock_pass(quire_mock *mock, uint64_t number);

/* The same of the second queue. */
int quire_mock_pass_beside(quire_mock *mock, uint64_t number);

/* Do all work that is due. */
void quire_mock_do_due(quire_mock *mock);

#endif /* QUIRE_DEVICE_MOCK_INTERNAL_H */
