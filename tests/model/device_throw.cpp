/* device_throw.cpp - see device_queue.h.
 *
 * SPDX-License-Identifier: MIT */
#include <stdexcept>

extern "C" void device_throw(const char *text);

void device_throw(const char *text)
{
    throw std::runtime_error(text);
}
