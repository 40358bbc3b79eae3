/* vulkan_context.c - opening a card by way of the loader; pipelines. See vulkan_context.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/vulkan/vulkan_context.h"

#include "base/check.h"
#include "device/vulkan/vulkan_device.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CARDS_MAX    16u
#define FAMILIES_MAX 16u
#define LAYER        "VK_LAYER_KHRONOS_validation"

static pthread_mutex_t contexts_lock = PTHREAD_MUTEX_INITIALIZER;
static quire_vulkan_context *contexts;
static struct {
    quire_vulkan_share share;
    uint32_t index; /* of the card, as devices count */
    bool has_ended;
} shares[QUIRE_VULKAN_SHARES_MAX]; /* contexts point there: none is used again */
static uint32_t n_shares;
static _Atomic uint64_t n_messages;
static atomic_bool wants_validation;

uint64_t quire_vulkan_messages(void)
{
    return atomic_load(&n_messages);
}

bool quire_vulkan_validates(void)
{
    return atomic_load(&wants_validation);
}

static VKAPI_ATTR VkBool32 VKAPI_CALL on_message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                                 VkDebugUtilsMessageTypeFlagsEXT types,
                                                 const VkDebugUtilsMessengerCallbackDataEXT *data,
                                                 void *ctx)
{
    (void)severity;
    (void)types;
    (void)ctx;
    (void)fprintf(stderr, "vulkan: %s\n", data->pMessage);
    atomic_fetch_add(&n_messages, 1);
    return VK_FALSE;
}

static int open_loader(quire_vulkan_context *c, quire_error *err)
{
    c->loader = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
    if (c->loader == NULL) {
        return quire_error_set(err, QUIRE_NOTFOUND,
                               "there is no Vulkan here: libvulkan.so.1 was not found");
    }
    *(void **)&c->GetInstanceProcAddr = dlsym(c->loader, "vkGetInstanceProcAddr");
    return c->GetInstanceProcAddr != NULL
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_UNSUPP, "libvulkan.so.1 is no Vulkan loader");
}

static const VkDebugUtilsMessengerCreateInfoEXT messenger = {
    .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
    .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                       VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
    .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
    .pfnUserCallback = on_message
};

static void find_instance_calls(quire_vulkan_context *c)
{
#define X(name) c->name = (PFN_vk##name)c->GetInstanceProcAddr(c->instance, "vk" #name);
    QUIRE_VULKAN_INSTANCE_CALLS(X)
#undef X
}

/* The instance: of the shared VkDevice, or an own one. */
static int make_instance(quire_vulkan_context *c, quire_error *err)
{
    static const char *const layers[] = { LAYER };
    static const char *const extensions[] = { VK_EXT_DEBUG_UTILS_EXTENSION_NAME };
    const VkApplicationInfo app = { .sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                                    .pApplicationName = "quire",
                                    .apiVersion = VK_API_VERSION_1_2 };
    const VkInstanceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                        /* for its own beginning and end */
                                        .pNext = c->validates ? &messenger : NULL,
                                        .pApplicationInfo = &app,
                                        .enabledLayerCount = c->validates ? 1 : 0,
                                        .ppEnabledLayerNames = layers,
                                        .enabledExtensionCount = c->validates ? 1 : 0,
                                        .ppEnabledExtensionNames = extensions };
    PFN_vkCreateInstance create =
        (PFN_vkCreateInstance)c->GetInstanceProcAddr(NULL, "vkCreateInstance");
    VkResult r;

    if (c->share != NULL) {
        c->instance = c->share->instance;
        find_instance_calls(c);
        return QUIRE_OK;
    }
    r = create(&info, NULL, &c->instance);
    if (r == VK_ERROR_LAYER_NOT_PRESENT || r == VK_ERROR_EXTENSION_NOT_PRESENT) {
        return quire_error_set(err, QUIRE_UNSUPP, "Vulkan's validation layer is not installed");
    }
    if (r != VK_SUCCESS) {
        return quire_error_set(err, QUIRE_NOTFOUND, "Vulkan has no driver here (%d)", (int)r);
    }
    find_instance_calls(c);
    return QUIRE_OK;
}

