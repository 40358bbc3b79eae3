/* sampler_watch.c - thoughts and triggers in the text of an answer: see sampler_internal.h.
 *
 * The watch keeps the last QUIRE_WATCH_BYTES of text. When a trigger has been found in them, the
 * grammar begins with the text from the trigger on.
 *
 * SPDX-License-Identifier: MIT */
#include "model/sampler_internal.h"

#include "model/chat_internal.h"

#include "base/check.h"

#include <string.h>

/* Tokens beyond the budget of thoughts that may complete a character. */
#define CHARACTER_TOKENS_MAX 3u
/* Tokens of white space, and of the tag of thoughts, that may stand before a required trigger. */
#define FREE_TOKENS_MAX 32u

void quire_answer_watch_begin(quire_answer_watch *watch, bool waits)
{
    quire_answer_rules *rules = watch->rules;

    *watch = (quire_answer_watch){ .rules = rules, .is_waiting = waits, .is_at_start = true };
    watch->is_thinking = watch->has_thought = rules != NULL && rules->begins_thinking;
}

/* ---- text ---- */

/* Forget the first n tokens. */
static void forget(quire_answer_watch *watch, uint32_t n)
{
    uint32_t n_bytes = 0;

    for (uint32_t i = 0; i < n; i++) {
        n_bytes += watch->lengths[i];
    }
    watch->n_tokens -= n;
    watch->n_bytes -= n_bytes;
    memmove(watch->tokens, watch->tokens + n, watch->n_tokens * sizeof watch->tokens[0]);
    memmove(watch->lengths, watch->lengths + n, watch->n_tokens * sizeof watch->lengths[0]);
    memmove(watch->text, watch->text + n_bytes, watch->n_bytes);
    watch->is_at_start = watch->is_at_start && n == 0;
}

static void add_token(quire_sampler *sampler, int32_t token)
{
    quire_answer_watch *watch = &sampler->watch;
    const bool is_shown = quire_answer_rules_shows(watch->rules, token);
    char piece[QUIRE_WATCH_BYTES / 2];
    const int64_t n = quire_model_token_text(sampler->model, token, is_shown, piece, sizeof piece);

    if (n < 0 || n > (int64_t)sizeof piece) {
        forget(watch, watch->n_tokens); /* no tag is as long */
        return;
    }
    while (watch->n_tokens == QUIRE_WATCH_TOKENS ||
           watch->n_bytes + (uint32_t)n > QUIRE_WATCH_BYTES) {
        forget(watch, watch->n_tokens > 8 ? watch->n_tokens / 4 : 1);
    }
    memcpy(watch->text + watch->n_bytes, piece, (size_t)n);
    watch->tokens[watch->n_tokens] = token;
    watch->lengths[watch->n_tokens++] = (uint16_t)n;
    watch->n_bytes += (uint32_t)n;
}

static bool has_text(const quire_answer_watch *watch, const char *text, size_t *at)
{
    const char *found = text != NULL && text[0] != '\0'
                            ? memmem(watch->text, watch->n_bytes, text, strlen(text))
                            : NULL;

    *at = found != NULL ? (size_t)(found - watch->text) : 0;
    return found != NULL;
}

/* ---- thoughts ---- */

static bool ends_within_character(const quire_answer_watch *watch)
{
    quire_utf8_stream utf8 = { 0 };
    const uint32_t n = watch->n_bytes < 4 ? watch->n_bytes : 4;

    for (uint32_t i = n; i > 0; i--) {
        const char *at = watch->text + watch->n_bytes - i;

        if (((unsigned char)*at & 0xc0u) != 0x80u) { /* a first byte */
            return quire_utf8_stream_skip(&utf8, at, i) && utf8.n_held > 0;
        }
    }
    return false;
}

/* The next token of the end of thoughts, when they are beyond their budget. */
static int32_t thoughts_end(quire_sampler *sampler)
{
    quire_answer_watch *watch = &sampler->watch;
    const quire_answer_rules *rules = watch->rules;
    uint32_t budget;
    int32_t token;

    if (!watch->is_thinking || (rules->thinking_tokens < 0 && watch->n_forced == 0) ||
        watch->gave_up_forcing || watch->n_forced >= rules->end.n) {
        return -1;
    }
    budget = (uint32_t)rules->thinking_tokens;
    if (watch->n_forced == 0 &&
        (watch->n_thought < budget ||
         (ends_within_character(watch) && watch->n_thought < budget + CHARACTER_TOKENS_MAX))) {
        return -1;
    }
    token = rules->end.items[watch->n_forced];
    if (sampler->grammar != NULL && !watch->is_waiting &&
        !quire_sampler_grammar_allows(sampler, token, 0.0f)) {
        watch->gave_up_forcing = true;
        return -1;
    }
    watch->n_forced++;
    return token;
}

/* ---- required triggers ---- */

static bool must_begin(const quire_answer_watch *watch)
{
    return watch->rules->must.n > 0 && watch->is_waiting && !watch->is_thinking;
}

int32_t quire_answer_watch_forced(quire_sampler *sampler)
{
    quire_answer_watch *watch = &sampler->watch;

    if (watch->rules == NULL) {
        return -1;
    }
    if (must_begin(watch) && watch->n_must > 0 && watch->n_must < watch->rules->must.n) {
        return watch->rules->must.items[watch->n_must++];
    }
    return thoughts_end(sampler);
}

