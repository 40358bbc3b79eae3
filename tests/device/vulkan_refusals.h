/* vulkan_refusals.h - a call of Vulkan's driver that fails once, at a place that the test chooses.
 *
 * The file that includes this defines CALLS(X) before: the functions that can fail, each as X(NAME)
 * without "vk". It puts functions of its own in their place, which ask is_refused() and call
 * real_NAME.
 *
 * Thread: one at a time.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_VULKAN_REFUSALS_H
#define QUIRE_TESTS_VULKAN_REFUSALS_H

#include "device/vulkan/vulkan_context.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum call {
#define X(name) CALL_##name,
    CALLS(X)
#undef X
    N_CALLS
} call;

static const char *const call_names[N_CALLS] = {
#define X(name) "vk" #name,
    CALLS(X)
#undef X
};

#define X(name) static PFN_vk##name real_##name;
CALLS(X)
#undef X

static struct {
    call which;
    uint32_t left; /* calls of it before the one that fails */
    VkResult result;
    bool is_set, has_failed;
} fault;

/* The n-th call from now on fails, once; n from 0. */
static void fail_next(call which, uint32_t n, VkResult result)
{
    fault.which = which;
    fault.left = n;
    fault.result = result;
    fault.is_set = true;
    fault.has_failed = false;
}

/* Whether this call fails, with fault.result. */
static bool is_refused(call which)
{
    if (!fault.is_set || which != fault.which || fault.left-- > 0) {
        return false;
    }
    fault.is_set = false;
    fault.has_failed = true;
    return true;
}

#endif /* QUIRE_TESTS_VULKAN_REFUSALS_H */