bool quire_vulkan_validation_want(void)
{
    quire_vulkan_context c = { .validates = true };
    const bool is_there = open_loader(&c, NULL) == QUIRE_OK && make_instance(&c, NULL) == QUIRE_OK;

    if (c.instance != NULL) {
        c.DestroyInstance(c.instance, NULL);
    }
    if (c.loader != NULL) {
        (void)dlclose(c.loader);
    }
    atomic_store(&wants_validation, is_there);
    return is_there;
}

static int make_messenger(quire_vulkan_context *c, quire_error *err)
{
    PFN_vkCreateDebugUtilsMessengerEXT create =
        (PFN_vkCreateDebugUtilsMessengerEXT)c->GetInstanceProcAddr(
            c->instance, "vkCreateDebugUtilsMessengerEXT");

    if (!c->validates) {
        return QUIRE_OK;
    }
    return create(c->instance, &messenger, NULL, &c->messenger) == VK_SUCCESS
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_IO, "Vulkan gives no messages of validation");
}

/* The family of the queue for copies: one that does nothing else, which engines for copies have;
 * else that of steps. */
static void copy_family_take(quire_vulkan_context *c, const VkQueueFamilyProperties *families,
                             uint32_t n)
{
    const VkQueueFlags all = VK_QUEUE_TRANSFER_BIT | VK_QUEUE_COMPUTE_BIT | VK_QUEUE_GRAPHICS_BIT;

    c->copy_family = c->family;
    c->n_queues = families[c->family].queueCount > 1 ? 2 : 1;
    for (uint32_t i = 0; i < n; i++) {
        if ((families[i].queueFlags & all) == VK_QUEUE_TRANSFER_BIT) {
            c->copy_family = i;
            c->n_queues = 1;
            return;
        }
    }
}

/* Whether the card has the features that the kernels and the queue need; sets the family of
 * queues. */
static bool card_take(quire_vulkan_context *c, VkPhysicalDevice card)
{
    VkQueueFamilyProperties families[FAMILIES_MAX];
    VkPhysicalDeviceVulkan12Features has12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES
    };
    VkPhysicalDeviceFeatures2 has = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                      .pNext = &has12 };
    uint32_t n = FAMILIES_MAX;

    c->GetPhysicalDeviceProperties(card, &c->properties);
    if (c->properties.apiVersion < VK_API_VERSION_1_2 ||
        c->properties.limits.maxComputeSharedMemorySize < 32u << 10) {
        return false;
    }
    c->GetPhysicalDeviceFeatures2(card, &has);
    if (!has.features.shaderInt64 || !has12.bufferDeviceAddress || !has12.timelineSemaphore) {
        return false;
    }
    c->GetPhysicalDeviceQueueFamilyProperties(card, &n, families);
    for (c->family = 0; c->family < n; c->family++) {
        if ((families[c->family].queueFlags & VK_QUEUE_COMPUTE_BIT) != 0) {
            c->card = card;
            c->GetPhysicalDeviceMemoryProperties(card, &c->memory);
            copy_family_take(c, families, n);
            return true;
        }
    }
    return false;
}

static int find_card(quire_vulkan_context *c, quire_error *err)
{
    VkPhysicalDevice cards[CARDS_MAX];
    uint32_t n = CARDS_MAX, n_usable = 0;

    if (c->EnumeratePhysicalDevices(c->instance, &n, cards) < VK_SUCCESS) {
        n = 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (card_take(c, cards[i]) && n_usable++ == c->index) {
            c->place = i;
            return QUIRE_OK;
        }
    }
    return quire_error_set(
        err, QUIRE_NOTFOUND,
        "there is no device 'vulkan%u': Vulkan lists %u device%s, %u of them with "
        "Vulkan 1.2, buffer device addresses and timeline semaphores ('quire "
        "devices' lists what can be used)",
        c->index, n, n == 1 ? "" : "s", n_usable);
}

/* Whether the card has an extension. Those of a card's properties need not be switched on. */
static bool has_extension(const quire_vulkan_context *c, const char *name)
{
    VkExtensionProperties *list;
    uint32_t n = 0;
    bool is_there = false;

    if (c->EnumerateDeviceExtensionProperties(c->card, NULL, &n, NULL) != VK_SUCCESS || n == 0) {
        return false;
    }
    list = calloc(n, sizeof(*list));
    if (list != NULL && c->EnumerateDeviceExtensionProperties(c->card, NULL, &n, list) >= 0) {
        for (uint32_t i = 0; i < n; i++) {
            is_there |= strcmp(list[i].extensionName, name) == 0;
        }
    }
    free(list);
    return is_there;
}

