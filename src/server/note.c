/* note.c - requests as the recorder wants them: numbers in the place of names.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"

#include "base/hash.h"
#include "trace/record.h"

#include <string.h>

/* A number for a tenant's bytes or for a session of it; never 0, which is nobody. It begins with a
 * random number of this run, so that names cannot be tried; that two share one is unlikely among
 * thousands, and would only make a recording a little wrong. */
static uint32_t number_of(const quire_generation *gen, const char *session)
{
    uint64_t hash = quire_hash_add(QUIRE_HASH_INIT, &gen->http->server->id_base,
                                   sizeof gen->http->server->id_base);

    hash = quire_hash_add(hash, gen->salt.bytes, gen->salt.n);
    hash = quire_hash_add(hash, session, strlen(session));
    hash ^= hash >> 32;
    return (uint32_t)hash != 0 ? (uint32_t)hash : 1;
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
