/* cache_mark.c - see cache_mark.h.
 *
 * SPDX-License-Identifier: MIT */
#include "server/cache_mark.h"

#include "base/check.h"
#include "base/hash.h"
#include "engine/pins.h"
#include "server/generate.h"
#include "server/prompt_tokens.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PIN_PREFIX "cache_control:"

/* A user's message that no conversation has: some templates refuse to end behind a system message.
 * The common beginning of two prompts ends at its text. */
static const quire_chat_message other_message = { .role = "user", .content = "\x01" };

/* ---- tokens ---- */

/* The messages up to the mark; the last one is cut in *content. Memory: free(). */
static quire_chat_message *marked_messages(const quire_generation *gen, size_t *n, char **content)
{
    const quire_cache_mark *mark = &gen->mark;
    const quire_messages *all = &gen->chat.messages;
    quire_chat_message *list = calloc(all->n + 1, sizeof list[0]);
    bool has_user = false;

    *n = mark->n_messages < all->n ? mark->n_messages : all->n;
    *content = NULL;
    if (list == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < *n; i++) {
        list[i] = all->list[i];
        has_user = has_user || strcmp(list[i].role, "user") == 0;
    }
    if (*n > 0 && mark->content_bytes < strlen(list[*n - 1].content)) {
        *content = strndup(list[*n - 1].content, mark->content_bytes);
        if (*content == NULL) {
            free(list);
            return NULL;
        }
        list[*n - 1].content = *content;
    }
    if (!has_user) {
        list[(*n)++] = other_message;
    }
    return list;
}

static uint32_t common_tokens(const quire_prompt *prompt, const quire_joined_tokens *other)
{
    uint32_t n = 0;

    while (n < prompt->n_tokens && n < other->n && prompt->tokens[n] == other->tokens[n]) {
        n++;
    }
    return n;
}

/* A template that refuses the beginning of a conversation leaves nothing marked. */
static int find(quire_generation *gen, const quire_chat_message *list, size_t n)
{
    quire_chat_request request = gen->chat;     /* borrows its texts */
    quire_said_prompt whole = gen->said_before; /* of the prompt that is asked for */
    quire_api_error ignored = { 0 };
    quire_http *http = gen->http;
    quire_error cause = QUIRE_ERROR_INIT;
    quire_chat_prompt *prompt = NULL;
    quire_joined_tokens joined = { 0 };
    quire_chat_rules rules;
    quire_chat_text text;
    int rc;

    request.omits_generation_prompt = true;
    request.is_text_only = true;
    request.continues_final = false;
    if (quire_chat_request_apply(http, &request, list, n, NULL, &prompt) < 0) {
        http->err = ignored;
        return QUIRE_OK;
    }
    quire_chat_prompt_rules(prompt, &rules);
    gen->said_before = (quire_said_prompt){ .n_tokens = 0 };
    rc = quire_generation_said_apply(gen, &rules, &text);
    if (rc == QUIRE_OK) {
        cause.status = quire_generation_tokenize(gen, text.data, text.n, &joined, &cause);
        rc = cause.status == QUIRE_CANCELED || cause.status == QUIRE_NOMEM
                 ? quire_http_tokenize_error(http, "messages", &cause)
                 : QUIRE_OK;
        if (cause.status == QUIRE_OK) {
            gen->mark.n_tokens = common_tokens(&gen->prompts[0], &joined);
            if (gen->mark.n_tokens >= quire_engine_n_ctx(http->engine)) {
                gen->mark.n_tokens = quire_engine_n_ctx(http->engine) - 1; /* of a pin, at most */
            }
            free(joined.tokens);
        }
    }
    quire_said_prompt_fini(&gen->said_before);
    gen->said_before = whole;
    quire_chat_prompt_destroy(prompt);
    return rc;
}

