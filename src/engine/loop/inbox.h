/* inbox.h - data exchanged between the engine's thread and other threads, under one lock.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_INBOX_H
#define QUIRE_ENGINE_INBOX_H

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "engine/classes.h"
#include "engine/loop/chores.h"
#include "engine/loop/loop_call.h"
#include "engine/loop/queue.h"

typedef struct quire_loop_task {
    struct quire_loop_task *next;
    quire_loop_fn fn;
    void *ctx;
    int status; /* QUIRE_OK once it ran */
    bool is_done;
} quire_loop_task;

typedef struct quire_inbox {
    _Atomic uint64_t arrivals; /* numbers given to requests, from 1: quire_loop_parts.arrivals */
    atomic_uint n_unfinished;  /* requests accepted and not done */
    atomic_uint n_unfinished_of[QUIRE_CLASSES_MAX];
    atomic_ullong n_to_compute; /* prompt tokens of these requests */
    atomic_bool is_lost;        /* the device was lost: no request is here, and new ones fail */
    const char *lost_name;      /* of that device: set before is_lost, the runtime's */
    atomic_int urgent_rank;     /* highest rank in `requests`; -1 = empty. Set under lock */

    pthread_mutex_t lock;
    /* Under the lock. */
    pthread_cond_t wake;      /* wakes the engine's thread */
    pthread_cond_t task_done; /* callers */
    quire_queue requests;     /* new requests */
    quire_loop_task *tasks;   /* oldest first */
    quire_chore *chores;      /* likewise */
    uint64_t *owners;         /* [n_owners] of expired sessions, whose pages are to be dropped */
    uint32_t n_owners;
    uint32_t owners_capacity;
    bool is_stopping;
    bool leaves_store; /* the thread ends without closing the store, which stays its owner's */
    bool has_ended;
    bool has_cancels;
    bool has_transfers;  /* the store below has something to give back */
    uint64_t n_arrivals; /* requests accepted */
    uint64_t n_adopted;  /* beside them, of loops whose device was lost */
    uint64_t n_queue_full;
    uint64_t n_arrivals_of[QUIRE_CLASSES_MAX];
    uint64_t n_queue_full_of[QUIRE_CLASSES_MAX];
    uint64_t n_invalid;
} quire_inbox;

/* All or nothing. Errors: QUIRE_NOMEM. */
int quire_inbox_init(quire_inbox *inbox);
void quire_inbox_fini(quire_inbox *inbox);

/* Queue a request, and wake the engine's thread. The caller holds the lock. */
void quire_inbox_put(quire_inbox *inbox, struct quire_request *request);

/* One of the owners of quire_loop_owner_gone(); 0 = none is left. */
uint64_t quire_loop_owner_take(quire_loop *loop);
/* Make the engine's thread look for cancelled requests. The caller holds no lock of the loop. */
void quire_loop_wake_cancels(quire_loop *loop);
/* Run the queued tasks, or end them with QUIRE_AGAIN when is_ending. Thread: the engine's. */
void quire_loop_tasks_run(quire_loop *loop, bool is_ending);

#endif /* QUIRE_ENGINE_INBOX_H */
