/* info_need.h - quire info: the memory that quire run needs for a context, on the host and on each
 * device, by the check before loading (quire_memory_check()).
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_INFO_NEED_H
#define QUIRE_CLI_INFO_NEED_H

#include <jansson.h>

#include "cli/commands/opened.h"

typedef struct quire_info_need {
    const quire_opened *session;
    quire_memory_need need;
    quire_memory_use host;
    uint64_t host_bytes;        /* of all that the host needs */
    uint64_t missing_bytes;     /* 0: it fits */
    uint32_t weights_set;       /* quire_runtime_opts */
    quire_runtime_split layers; /* of KV, by device; n 0: no split */
    quire_error refusal;        /* of the check, where it does not fit */
    char kv[160];               /* the formats in words */
} quire_info_need;

/* The need of args' context and formats. session: quire_opened_describe() with the same args; it
 * outlives *out. Errors: quire_opened_draft(). */
int quire_info_need_get(quire_info_need *out, quire_opened *session, const quire_common_args *args,
                        quire_error *err);

void quire_info_need_print(const quire_info_need *need);
json_t *quire_info_need_json(const quire_info_need *need);

#endif /* QUIRE_CLI_INFO_NEED_H */