int quire_cache_mark_find(quire_generation *gen)
{
    quire_chat_message *list;
    char *content;
    size_t n;
    int rc;

    if (!gen->mark.is_there || gen->n_prompts == 0 || gen->params.is_uncached) {
        return QUIRE_OK;
    }
    list = marked_messages(gen, &n, &content);
    if (list == NULL) {
        return quire_api_error_nomem(&gen->http->err);
    }
    rc = find(gen, list, n);
    free(list);
    free(content);
    return rc;
}

/* ---- pins ---- */

static void name_make(char *name, size_t size, uint32_t n_tokens, uint64_t hash)
{
    (void)snprintf(name, size, PIN_PREFIX "%" PRIu32 ":%016" PRIx64, n_tokens, hash);
}

/* The number of tokens in the name of a pin of ours; 0 for others. */
static uint32_t tokens_of_name(const char *name)
{
    return strncmp(name, PIN_PREFIX, sizeof PIN_PREFIX - 1) == 0
               ? (uint32_t)strtoul(name + sizeof PIN_PREFIX - 1, NULL, 10)
               : 0;
}

/* Of a text and the policy by which it is condensed. */
static uint64_t hash_of(const quire_generation *gen, const int32_t *tokens, uint32_t n)
{
    char policy[QUIRE_RETAIN_TEXT_MAX] = "";
    uint64_t hash = QUIRE_HASH_INIT;

    if (gen->params.retain != NULL) {
        (void)quire_retain_text(gen->params.retain, policy, sizeof policy);
        hash = quire_hash_add(hash, policy, strlen(policy));
    }
    return quire_hash_add(hash, tokens, n * sizeof *tokens);
}

/* Drop the pins of this tenant whose text the new pin begins with. */
static void drop_shorter(const quire_generation *gen, const int32_t *tokens, uint32_t n_tokens)
{
    quire_engine *engine = gen->http->engine;
    quire_engine_pin *pins = calloc(QUIRE_ENGINE_PINS_MAX, sizeof pins[0]);
    int n;

    if (pins == NULL) {
        return; /* they end with their time to live */
    }
    n = quire_engine_pins_list(engine, gen->salt.bytes, gen->salt.n, 0, pins, QUIRE_ENGINE_PINS_MAX,
                               NULL);
    for (int i = 0; i < n; i++) {
        const uint32_t n_old = tokens_of_name(pins[i].name);
        char name[QUIRE_ENGINE_PIN_NAME_MAX];

        if (n_old == 0 || n_old >= n_tokens) {
            continue;
        }
        name_make(name, sizeof name, n_old, hash_of(gen, tokens, n_old));
        if (strcmp(name, pins[i].name) == 0) {
            (void)quire_engine_pin_drop(
                engine, &(quire_engine_pin_name){ gen->salt.bytes, gen->salt.n, name });
        }
    }
    free(pins);
}

void quire_cache_mark_pin(quire_generation *gen)
{
    quire_cache_mark *mark = &gen->mark;
    const quire_prompt *prompt = &gen->prompts[0];
    char name[QUIRE_ENGINE_PIN_NAME_MAX];
    const quire_engine_pin_name whole = { gen->salt.bytes, gen->salt.n, name };
    quire_engine_pin_params params = {
        .name = name,
        .tokens = prompt->tokens,
        .n_tokens = mark->n_tokens,
        .ttl_s = mark->ttl_s,
        .class_index = gen->params.class_index,
        .tenant = gen->salt.bytes,
        .tenant_bytes = gen->salt.n,
        .retain = gen->params.retain,
        .is_background = true,
    };
    quire_error err = QUIRE_ERROR_INIT;
    quire_engine_pin pin;

    if (mark->n_tokens == 0) {
        return;
    }
    name_make(name, sizeof name, mark->n_tokens, hash_of(gen, prompt->tokens, mark->n_tokens));
    if (quire_engine_pin_renew(gen->http->engine, &whole, mark->ttl_s, &pin) == QUIRE_OK) {
        return; /* written by an earlier request */
    }
    drop_shorter(gen, prompt->tokens, mark->n_tokens);
    mark->is_pinned =
        quire_engine_pin_create(gen->http->engine, &params, &pin, NULL, &err) == QUIRE_OK;
}
