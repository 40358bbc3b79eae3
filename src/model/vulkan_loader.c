/* vulkan_loader.c - see vulkan_loader.h.
 *
 * ggml asks for nothing before a device of Quire's was opened (backend_device.h), so there is a
 * loader.
 *
 * SPDX-License-Identifier: MIT */
#include "model/vulkan_loader.h"

#include "base/check.h"
#include "device/vulkan/vulkan_device.h"
#include "device/vulkan/vulkan_share.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define NO_FUSION      "GGML_VK_DISABLE_FUSION" /* a variable that ggml reads for each card */
#define LAYER          "VK_LAYER_KHRONOS_validation"
#define LAYER_SETTINGS 1000496000 /* a structure that old layers complain of */

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

FORWARD(PFN_vkVoidFunction, vkGetDeviceProcAddr, (VkDevice device, const char *name),
        return function(device, name))
FORWARD(void, vkGetPhysicalDeviceFeatures2,
        (VkPhysicalDevice card, VkPhysicalDeviceFeatures2 *features), function(card, features))
FORWARD(void, vkCmdCopyBuffer,
        (VkCommandBuffer commands, VkBuffer from, VkBuffer to, uint32_t n,
         const VkBufferCopy *pieces),
        function(commands, from, to, n, pieces))

/* ---- what ggml has made ---- */

/* A VkDevice of ggml's with its queues. The first queue computes. A second queue, for copies, is
 * there if ggml made two. */
typedef struct made_device {
    quire_vulkan_share share;
    uint32_t n_queues;
    bool fits; /* it has what Quire's devices need */
    bool is_shared;
    pthread_mutex_t submits;
} made_device;

static pthread_mutex_t made_lock = PTHREAD_MUTEX_INITIALIZER;
static VkInstance instance;                       /* of ggml's, which has one */
static bool validates;                            /* the instance */
static made_device made[QUIRE_VULKAN_SHARES_MAX]; /* [n_made] */
static uint32_t n_made;

/* The loader's own. */
static struct {
    PFN_vkCreateInstance CreateInstance;
    PFN_vkCreateDevice CreateDevice;
    PFN_vkDestroyDevice DestroyDevice;
    PFN_vkGetDeviceQueue2 GetDeviceQueue2;
    PFN_vkQueueSubmit QueueSubmit;
    PFN_vkCmdCopyBuffer CmdCopyBuffer;
} real;

static atomic_uint_fast64_t n_submissions;

/* The last copy of a thread that watches. */
static _Thread_local struct {
    bool is_on;
    VkBuffer from;
    VkDeviceSize offset;
} watch;

/* The device of a handle; NULL: not known. */
static made_device *made_find(VkDevice device)
{
    for (uint32_t i = n_made; i-- > 0;) { /* a handle may come again, behind its end */
        if (made[i].share.device == device) {
            return &made[i];
        }
    }
    return NULL;
}

/* With a layer or an extension more. Memory: free(). */
static const char **list_with(const char *const *list, uint32_t n, const char *name)
{
    const char **longer = calloc(n + 1, sizeof *longer);

    for (uint32_t i = 0; longer != NULL && i < n; i++) {
        longer[i] = list[i];
    }
    if (longer != NULL) {
        longer[n] = name;
    }
    return longer;
}

static VkResult create_validated(const VkInstanceCreateInfo *info, const VkAllocationCallbacks *by,
                                 VkInstance *out)
{
    VkInstanceCreateInfo more = *info;
    const char **layers = list_with(info->ppEnabledLayerNames, info->enabledLayerCount, LAYER);
    const char **extensions = list_with(info->ppEnabledExtensionNames, info->enabledExtensionCount,
                                        VK_EXT_DEBUG_UTILS_EXTENSION_NAME);
    VkResult r = VK_ERROR_OUT_OF_HOST_MEMORY;

    for (const VkBaseInStructure *s = info->pNext; s != NULL && (int)s->sType == LAYER_SETTINGS;
         s = more.pNext) {
        more.pNext = s->pNext;
    }
    if (layers != NULL && extensions != NULL) {
        more.ppEnabledLayerNames = layers;
        more.enabledLayerCount++;
        more.ppEnabledExtensionNames = extensions;
        more.enabledExtensionCount++;
        r = real.CreateInstance(&more, by, out);
    }
    free(layers);
    free(extensions);
    return r;
}

