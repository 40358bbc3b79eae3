/* vulkan_loader.h - the functions of Vulkan's loader that ggml's backend names, from the loader
 * that is there at run time: the program starts without one.
 *
 * ggml gets all other functions by name from vkGetInstanceProcAddr, which is ours. So we see
 * the VkDevice that it makes and the queues that it takes, and Quire's devices on the same card use
 * these (device/vulkan/vulkan_share.h). Its submissions pass a lock that ours pass, too. With
 * Vulkan's validation layer wanted for Quire's devices, ggml's instance has the layer.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_VULKAN_LOADER_H
#define QUIRE_MODEL_VULKAN_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Share the VkDevice that ggml has made last, once: owner is the quire_device_queue_owner() there.
 * False: it has none that Quire's devices can use, and they open their own. */
bool quire_vulkan_loader_share(const void *owner);

/* Submissions of ggml's so far, in this process. For tests. */
uint64_t quire_vulkan_loader_submissions(void);

/* Watch ggml's copies on this thread. watched() ends that, and returns the address on the VkDevice
 * that was shared for the owner from which the last copy was queued; 0: there was none. */
void quire_vulkan_loader_watch(void);
uint64_t quire_vulkan_loader_watched(const void *owner);

#ifdef __cplusplus
}
#endif

#endif /* QUIRE_MODEL_VULKAN_LOADER_H */
