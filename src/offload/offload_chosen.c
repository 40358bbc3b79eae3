/* offload_chosen.c - see offload_chosen.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_chosen.h"

#include "base/check.h"

#include <stdlib.h>

int quire_offload_chosen_init(quire_offload_chosen *c, quire_offload_file *file)
{
    quire_offload_file_stats stats;

    quire_offload_file_stats_get(file, &stats);
    c->is_there = calloc(stats.stripes_max, sizeof *c->is_there);
    QUIRE_FAIL_IF(c->is_there == NULL, QUIRE_NOMEM);
    (void)pthread_mutex_init(&c->lock, NULL);
    c->file = file;
    return QUIRE_OK;
}

void quire_offload_chosen_fini(quire_offload_chosen *c)
{
    if (c->file != NULL) {
        (void)pthread_mutex_destroy(&c->lock);
    }
    free(c->pages);
    free(c->is_there);
}

/* Mark a slot. Returns whether it was not marked before. */
static bool mark(quire_offload_chosen *c, uint32_t slot)
{
    uint8_t *marks = &c->is_there[slot / QUIRE_OFFLOAD_STRIPE];
    const uint8_t bit = (uint8_t)(1u << slot % QUIRE_OFFLOAD_STRIPE);
    const bool is_new = (*marks & bit) == 0;

    *marks |= bit;
    return is_new;
}

static void unmark_all(quire_offload_chosen *c)
{
    for (uint32_t i = 0; i < c->n_stripes; i++) {
        c->is_there[c->stripes[i]] = 0;
    }
}

int quire_offload_chosen_begin(quire_offload_chosen *c, uint32_t n_pages)
{
    c->status = QUIRE_OK;
    c->n_pages = 0;
    unmark_all(c);
    if (n_pages > c->n_max) {
        quire_offload_page *pages = realloc(c->pages, 2 * (size_t)n_pages * sizeof *pages);

        QUIRE_FAIL_IF(pages == NULL, QUIRE_NOMEM);
        c->pages = pages;
        c->n_max = 2 * n_pages;
    }
    return QUIRE_OK;
}

void quire_offload_chosen_add(quire_offload_chosen *c, uint32_t slot)
{
    c->n_pages += mark(c, slot);
}

void quire_offload_chosen_enter(quire_offload_chosen *c, uint32_t part, unsigned char *buffer)
{
    unmark_all(c);
    c->n_read = 0;
    c->job.part = part;
    c->job.buffer = buffer;
}

/* The pages that are to be read. */
static void pages_list(quire_offload_chosen *c, const quire_page_id *pages, uint32_t n)
{
    c->job.pages = c->pages;
    c->job.n_pages = 0;
    for (uint32_t i = 0; i < n; i++) {
        const quire_page_addr *addr = &c->addrs[pages[i]];

        if (addr->memory == QUIRE_MEMORY_OFFLOADED && mark(c, addr->slot)) {
            const uint32_t stripe = c->stripe_at[addr->slot / QUIRE_OFFLOAD_STRIPE] - 1;

            c->pages[c->job.n_pages++] = (quire_offload_page){
                .slot = addr->slot,
                .place = stripe * QUIRE_OFFLOAD_STRIPE + addr->slot % QUIRE_OFFLOAD_STRIPE,
            };
        }
    }
}

void quire_offload_chosen_need(quire_offload_chosen *c, const quire_page_id *pages, uint32_t n)
{
    (void)pthread_mutex_lock(&c->lock);
    if (c->status == QUIRE_OK) {
        pages_list(c, pages, n);
        if (c->job.n_pages > 0) {
            c->n_read += c->job.n_pages;
            quire_offload_job_begin(c->file, &c->job);
            c->status = quire_offload_job_wait(c->file, &c->job);
        }
    }
    (void)pthread_mutex_unlock(&c->lock);
}

void quire_offload_chosen_leave(quire_offload_chosen *c)
{
    quire_offload_file_chosen(c->file, c->n_read, c->n_pages - c->n_read);
}