static void find_device_calls(quire_vulkan_context *c)
{
#define X(name) c->name = (PFN_vk##name)c->GetDeviceProcAddr(c->device, "vk" #name);
    QUIRE_VULKAN_DEVICE_CALLS(X)
#undef X
}

static void take_shared_device(quire_vulkan_context *c)
{
    c->device = c->share->device;
    c->family = c->share->family;
    c->queue = c->share->queue;
    c->copy_family = c->share->copy_family;
    c->copy_queue = c->share->copy_queue;
    c->submits = c->share->submits;
    find_device_calls(c);
}

static int make_own_device(quire_vulkan_context *c, quire_error *err)
{
    const float priorities[2] = { 1.0f, 1.0f };
    const VkDeviceQueueCreateInfo queues[2] = {
        { .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
          .queueFamilyIndex = c->family,
          .queueCount = c->n_queues,
          .pQueuePriorities = priorities },
        { .sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
          .queueFamilyIndex = c->copy_family,
          .queueCount = 1,
          .pQueuePriorities = priorities },
    };
    VkPhysicalDeviceVulkan12Features wants12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .bufferDeviceAddress = VK_TRUE,
        .timelineSemaphore = VK_TRUE
    };
    const VkPhysicalDeviceFeatures2 wants = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                              .pNext = &wants12,
                                              .features = { .shaderInt64 = VK_TRUE } };
    const VkDeviceCreateInfo info = { .sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                                      .pNext = &wants,
                                      .queueCreateInfoCount = c->copy_family != c->family ? 2 : 1,
                                      .pQueueCreateInfos = queues };

    if (c->CreateDevice(c->card, &info, NULL, &c->device) != VK_SUCCESS) {
        return quire_error_set(err, QUIRE_IO, "vulkan%u: the driver opens no device", c->index);
    }
    find_device_calls(c);
    c->GetDeviceQueue(c->device, c->family, 0, &c->queue);
    c->GetDeviceQueue(c->device, c->copy_family, c->n_queues - 1, &c->copy_queue);
    c->submits = &c->own;
    return QUIRE_OK;
}

static int make_device(quire_vulkan_context *c, quire_error *err)
{
    const VkPushConstantRange range = { VK_SHADER_STAGE_COMPUTE_BIT, 0, sizeof(quire_card_push) };
    const VkPipelineLayoutCreateInfo layout = { .sType =
                                                    VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                                .pushConstantRangeCount = 1,
                                                .pPushConstantRanges = &range };

    if (c->share != NULL) {
        take_shared_device(c);
    } else {
        QUIRE_TRY(make_own_device(c, err));
    }
    return c->CreatePipelineLayout(c->device, &layout, NULL, &c->layout) == VK_SUCCESS
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_NOMEM, "vulkan%u: no memory", c->index);
}

static int make_modules(quire_vulkan_context *c, quire_error *err)
{
    const struct {
        const unsigned char *code;
        size_t bytes;
    } shaders[QUIRE_CARD_KERNELS] = {
        [QUIRE_CARD_ATTN] = { quire_spirv_attn, quire_spirv_attn_bytes },
        [QUIRE_CARD_MERGE] = { quire_spirv_merge, quire_spirv_merge_bytes },
        [QUIRE_CARD_APPEND] = { quire_spirv_append, quire_spirv_append_bytes },
        [QUIRE_CARD_SEAL] = { quire_spirv_seal, quire_spirv_seal_bytes },
    };

    for (uint32_t i = 0; i < QUIRE_CARD_KERNELS; i++) {
        VkShaderModuleCreateInfo info = { .sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                          .codeSize = shaders[i].bytes };
        uint32_t *words = malloc(shaders[i].bytes); /* aligned, unlike the bytes */
        VkResult r = VK_ERROR_OUT_OF_HOST_MEMORY;

        if (words != NULL) {
            memcpy(words, shaders[i].code, shaders[i].bytes);
            info.pCode = words;
            r = c->CreateShaderModule(c->device, &info, NULL, &c->modules[i]);
            free(words);
        }
        if (r != VK_SUCCESS) {
            return quire_error_set(err, QUIRE_IO, "vulkan%u: the driver takes no kernels (%d)",
                                   c->index, (int)r);
        }
    }
    return QUIRE_OK;
}

