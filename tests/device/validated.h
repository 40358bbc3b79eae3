/* validated.h - Vulkan's validation layer in a program of cmocka tests: devices that the program
 * opens have the layer where it is installed, and it has no message.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_VALIDATED_H
#define QUIRE_TESTS_VALIDATED_H

/* Call in front of all tests. */
void validated_begin(void);

/* The last test, when all devices are closed. Skipped with a reason where the layer is not
 * installed. */
void validated_end(void **state);

#endif /* QUIRE_TESTS_VALIDATED_H */
