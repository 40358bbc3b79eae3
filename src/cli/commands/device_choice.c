/* device_choice.c - see device_choice.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/device_choice.h"

#include "base/check.h"
#include "cli/commands/talk.h"
#include "model/backend_device.h"
#include "model/runtime_split.h"

#include <stdio.h>
#include <string.h>

#define PEEK_ENTRIES 16u /* of a page table: attention's least, about */

const char *quire_device_name(quire_device_interface interface, uint32_t i)
{
    static const char *const names[QUIRE_DEVICE_INTERFACES][QUIRE_DEVICES_MAX] = {
        { "vulkan0", "vulkan1", "vulkan2", "vulkan3", "vulkan4", "vulkan5", "vulkan6", "vulkan7",
          "vulkan8", "vulkan9" },
        { "cuda0", "cuda1", "cuda2", "cuda3", "cuda4", "cuda5", "cuda6", "cuda7", "cuda8",
          "cuda9" },
    };

    return names[interface][i];
}

const char *quire_device_interface_title(quire_device_interface interface)
{
    return interface == QUIRE_DEVICES_OF_VULKAN ? "Vulkan" : "CUDA";
}

int quire_device_peek(quire_device **out, const char *name, quire_error *err)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;

    opts.attn.n_threads_max = 1;
    opts.attn.n_seqs_max = 1;
    opts.attn.n_rows_max = 1;
    opts.attn.n_head_max = 1;
    opts.attn.head_dim_max = 64;
    opts.attn.n_entries_max = PEEK_ENTRIES;
    opts.attn.page_tokens = 64;
    opts.attn.n_layers_max = 1;
    return quire_device_open(out, name, &opts, err);
}

int quire_device_memory_look(quire_memory_part *out, const char *name, quire_error *err)
{
    quire_device_info info;
    quire_device *device;

    *out = (quire_memory_part){ .bytes = UINT64_MAX };
    (void)snprintf(out->name, sizeof out->name, "%s", name);
    if (quire_device_is_cpu(name)) {
        out->is_hosts = out->is_cpu = true;
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_device_peek(&device, name, err));
    quire_device_info_get(device, &info);
    quire_device_close(device);
    out->is_hosts = info.is_software;
    out->bytes = info.free_bytes != UINT64_MAX ? info.free_bytes
                 : info.memory_bytes != 0      ? info.memory_bytes
                                               : UINT64_MAX;
    return QUIRE_OK;
}

bool quire_device_is_cpu(const char *wanted)
{
    return wanted == NULL || strcmp(wanted, "cpu") == 0;
}

/* The first device of an interface that the CPU does not compute; NULL: none. */
static const char *card_of(quire_device_interface interface)
{
    for (uint32_t i = 0; i < QUIRE_DEVICES_MAX; i++) {
        const char *name = quire_device_name(interface, i);
        quire_error err = QUIRE_ERROR_INIT;
        quire_device_info info;
        quire_device *device;

        if (quire_device_peek(&device, name, &err) < 0) {
            return NULL;
        }
        quire_device_info_get(device, &info);
        quire_device_close(device);
        if (!info.is_software) {
            return name;
        }
    }
    return NULL;
}

const char *quire_device_choose(const char *wanted)
{
    if (wanted == NULL || strcmp(wanted, "auto") != 0) {
        return wanted;
    }
    for (uint32_t i = 0; i < QUIRE_DEVICE_INTERFACES; i++) {
        const char *name = card_of((quire_device_interface)i);

        if (name != NULL) {
            return name;
        }
    }
    return "cpu";
}

int quire_device_layers(quire_model_opts *opts, const char *const *names, uint32_t n,
                        int64_t n_layers, quire_error *err)
{
    quire_device_info infos[QUIRE_MODEL_SETS_MAX];
    struct ggml_backend_device *devices[QUIRE_MODEL_SETS_MAX];
    uint32_t n_cards = 0;

    QUIRE_CHECK(n > 0 && n <= QUIRE_MODEL_SETS_MAX);
    opts->n_device_layers = (uint32_t)n_layers;
    opts->n_sets = n_layers > 0 ? n : 1;
    for (uint32_t i = 0; i < n && n_layers > 0; i++) {
        quire_device *device;

        if (!quire_device_is_cpu(names[i])) {
            QUIRE_TRY(quire_device_peek(&device, names[i], err));
            quire_device_info_get(device, &infos[n_cards++]);
            quire_device_close(device);
        }
    }
    if (n_layers > 0 && n_cards == 0) {
        return quire_error_set(
            err, QUIRE_INVAL,
            "-ngl %lld: layers of the model can be on a device only, and the device is the CPU "
            "(--device is not given, or names it, or is auto and found no card): 'quire devices' "
            "lists the cards",
            (long long)n_layers);
    }
    QUIRE_TRY(n_cards > 0 ? quire_backend_devices_find(devices, infos, n_cards, err) : QUIRE_OK);
    for (uint32_t i = n; i-- > 0 && n_cards > 0;) {
        opts->devices[i] = quire_device_is_cpu(names[i]) ? NULL : devices[--n_cards];
    }
    return QUIRE_OK;
}

/* ", 5 layers and the output of the model", or nothing. */
static void layers_text(uint32_t n, char *text, size_t text_bytes)
{
    text[0] = '\0';
    if (n > 0) {
        (void)snprintf(text, text_bytes, ", %u layers and the output of the model", n - 1);
    }
}

void quire_device_say(const char *wanted, const quire_runtime *runtime)
{
    const quire_device *device = quire_runtime_memory_device(runtime);
    const uint32_t n_threads = quire_runtime_n_threads(runtime);
    quire_device_info info;
    char layers[64];

    if (wanted == NULL) {
        return;
    }
    if (quire_runtime_split_devices(runtime) != NULL) {
        char split[QUIRE_SPLIT_TEXT_MAX];

        layers_text(quire_runtime_n_device_layers(runtime), layers, sizeof layers);
        quire_say("devices %s: KV pages and attention%s; CPU: %smatrix products, %u threads",
                  quire_split_text(&quire_runtime_opts_get(runtime)->split, split, sizeof split),
                  layers, layers[0] != '\0' ? "other " : "", n_threads);
        return;
    }
    if (device == NULL) {
        quire_say("device cpu (%s): everything, %u threads", quire_runtime_isa(runtime), n_threads);
        return;
    }
    quire_device_info_get(device, &info);
    layers_text(quire_runtime_n_device_layers(runtime), layers, sizeof layers);
    quire_say("device %s (%s): KV pages and attention%s; CPU: %smatrix products, %u threads",
              info.name, info.description, layers, layers[0] != '\0' ? "other " : "", n_threads);
}
