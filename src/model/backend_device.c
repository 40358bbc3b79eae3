/* backend_device.c - see backend_device.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/backend_device.h"

#include "base/check.h"
#include "model/backend.h"
#include "model/backend_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int has_none(const quire_device_info *info, quire_error *err)
{
    return quire_error_set(err, QUIRE_UNSUPP,
                           "device %s: this build has no backend of ggml's for weights there "
                           "(scripts/setup.sh vulkan builds it); leave out -ngl",
                           info->name);
}

#ifdef QUIRE_HAS_GGML_VULKAN

#include "model/vulkan_loader.h"

#include <ggml-vulkan.h>

/* The backend of the tests has the shaders of Mesa's lavapipe alone (scripts/test-glslc.sh). */
#ifdef QUIRE_GGML_VULKAN_OF_TESTS
#define IS_OF_TESTS true
#else
#define IS_OF_TESTS false
#endif

/* ggml lists the cards that this variable names, and without it no card that the CPU computes. */
#define CARDS_VARIABLE "GGML_VK_VISIBLE_DEVICES"
#define CARD_CHARS     12u /* of a number, with a comma */

/* The cards of the process, in ggml's order. */
static uint32_t cards[QUIRE_BACKEND_CARDS_MAX];
static uint32_t n_cards;

static uint32_t card_place(uint32_t card)
{
    uint32_t i = 0;

    while (i < n_cards && cards[i] != card) {
        i++;
    }
    return i;
}

/* Later calls may run beside threads that read the environment. */
static int cards_list(const quire_device_info *infos, uint32_t n, quire_error *err)
{
    char list[QUIRE_BACKEND_CARDS_MAX * CARD_CHARS] = "";
    size_t at = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (card_place(infos[i].card) == n_cards) {
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%u", n_cards > 0 ? "," : "",
                                   infos[i].card);
            cards[n_cards++] = infos[i].card;
        }
    }
    if (setenv(CARDS_VARIABLE, list, 1) != 0) {
        n_cards = 0;
        return quire_error_set(err, QUIRE_NOMEM, "device %s: no memory", infos[0].name);
    }
    return QUIRE_OK;
}

static int card_find(ggml_backend_dev_t *out, const quire_device_info *info, quire_error *err)
{
    const uint32_t place = card_place(info->card);
    char why[QUIRE_BACKEND_WHY_BYTES];
    ggml_backend_reg_t backend;

    if (place == n_cards) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "device %s: weights of this process are on other cards", info->name);
    }
    quire_backend_log_clear();
    backend = ggml_backend_vk_reg();
    *out = backend != NULL ? quire_backend_device_at(backend, place) : NULL;
    if (*out == NULL) {
        quire_backend_log_first(why, sizeof why);
        return quire_error_set(err, QUIRE_UNSUPP,
                               "device %s (%s): ggml's Vulkan backend does not work with it%s%s, "
                               "so weights stay on the CPU (leave out -ngl)",
                               info->name, info->description, why[0] != '\0' ? ": " : "", why);
    }
    (void)quire_vulkan_loader_share(*out); /* else they have a VkDevice each */
    return QUIRE_OK;
}

static int vulkan_find(ggml_backend_dev_t *out, const quire_device_info *infos, uint32_t n,
                       quire_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        if (IS_OF_TESTS && !infos[i].is_software) {
            return has_none(&infos[i], err);
        }
    }
    QUIRE_TRY(n_cards == 0 ? cards_list(infos, n, err) : QUIRE_OK);
    for (uint32_t i = 0; i < n; i++) {
        QUIRE_TRY(card_find(&out[i], &infos[i], err));
    }
    return QUIRE_OK;
}

#else

static int vulkan_find(ggml_backend_dev_t *out, const quire_device_info *infos, uint32_t n,
                       quire_error *err)
{
    (void)out;
    (void)n;
    return has_none(&infos[0], err);
}

#endif

static int device_check(const quire_device_info *info, quire_error *err)
{
    if (info->memory != QUIRE_MEMORY_DEVICE) {
        return quire_error_set(err, QUIRE_INVAL,
                               "-ngl puts weights on a device, and %s is none: choose one with "
                               "--device",
                               info->name);
    }
    if (strcmp(info->isa, "vulkan") != 0) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "device %s: ggml's backend for weights there is not a part of "
                               "Quire; take the card's name with Vulkan ('quire devices' lists "
                               "it), or leave out -ngl",
                               info->name);
    }
    return QUIRE_OK;
}

int quire_backend_devices_find(ggml_backend_dev_t *out, const quire_device_info *infos, uint32_t n,
                               quire_error *err)
{
    QUIRE_CHECK(n > 0 && n <= QUIRE_BACKEND_CARDS_MAX);
    QUIRE_TRY(quire_backend_init(err));
    for (uint32_t i = 0; i < n; i++) {
        out[i] = NULL;
        QUIRE_TRY(device_check(&infos[i], err));
    }
    return vulkan_find(out, infos, n, err);
}
