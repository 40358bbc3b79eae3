/* conformance.h - one suite for all devices: quire/device.h against quire_attn_ref().
 *
 * A device's test program names the device and calls conformance_run(). Cases are fixtures of
 * tests/attn: their pages are copied to the device, attention runs there, and the result is
 * compared with the definition within the table of device_tolerance.h.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_DEVICE_CONFORMANCE_H
#define QUIRE_TESTS_DEVICE_CONFORMANCE_H

#include "attn/attn_fixture.h"
#include "quire/device.h"

typedef struct conformance_device {
    const char *name;
    int (*open)(quire_device **out, const quire_device_opts *opts, quire_error *err);
    bool is_software; /* computed by the CPU: one in three cases runs (conformance_takes_case()) */
    bool rounds_as_cpu;  /* append() stores the bytes of the CPU's codecs */
    int (*finish)(void); /* a last check of the test program; may be NULL. Returns not 0: failed */
} conformance_device;

/* Run the suite. Returns the exit status. */
int conformance_run(const conformance_device *device);

/* ---- for conformance_*.c ---- */

/* The device under test, and the generator of cases. */
extern const conformance_device *conformance;
extern quire_rng conformance_rng;

/* Whether the next case of a list runs; see test_takes_case() too. A driver that computes a device
 * by the CPU compiles a program for each kind of case and takes most of the time of the debug
 * tests, so there one case in three runs, and with QUIRE_TEST_ALL_CASES in the environment each. */
bool conformance_takes_case(void);

/* Open the device under test with the limits of a fixture. Fails the running test. */
quire_device *conformance_open(const fixture *f);

/* A fixture's pages on a device. */
typedef struct device_pages {
    const fixture *f;
    quire_device *device;
    quire_device_memory pages;
    quire_device_memory pinned; /* of the same size */
    quire_page_addr *addr;
    quire_attn_batch batch; /* of these pages */
} device_pages;

/* batch: NULL for the fixture's own. Copies the pages there. */
void device_pages_open(device_pages *p, const fixture *f, const quire_attn_batch *batch);
void device_pages_close(device_pages *p);

/* Copy the pages back into the fixture's. */
void device_pages_back(const device_pages *p);

/* Attention of the batch's rows, dense; first K and V of the rows are stored, if has_append. */
void device_pages_attend(const device_pages *p, bool has_append, float *out);

void conformance_formats(void **state);
void conformance_heads(void **state);
void conformance_groups(void **state);
void conformance_lengths(void **state);
void conformance_pages(void **state);
void conformance_sources(void **state);
void conformance_second(void **state);
void conformance_prefix(void **state);
void conformance_hot(void **state);
void conformance_layers(void **state);
void conformance_biases(void **state);
void conformance_magnitudes(void **state);
void conformance_shared(void **state);
void conformance_bits(void **state);
void conformance_damage(void **state);
void conformance_append(void **state);
void conformance_append_bytes(void **state);
void conformance_steps(void **state);
void conformance_joint_formats(void **state);
void conformance_joint_layers(void **state);
void conformance_joint_bits(void **state);
void conformance_joint_append(void **state);
void conformance_joint_refusals(void **state);
void conformance_memory(void **state);
void conformance_order(void **state);
void conformance_refusals(void **state);

#endif /* QUIRE_TESTS_DEVICE_CONFORMANCE_H */
