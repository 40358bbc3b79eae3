/* offload_latch.c - see offload_latch.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_latch.h"

void quire_offload_latch_init(quire_offload_latch *l)
{
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_cond_init(&l->changed, NULL);
    l->call = UINT32_MAX;
}

void quire_offload_latch_fini(quire_offload_latch *l)
{
    (void)pthread_cond_destroy(&l->changed);
    (void)pthread_mutex_destroy(&l->lock);
}

void quire_offload_latch_open(quire_offload_latch *l, uint32_t call)
{
    (void)pthread_mutex_lock(&l->lock);
    l->call = call;
    (void)pthread_cond_broadcast(&l->changed);
    (void)pthread_mutex_unlock(&l->lock);
}

void quire_offload_latch_close(quire_offload_latch *l)
{
    quire_offload_latch_open(l, UINT32_MAX);
}

void quire_offload_latch_wait(quire_offload_latch *l, uint32_t call)
{
    (void)pthread_mutex_lock(&l->lock);
    while (l->call != call) {
        (void)pthread_cond_wait(&l->changed, &l->lock);
    }
    (void)pthread_mutex_unlock(&l->lock);
}