/* Whether the text so far and a token are white space and a part of the tag of thoughts. */
static bool may_come_before(const quire_sampler *sampler, int32_t token)
{
    const quire_answer_watch *watch = &sampler->watch;
    const char *tag = watch->has_thought ? NULL : watch->rules->thinking_begin;
    char text[QUIRE_WATCH_BYTES + 64];
    const bool is_shown = quire_answer_rules_shows(watch->rules, token);
    const int64_t n =
        quire_model_token_text(sampler->model, token, is_shown, text + watch->n_bytes, 64);
    size_t at = 0;
    size_t n_text;

    if (n <= 0 || n > 64 || quire_model_is_eog(sampler->model, token)) {
        return false;
    }
    memcpy(text, watch->text, watch->n_bytes);
    n_text = watch->n_bytes + (size_t)n;
    while (at < n_text && strchr(" \n\r\t", text[at]) != NULL) {
        at++;
    }
    return at == n_text ||
           (tag != NULL && n_text - at <= strlen(tag) && memcmp(text + at, tag, n_text - at) == 0);
}

/* Whether the answer would end within its thoughts, before a call that has to come: the thoughts
 * end in its place. */
static bool ends_before_call(const quire_sampler *sampler, int32_t token)
{
    const quire_answer_watch *watch = &sampler->watch;

    return watch->rules->must.n > 0 && watch->is_waiting && watch->is_thinking &&
           watch->n_forced == 0 && watch->rules->end.n > 0 &&
           quire_model_is_eog(sampler->model, token);
}

int32_t quire_answer_watch_allow(quire_sampler *sampler, int32_t token)
{
    quire_answer_watch *watch = &sampler->watch;

    if (watch->rules == NULL) {
        return token;
    }
    if (ends_before_call(sampler, token)) {
        watch->n_forced = 1;
        return watch->rules->end.items[0];
    }
    if (!must_begin(watch) || watch->n_must > 0) {
        return token;
    }
    if (watch->n_free < FREE_TOKENS_MAX && may_come_before(sampler, token)) {
        watch->n_free++;
        return token;
    }
    watch->n_must = 1;
    return watch->rules->must.items[0];
}

/* ---- triggers ---- */

/* The first trigger in the watch. */
static bool trigger_find(const quire_answer_watch *watch, quire_chat_place *first)
{
    const quire_answer_rules *rules = watch->rules;
    bool is_found = false;

    for (uint32_t i = 0; i < rules->n_triggers; i++) {
        const quire_chat_trigger *trigger = &rules->triggers[i];
        quire_chat_place place;

        if (trigger->is_pattern) {
            if (!quire_chat_pattern_find(trigger->text, watch->text, watch->n_bytes,
                                         watch->is_at_start, &place)) {
                continue;
            }
        } else if (has_text(watch, trigger->text, &place.at)) {
            place.begin = place.at;
        } else {
            continue;
        }
        *first = is_found && first->at <= place.at ? *first : place;
        is_found = true;
    }
    return is_found;
}

/* Begin the grammar with the text from the place of the trigger on. When the grammar refuses the
 * text, the answer goes on without it, and the reader takes the text as content. */
static void trigger_pull(quire_sampler *sampler, size_t begin)
{
    quire_answer_watch *watch = &sampler->watch;

    if (quire_sampler_grammar_trigger(sampler, watch->text + begin, watch->n_bytes - begin)) {
        watch->is_waiting = false;
    }
    forget(watch, watch->n_tokens);
}

/* The number of tokens from a place of the text on; a token that begins before it does not count.
 */
static uint32_t tokens_from(const quire_answer_watch *watch, size_t at)
{
    size_t begin = watch->n_bytes;
    uint32_t n = 0;

    while (n < watch->n_tokens) {
        begin -= watch->lengths[watch->n_tokens - 1 - n];
        if (begin < at) {
            break;
        }
        n++;
    }
    return n;
}

uint32_t quire_sampler_thought_tokens(const quire_sampler *sampler)
{
    return sampler != NULL ? sampler->watch.n_all_thought : 0;
}

void quire_answer_watch_see(quire_sampler *sampler, int32_t token)
{
    quire_answer_watch *watch = &sampler->watch;
    const quire_answer_rules *rules = watch->rules;
    quire_chat_place trigger;
    size_t at;

    add_token(sampler, token);
    if (watch->is_thinking) {
        watch->n_thought++;
        watch->n_all_thought++;
        if (has_text(watch, rules->thinking_end, &at)) {
            watch->n_all_thought -= tokens_from(watch, at);
            watch->is_thinking = false;
            forget(watch, watch->n_tokens);
        }
        return;
    }
    if (has_text(watch, rules->thinking_begin, &at)) {
        watch->is_thinking = watch->has_thought = true;
        watch->n_thought = watch->n_forced = 0;
        forget(watch, watch->n_tokens);
    } else if (watch->is_waiting && sampler->grammar != NULL && trigger_find(watch, &trigger)) {
        trigger_pull(sampler, trigger.begin);
    }
}
