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

static int vulkan_find(ggml_backend_dev_t *out, const quire_device_info *info, quire_error *err)
{
    static char opened[12]; /* the card's number */
    char card[sizeof opened], why[QUIRE_BACKEND_WHY_BYTES];
    ggml_backend_reg_t backend;

    if (IS_OF_TESTS && !info->is_software) {
        return has_none(info, err);
    }
    (void)snprintf(card, sizeof card, "%u", info->card);
    if (opened[0] != '\0' && strcmp(opened, card) != 0) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "device %s: weights of this process are on another card",
                               info->name);
    }
    /* Later calls may run beside threads that read the environment. */
    if (opened[0] == '\0' && setenv(CARDS_VARIABLE, card, 1) != 0) {
        return quire_error_set(err, QUIRE_NOMEM, "device %s: no memory", info->name);
    }
    memcpy(opened, card, sizeof opened);
    quire_backend_log_clear();
    backend = ggml_backend_vk_reg();
    *out = backend != NULL ? quire_backend_first_device(backend) : NULL;
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

#else

static int vulkan_find(ggml_backend_dev_t *out, const quire_device_info *info, quire_error *err)
{
    (void)out;
    return has_none(info, err);
}

#endif

int quire_backend_device_find(ggml_backend_dev_t *out, const quire_device_info *info,
                              quire_error *err)
{
    *out = NULL;
    QUIRE_TRY(quire_backend_init(err));
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
    return vulkan_find(out, info, err);
}
