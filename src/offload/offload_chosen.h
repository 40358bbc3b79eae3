/* offload_chosen.h - one part of the offloaded pages that rows choose (retain/page_choice.h), read
 * from the file page by page.
 *
 * - begin: a step begins. add: one of its offloaded pages.
 * - enter: attention on a part begins. None of the pages is there.
 * - need: a thread of the step names pages that a lane's rows chose. The first lane that chooses a
 *   page reads it for all KV heads.
 * - leave: the part's pages are counted, as read for a row or as left in the file.
 *
 * A page comes to its place in the buffer, the one that it has when stripes are read whole.
 *
 * Reads are waited for with the time limit of the file. One thread reads at a time; the others wait
 * for it, and then find its pages there.
 *
 * Thread: need: any of a step; the others: the cache's owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_CHOSEN_H
#define QUIRE_OFFLOAD_OFFLOAD_CHOSEN_H

#include "offload/offload_file.h"

#include <pthread.h>

typedef struct quire_offload_chosen {
    quire_offload_file *file;
    const quire_page_addr *addrs; /* of the cache: slots of offloaded pages; borrowed for a step */
    const uint32_t *stripe_at;    /* place in the buffer + 1, by stripe of the file; borrowed */
    const uint32_t *stripes;      /* [n_stripes] of the step; borrowed */
    uint32_t n_stripes;
    pthread_mutex_t lock;      /* guards the fields below while threads need pages */
    uint8_t *is_there;         /* [stripes of the file] a bit by slot: read, or about to be */
    quire_offload_page *pages; /* [n_max] of the job */
    uint32_t n_max;
    quire_offload_job job;
    uint32_t n_pages; /* offloaded ones of the step */
    uint32_t n_read;  /* of the part at hand */
    int status;       /* of the step */
} quire_offload_chosen;

/* The file is borrowed, and has kept_bytes. Errors: QUIRE_NOMEM. Memory:
 * quire_offload_chosen_fini(), of one that is zero too. */
int quire_offload_chosen_init(quire_offload_chosen *chosen, quire_offload_file *file);
void quire_offload_chosen_fini(quire_offload_chosen *chosen);

/* Of a step that has n_pages pages in these stripes at most; `chosen` has its borrowed fields.
 * Errors: QUIRE_NOMEM. */
int quire_offload_chosen_begin(quire_offload_chosen *chosen, uint32_t n_pages);
/* A slot may come several times. */
void quire_offload_chosen_add(quire_offload_chosen *chosen, uint32_t slot);
/* buffer: of whole stripes, aligned to QUIRE_OFFLOAD_ALIGN. */
void quire_offload_chosen_enter(quire_offload_chosen *chosen, uint32_t part, unsigned char *buffer);
/* Bring those of the pages that are offloaded and not there. When that fails the step has a status,
 * and no more is read. */
void quire_offload_chosen_need(quire_offload_chosen *chosen, const quire_page_id *pages,
                               uint32_t n);
void quire_offload_chosen_leave(quire_offload_chosen *chosen);

#endif /* QUIRE_OFFLOAD_OFFLOAD_CHOSEN_H */
