/* collect.c - a text sink.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/collect.h"

#include "cli/commands/talk.h"

#include <stdlib.h>
#include <string.h>

static bool keep(quire_collected *c, const char *text, size_t text_bytes)
{
    if (c->n + text_bytes > c->cap) {
        size_t cap = 2 * (c->n + text_bytes);
        char *larger = realloc(c->text, cap);

        if (larger == NULL) {
            return false;
        }
        c->text = larger;
        c->cap = cap;
    }
    memcpy(c->text + c->n, text, text_bytes);
    c->n += text_bytes;
    return true;
}

bool quire_collect(void *ctx, const char *text, size_t text_bytes)
{
    quire_collected *c = ctx;

    if (c->is_kept && !keep(c, text, text_bytes)) {
        return false;
    }
    return !c->is_streamed || quire_stdout_write(text, text_bytes);
}

json_t *quire_collected_json(const quire_collected *collected)
{
    return json_stringn(collected->n > 0 ? collected->text : "", collected->n);
}

void quire_collected_fini(quire_collected *collected)
{
    free(collected->text);
    memset(collected, 0, sizeof(*collected));
}
