/* test_device_vulkan.c - the first Vulkan device, with the validation layer where it is installed:
 * the suite, no message of the layer, and cascades. Skipped where there is no device, and in name
 * where the layer is not installed.
 *
 * SPDX-License-Identifier: MIT */
#include "device/card/card.h"
#include "device/conformance.h"
#include "device/vulkan/vulkan_device.h"

#include <stdio.h>

#define SKIPPED 77

/* Memory that lavapipe keeps after its devices are closed is no leak of ours. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libvulkan_lvp.so";
}

static bool validates = true;

static int open_vulkan(quire_device **out, const quire_device_opts *opts, quire_error *err)
{
    return quire_vulkan_device_open(out, 0, validates, opts, err);
}

static int finish(void)
{
    (void)printf("splits read once for several rows: %llu\n",
                 (unsigned long long)quire_card_shared_splits());
    return quire_card_shared_splits() == 0;
}

/* The status of the program, when all devices are closed: the layer also tells of objects that they
 * have left. A suite without the layer counts as skipped, by name, since set-up installs it. */
static int validated(int rc)
{
    const uint64_t n = quire_vulkan_messages();

    (void)printf("messages of the validation layer: %llu\n", (unsigned long long)n);
    if (rc == 0 && !validates) {
        (void)printf("skipped: the suite has passed, but without Vulkan's validation layer (the "
                     "Debian package vulkan-validationlayers)\n");
        return SKIPPED;
    }
    return rc != 0 ? rc : n != 0;
}

int main(void)
{
    conformance_device device = { .name = "vulkan", .open = open_vulkan, .finish = finish };
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_device *first; /* stays open, so that all share its pipelines */
    quire_device_info info;
    quire_error err;
    int rc;

    opts.attn = fixture_small_opts();
    rc = open_vulkan(&first, &opts, &err);
    if (rc == QUIRE_UNSUPP) {
        (void)printf("%s: the suite runs without it\n", err.message);
        validates = false;
        rc = open_vulkan(&first, &opts, &err);
    }
    if (rc == QUIRE_NOTFOUND) {
        (void)printf("skipped: %s\n", err.message);
        return SKIPPED;
    }
    if (rc < 0) {
        (void)printf("%s\n", err.message);
        return 1;
    }
    quire_device_info_get(first, &info);
    device.is_software = info.is_software;
    (void)printf("%s: %s%s\n", info.name, info.description, validates ? ", validated" : "");
    rc = conformance_run(&device);
    quire_device_close(first);
    return validated(rc);
}
