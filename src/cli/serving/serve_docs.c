/* serve_docs.c - the parts of docs/configuration.md that are made from tables.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/commands.h"
#include "cli/serving/serve_args.h"
#include "model/chat_templates.h"

#include <string.h>

#define COLUMNS 100u

int quire_serve_settings_document(quire_bytes *out)
{
    (void)quire_settings_document(&quire_command_serve, out);
    quire_config_lists_document(out);
    return out->status;
}

int quire_serve_templates_document(quire_bytes *out)
{
    const char *names[QUIRE_CHAT_TEMPLATES_MAX];
    const size_t n = quire_chat_template_names(names);
    size_t column = 0;

    for (size_t i = 0; i < n; i++) {
        const size_t width = strlen(names[i]) + sizeof("``,") - 1;
        const bool is_next = column > 0 && column + 1 + width > COLUMNS;

        (void)quire_bytes_addf(out, "%s`%s`%s",
                               column == 0 ? ""
                               : is_next   ? "\n"
                                           : " ",
                               names[i], i + 1 == n ? "\n" : ",");
        column = is_next || column == 0 ? width : column + 1 + width;
    }
    return out->status;
}
