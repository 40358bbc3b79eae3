/* model_option.c - see model_option.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/model_option.h"

#include "base/check.h"
#include "cli/pull/model_folder.h"

#include <string.h>

#define MODELS_MAX 2u /* options of one command that name models */

int quire_model_options_resolve(const quire_command *command, void *args, quire_error *err)
{
    static char paths[MODELS_MAX][QUIRE_PLACE_MAX];
    size_t n = 0;

    for (size_t i = 0; i < command->n_options; i++) {
        const quire_opt *opt = &command->options[i];
        const char **text = (const char **)(void *)((char *)args + opt->offset);

        if (!opt->is_model || *text == NULL) {
            continue;
        }
        QUIRE_CHECK(n < MODELS_MAX);
        QUIRE_TRY(quire_model_resolve(*text, paths[n], err));
        if (strcmp(*text, paths[n]) != 0) {
            *text = paths[n++];
        }
    }
    return QUIRE_OK;
}
