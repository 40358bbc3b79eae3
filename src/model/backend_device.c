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

/* command: of scripts/setup.sh. */
static int has_none(const quire_device_info *info, const char *command, quire_error *err)
{
    return quire_error_set(err, QUIRE_UNSUPP,
                           "device %s: this build has no backend of ggml's for weights there "
                           "(scripts/setup.sh %s builds it); leave out -ngl",
                           info->name, command);
}

#if defined(QUIRE_HAS_GGML_VULKAN) || defined(QUIRE_HAS_GGML_CUDA)
/* title: of the interface. */
static int does_not_work(const quire_device_info *info, const char *title, quire_error *err)
{
    char why[QUIRE_BACKEND_WHY_BYTES];

    quire_backend_log_first(why, sizeof why);
    return quire_error_set(
        err, QUIRE_UNSUPP,
        "device %s (%s): ggml's %s backend does not work with it%s%s, so weights "
        "stay on the CPU (leave out -ngl)",
        info->name, info->description, title, why[0] != '\0' ? ": " : "", why);
}
#endif

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

    if (place == n_cards) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "device %s: weights of this process are on other cards", info->name);
    }
    quire_backend_log_clear();
    *out = quire_backend_device_at(ggml_backend_vk_reg, place);
    if (*out == NULL) {
        return does_not_work(info, "Vulkan", err);
    }
    (void)quire_vulkan_loader_share(*out); /* else they have a VkDevice each */
    return QUIRE_OK;
}

static int vulkan_find(ggml_backend_dev_t *out, const quire_device_info *infos, uint32_t n,
                       quire_error *err)
{
    for (uint32_t i = 0; i < n; i++) {
        if (IS_OF_TESTS && !infos[i].is_software) {
            return has_none(&infos[i], "vulkan", err);
        }
    }
    QUIRE_TRY(n_cards == 0 ? cards_list(infos, n, err) : QUIRE_OK);
    for (uint32_t i = 0; i < n; i++) {
        QUIRE_TRY(card_find(&out[i], &infos[i], err));
    }
    return QUIRE_OK;
}

#define VULKAN_FIND vulkan_find

#else
#define VULKAN_FIND NULL
#endif

#ifdef QUIRE_HAS_GGML_CUDA

#include <ggml-cuda.h>

/* ggml lists the cards of NVIDIA's runtime library, which are those of the driver, in its order. */
static int cuda_find(ggml_backend_dev_t *out, const quire_device_info *infos, uint32_t n,
                     quire_error *err)
{
    if (!quire_backend_cuda_begin()) {
        return quire_error_set(err, QUIRE_NOMEM, "device %s: no memory", infos[0].name);
    }
    for (uint32_t i = 0; i < n; i++) {
        quire_backend_log_clear();
        out[i] = quire_backend_device_at(ggml_backend_cuda_reg, infos[i].card);
        if (out[i] == NULL || !quire_backend_device_computes(out[i])) {
            return does_not_work(&infos[i], "CUDA", err);
        }
    }
    return QUIRE_OK;
}

bool quire_backend_device_is_beside(ggml_backend_dev_t device, const quire_device_info *info)
{
    return strcmp(info->isa, "cuda") == 0 &&
           quire_backend_device_at(ggml_backend_cuda_reg, info->card) == device;
}

#define CUDA_FIND cuda_find

#else
#define CUDA_FIND NULL

bool quire_backend_device_is_beside(ggml_backend_dev_t device, const quire_device_info *info)
{
    (void)device;
    (void)info;
    return false;
}

#endif

typedef struct card_interface {
    const char *isa; /* of Quire's devices there */
    int (*find)(ggml_backend_dev_t *out, const quire_device_info *infos, uint32_t n,
                quire_error *err); /* NULL: this build has no backend of ggml's for it */
} card_interface;

#define N_INTERFACES 2u
static const card_interface interfaces[N_INTERFACES] = { { "vulkan", VULKAN_FIND },
                                                         { "cuda", CUDA_FIND } };

/* The devices of one interface, among others. */
static int interface_find(const card_interface *interface, ggml_backend_dev_t *out,
                          const quire_device_info *infos, uint32_t n, quire_error *err)
{
    quire_device_info own[QUIRE_BACKEND_CARDS_MAX];
    ggml_backend_dev_t found[QUIRE_BACKEND_CARDS_MAX] = { NULL };
    uint32_t n_own = 0;
    int rc = QUIRE_OK;

    for (uint32_t i = 0; i < n; i++) {
        if (strcmp(infos[i].isa, interface->isa) == 0) {
            own[n_own++] = infos[i];
        }
    }
    if (n_own > 0) {
        rc = interface->find != NULL ? interface->find(found, own, n_own, err)
                                     : has_none(&own[0], interface->isa, err);
    }
    for (uint32_t i = n; i-- > 0 && n_own > 0;) {
        out[i] = strcmp(infos[i].isa, interface->isa) == 0 ? found[--n_own] : out[i];
    }
    return rc;
}

static int device_check(const quire_device_info *info, quire_error *err)
{
    bool is_of_one = false;

    if (info->memory != QUIRE_MEMORY_DEVICE) {
        return quire_error_set(err, QUIRE_INVAL,
                               "-ngl puts weights on a device, and %s is none: choose one with "
                               "--device",
                               info->name);
    }
    for (size_t i = 0; i < N_INTERFACES; i++) {
        is_of_one = is_of_one || strcmp(info->isa, interfaces[i].isa) == 0;
    }
    return is_of_one
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_UNSUPP,
                                 "device %s: ggml has no backend for weights there; leave out -ngl",
                                 info->name);
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
    for (size_t i = 0; i < N_INTERFACES; i++) {
        QUIRE_TRY(interface_find(&interfaces[i], out, infos, n, err));
    }
    return QUIRE_OK;
}
