/* device_rates.h - how fast a device's memory is, and the way there and back.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_DEVICE_RATES_H
#define QUIRE_CLI_DEVICE_RATES_H

#include "quire/device.h"

/* Bytes per second; the best of several rounds. */
typedef struct quire_device_rates {
    double within; /* read and written together, by copies inside the device's memory */
    double in;     /* from pinned memory of the host */
    double out;    /* to it */
} quire_device_rates;

/* Measure by copies of 32 MiB. Cost: 20 ms of copies per round and kind, or one copy where that
 * takes longer. Errors: as quire_device_alloc(), _copy() and _wait(). */
int quire_device_rates_get(quire_device *device, quire_device_rates *out);

#endif /* QUIRE_CLI_DEVICE_RATES_H */
