/* collect.h - generated text on its way: streamed to stdout, kept, or both.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_COLLECT_H
#define QUIRE_CLI_COLLECT_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct quire_collected {
    bool is_streamed; /* to stdout */
    bool is_kept;
    char *text; /* not terminated; NULL while n is 0 */
    size_t n;
    size_t cap;
} quire_collected;

/* A quire_text_sink; ctx is a quire_collected. Returns false when stdout is closed or memory is
 * out. */
bool quire_collect(void *ctx, const char *text, size_t text_bytes);

/* The kept text as a JSON string; NULL when out of memory. */
json_t *quire_collected_json(const quire_collected *collected);

void quire_collected_fini(quire_collected *collected);

#endif /* QUIRE_CLI_COLLECT_H */
