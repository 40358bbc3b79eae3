/* mock_program.c - the quire program with devices "mock", "mock0", "mock1" and so on. The first two
 * are lost at a piece of their work: MOCK_LOSE_AT in the environment, counted from 1; without it,
 * never. MOCK_MEMORY is the memory of each in bytes. Layers of a model there (-ngl) are on ggml's
 * backend for the CPU; MOCK_LOSE_LAYERS_AT is the number of a graph of the first backend, counted
 * from 1, at which ggml loses it.
 *
 * Requests wait for pages from below without a limit: on a busy machine a read may take longer than
 * the patience of a server, which then computes the pages, as it should.
 *
 * MOCK_INTERRUPT_AT is the number of a stored record, counted from 1: when the program has read the
 * record and looks at its tokens, Ctrl-C (SIGINT) comes.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "device/mock_device.h"
#include "engine/loop/tier_patience.h"
#include "model/backend.h"
#include "model/backend_calls.h"
#include "model/backend_device.h"

#include "store/page_record.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int __real_quire_device_open(quire_device **out, const char *name, const quire_device_opts *opts,
                             quire_error *err);
int __wrap_quire_device_open(quire_device **out, const char *name, const quire_device_opts *opts,
                             quire_error *err);

int __wrap_quire_device_open(quire_device **out, const char *name, const quire_device_opts *opts,
                             quire_error *err)
{
    const bool is_mock = strncmp(name, "mock", 4) == 0;
    const bool can_end = strcmp(name, "mock") == 0 || strcmp(name, "mock0") == 0;
    const char *lose_at = can_end ? getenv("MOCK_LOSE_AT") : NULL;
    const char *memory = getenv("MOCK_MEMORY");
    quire_device_opts own = *opts;
    const quire_mock_device_opts mock = {
        .lose_at = lose_at != NULL ? strtoull(lose_at, NULL, 10) : 0,
    };

    own.memory_bytes_max = memory != NULL ? strtoull(memory, NULL, 10) : own.memory_bytes_max;
    return is_mock ? quire_mock_device_open(out, &own, &mock, err)
                   : __real_quire_device_open(out, name, opts, err);
}

int __real_quire_backend_devices_find(ggml_backend_dev_t *out, const quire_device_info *infos,
                                      uint32_t n, quire_error *err);
int __wrap_quire_backend_devices_find(ggml_backend_dev_t *out, const quire_device_info *infos,
                                      uint32_t n, quire_error *err);

int __wrap_quire_backend_devices_find(ggml_backend_dev_t *out, const quire_device_info *infos,
                                      uint32_t n, quire_error *err)
{
    int rc = quire_backend_init(err);

    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(infos[i].name, "mock") != 0) {
            return __real_quire_backend_devices_find(out, infos, n, err);
        }
        out[i] = quire_backend_cpu();
    }
    return rc;
}

enum ggml_status __real_quire_backend_device_compute(quire_backend_device *backend,
                                                     struct ggml_cgraph *cgraph);
enum ggml_status __wrap_quire_backend_device_compute(quire_backend_device *backend,
                                                     struct ggml_cgraph *cgraph);

enum ggml_status __wrap_quire_backend_device_compute(quire_backend_device *backend,
                                                     struct ggml_cgraph *cgraph)
{
    static _Atomic(quire_backend_device *) first;
    static _Atomic unsigned long n_graphs;
    const char *lose_at = getenv("MOCK_LOSE_LAYERS_AT");
    quire_backend_device *none = NULL;

    (void)atomic_compare_exchange_strong(&first, &none, backend);
    if (lose_at != NULL && backend == first && ++n_graphs == strtoul(lose_at, NULL, 10)) {
        backend->is_lost = true;
        (void)snprintf(backend->why, sizeof backend->why, "vk::Queue::submit: ErrorDeviceLost");
        return GGML_STATUS_FAILED;
    }
    return __real_quire_backend_device_compute(backend, cgraph);
}

double __wrap_quire_tier_patience_us(const quire_tier_patience *patience);

double __wrap_quire_tier_patience_us(const quire_tier_patience *patience)
{
    (void)patience;
    return INFINITY;
}

void __real_quire_page_record_tokens(const quire_page_record *record, int32_t *out);
void __wrap_quire_page_record_tokens(const quire_page_record *record, int32_t *out);

void __wrap_quire_page_record_tokens(const quire_page_record *record, int32_t *out)
{
    const char *interrupt_at = getenv("MOCK_INTERRUPT_AT");
    static _Atomic unsigned long n_records;

    __real_quire_page_record_tokens(record, out);
    if (interrupt_at != NULL && ++n_records == strtoul(interrupt_at, NULL, 10)) {
        (void)raise(SIGINT);
    }
}

int main(int argc, char **argv)
{
    return quire_main(argc, argv);
}