static VKAPI_ATTR VkResult VKAPI_CALL our_CreateInstance(const VkInstanceCreateInfo *info,
                                                         const VkAllocationCallbacks *by,
                                                         VkInstance *out)
{
    const bool wanted = quire_vulkan_validates();
    const VkResult r =
        wanted ? create_validated(info, by, out) : real.CreateInstance(info, by, out);

    if (r == VK_SUCCESS) {
        (void)pthread_mutex_lock(&made_lock);
        instance = *out;
        validates = wanted;
        (void)pthread_mutex_unlock(&made_lock);
    }
    return r;
}

/* Whether a VkDevice made so has the features that Quire's devices need. */
static bool has_features(const VkDeviceCreateInfo *info)
{
    bool has_int64 = false, has_addresses = false;

    for (const VkBaseInStructure *s = info->pNext; s != NULL; s = s->pNext) {
        if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2) {
            has_int64 = ((const VkPhysicalDeviceFeatures2 *)(const void *)s)->features.shaderInt64;
        } else if (s->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES) {
            const VkPhysicalDeviceVulkan12Features *f = (const void *)s;

            has_addresses = f->bufferDeviceAddress && f->timelineSemaphore;
        }
    }
    return has_int64 && has_addresses;
}

static bool is_integrated(VkPhysicalDevice card)
{
    VkPhysicalDeviceProperties2 of = { .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2 };
    PFN_vkGetInstanceProcAddr find;

    of_loader("vkGetInstanceProcAddr", &find, sizeof find);
    ((PFN_vkGetPhysicalDeviceProperties2)find(instance, "vkGetPhysicalDeviceProperties2"))(card,
                                                                                           &of);
    return of.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU;
}

/* Whether layers can be queued on a card one behind the other. A graph of ggml's for one row begins
 * with clearing the sums that its fused norms add up. On an integrated card the host clears them
 * when the graph is submitted, and so beside a norm of the layer before. Without fusion there are
 * no such sums. ggml reads the variable when it has made the VkDevice: at start-up
 * (backend_device.h). */
static bool can_queue_layers(VkPhysicalDevice card)
{
    return !is_integrated(card) || setenv(NO_FUSION, "1", 1) == 0;
}

static VKAPI_ATTR VkResult VKAPI_CALL our_CreateDevice(VkPhysicalDevice card,
                                                       const VkDeviceCreateInfo *info,
                                                       const VkAllocationCallbacks *by,
                                                       VkDevice *out)
{
    const VkResult r = real.CreateDevice(card, info, by, out);

    (void)pthread_mutex_lock(&made_lock);
    if (r == VK_SUCCESS && n_made < QUIRE_VULKAN_SHARES_MAX) {
        made_device *m = &made[n_made++];

        *m = (made_device){ .share = { .instance = instance,
                                       .card = card,
                                       .device = *out,
                                       .validates = validates,
                                       .submits = &m->submits },
                            .fits = has_features(info) && can_queue_layers(card) };
        (void)pthread_mutex_init(&m->submits, NULL);
    }
    (void)pthread_mutex_unlock(&made_lock);
    return r;
}

static VKAPI_ATTR void VKAPI_CALL our_DestroyDevice(VkDevice device,
                                                    const VkAllocationCallbacks *by)
{
    made_device *m;

    (void)pthread_mutex_lock(&made_lock);
    m = made_find(device);
    if (m != NULL) {
        m->fits = false;
    }
    (void)pthread_mutex_unlock(&made_lock);
    quire_vulkan_share_end(device);
    real.DestroyDevice(device, by);
}

static VKAPI_ATTR void VKAPI_CALL our_GetDeviceQueue2(VkDevice device,
                                                      const VkDeviceQueueInfo2 *info, VkQueue *out)
{
    made_device *m;

    real.GetDeviceQueue2(device, info, out);
    (void)pthread_mutex_lock(&made_lock);
    m = made_find(device);
    if (m != NULL && m->n_queues++ == 0) {
        m->share.family = m->share.copy_family = info->queueFamilyIndex;
        m->share.queue = m->share.copy_queue = *out;
    } else if (m != NULL) {
        m->share.copy_family = info->queueFamilyIndex;
        m->share.copy_queue = *out;
    }
    (void)pthread_mutex_unlock(&made_lock);
}

/* Whose lock submissions to a queue pass. ggml takes all queues of a VkDevice before it submits to
 * one. */
