/* mock_device.h - a device over the CPU's that is slow, small and can fail: for tests.
 *
 * Work waits in a queue and is done in order: a piece of it `delay_ticks` ticks after it was queued
 * at the earliest, when quire_mock_device_tick() says so, or when somebody waits for it, which lets
 * the ticks pass. Copies beside the queue wait in another one, and are done as late as they may be:
 * with ticks, at the next such copy when they are due, when the first queue comes to a join, or
 * when somebody waits for them. Its pages cannot be seen by the host, so all bytes must come by
 * copies. Rows are taken by enter(), as by a device with memory of its own. Faults are chosen by a
 * seeded generator in the order of the work, so a run can be repeated. Its capacity is
 * quire_device_opts. memory_bytes_max.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_MOCK_DEVICE_H
#define QUIRE_DEVICE_MOCK_DEVICE_H

#include "quire/device.h"

typedef struct quire_mock_device_opts {
    uint64_t seed;
    uint32_t delay_ticks;
    double copy_failure; /* probability, 0..1, of each piece of a copy: its target holds garbage */
    double loss;         /* probability, 0..1, of each piece of work: the device is lost instead */
    uint64_t lose_at; /* the device is lost when this piece of work is to be done, counted from 1;
                         0: never */
} quire_mock_device_opts;

/* Errors: as quire_device_open(). Memory: quire_device_close(). */
int quire_mock_device_open(quire_device **out, const quire_device_opts *opts,
                           const quire_mock_device_opts *mock, quire_error *err);

/* Change faults and delays; the delay of queued work stays. */
void quire_mock_device_set(quire_device *device, const quire_mock_device_opts *mock);

/* Let one unit of time pass: work that is due is done. */
void quire_mock_device_tick(quire_device *device);

/* Pieces of work that wait. */
uint64_t quire_mock_device_n_queued(const quire_device *device);

#endif /* QUIRE_DEVICE_MOCK_DEVICE_H */
