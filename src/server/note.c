/* note.c - record requests, with numbers instead of names.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"

#include "trace/online/record.h"
#include "trace/online/siphash.h"

#include <string.h>

/* The number of a tenant or of one of its sessions; never 0, which means none. The hash is keyed
 * with a secret of this run, so that names cannot be guessed and tested. A collision is unlikely
 * among thousands, and only makes a recording slightly inaccurate. */
static uint32_t number_of(const quire_generation *gen, const char *session)
{
    const uint64_t *key = gen->http->server->note_key;
    const uint64_t parts[2] = { quire_siphash(key, gen->salt.bytes, gen->salt.n),
                                quire_siphash(key, session, strlen(session)) };
    const uint32_t number = (uint32_t)quire_siphash(key, parts, sizeof parts);

    return number != 0 ? number : 1;
}

void quire_generation_note(const quire_generation *gen)
{
    quire_record *record = gen->http->server->opts.record;

    for (uint32_t i = 0; record != NULL && i < gen->n_choices; i++) {
        const quire_choice *choice = &gen->choices[i];
        const quire_recent_request request = {
            .time_us = gen->http->begun_us,
            .tokens = choice->prompt->tokens,
            .n_input_tokens = choice->prompt->n_tokens,
            .n_output_tokens = choice->result->n_generated_tokens,
            .tenant = number_of(gen, ""),
            .session = gen->session_id[0] != '\0' ? number_of(gen, gen->session_id) : 0,
            .class_index = (uint8_t)gen->params.class_index,
        };

        quire_record_add(record, &request);
    }
}