static pthread_mutex_t *submits_of(VkQueue queue)
{
    pthread_mutex_t *submits = NULL;

    (void)pthread_mutex_lock(&made_lock);
    for (uint32_t i = n_made; i-- > 0 && submits == NULL;) {
        if (made[i].share.queue == queue || made[i].share.copy_queue == queue) {
            submits = &made[i].submits;
        }
    }
    (void)pthread_mutex_unlock(&made_lock);
    return submits;
}

static VKAPI_ATTR VkResult VKAPI_CALL our_QueueSubmit(VkQueue queue, uint32_t n,
                                                      const VkSubmitInfo *info, VkFence fence)
{
    pthread_mutex_t *submits = submits_of(queue);
    VkResult r;

    atomic_fetch_add(&n_submissions, 1);
    if (submits == NULL) {
        return real.QueueSubmit(queue, n, info, fence);
    }
    (void)pthread_mutex_lock(submits);
    r = real.QueueSubmit(queue, n, info, fence);
    (void)pthread_mutex_unlock(submits);
    return r;
}

static VKAPI_ATTR void VKAPI_CALL our_CmdCopyBuffer(VkCommandBuffer commands, VkBuffer from,
                                                    VkBuffer to, uint32_t n,
                                                    const VkBufferCopy *pieces)
{
    if (watch.is_on && n > 0) {
        watch.from = from;
        watch.offset = pieces[0].srcOffset;
    }
    real.CmdCopyBuffer(commands, from, to, n, pieces);
}

/* ---- in the place of the loader's ---- */

/* A function of the loader's, and ours. Pointers to functions travel as bytes: their types differ.
 */
typedef struct replaced {
    const char *name;
    void *real;
    PFN_vkVoidFunction ours;
} replaced;

#define REPLACED(name)                                                                             \
    {                                                                                              \
        "vk" #name, &real.name, (PFN_vkVoidFunction)our_##name                                     \
    }

static PFN_vkVoidFunction replace(const char *name, PFN_vkVoidFunction function)
{
    static const replaced all[] = { REPLACED(CreateInstance), REPLACED(CreateDevice),
                                    REPLACED(DestroyDevice),  REPLACED(GetDeviceQueue2),
                                    REPLACED(QueueSubmit),    REPLACED(CmdCopyBuffer) };

    for (size_t i = 0; function != NULL && i < sizeof all / sizeof all[0]; i++) {
        if (strcmp(name, all[i].name) == 0) {
            memcpy(all[i].real, &function, sizeof function);
            return all[i].ours;
        }
    }
    return function;
}

FORWARD(PFN_vkVoidFunction, vkGetInstanceProcAddr, (VkInstance of, const char *name),
        return replace(name, function(of, name)))

bool quire_vulkan_loader_share(const void *owner)
{
    quire_vulkan_share share = { .device = VK_NULL_HANDLE };

    (void)pthread_mutex_lock(&made_lock);
    if (n_made > 0 && made[n_made - 1].fits && made[n_made - 1].n_queues > 0 &&
        !made[n_made - 1].is_shared) {
        made[n_made - 1].share.owner = owner;
        made[n_made - 1].is_shared = true;
        share = made[n_made - 1].share;
    }
    (void)pthread_mutex_unlock(&made_lock);
    return share.device != VK_NULL_HANDLE && quire_vulkan_share_add(&share) == QUIRE_OK;
}

uint64_t quire_vulkan_loader_submissions(void)
{
    return atomic_load(&n_submissions);
}

void quire_vulkan_loader_watch(void)
{
    watch.is_on = true;
    watch.from = VK_NULL_HANDLE;
}

uint64_t quire_vulkan_loader_watched(const void *owner)
{
    VkBufferDeviceAddressInfo info = { .sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                       .buffer = watch.from };
    PFN_vkGetBufferDeviceAddress address_of = NULL;
    VkDevice device = VK_NULL_HANDLE;

    watch.is_on = false;
    (void)pthread_mutex_lock(&made_lock);
    for (uint32_t i = 0; i < n_made; i++) {
        if (made[i].is_shared && made[i].fits && made[i].share.owner == owner) {
            device = made[i].share.device;
            address_of = (PFN_vkGetBufferDeviceAddress)vkGetInstanceProcAddr(
                instance, "vkGetBufferDeviceAddress");
        }
    }
    (void)pthread_mutex_unlock(&made_lock);
    return watch.from != VK_NULL_HANDLE && address_of != NULL
               ? address_of(device, &info) + watch.offset
               : 0;
}