static void context_end(quire_vulkan_context *c)
{
    while (c->pipelines != NULL) {
        quire_vulkan_pipeline *p = c->pipelines;

        c->pipelines = p->next;
        c->DestroyPipeline(c->device, p->pipeline, NULL);
        free(p);
    }
    for (uint32_t i = 0; i < QUIRE_CARD_KERNELS && c->device != NULL; i++) {
        c->DestroyShaderModule(c->device, c->modules[i], NULL);
    }
    if (c->device != NULL) {
        c->DestroyPipelineLayout(c->device, c->layout, NULL);
    }
    if (c->device != NULL && c->share == NULL) {
        c->DestroyDevice(c->device, NULL);
    }
    if (c->messenger != VK_NULL_HANDLE) {
        PFN_vkDestroyDebugUtilsMessengerEXT destroy =
            (PFN_vkDestroyDebugUtilsMessengerEXT)c->GetInstanceProcAddr(
                c->instance, "vkDestroyDebugUtilsMessengerEXT");

        destroy(c->instance, c->messenger, NULL);
    }
    if (c->instance != NULL && c->share == NULL) {
        c->DestroyInstance(c->instance, NULL);
    }
    if (c->loader != NULL) {
        (void)dlclose(c->loader);
    }
    (void)pthread_mutex_destroy(&c->own);
    (void)pthread_mutex_destroy(&c->lock);
    free(c);
}

static int context_make(quire_vulkan_context *c, quire_error *err)
{
    QUIRE_TRY(open_loader(c, err));
    QUIRE_TRY(make_instance(c, err));
    QUIRE_TRY(make_messenger(c, err));
    QUIRE_TRY(find_card(c, err));
    c->tells_budget = has_extension(c, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME);
    QUIRE_TRY(make_device(c, err));
    return make_modules(c, err);
}

/* ---- shared VkDevices ---- */

/* The number, as devices count, of the card of a shared VkDevice. */
static int share_index(const quire_vulkan_share *share, uint32_t *index)
{
    quire_vulkan_context c = { .share = share };
    int rc = open_loader(&c, NULL);

    rc = rc == QUIRE_OK ? make_instance(&c, NULL) : rc;
    for (; rc == QUIRE_OK && c.card != share->card; c.index++) {
        rc = find_card(&c, NULL);
        *index = c.index;
    }
    if (c.loader != NULL) {
        (void)dlclose(c.loader);
    }
    return rc == QUIRE_NOTFOUND && c.instance != NULL ? QUIRE_UNSUPP : rc;
}

int quire_vulkan_share_add(const quire_vulkan_share *share)
{
    uint32_t index = 0;
    int rc;

    (void)pthread_mutex_lock(&contexts_lock);
    rc = n_shares < QUIRE_VULKAN_SHARES_MAX ? share_index(share, &index) : QUIRE_LIMIT;
    if (rc == QUIRE_OK) {
        shares[n_shares].share = *share;
        shares[n_shares++].index = index;
    }
    (void)pthread_mutex_unlock(&contexts_lock);
    return rc;
}

void quire_vulkan_share_end(VkDevice device)
{
    (void)pthread_mutex_lock(&contexts_lock);
    for (uint32_t i = 0; i < n_shares; i++) {
        shares[i].has_ended = shares[i].has_ended || shares[i].share.device == device;
    }
    (void)pthread_mutex_unlock(&contexts_lock);
}

static const quire_vulkan_share *share_find(uint32_t index, bool validates)
{
    for (uint32_t i = 0; i < n_shares; i++) {
        if (!shares[i].has_ended && shares[i].index == index &&
            shares[i].share.validates == validates) {
            return &shares[i].share;
        }
    }
    return NULL;
}

/* ---- contexts ---- */

static quire_vulkan_context *context_find(uint32_t index, bool validates,
                                          const quire_vulkan_share *share)
{
    for (quire_vulkan_context *c = contexts; c != NULL; c = c->next) {
        if (c->index == index && c->validates == validates && c->share == share) {
            return c;
        }
    }
    return NULL;
}

