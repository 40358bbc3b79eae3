/* offload_latch.h - threads of a step that wait in a layer's attention for thread 0.
 *
 * append() of a layer brings the pages that the layer reads. A layer that stores nothing has no
 * append(), so run() brings its pages: thread 0 at the begin of run(), while the other threads wait
 * for thread 0.
 *
 * Thread: as the functions say.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_LATCH_H
#define QUIRE_OFFLOAD_OFFLOAD_LATCH_H

#include <pthread.h>
#include <stdint.h>

typedef struct quire_offload_latch {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint32_t call; /* the call of run() that is open; UINT32_MAX: none. Under the lock */
} quire_offload_latch;

/* Thread of the three: the owner's. close: no call is open; before a step, and before a plan in it.
 * Memory: quire_offload_latch_fini(). */
void quire_offload_latch_init(quire_offload_latch *latch);
void quire_offload_latch_fini(quire_offload_latch *latch);
void quire_offload_latch_close(quire_offload_latch *latch);

/* Open a call, not UINT32_MAX: its threads go on. Thread: 0 of a step. */
void quire_offload_latch_open(quire_offload_latch *latch, uint32_t call);
/* Wait until a call is open. Thread: the others. */
void quire_offload_latch_wait(quire_offload_latch *latch, uint32_t call);

#endif /* QUIRE_OFFLOAD_OFFLOAD_LATCH_H */
