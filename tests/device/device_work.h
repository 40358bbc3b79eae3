/* device_work.h - work on a device in small pieces, each of which may fail: open, copies of pages,
 * a step. For tests of drivers that refuse calls.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DEVICE_WORK_H
#define QUIRE_TESTS_DEVICE_WORK_H

#include "device/conformance.h"

typedef struct device_work {
    quire_device *device;
    quire_device_memory pages;
    quire_device_memory pinned;
    quire_page_addr *addr;
    float *k_new, *v_new;
    float *out;
} device_work;

/* Make the step, for work on a device: 20 rows behind 140 tokens in q4. */
void device_work_make(const conformance_device *device);
void device_work_unmake(void);
/* Compute the result that is expected, on that device: nothing may fail meanwhile. */
void device_work_expect(void);

/* On a failure the work has what it took so far: close it. */
int device_work_open(device_work *w);
int device_work_pages_take(device_work *w);
/* The same by way of a cache's memory: the pages wait, and go beside other work. */
int device_work_pages_come(device_work *w);
int device_work_step(device_work *w);
void device_work_close(device_work *w);
#define DEVICE_WORK_LATE_BYTES 256u
/* Open, begin a copy of DEVICE_WORK_LATE_BYTES to a mapped page, and run a step beside the copy.
 * Nothing may fail meanwhile. The caller unmaps *page from *memory. */
void device_work_late_copy(device_work *w, quire_page_memory *memory, unsigned char **page);
/* Fails the test if the result of the last step is not the expected one. */
void device_work_check(const device_work *w);

/* Open, copy, a step, close. A step that succeeds is checked. */
int device_work_do(void);

#endif /* QUIRE_TESTS_DEVICE_WORK_H */
