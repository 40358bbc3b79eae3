/* fuzz_settings.c - bytes as the YAML file of quire serve: refused with a message that names the
 * file, or read into settings, and then the lists in these settings are read too.
 *
 * API keys are left alone: their entries name files and variables to read.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "cli/commands/commands.h"
#include "cli/serving/serve_args.h"
#include "cli/serving/serve_classes.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static char path[64]; /* of the file in memory */

static int memory_file(const uint8_t *data, size_t size_bytes)
{
    const int fd = memfd_create("settings", MFD_CLOEXEC);

    QUIRE_CHECK(fd >= 0);
    QUIRE_CHECK(write(fd, data, size_bytes) == (ssize_t)size_bytes);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return fd;
}

static void check_error(int rc, const quire_error *err)
{
    QUIRE_CHECK(rc < 0 && err->message[0] != '\0');
}

static void read_lists(const quire_serve_args *args)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_serve_tenants tenants;
    quire_tiers tiers;
    int rc = quire_serve_classes_read(&tiers, args, &err);

    if (rc != QUIRE_OK) {
        check_error(rc, &err);
    }
    rc = quire_serve_tenants_read(&tenants, args, &err);
    if (rc != QUIRE_OK) {
        check_error(rc, &err);
    }
    quire_serve_tenants_fini(&tenants);
}

/* Use the settings as the program does before it opens a model. */
static void use(const quire_serve_args *args)
{
    const quire_engine_opts engine = quire_serve_engine_opts(args);
    const quire_server_opts server = quire_serve_server_opts(args);
    json_t *shown = quire_settings_json(&args->settings);
    quire_error err = QUIRE_ERROR_INIT;
    int rc = quire_serve_memory_check(args, &err);

    QUIRE_CHECK(engine.n_running_max > 0 && server.connections_max > 0);
    QUIRE_CHECK(shown != NULL);
    json_decref(shown);
    if (rc != QUIRE_OK) {
        check_error(rc, &err);
    }
    rc = quire_serve_watch_check(args, &err);
    if (rc != QUIRE_OK) {
        check_error(rc, &err);
    }
    read_lists(args);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    char *argv[] = { (char[]){ "-m" }, (char[]){ "x.gguf" }, (char[]){ "--config" }, path };
    quire_error err = QUIRE_ERROR_INIT;
    quire_serve_args *args = malloc(sizeof *args);
    const int fd = memory_file(data, size_bytes);
    int rc;

    QUIRE_CHECK(args != NULL && clearenv() == 0);
    quire_options_init(&quire_command_serve, args);
    rc = quire_command_serve.parse(4, argv, args, &err);
    if (rc == QUIRE_OK) {
        use(args);
        quire_settings_fini(&args->settings);
    } else {
        check_error(rc, &err);
    }
    (void)close(fd);
    free(args);
    return 0;
}
