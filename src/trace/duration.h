/* duration.h - times as people write them: "500ms", "90s", "12m", "5h", "3d".
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TRACE_DURATION_H
#define QUIRE_TRACE_DURATION_H

#include <stdint.h>

#define QUIRE_DURATION_TEXT_MAX 16u

/* Up to three digits, in a form that quire_parse_duration() reads; 0 is "0". Returns text. */
char *quire_duration_text(uint64_t us, char text[QUIRE_DURATION_TEXT_MAX]);

/* The next larger time that people would choose: 1, 2, 5, 10, 15, 30 of seconds and minutes,
 * 1, 2, 3, 6, 12 hours, whole days. 0 stays 0. */
uint64_t quire_duration_round_up(uint64_t us);

#endif /* QUIRE_TRACE_DURATION_H */
