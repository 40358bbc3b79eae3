/* layers_card.c - see layers_card.h.
 *
 * SPDX-License-Identifier: MIT */
#include "layers_card.h"

#include "model/backend_device.h"

#include <stdio.h>

ggml_backend_dev_t card_of_vulkan0(void)
{
    quire_device_opts opts = QUIRE_DEVICE_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    ggml_backend_dev_t card = NULL;
    quire_device_info info;
    quire_device *device;

    opts.attn.n_threads_max = opts.attn.n_seqs_max = opts.attn.n_rows_max = 1;
    opts.attn.n_head_max = opts.attn.n_entries_max = opts.attn.n_layers_max = 1;
    opts.attn.head_dim_max = opts.attn.page_tokens = 64;
    if (quire_device_open(&device, "vulkan0", &opts, &err) == QUIRE_OK) {
        quire_device_info_get(device, &info);
        quire_device_close(device);
        (void)quire_backend_devices_find(&card, &info, 1, &err);
    }
    if (card == NULL) {
        (void)printf("layers on the card: skipped: %s\n", err.message);
    }
    return card;
}
