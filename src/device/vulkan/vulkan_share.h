/* vulkan_share.h - a VkDevice of somebody else's in this process, which devices on its card use in
 * place of one of their own. Work of both is then in one queue, in the order of the submissions:
 * neither waits at the host for the other.
 *
 * It must have the features that devices need (docs/gpu.md).
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_VULKAN_SHARE_H
#define QUIRE_DEVICE_VULKAN_SHARE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

typedef struct quire_vulkan_share {
    const void *owner; /* quire_device_queue_owner() of the devices there */
    VkInstance instance;
    VkPhysicalDevice card;
    VkDevice device;
    bool validates;  /* the instance has the validation layer */
    uint32_t family; /* of a queue that computes */
    VkQueue queue;
    uint32_t copy_family; /* of a queue for copies beside; both may be one */
    VkQueue copy_queue;
    pthread_mutex_t *submits; /* held by all who submit to a queue of the VkDevice */
} quire_vulkan_share;

#define QUIRE_VULKAN_SHARES_MAX 16u /* in the life of a process */

/* Devices opened from now on, on the same card and with the same validation, use it. It is copied;
 * all that it names lives until share_end(), or until the process ends. Errors: QUIRE_LIMIT,
 * QUIRE_UNSUPP (a card that devices cannot use), QUIRE_NOTFOUND (no loader). */
int quire_vulkan_share_add(const quire_vulkan_share *share);

/* The owner of a VkDevice ends it: no context uses it any more. */
void quire_vulkan_share_end(VkDevice device);

#endif /* QUIRE_DEVICE_VULKAN_SHARE_H */
