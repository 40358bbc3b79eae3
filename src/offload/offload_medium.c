/* offload_medium.c - see offload_medium.h.
 *
 * SPDX-License-Identifier: MIT */
#include "offload/offload_medium.h"

#include "base/check.h"
#include "base/num.h"

static int file_open(quire_offload_medium *m, const quire_offload_opts *opts, quire_error *err)
{
    quire_offload_file_opts file = opts->file;
    int rc;

    file.kept_bytes = opts->choice.chooses != NULL ? opts->choice.kept_bytes : NULL;
    QUIRE_TRY(quire_offload_file_open(&m->file, &file, err));
    rc = quire_offload_stream_open(&m->stream, opts, m->file);
    return rc < 0 ? quire_error_set(err, rc, "no memory for offloaded pages") : rc;
}

/* The most parts that a layer reads. */
static uint32_t n_reads_of(const quire_offload_opts *opts)
{
    uint32_t most = 1;

    for (uint32_t i = 0; i < opts->n_stops; i++) {
        most = quire_max_u32(most, opts->stops[i].n);
    }
    return most;
}

static int tiers_open(quire_offload_medium *m, const quire_offload_opts *opts, quire_error *err)
{
    const quire_offload_tiers_opts tiers = { .memory = opts->memory,
                                             .host_bytes = opts->host_bytes,
                                             .n_reads = n_reads_of(opts),
                                             .file = &opts->file };
    quire_offload_fetch_opts fetch = { .inner = opts->inner,
                                       .memory = opts->memory,
                                       .cache = opts->cache,
                                       .group = opts->group,
                                       .stops = opts->stops,
                                       .n_stops = opts->n_stops };
    int rc;

    QUIRE_TRY(quire_offload_tiers_open(&m->tiers, &tiers, err));
    fetch.tiers = m->tiers;
    rc = quire_offload_fetch_open(&m->fetch, &fetch);
    return rc < 0 ? quire_error_set(err, rc, "no memory for offloaded pages") : rc;
}

int quire_offload_medium_open(quire_offload_medium *m, const quire_offload_opts *opts,
                              quire_error *err)
{
    int rc;

    *m = (quire_offload_medium){ 0 };
    rc = opts->memory != NULL ? tiers_open(m, opts, err) : file_open(m, opts, err);
    if (rc < 0) {
        quire_offload_medium_close(m);
    }
    return rc;
}

void quire_offload_medium_close(quire_offload_medium *m)
{
    quire_offload_fetch_close(m->fetch);
    quire_offload_tiers_close(m->tiers);
    quire_offload_stream_close(m->stream);
    quire_offload_file_close(m->file);
    *m = (quire_offload_medium){ 0 };
}

static int file_read(void *ctx, uint32_t slot, void *buffer, size_t bytes)
{
    return quire_offload_file_read(ctx, slot, buffer, bytes);
}

static void file_release(void *ctx, uint32_t slot)
{
    quire_offload_file_release(ctx, slot);
}

static int tiers_read(void *ctx, uint32_t slot, void *buffer, size_t bytes)
{
    return quire_offload_tiers_read(ctx, slot, buffer, bytes);
}

static void tiers_release(void *ctx, uint32_t slot)
{
    quire_offload_tiers_release(ctx, slot);
}

quire_offload_ops quire_offload_medium_ops(quire_offload_medium *m)
{
    return m->tiers != NULL
               ? (quire_offload_ops){ .read = tiers_read,
                                      .release = tiers_release,
                                      .ctx = m->tiers }
               : (quire_offload_ops){ .read = file_read, .release = file_release, .ctx = m->file };
}

quire_attn_device quire_offload_medium_device(const quire_offload_medium *m)
{
    return m->tiers != NULL ? quire_offload_fetch_device(m->fetch)
                            : quire_offload_stream_device(m->stream);
}

int quire_offload_medium_write(const quire_offload_medium *m, const quire_page_addr *pages,
                               uint32_t n_pages, uint8_t order, uint32_t *first_slot)
{
    return m->tiers != NULL ? quire_offload_tiers_write(m->tiers, pages, n_pages, order, first_slot)
                            : quire_offload_file_write(m->file, pages, n_pages, first_slot);
}

int quire_offload_medium_raise(const quire_offload_medium *m)
{
    return m->tiers != NULL ? quire_offload_tiers_raise(m->tiers) : 0;
}

bool quire_offload_medium_in_file(const quire_offload_medium *m, uint32_t slot)
{
    return m->tiers == NULL || quire_offload_tiers_in_file(m->tiers, slot);
}

bool quire_offload_medium_missed_file(const quire_offload_medium *m)
{
    return m->tiers == NULL || quire_offload_fetch_missed_file(m->fetch);
}

void quire_offload_medium_give(const quire_offload_medium *m)
{
    if (m->tiers != NULL) {
        quire_offload_fetch_give(m->fetch);
    }
}

void quire_offload_medium_rest(const quire_offload_medium *m)
{
    if (m->tiers != NULL) {
        quire_offload_fetch_rest(m->fetch);
    } else {
        quire_offload_stream_rest(m->stream);
    }
}

uint64_t quire_offload_medium_bytes(const quire_offload_medium *m, uint32_t n_stripes)
{
    return m->tiers != NULL ? quire_offload_fetch_bytes(m->fetch, n_stripes)
                            : quire_offload_stream_bytes(m->stream, n_stripes);
}

uint32_t quire_offload_medium_stripes_max(const quire_offload_medium *m)
{
    quire_offload_file_stats stats;

    if (m->tiers != NULL) {
        return quire_offload_tiers_stripes_max(m->tiers);
    }
    quire_offload_file_stats_get(m->file, &stats);
    return stats.stripes_max;
}

uint32_t quire_offload_medium_stripes_used(const quire_offload_medium *m)
{
    quire_offload_file_stats stats;

    if (m->tiers != NULL) {
        return quire_offload_tiers_stripes_used(m->tiers);
    }
    quire_offload_file_stats_get(m->file, &stats);
    return stats.stripes_used;
}

void quire_offload_medium_stats_get(const quire_offload_medium *m, quire_offload_file_stats *out,
                                    quire_offload_below_stats *below)
{
    *below = (quire_offload_below_stats){ .is_on = false };
    if (m->tiers != NULL) {
        quire_offload_host_stats_get(quire_offload_tiers_host(m->tiers), out);
        quire_offload_tiers_stats_get(m->tiers, below);
    } else {
        quire_offload_file_stats_get(m->file, out);
    }
}

const char *quire_offload_medium_trouble(const quire_offload_medium *m, bool of_file)
{
    if (m->tiers == NULL) {
        return of_file ? quire_offload_file_trouble(m->file) : "";
    }
    return of_file ? quire_offload_tiers_file_trouble(m->tiers)
                   : quire_offload_host_trouble(quire_offload_tiers_host(m->tiers));
}