int quire_vulkan_context_get(quire_vulkan_context **out, uint32_t index, bool validates,
                             quire_error *err)
{
    const quire_vulkan_share *share;
    quire_vulkan_context *c;
    int rc = QUIRE_OK;

    (void)pthread_mutex_lock(&contexts_lock);
    share = share_find(index, validates);
    c = context_find(index, validates, share);
    if (c == NULL) {
        c = calloc(1, sizeof(*c));
        rc = c != NULL ? QUIRE_OK : quire_error_set(err, QUIRE_NOMEM, "vulkan%u: no memory", index);
        if (c != NULL) {
            c->index = index;
            c->validates = validates;
            c->share = share;
            (void)pthread_mutex_init(&c->lock, NULL);
            (void)pthread_mutex_init(&c->own, NULL);
            rc = context_make(c, err);
            if (rc < 0) {
                context_end(c);
            } else {
                c->next = contexts;
                contexts = c;
            }
        }
    }
    *out = rc == QUIRE_OK ? c : NULL;
    if (rc == QUIRE_OK) {
        c->n_users++;
    }
    (void)pthread_mutex_unlock(&contexts_lock);
    return rc;
}

void quire_vulkan_context_release(quire_vulkan_context *context)
{
    (void)pthread_mutex_lock(&contexts_lock);
    if (--context->n_users == 0) {
        quire_vulkan_context **at = &contexts;

        while (*at != context) {
            at = &(*at)->next;
        }
        *at = context->next;
        context_end(context);
    }
    (void)pthread_mutex_unlock(&contexts_lock);
}

static int pipeline_make(quire_vulkan_context *c, quire_card_kernel kernel,
                         const uint32_t constants[QUIRE_CARD_CONSTANTS_MAX],
                         quire_vulkan_pipeline **out)
{
    VkSpecializationMapEntry map[QUIRE_CARD_CONSTANTS_MAX];
    const VkSpecializationInfo special = { .mapEntryCount = QUIRE_CARD_CONSTANTS_MAX,
                                           .pMapEntries = map,
                                           .dataSize = sizeof(uint32_t) * QUIRE_CARD_CONSTANTS_MAX,
                                           .pData = constants };
    const VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = { .sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                   .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                   .module = c->modules[kernel],
                   .pName = "main",
                   .pSpecializationInfo = &special },
        .layout = c->layout
    };
    quire_vulkan_pipeline *p = calloc(1, sizeof(*p));
    VkResult r;

    QUIRE_FAIL_IF(p == NULL, QUIRE_NOMEM);
    for (uint32_t i = 0; i < QUIRE_CARD_CONSTANTS_MAX; i++) {
        map[i] = (VkSpecializationMapEntry){ i, i * (uint32_t)sizeof(uint32_t), sizeof(uint32_t) };
    }
    p->kernel = kernel;
    memcpy(p->constants, constants, sizeof(p->constants));
    r = c->CreateComputePipelines(c->device, VK_NULL_HANDLE, 1, &info, NULL, &p->pipeline);
    if (r != VK_SUCCESS) {
        free(p);
        return r == VK_ERROR_OUT_OF_HOST_MEMORY || r == VK_ERROR_OUT_OF_DEVICE_MEMORY ? QUIRE_NOMEM
                                                                                      : QUIRE_IO;
    }
    p->next = c->pipelines;
    c->pipelines = p;
    *out = p;
    return QUIRE_OK;
}

int quire_vulkan_pipeline_get(quire_vulkan_context *c, quire_card_kernel kernel,
                              const uint32_t constants[QUIRE_CARD_CONSTANTS_MAX], VkPipeline *out)
{
    quire_vulkan_pipeline *p;
    int rc = QUIRE_OK;

    (void)pthread_mutex_lock(&c->lock);
    for (p = c->pipelines; p != NULL; p = p->next) {
        if (p->kernel == kernel && memcmp(p->constants, constants, sizeof(p->constants)) == 0) {
            break;
        }
    }
    if (p == NULL) {
        rc = pipeline_make(c, kernel, constants, &p);
    }
    (void)pthread_mutex_unlock(&c->lock);
    if (rc == QUIRE_OK) {
        *out = p->pipeline;
    }
    return rc;
}
