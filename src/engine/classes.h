/* classes.h - service classes: who comes first, what it is promised, and what the others keep.
 *
 *   class      rank  weight  what it is for
 *   realtime      2      16  somebody waits for each word
 *   standard      1       4  everything that says nothing else
 *   batch         0       1  work that only has to be done some time
 *
 * What a class has:
 *
 *   - rank orders classes in everything: who is admitted, who gets rows of a step, who gives way
 *     when slots or pages are short, whose cached pages are evicted last. Ranks are distinct, so
 *     rank and class name each other.
 *   - ttft and tpot targets say how fast it is to be. A class with a tpot target lets lower classes
 *     into its steps as far as the time per token stays within that target on average. Without one
 *     (0), `stretch` says how much longer than alone its steps may become, which is a promise that
 *     means the same on every machine. The ttft target bounds what guests may add to a step, and
 *     tells degradation when it is missed; whoever comes takes the next step anyway.
 *   - weight is what it keeps when higher classes could use everything: its share of the sum of
 *     weights is its share of computing time, taken in turns (schedule.h).
 *   - It also keeps places. A request that waits counts as one rank higher for each aging_us that
 *     it has waited (an option of the engine), as long as no more of its class run that got in like
 *     this than n_running_max x weight / sum of weights, at least one. Such a request is not
 *     displaced again. So under any load each class has a request running no later than the ranks
 *     above it times aging_us and one request's end from now; in a class who came first comes
 *     first. Without the bound on places a queue of batch work that is always long would become
 *     realtime work.
 *   - running_max and queue_max bound how many of its requests are computed and wait. Each class
 *     has a queue of its own: a low class that fills its queue takes no place from a high one.
 *
 * A table without classes (n = 0) means one class, `standard`, and the engine behaves as if there
 * were none.
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
    bool is_pinned;        /* its sequences are charged to the pinned region, when there is one */
    uint32_t weight;       /* 1 .. QUIRE_CLASS_WEIGHT_MAX */
    double ttft_target_ms; /* 0 = none */
    double tpot_target_ms; /* 0 = none: stretch counts */
    double stretch;        /* >= 1; 0 = QUIRE_CLASS_STRETCH */
    uint32_t running_max;  /* 0 = as many as the engine runs */
    uint32_t queue_max;    /* requests accepted beyond those; 0 = the engine's queue_max */
    uint64_t cache_ttl_us; /* 0 = the engine's cache_ttl_us */
} quire_class;

typedef struct quire_classes {
    quire_class items[QUIRE_CLASSES_MAX]; /* [n], in any order */
    uint32_t n;
} quire_classes;

/* realtime, standard, batch, in this order: QUIRE_CLASS_STANDARD is the index of what a request
 * belongs to that says nothing. */
#define QUIRE_CLASS_STANDARD 1u
void quire_classes_default(quire_classes *out);

/* Check a table, and write the default in the place of a stretch of 0; n = 0 becomes one class,
 * `standard`. Errors: QUIRE_INVAL, with a message that names the class and the field. */
int quire_classes_resolve(quire_classes *classes, quire_error *err);

/* How many of its requests may run at once, of n_running_max in all. */
static inline uint32_t quire_class_running_max(const quire_class *c, uint32_t n_running_max)
{
    return c->running_max != 0 && c->running_max < n_running_max ? c->running_max : n_running_max;
}

/* Index of a class by name, QUIRE_NOTFOUND. */
int quire_classes_find(const quire_classes *classes, const char *name);

/* Index of the class of a rank; QUIRE_CLASSES_MAX = there is none. */
uint32_t quire_classes_of_rank(const quire_classes *classes, uint32_t rank);

#endif /* QUIRE_ENGINE_CLASSES_H */
