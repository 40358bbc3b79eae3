/* mock_program.c - the quire program with a device "mock", which is lost at a piece of its work:
 * MOCK_LOSE_AT in the environment, counted from 1; without it, never. MOCK_MEMORY is its memory in
 * bytes.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "device/mock_device.h"

#include <stdlib.h>
#include <string.h>

int __real_quire_device_open(quire_device **out, const char *name, const quire_device_opts *opts,
                             quire_error *err);
int __wrap_quire_device_open(quire_device **out, const char *name, const quire_device_opts *opts,
                             quire_error *err);

int __wrap_quire_device_open(quire_device **out, const char *name, const quire_device_opts *opts,
                             quire_error *err)
{
    const char *lose_at = getenv("MOCK_LOSE_AT");
    const char *memory = getenv("MOCK_MEMORY");
    quire_device_opts own = *opts;
    const quire_mock_device_opts mock = {
        .lose_at = lose_at != NULL ? strtoull(lose_at, NULL, 10) : 0,
    };

    own.memory_bytes_max = memory != NULL ? strtoull(memory, NULL, 10) : own.memory_bytes_max;
    return strcmp(name, "mock") == 0 ? quire_mock_device_open(out, &own, &mock, err)
                                     : __real_quire_device_open(out, name, opts, err);
}

int main(int argc, char **argv)
{
    return quire_main(argc, argv);
}
