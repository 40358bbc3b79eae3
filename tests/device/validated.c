/* validated.c - see validated.h.
 *
 * SPDX-License-Identifier: MIT */
#include "device/validated.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#ifdef QUIRE_TEST_HAS_VULKAN

#include "device/vulkan/vulkan_device.h"

void validated_begin(void)
{
    (void)quire_vulkan_validation_want();
}

void validated_end(void **state)
{
    (void)state;
    if (!quire_vulkan_validates()) {
        (void)printf("skipped: Vulkan's validation layer is not installed (the Debian package "
                     "vulkan-validationlayers)\n");
        skip();
    }
    assert_int_equal(quire_vulkan_messages(), 0);
}

#else

void validated_begin(void)
{
}

void validated_end(void **state)
{
    (void)state;
    (void)printf("skipped: this build has no Vulkan\n");
    skip();
}

#endif
