/* duration.c - writes and rounds times.
 *
 * SPDX-License-Identifier: MIT */
#include "trace/duration.h"

#include <stddef.h>
#include <stdio.h>

#define SECOND_US 1000000u
#define MINUTE_US (60u * SECOND_US)
#define HOUR_US   (3600u * (uint64_t)SECOND_US)
#define DAY_US    (24u * HOUR_US)

char *quire_duration_text(uint64_t us, char text[QUIRE_DURATION_TEXT_MAX])
{
    static const struct {
        uint64_t from_us;
        uint64_t unit_us;
        const char *name;
    } units[] = {
        { 3 * DAY_US, DAY_US, "d" },
        { 3 * HOUR_US, HOUR_US, "h" },
        { 3 * MINUTE_US, MINUTE_US, "m" },
        { SECOND_US, SECOND_US, "s" },
        { 1, 1000, "ms" },
    };

    (void)snprintf(text, QUIRE_DURATION_TEXT_MAX, "0");
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        if (us >= units[i].from_us) {
            const double n = (double)us / (double)units[i].unit_us;

            (void)snprintf(text, QUIRE_DURATION_TEXT_MAX, n < 100.0 ? "%.3g%s" : "%.0f%s", n,
                           units[i].name);
            break;
        }
    }
    return text;
}

uint64_t quire_duration_round_up(uint64_t us)
{
    static const uint64_t nice[] = {
        1 * SECOND_US, 2 * SECOND_US, 5 * SECOND_US, 10 * SECOND_US, 15 * SECOND_US, 30 * SECOND_US,
        1 * MINUTE_US, 2 * MINUTE_US, 5 * MINUTE_US, 10 * MINUTE_US, 15 * MINUTE_US, 30 * MINUTE_US,
        1 * HOUR_US,   2 * HOUR_US,   3 * HOUR_US,   6 * HOUR_US,    12 * HOUR_US,
    };

    if (us == 0) {
        return 0;
    }
    for (size_t i = 0; i < sizeof(nice) / sizeof(nice[0]); i++) {
        if (us <= nice[i]) {
            return nice[i];
        }
    }
    return (us + DAY_US - 1) / DAY_US * DAY_US;
}
