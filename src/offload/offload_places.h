/* offload_places.h - the offloaded pages of a step of a device (offload_fetch.h), and where each of
 * them lies below the device.
 *
 * Thread: the cache's owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_OFFLOAD_OFFLOAD_PLACES_H
#define QUIRE_OFFLOAD_OFFLOAD_PLACES_H

#include "offload/offload_tiers.h"
#include "quire/attn.h"

/* An offloaded page of the batch. If it is copied, its place in the device's buffer is its number
 * in the list. */
typedef struct quire_offload_place {
    quire_page_id page;
    uint32_t slot;
    uint32_t at;     /* the slot of the host's memory, or number in the stage's list and slot */
    bool is_in_file; /* and comes by the stage */
    bool is_copied;  /* to the buffer; else attended where it lies */
} quire_offload_place;

typedef struct quire_offload_places {
    quire_offload_tiers *tiers; /* borrowed */
    quire_group_id group;       /* of the pages */
    quire_offload_place *list;  /* [n], of [n_max]; those that are copied come first */
    uint32_t n;
    uint32_t n_copied;
    uint32_t n_max;
    uint32_t *stripes; /* [n_stripes], of [n_max]: of the file, in the order of the stage */
    uint32_t n_stripes;
} quire_offload_places;

/* List the batch's offloaded pages, each once. may_attend: those without pages beside them on the
 * device are not copied. `places` has its first two fields. Errors: QUIRE_NOMEM. Memory:
 * quire_offload_places_fini(). */
int quire_offload_places_list(quire_offload_places *places, const quire_attn_batch *batch,
                              bool may_attend);
void quire_offload_places_fini(quire_offload_places *places);

/* How many copied places from i on are neighbours in a stripe, and so in their place. */
uint32_t quire_offload_places_run(const quire_offload_places *places, uint32_t i);

#endif /* QUIRE_OFFLOAD_OFFLOAD_PLACES_H */
