/* stream.c - an answer as server-sent events.
 *
 * MHD calls the reader on the connection's thread, where the reader waits for tokens. Tokens that
 * are ready are sent together, so a slow client gets fewer, larger pieces.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"

#include "base/check.h"

#include <string.h>

/* Bytes of events collected before MHD gets them. */
#define PENDING_BYTES (8u << 10)
/* Longest wait for one of several answers before the next one's turn. */
#define TURN_MS 10u

void quire_event_begin(quire_generation *gen, const char *name)
{
    if (name != NULL) {
        (void)quire_bytes_addf(&gen->pending, "event: %s\n", name);
    }
    (void)quire_bytes_add(&gen->pending, "data: ", 6);
}

void quire_event_end(quire_generation *gen)
{
    (void)quire_bytes_add(&gen->pending, "\n\n", 2);
}

/* The events of a text's parts: thoughts, content, calls. */
static int add_parts(quire_generation *gen, quire_choice *choice, const char *text, size_t n,
                     bool is_last)
{
    quire_chat_delta delta;

    QUIRE_TRY(quire_choice_read(gen, choice, text, n, is_last));
    while (quire_chat_reader_delta(choice->reader, &delta)) {
        gen->form->delta(gen, choice, &delta);
    }
    return QUIRE_OK;
}

static int add_text(quire_generation *gen, quire_choice *choice, const char *text, size_t n,
                    bool is_last)
{
    if (gen->session != 0) {
        (void)quire_bytes_add(&choice->text, text, n);
    }
    if (choice->reader != NULL) {
        return add_parts(gen, choice, text, n, is_last);
    }
    if (n > 0) {
        gen->form->text(gen, choice, text, n);
    }
    return QUIRE_OK;
}

/* The status line is already sent, so the error is an event. */
static void add_error(quire_generation *gen)
{
    quire_generation_give_up(gen);
    gen->form->error(gen);
    gen->http->finish = "error";
    gen->is_over = true;
}

static void add_end(quire_generation *gen)
{
    gen->form->end(gen);
    gen->is_over = true;
}

static bool are_all_ended(const quire_generation *gen)
{
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        if (!gen->choices[i].is_ended) {
            return false;
        }
    }
    return true;
}

/* The prompt before the answer. */
static void add_echo(quire_generation *gen, quire_choice *choice)
{
    gen->form->text(gen, choice, choice->prompt->text.data, choice->prompt->text.n);
}

/* Advance one answer by one token or its end. Returns 1 on progress, 0 if nothing is ready, or an
 * error. */
static int advance(quire_generation *gen, quire_choice *choice, uint32_t timeout_ms)
{
    const bool was_echoed = choice->is_echoed;
    quire_request_token token;
    const int rc = quire_generation_wait(gen, choice, timeout_ms, &token);

    if (choice->is_echoed && !was_echoed) {
        add_echo(gen, choice); /* with the log-probabilities */
    }
    if (rc == 1) {
        quire_choice_take(gen, choice, &token);
        QUIRE_TRY(add_text(gen, choice, token.text, token.text_bytes, false));
        return 1;
    }
    if (rc == 0) {
        QUIRE_TRY(add_text(gen, choice, choice->result->tail, choice->result->tail_bytes, true));
        choice->is_ended = true;
        if (are_all_ended(gen)) {
            quire_generation_finish(gen);
        }
        gen->form->choice_end(gen, choice);
        return 1;
    }
    return rc == QUIRE_AGAIN ? 0 : rc;
}

/* The next answer in turn that has not ended; NULL when all have. */
static quire_choice *choose(quire_generation *gen)
{
    for (uint32_t i = 0; i < gen->n_choices; i++) {
        quire_choice *choice = &gen->choices[gen->next_choice++ % gen->n_choices];

        if (!choice->is_ended) {
            return choice;
        }
    }
    return NULL;
}

/* Fill pending: wait for one event, then add the events that are ready. */
static int produce(quire_generation *gen)
{
    uint32_t n_idle = 0;

    while (!gen->is_over && gen->pending.n < PENDING_BYTES) {
        const bool waits = gen->pending.n == 0;
        quire_choice *choice = choose(gen);
        int rc;

        if (choice == NULL) {
            add_end(gen);
            break;
        }
        rc = advance(gen, choice, waits ? gen->n_choices > 1 ? TURN_MS : UINT32_MAX : 0);
        if (rc < 0 && !gen->http->is_gone) {
            add_error(gen);
            break;
        }
        if (rc < 0) {
            return rc;
        }
        n_idle = rc == 1 ? 0 : n_idle + 1;
        if (!waits && n_idle >= gen->n_choices) {
            break; /* nothing more is ready */
        }
    }
    return gen->pending.status;
}

static ssize_t read_events(void *ctx, uint64_t pos, char *buffer, size_t size)
{
    quire_generation *gen = ctx;
    size_t n = gen->pending.n - gen->n_pending_taken;

    (void)pos;
    if (n == 0) {
        if (gen->is_over) {
            return MHD_CONTENT_READER_END_OF_STREAM;
        }
        quire_bytes_clear(&gen->pending);
        gen->n_pending_taken = 0;
        quire_http_wait_begin(gen->http);
        if (produce(gen) < 0) {
            return MHD_CONTENT_READER_END_WITH_ERROR;
        }
        quire_http_wait_end(gen->http);
        n = gen->pending.n;
    }
    n = n < size ? n : size;
    memcpy(buffer, gen->pending.data + gen->n_pending_taken, n);
    gen->n_pending_taken += n;
    return (ssize_t)n;
}

int quire_generation_stream(quire_generation *gen)
{
    if (gen->form->begin != NULL) {
        gen->form->begin(gen);
    }
    for (uint32_t i = 0; i < gen->n_choices && gen->has_echo && !gen->params.has_logprobs; i++) {
        add_echo(gen, &gen->choices[i]);
    }
    return quire_http_reply_stream(gen->http, "text/event-stream; charset=utf-8", read_events, gen);
}
