/* vulkan_context.h - the state of one card that all devices of a process share: the loader's
 * functions, the VkDevice, its queues, the pipelines made so far.
 *
 * Devices on the same card have one context, which ends with the last of them. The context
 * makes a VkDevice, or takes one that ggml has made (vulkan_share.h).
 *
 * Thread: any; a context has a lock for its queues and one for its pipelines.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_DEVICE_VULKAN_CONTEXT_H
#define QUIRE_DEVICE_VULKAN_CONTEXT_H

#include "device/card/card.h"
#include "device/vulkan/vulkan_share.h"
#include "quire/error.h"

#define QUIRE_VULKAN_INSTANCE_CALLS(X)                                                             \
    X(DestroyInstance)                                                                             \
    X(EnumeratePhysicalDevices)                                                                    \
    X(GetPhysicalDeviceProperties)                                                                 \
    X(GetPhysicalDeviceFeatures2)                                                                  \
    X(GetPhysicalDeviceMemoryProperties)                                                           \
    X(GetPhysicalDeviceMemoryProperties2)                                                          \
    X(EnumerateDeviceExtensionProperties)                                                          \
    X(GetPhysicalDeviceQueueFamilyProperties)                                                      \
    X(CreateDevice)                                                                                \
    X(GetDeviceProcAddr)

#define QUIRE_VULKAN_DEVICE_CALLS(X)                                                               \
    X(DestroyDevice)                                                                               \
    X(GetDeviceQueue)                                                                              \
    X(QueueSubmit)                                                                                 \
    X(AllocateMemory)                                                                              \
    X(FreeMemory)                                                                                  \
    X(MapMemory)                                                                                   \
    X(CreateBuffer)                                                                                \
    X(DestroyBuffer)                                                                               \
    X(GetBufferMemoryRequirements)                                                                 \
    X(BindBufferMemory)                                                                            \
    X(GetBufferDeviceAddress)                                                                      \
    X(CreateCommandPool)                                                                           \
    X(DestroyCommandPool)                                                                          \
    X(AllocateCommandBuffers)                                                                      \
    X(BeginCommandBuffer)                                                                          \
    X(EndCommandBuffer)                                                                            \
    X(CreateSemaphore)                                                                             \
    X(DestroySemaphore)                                                                            \
    X(WaitSemaphores)                                                                              \
    X(CreateShaderModule)                                                                          \
    X(DestroyShaderModule)                                                                         \
    X(CreatePipelineLayout)                                                                        \
    X(DestroyPipelineLayout)                                                                       \
    X(CreateComputePipelines)                                                                      \
    X(DestroyPipeline)                                                                             \
    X(CmdBindPipeline)                                                                             \
    X(CmdPushConstants)                                                                            \
    X(CmdDispatch)                                                                                 \
    X(CmdPipelineBarrier)                                                                          \
    X(CmdUpdateBuffer)                                                                             \
    X(CmdCopyBuffer)

typedef struct quire_vulkan_pipeline {
    struct quire_vulkan_pipeline *next;
    quire_card_kernel kernel;
    uint32_t constants[QUIRE_CARD_CONSTANTS_MAX]; /* specialisation, by constant_id */
    VkPipeline pipeline;
} quire_vulkan_pipeline;

typedef struct quire_vulkan_context {
    struct quire_vulkan_context *next;
    uint32_t n_users;
    uint32_t index; /* among the cards that can be used */
    uint32_t place; /* among all cards */
    bool validates;
    const quire_vulkan_share *share; /* whose instance, VkDevice and queues these are; NULL: own */
    void *loader;
    VkInstance instance;
    VkDebugUtilsMessengerEXT messenger;
    VkPhysicalDevice card;
    VkPhysicalDeviceProperties properties;
    VkPhysicalDeviceMemoryProperties memory;
    bool tells_budget; /* the driver knows how much of its memory is free */
    uint32_t family;
    VkDevice device;
    VkQueue queue;
    uint32_t n_queues;    /* of the family */
    uint32_t copy_family; /* of the queue for copies beside steps */
    VkQueue copy_queue;   /* may be the same queue */
    VkPipelineLayout layout;
    VkShaderModule modules[QUIRE_CARD_KERNELS];
    quire_vulkan_pipeline *pipelines;
    pthread_mutex_t lock;     /* of the pipelines */
    pthread_mutex_t own;      /* of the queues, of an own VkDevice */
    pthread_mutex_t *submits; /* around submissions to a queue */
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
#define X(name) PFN_vk##name name;
    QUIRE_VULKAN_INSTANCE_CALLS(X)
    QUIRE_VULKAN_DEVICE_CALLS(X)
#undef X
} quire_vulkan_context;

/* Errors: QUIRE_NOTFOUND (no loader, no such device), QUIRE_UNSUPP (no validation layer),
 * QUIRE_NOMEM, QUIRE_IO (the driver refused). Memory: quire_vulkan_context_release(). */
int quire_vulkan_context_get(quire_vulkan_context **out, uint32_t index, bool validates,
                             quire_error *err);
void quire_vulkan_context_release(quire_vulkan_context *context);

/* The pipeline of a kernel with these constants; made when it is wanted first. Errors: QUIRE_NOMEM,
 * QUIRE_IO. */
int quire_vulkan_pipeline_get(quire_vulkan_context *context, quire_card_kernel kernel,
                              const uint32_t constants[QUIRE_CARD_CONSTANTS_MAX], VkPipeline *out);

/* SPIR-V of the shaders, made by the build. */
extern const unsigned char quire_spirv_attn[], quire_spirv_merge[];
extern const unsigned char quire_spirv_append[], quire_spirv_seal[];
extern const size_t quire_spirv_attn_bytes, quire_spirv_merge_bytes;
extern const size_t quire_spirv_append_bytes, quire_spirv_seal_bytes;

#endif /* QUIRE_DEVICE_VULKAN_CONTEXT_H */
