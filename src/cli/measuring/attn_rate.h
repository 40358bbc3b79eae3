/* attn_rate.h - how fast a device's attention reads pages.
 *
 * The workload is a row of a model of 8B: 32 query heads, 8 KV heads of 128. One layer after the
 * other is entered and attended, as in a step, without a wait between them. With enough layers no
 * cache of the hardware holds the KV of one.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_ATTN_RATE_H
#define QUIRE_CLI_ATTN_RATE_H

#include "quire/device.h"

typedef struct quire_attn_work {
    const char *device;
    quire_format format;
    uint32_t n_tokens;    /* of the text, rounded up to whole pages */
    uint32_t page_tokens; /* a multiple of QUIRE_TILE_TOKENS */
    uint32_t n_layers;
    double seconds; /* of a round, about */
    /* The result of each layer comes back before the next layer begins, as in a step of a model
     * whose products the host computes. */
    bool has_results;
    /* Called in front of each step; its time is the step's. May be NULL. Returns a status. */
    int (*before_step)(void *ctx, quire_device *device);
    void *ctx;
} quire_attn_work;

/* Bytes of one layer of a page in this format. */
size_t quire_attn_work_page_bytes(quire_format format, uint32_t page_tokens);

/* Bytes of KV read per second; the best of several rounds, by one thread of the caller's. Errors:
 * as quire_device_open() and quire_device_check(), QUIRE_NOMEM, QUIRE_LOST; *err, which may be
 * NULL, names the reason. */
int quire_attn_rate_get(const quire_attn_work *work, double *rate, quire_error *err);

#endif /* QUIRE_CLI_ATTN_RATE_H */
