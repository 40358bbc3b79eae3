/* bandwidth.h - how fast this machine reads memory, measured: the ceiling of a decode step.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_BANDWIDTH_H
#define QUIRE_CLI_BANDWIDTH_H

#include <stdint.h>

/* Bytes per second that n_threads together read from a buffer larger than the caches: the median of
 * many short rounds. Cost: half a second. 0 when there was no memory for the buffer. */
double quire_read_bandwidth(uint32_t n_threads);

#endif /* QUIRE_CLI_BANDWIDTH_H */
