/* classes.h - service classes: the order of requests, promised latencies, guaranteed shares.
 *
 *   class      rank  weight  meant for
 *   realtime      2      16  interactive work: a person waits for each word
 *   standard      1       4  requests that name no class
 *   batch         0       1  work without a deadline
 *
 * Fields of a class:
 *
 *   - rank orders classes for admission, for rows of a step, for slots and pages when they are
 *     short, and for eviction of cached pages (lowest rank first). Ranks are distinct: a rank
 *     identifies its class.
 *   - ttft and tpot targets state the latency of the class. Lower classes may join steps of a class
 *     with a tpot target while the mean time per token stays within the target. A class without a
 *     tpot target (0) has `stretch`: the factor by which lower classes may lengthen its steps. A
 *     factor means the same on every machine. The ttft target bounds the time that lower classes
 *     may add to a step; a missed target triggers degradation. A new request of the class takes the
 *     next step in any case.
 *   - weight guarantees computing time while higher classes could use all of it: the weight divided
 *     by the sum of weights is the share of the class, taken in turns (schedule.h).
 *   - weight also guarantees places. A waiting request counts as one rank higher for each aging_us
 *     (an option of the engine) of its wait, and is not displaced once admitted this way. At most
 *     n_running_max x weight / sum of weights requests of a class, at least one, run by such a
 *     promotion. So under any load a class has a request running after at most (number of ranks
 *     above it) x aging_us plus the end of one request. Requests of one class are served in order
 *     of arrival. The bound on places prevents a batch queue that is always long from becoming
 *     realtime work.
 *   - running_max bounds the running requests of the class, queue_max the waiting ones. Each class
 *     has its own queue: a full queue of a low class takes no place from a high class.
 *
 * A table without classes (n = 0) means one class, `standard`: the engine behaves as if classes did
 * not exist.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_CLASSES_H
#define QUIRE_ENGINE_CLASSES_H

#include <stdbool.h>
#include <stdint.h>

#include "quire/error.h"
#include "quire/prefix.h"

#define QUIRE_CLASSES_MAX       QUIRE_RANKS_MAX
#define QUIRE_CLASS_NAME_MAX    32u /* bytes, the end included */
#define QUIRE_CLASS_WEIGHT_MAX  1000u
#define QUIRE_CLASS_TARGET_MAX  3600000.0 /* ms */
#define QUIRE_CLASS_STRETCH_MAX 100.0
#define QUIRE_CLASS_STRETCH     1.15 /* default */

typedef struct quire_class {
    char name[QUIRE_CLASS_NAME_MAX]; /* a-z 0-9 _ -, at least one */
    uint8_t rank;                    /* 0 .. QUIRE_RANKS_MAX - 1; higher = more important */
    bool is_pinned;        /* charge its sequences to the pinned region, if the engine has one */
    uint32_t weight;       /* 1 .. QUIRE_CLASS_WEIGHT_MAX */
    double ttft_target_ms; /* 0 = none */
    double tpot_target_ms; /* 0 = none: stretch counts */
    double stretch;        /* >= 1; 0 = QUIRE_CLASS_STRETCH */
    uint32_t running_max;  /* 0 = as many as the engine runs */
    uint32_t queue_max;    /* requests accepted beyond running_max; 0 = the engine's queue_max */
    uint64_t cache_ttl_us; /* 0 = the engine's cache_ttl_us */
} quire_class;

typedef struct quire_classes {
    quire_class items[QUIRE_CLASSES_MAX]; /* [n], in any order */
    uint32_t n;
} quire_classes;

/* The default table: realtime, standard, batch, in this order. QUIRE_CLASS_STANDARD is the index of
 * the class of requests that name none. */
#define QUIRE_CLASS_STANDARD 1u
void quire_classes_default(quire_classes *out);

/* Check a table. A stretch of 0 becomes the default; n = 0 becomes one class, `standard`. Errors:
 * QUIRE_INVAL, with a message that names the class and the field. */
int quire_classes_resolve(quire_classes *classes, quire_error *err);

/* Number of requests of the class that may run at once, given n_running_max for all classes. */
static inline uint32_t quire_class_running_max(const quire_class *c, uint32_t n_running_max)
{
    return c->running_max != 0 && c->running_max < n_running_max ? c->running_max : n_running_max;
}

/* Index of a class by name. Errors: QUIRE_NOTFOUND. */
int quire_classes_find(const quire_classes *classes, const char *name);

/* Index of the class with this rank; QUIRE_CLASSES_MAX = no such class. */
uint32_t quire_classes_of_rank(const quire_classes *classes, uint32_t rank);

#endif /* QUIRE_ENGINE_CLASSES_H */
