/* device_rates.c - see device_rates.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/measuring/device_rates.h"

#include "base/check.h"
#include "base/clock.h"

#include <string.h>

#define COPY_BYTES ((uint64_t)32 << 20)
#define ROUND_NS   20000000u /* at least, but for COPIES_MAX */
#define COPIES_MAX 256u      /* of one round */
#define ROUNDS     3u

/* Copies of one round in turn, and how long they took. */
static int copies_time(quire_device *device, const quire_device_memory *to,
                       const quire_device_memory *from, uint32_t n, uint64_t *ns)
{
    const quire_device_piece piece = { .to = to, .from = from, .bytes = COPY_BYTES };
    const uint64_t begin_ns = quire_clock_ns();

    for (uint32_t i = 0; i < n; i++) {
        QUIRE_TRY(quire_device_copy(device, &piece, 1));
    }
    QUIRE_TRY(quire_device_sync(device));
    *ns = quire_clock_ns() - begin_ns;
    return QUIRE_OK;
}

static int rate_get(quire_device *device, const quire_device_memory *to,
                    const quire_device_memory *from, double *out)
{
    uint32_t n = 1;
    uint64_t ns;

    *out = 0.0;
    QUIRE_TRY(copies_time(device, to, from, 1, &ns)); /* memory is touched for the first time */
    for (uint32_t round = 0; round < ROUNDS;) {
        QUIRE_TRY(copies_time(device, to, from, n, &ns));
        if (ns < ROUND_NS && n < COPIES_MAX) {
            n *= 2;
            continue;
        }
        if (ns > 0 && (double)(n * COPY_BYTES) / (double)ns * 1e9 > *out) {
            *out = (double)(n * COPY_BYTES) / (double)ns * 1e9;
        }
        round++;
    }
    return QUIRE_OK;
}

static int rates_of(quire_device *device, const quire_device_memory pages[2],
                    const quire_device_memory *pinned, quire_device_rates *out)
{
    memset(pinned->host, 1, (size_t)COPY_BYTES);
    QUIRE_TRY(rate_get(device, &pages[0], pinned, &out->in));
    QUIRE_TRY(rate_get(device, &pages[1], &pages[0], &out->within));
    out->within *= 2.0;
    return rate_get(device, pinned, &pages[1], &out->out);
}

int quire_device_rates_get(quire_device *device, quire_device_rates *out)
{
    quire_device_memory pages[2] = { { 0 } };
    quire_device_memory pinned = { 0 };
    int rc = quire_device_alloc(device, QUIRE_DEVICE_PAGES, COPY_BYTES, &pages[0]);

    *out = (quire_device_rates){ 0 };
    if (rc == QUIRE_OK) {
        rc = quire_device_alloc(device, QUIRE_DEVICE_PAGES, COPY_BYTES, &pages[1]);
    }
    if (rc == QUIRE_OK) {
        rc = quire_device_alloc(device, QUIRE_DEVICE_PINNED, COPY_BYTES, &pinned);
    }
    if (rc == QUIRE_OK) {
        rc = rates_of(device, pages, &pinned, out);
    }
    (void)quire_device_sync(device); /* a copy that nobody has waited for uses the memory */
    quire_device_free(device, &pinned);
    quire_device_free(device, &pages[1]);
    quire_device_free(device, &pages[0]);
    return rc;
}
