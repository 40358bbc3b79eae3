/* vulkan_memory.c - memory of a card, and pinned memory of the host: a buffer each.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "device/vulkan/vulkan_internal.h"

#define TYPE_NONE UINT32_MAX

/* The first type of memory with these properties; else TYPE_NONE. */
static uint32_t find_type(const quire_vulkan_context *c, uint32_t types,
                          VkMemoryPropertyFlags wanted)
{
    for (uint32_t i = 0; i < c->memory.memoryTypeCount; i++) {
        if ((types & 1u << i) != 0 && (c->memory.memoryTypes[i].propertyFlags & wanted) == wanted) {
            return i;
        }
    }
    return TYPE_NONE;
}

static uint32_t type_of(const quire_vulkan_context *c, quire_device_kind kind, uint32_t types)
{
    const VkMemoryPropertyFlags host =
        VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;
    uint32_t type;

    if (kind == QUIRE_DEVICE_PAGES) {
        return find_type(c, types, VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT);
    }
    type = find_type(c, types, host | VK_MEMORY_PROPERTY_HOST_CACHED_BIT);
    return type != TYPE_NONE ? type : find_type(c, types, host);
}

void quire_vulkan_piece_end(quire_card *card, quire_card_piece *base)
{
    const quire_vulkan_context *c = ((const quire_vulkan *)card)->context;
    const quire_vulkan_piece *piece = (const quire_vulkan_piece *)base;

    c->DestroyBuffer(c->device, piece->buffer, NULL);
    c->FreeMemory(c->device, piece->memory, NULL);
}

int quire_vulkan_piece_make(quire_card *card, quire_device_kind kind, uint64_t bytes,
                            quire_card_piece *base, quire_device_memory *out)
{
    quire_vulkan *v = (quire_vulkan *)card;
    quire_vulkan_piece *piece = (quire_vulkan_piece *)base;
    const quire_vulkan_context *c = v->context;
    const uint32_t families[2] = { c->family, c->copy_family };
    const bool are_two = c->family != c->copy_family;
    const VkBufferCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
        .size = bytes,
        .sharingMode = are_two ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
        .queueFamilyIndexCount = are_two ? 2 : 0,
        .pQueueFamilyIndices = families,
        .usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 VK_BUFFER_USAGE_TRANSFER_DST_BIT | VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT
    };
    const VkMemoryAllocateFlagsInfo flags = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                              .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT };
    VkBufferDeviceAddressInfo where = { .sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO };
    VkMemoryAllocateInfo take = { .sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                  .pNext = &flags };
    VkMemoryRequirements needs;
    void *host = NULL;

    QUIRE_TRY(quire_vulkan_status(v, c->CreateBuffer(c->device, &info, NULL, &piece->buffer)));
    c->GetBufferMemoryRequirements(c->device, piece->buffer, &needs);
    take.allocationSize = needs.size;
    take.memoryTypeIndex = type_of(c, kind, needs.memoryTypeBits);
    QUIRE_FAIL_IF(take.memoryTypeIndex == TYPE_NONE, QUIRE_NOMEM);
    QUIRE_TRY(quire_vulkan_status(v, c->AllocateMemory(c->device, &take, NULL, &piece->memory)));
    QUIRE_TRY(
        quire_vulkan_status(v, c->BindBufferMemory(c->device, piece->buffer, piece->memory, 0)));
    if (kind == QUIRE_DEVICE_PINNED) {
        QUIRE_TRY(quire_vulkan_status(
            v, c->MapMemory(c->device, piece->memory, 0, VK_WHOLE_SIZE, 0, &host)));
    }
    where.buffer = piece->buffer;
    out->host = host;
    out->addr = (unsigned char *)(uintptr_t)c->GetBufferDeviceAddress(c->device, &where);
    return QUIRE_OK;
}
