/* asan_process.c - in programs under the address sanitizer: the leak check works with shared
 * objects that are loaded while the program runs (drivers of Vulkan and CUDA).
 *
 * Vulkan's loader unloads a driver with the last instance. Memory that the driver's own variables
 * point to is then without a pointer, and the leak check reports it without a name that a
 * suppression could match. So shared objects stay loaded.
 *
 * The sanitizer follows the thread-local variables of such objects by a guess: up to GCC 13 and
 * LLVM 16, a block at one offset within its page (one block of 256, by chance) counts as a block of
 * glibc before 2.25, whose two words in front hold address and length. The leak check then reads
 * at a wrong address and ends the program ("Tracer caught signal 11"). So the sanitizer does not
 * follow them. Source: Mudlet's pull request 9930.
 *
 * SPDX-License-Identifier: MIT */
#include <dlfcn.h>

__attribute__((visibility("default"))) int dlclose(void *handle)
{
    (void)handle;
    return 0;
}

__attribute__((visibility("default"))) const char *__asan_default_options(void);

const char *__asan_default_options(void)
{
    return "intercept_tls_get_addr=0";
}
