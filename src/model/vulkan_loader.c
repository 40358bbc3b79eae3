/* vulkan_loader.c - the functions of Vulkan's loader that ggml's backend names, from the loader
 * that is there at run time: the program starts without one.
 *
 * ggml asks for nothing before a device of Quire's was opened (backend_device.h), so there is a
 * loader.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"

#include <dlfcn.h>
#include <string.h>

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

static void of_loader(const char *name, void *function, size_t function_bytes)
{
    void *loader = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL); /* the same one each time */
    void *address = loader != NULL ? dlsym(loader, name) : NULL;

    QUIRE_CHECK(address != NULL);
    memcpy(function, &address, function_bytes);
}

/* A function of a name as its type says, found at its first call. */
#define FORWARD(result, name, parameters, call)                                                    \
    VKAPI_ATTR result VKAPI_CALL name parameters;                                                  \
    VKAPI_ATTR result VKAPI_CALL name parameters                                                   \
    {                                                                                              \
        static PFN_##name function;                                                                \
                                                                                                   \
        if (function == NULL) {                                                                    \
            of_loader(#name, &function, sizeof function);                                          \
        }                                                                                          \
        call;                                                                                      \
    }

FORWARD(PFN_vkVoidFunction, vkGetInstanceProcAddr, (VkInstance instance, const char *name),
        return function(instance, name))
FORWARD(PFN_vkVoidFunction, vkGetDeviceProcAddr, (VkDevice device, const char *name),
        return function(device, name))
FORWARD(void, vkGetPhysicalDeviceFeatures2,
        (VkPhysicalDevice card, VkPhysicalDeviceFeatures2 *features), function(card, features))
FORWARD(void, vkCmdCopyBuffer,
        (VkCommandBuffer commands, VkBuffer from, VkBuffer to, uint32_t n,
         const VkBufferCopy *pieces),
        function(commands, from, to, n, pieces))
