/* cmd_devices.c - quire devices: the devices of this machine, their memory and the speed of copies.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/commands/device_choice.h"
#include "cli/commands/talk.h"
#include "cli/measuring/device_rates.h"

#include "base/check.h"
#include "base/parse.h"

#include <stdio.h>
#include <string.h>

typedef struct devices_args {
    bool is_json;
} devices_args;

static const quire_opt options[] = {
    { .names = { "--json" },
      .type = QUIRE_OPT_FLAG,
      .offset = offsetof(devices_args, is_json),
      .help = "print one JSON document on stdout instead of text" },
};

typedef struct devices {
    bool is_json;
    json_t *list;
    uint32_t n_shown;
} devices;

static void print_row(const quire_device_info *info, const quire_device_rates *rates)
{
    char memory[16] = "the host's";
    char left[16] = "-";

    if (info->memory_bytes > 0) {
        (void)quire_format_bytes(info->memory_bytes, memory, sizeof(memory));
    }
    if (info->free_bytes != UINT64_MAX) {
        (void)quire_format_bytes(info->free_bytes, left, sizeof(left));
    }
    printf("%-8s %10s %10s %10.1f %10.1f %10.1f  %s%s\n", info->name, memory, left,
           rates->within / 1e9, rates->in / 1e9, rates->out / 1e9, info->description,
           info->is_software && info->memory == QUIRE_MEMORY_DEVICE ? " (computed by the CPU)"
                                                                    : "");
}

static json_t *row_json(const quire_device_info *info, const quire_device_rates *rates)
{
    return json_pack(
        "{s:s, s:o, s:s, s:b, s:o, s:o, s:o, s:o, s:o}", "name", info->name, "description",
        quire_json_bytes(info->description, strlen(info->description)), "isa", info->isa,
        "software", info->is_software, "memory_bytes",
        info->memory_bytes > 0 ? json_integer((json_int_t)info->memory_bytes) : json_null(),
        "free_bytes",
        info->free_bytes != UINT64_MAX ? json_integer((json_int_t)info->free_bytes) : json_null(),
        "copy_bytes_per_second", quire_json_real(rates->within), "in_bytes_per_second",
        quire_json_real(rates->in), "out_bytes_per_second", quire_json_real(rates->out));
}

/* Errors: QUIRE_NOTFOUND, QUIRE_UNSUPP (no such device), others of the measurement. */
static int show(devices *d, const char *name, quire_error *err)
{
    quire_device_info info;
    quire_device_rates rates;
    quire_device *device;
    int rc;

    QUIRE_TRY(quire_device_peek(&device, name, err));
    quire_device_info_get(device, &info);
    quire_progress("measuring %s", name);
    rc = quire_device_rates_get(device, &rates);
    quire_progress_end();
    quire_device_close(device);
    if (rc < 0) {
        return quire_error_set(err, rc, "device %s: %s", name, quire_status_text(rc));
    }
    if (!d->is_json && d->n_shown++ == 0) {
        printf("%-8s %10s %10s %10s %10s %10s\n", "device", "memory", "free", "copy", "in", "out");
    }
    if (d->is_json) {
        json_array_append_new(d->list, row_json(&info, &rates));
    } else {
        print_row(&info, &rates);
    }
    return QUIRE_OK;
}

/* All devices of an interface; a line says why there are none. */
static int show_interface(devices *d, quire_device_interface interface, quire_error *err)
{
    for (uint32_t i = 0; i < QUIRE_DEVICES_MAX; i++) {
        const int rc = show(d, quire_device_name(interface, i), err);

        if (rc == QUIRE_NOTFOUND || rc == QUIRE_UNSUPP) {
            if (i == 0) {
                quire_say("no %s device: %s", quire_device_interface_title(interface),
                          err->message);
            }
            return QUIRE_OK;
        }
        QUIRE_TRY(rc);
    }
    return QUIRE_OK;
}

static int run(void *opaque)
{
    const devices_args *args = opaque;
    devices d = { .is_json = args->is_json, .list = json_array() };
    quire_error err = QUIRE_ERROR_INIT;
    int rc;

    if (d.list == NULL) {
        return quire_say_nomem();
    }
    rc = show(&d, "cpu", &err);
    for (uint32_t i = 0; i < QUIRE_DEVICE_INTERFACES && rc == QUIRE_OK; i++) {
        rc = show_interface(&d, (quire_device_interface)i, &err);
    }
    if (rc < 0) {
        json_decref(d.list);
        return quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    if (args->is_json) {
        return quire_stdout_json(d.list);
    }
    json_decref(d.list);
    printf(
        "GB/s: copies inside the memory, read and written together; from and to pinned memory of "
        "the host\n");
    return QUIRE_EXIT_OK;
}

const quire_command quire_command_devices = {
    .name = "devices",
    .usage = "[--json]",
    .summary = "Lists devices for --device, with their memory and the speed of copies.",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .args_bytes = sizeof(devices_args),
    .run = run,
};
