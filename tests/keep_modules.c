/* keep_modules.c - in programs under the address sanitizer: shared objects stay loaded.
 *
 * Vulkan's loader unloads a driver with the last instance. Memory that the driver's own variables
 * point to is then without a pointer, and the leak check reports it without a name that a
 * suppression could match.
 *
 * SPDX-License-Identifier: MIT */
#include <dlfcn.h>

__attribute__((visibility("default"))) int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
