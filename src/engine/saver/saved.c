/* saved.c - see saved.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/saver/saved.h"

#include "base/check.h"
#include "base/num.h"
#include "core/prefix/prefix_learned.h"

#include <stdlib.h>
#include <string.h>

#define TOKENS_MAX     ((uint32_t)(QUIRE_STATE_ITEM_BYTES_MAX / 4))
#define CLASS_NAME_MAX 255u
#define POLICY_MAX     63u
#define TEXT_EXTRA     5u /* bytes of a text beside it: its length, a zero byte */
#define US_PER_S       1000000u
#define PUT_TOKENS     256u /* written at once */

/* ---- times ---- */

uint64_t quire_saved_wall_us(const quire_saved_clock *clock, uint64_t then_us)
{
    return clock->wall_us - (clock->now_us - then_us);
}

uint64_t quire_saved_then_us(const quire_saved_clock *clock, uint64_t wall_us)
{
    return clock->wall_us > wall_us ? clock->now_us - (clock->wall_us - wall_us) : clock->now_us;
}

/* ---- names ---- */

quire_state_name quire_saved_session_name(const quire_session_info *session)
{
    return quire_state_name_of(QUIRE_STATE_SESSION, session->tenant, session->tenant_bytes,
                               session->id);
}

quire_state_name quire_saved_pin_name(const quire_adapt_pin_view *pin)
{
    return quire_state_name_of(QUIRE_STATE_PIN, pin->tenant, pin->tenant_bytes, pin->name);
}

quire_state_name quire_saved_reuse_name(const char *policy)
{
    return quire_state_name_of(QUIRE_STATE_REUSE, NULL, 0, policy);
}

/* ---- writing ---- */

size_t quire_saved_session_bytes(const quire_session_info *s)
{
    size_t n_extra = 0;

    for (uint32_t i = 0; i < s->n_messages; i++) {
        n_extra += s->messages[i].extra != NULL;
    }
    /* text_bytes counts the zero bytes of the messages' texts. */
    return QUIRE_STATE_HEAD_BYTES + s->tenant_bytes + strlen(s->id) + 2 * TEXT_EXTRA + 8 + 4 + 4 +
           4 + (size_t)s->n_tokens * 4 + s->text_bytes +
           (size_t)s->n_messages * 2 * (TEXT_EXTRA - 1) + n_extra * TEXT_EXTRA;
}

size_t quire_saved_pin_bytes(const quire_adapt_pin_view *pin)
{
    return QUIRE_STATE_HEAD_BYTES + pin->tenant_bytes + strlen(pin->name) +
           strlen(pin->class_name) + 3 * TEXT_EXTRA + 8 + 8 + 4 + (size_t)pin->n_tokens * 4 +
           (pin->retain[0] != '\0' ? strlen(pin->retain) + TEXT_EXTRA : 0);
}

static void put_string(quire_bytes *item, const char *text)
{
    (void)quire_state_put_text(item, text, (uint32_t)strlen(text));
}

static void put_tokens(quire_bytes *item, const int32_t *tokens, uint32_t n)
{
    unsigned char bytes[4 * PUT_TOKENS];

    (void)quire_state_put(item, n, 4);
    for (uint32_t i = 0; i < n; i += PUT_TOKENS) {
        const uint32_t n_now = quire_min_u32(n - i, PUT_TOKENS);

        for (uint32_t j = 0; j < n_now; j++) {
            (void)quire_le_put(bytes + (size_t)4 * j, (uint32_t)tokens[i + j], 4);
        }
        (void)quire_bytes_add(item, bytes, (size_t)4 * n_now);
    }
}

static int seal(quire_bytes *item, quire_state_name name, uint64_t time_us,
                const quire_saved_writing *how)
{
    quire_state_head head = { .name = name, .time_us = time_us };

    memcpy(head.identity, how->identity, sizeof head.identity);
    return quire_state_seal(item, &head);
}

/* Roles of messages with `extra`, in the item and in memory: such a message has a third text. Items
 * of programs that did not know `extra` have none of these roles. */
static const char *const extra_roles[][2] = { { "assistant+", "assistant" },
                                              { "tool+", "tool" },
                                              { "user+", "user" },
                                              { "system+", "system" },
                                              { "developer+", "developer" } };
#define EXTRA_ROLES (sizeof extra_roles / sizeof extra_roles[0])

static void put_message(quire_bytes *item, const quire_chat_message *message)
{
    const char *role = message->role;

    for (size_t i = 0; message->extra != NULL && i < EXTRA_ROLES; i++) {
        if (strcmp(message->role, extra_roles[i][1]) == 0) {
            role = extra_roles[i][0];
        }
    }
    put_string(item, role);
    put_string(item, message->content);
    if (role != message->role) {
        put_string(item, message->extra);
    }
}

int quire_saved_session_write(quire_bytes *item, const quire_session_info *s,
                              const quire_saved_writing *how)
{
    (void)quire_state_begin(item);
    (void)quire_state_put_text(item, s->tenant, s->tenant_bytes);
    put_string(item, s->id);
    (void)quire_state_put(item, quire_saved_wall_us(&how->clock, s->created_us), 8);
    (void)quire_state_put(item, s->n_turns, 4);
    put_tokens(item, s->tokens, s->n_tokens);
    (void)quire_state_put(item, s->n_messages, 4);
    for (uint32_t i = 0; i < s->n_messages; i++) {
        put_message(item, &s->messages[i]);
    }
    return seal(item, quire_saved_session_name(s), quire_saved_wall_us(&how->clock, s->used_us),
                how);
}

int quire_saved_pin_write(quire_bytes *item, const quire_adapt_pin_view *pin,
                          const quire_saved_writing *how)
{
    (void)quire_state_begin(item);
    (void)quire_state_put_text(item, pin->tenant, pin->tenant_bytes);
    put_string(item, pin->name);
    put_string(item, pin->class_name);
    (void)quire_state_put(item, pin->ttl_s, 8);
    (void)quire_state_put(
        item, pin->expires_us != 0 ? quire_saved_wall_us(&how->clock, pin->expires_us) : 0, 8);
    put_tokens(item, pin->tokens, pin->n_tokens);
    if (pin->retain[0] != '\0') { /* programs that did not know policies refuse such an item */
        put_string(item, pin->retain);
    }
    return seal(item, quire_saved_pin_name(pin), quire_saved_wall_us(&how->clock, pin->created_us),
                how);
}

int quire_saved_reuse_write(quire_bytes *item, const char *policy, const unsigned char *learned,
                            size_t n_learned, const quire_saved_writing *how)
{
    (void)quire_state_begin(item);
    put_string(item, policy);
    (void)quire_bytes_add(item, learned, n_learned);
    return seal(item, quire_saved_reuse_name(policy), how->clock.wall_us, how);
}

/* ---- reading ---- */

void quire_saved_fini(quire_saved *saved)
{
    free(saved->tokens);
    free(saved->messages);
    *saved = (quire_saved){ 0 };
}

static quire_state_result get_tokens(quire_state_reader *body, int32_t **out, uint32_t *n_out,
                                     uint32_t n_vocab)
{
    const uint32_t n = (uint32_t)quire_state_get(body, 4);
    const unsigned char *at = n <= TOKENS_MAX ? quire_state_take(body, (size_t)n * 4) : NULL;

    QUIRE_FAIL_IF(at == NULL, QUIRE_STATE_FIELDS_RESULT);
    *out = malloc((size_t)n * sizeof **out + 1);
    QUIRE_FAIL_IF(*out == NULL, QUIRE_STATE_IO_RESULT);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t token = (uint32_t)quire_le_get(at + (size_t)4 * i, 4);

        QUIRE_FAIL_IF(token >= n_vocab, QUIRE_STATE_FIELDS_RESULT);
        (*out)[i] = (int32_t)token;
    }
    *n_out = n;
    return QUIRE_STATE_OK_RESULT;
}

static void get_message(quire_state_reader *body, quire_chat_message *out)
{
    const uint32_t most = (uint32_t)QUIRE_SESSION_BYTES_MAX;
    uint32_t n_bytes;

    out->role = quire_state_get_text(body, true, most, &n_bytes);
    out->content = quire_state_get_text(body, true, most, &n_bytes);
    for (size_t i = 0; !body->is_bad && i < EXTRA_ROLES; i++) {
        if (strcmp(out->role, extra_roles[i][0]) == 0) {
            out->role = extra_roles[i][1];
            out->extra = quire_state_get_text(body, true, most, &n_bytes);
            break;
        }
    }
}

static quire_state_result get_messages(quire_state_reader *body, quire_saved *out)
{
    const uint32_t n = (uint32_t)quire_state_get(body, 4);

    QUIRE_FAIL_IF(n > QUIRE_SESSION_MESSAGES_MAX, QUIRE_STATE_FIELDS_RESULT);
    out->messages = calloc((size_t)n + 1, sizeof *out->messages);
    QUIRE_FAIL_IF(out->messages == NULL, QUIRE_STATE_IO_RESULT);
    for (uint32_t i = 0; i < n && !body->is_bad; i++) {
        get_message(body, &out->messages[i]);
    }
    out->session.messages = out->messages;
    out->session.n_messages = n;
    return body->is_bad ? QUIRE_STATE_FIELDS_RESULT : QUIRE_STATE_OK_RESULT;
}

static quire_state_result session_read(quire_saved *out, quire_state_reader *body,
                                       const quire_state_head *head, uint32_t n_vocab,
                                       const quire_saved_clock *clock)
{
    quire_session_info *s = &out->session;
    quire_state_result result;
    uint32_t id_bytes;

    s->tenant = quire_state_get_text(body, false, QUIRE_PREFIX_SALT_MAX, &s->tenant_bytes);
    s->id = quire_state_get_text(body, true, QUIRE_SESSION_ID_MAX, &id_bytes);
    s->created_us = quire_saved_then_us(clock, quire_state_get(body, 8));
    s->used_us = quire_saved_then_us(clock, head->time_us);
    s->n_turns = (uint32_t)quire_state_get(body, 4);
    QUIRE_FAIL_IF(body->is_bad || id_bytes == 0 || s->n_turns == 0, QUIRE_STATE_FIELDS_RESULT);
    result = get_tokens(body, &out->tokens, &s->n_tokens, n_vocab);
    s->tokens = out->tokens;
    return result == QUIRE_STATE_OK_RESULT ? get_messages(body, out) : result;
}

static quire_state_result pin_read(quire_saved *out, quire_state_reader *body,
                                   const quire_state_head *head, uint32_t n_vocab,
                                   const quire_saved_clock *clock)
{
    quire_adapt_pin_view *pin = &out->pin;
    quire_state_result result;
    uint64_t end_us;
    uint32_t n;

    pin->tenant = quire_state_get_text(body, false, QUIRE_PREFIX_SALT_MAX, &pin->tenant_bytes);
    pin->name = quire_state_get_text(body, true, QUIRE_ENGINE_PIN_NAME_MAX - 1, &n);
    pin->class_name = quire_state_get_text(body, true, CLASS_NAME_MAX, &n);
    pin->created_us = quire_saved_then_us(clock, head->time_us);
    pin->ttl_s = quire_state_get(body, 8);
    end_us = quire_state_get(body, 8);
    QUIRE_FAIL_IF(body->is_bad || pin->ttl_s > QUIRE_ENGINE_PIN_TTL_MAX_S,
                  QUIRE_STATE_FIELDS_RESULT);
    result = get_tokens(body, &out->tokens, &pin->n_tokens, n_vocab);
    pin->tokens = out->tokens;
    pin->retain = "";
    if (result == QUIRE_STATE_OK_RESULT && !quire_state_is_whole(body)) {
        pin->retain = quire_state_get_text(body, true, QUIRE_RETAIN_TEXT_MAX - 1, &n);
        /* The writer leaves out an empty policy. */
        QUIRE_FAIL_IF(body->is_bad || n == 0, QUIRE_STATE_FIELDS_RESULT);
    }
    if (result == QUIRE_STATE_OK_RESULT && pin->ttl_s != 0 && end_us != 0) {
        QUIRE_FAIL_IF(end_us <= clock->wall_us, QUIRE_STATE_EXPIRED_RESULT);
        /* A clock that was set back does not make a pin live longer than it may. */
        pin->expires_us =
            clock->now_us + quire_min_u64(end_us - clock->wall_us, pin->ttl_s * US_PER_S);
    }
    return result;
}

static quire_state_result reuse_read(quire_saved *out, quire_state_reader *body)
{
    uint32_t n;

    out->policy = quire_state_get_text(body, true, POLICY_MAX, &n);
    out->n_learned = body->n_left;
    QUIRE_FAIL_IF(body->is_bad || out->n_learned > QUIRE_PREFIX_LEARNED_MAX,
                  QUIRE_STATE_FIELDS_RESULT);
    out->learned = quire_state_take(body, out->n_learned);
    return QUIRE_STATE_OK_RESULT;
}

/* Whether the content has the name that its file has. */
static bool is_of_name(const quire_saved *saved, const quire_state_name *name)
{
    const quire_state_name own =
        name->kind == QUIRE_STATE_SESSION ? quire_saved_session_name(&saved->session)
        : name->kind == QUIRE_STATE_PIN   ? quire_saved_pin_name(&saved->pin)
                                          : quire_saved_reuse_name(saved->policy);

    return quire_state_name_compare(&own, name) == 0;
}

quire_state_result quire_saved_read(quire_saved *out, const unsigned char *item, size_t n_bytes,
                                    const quire_state_head *head, uint32_t n_vocab,
                                    const quire_saved_clock *clock)
{
    quire_state_reader body = quire_state_body(item, n_bytes);
    quire_state_result result;

    *out = (quire_saved){ 0 };
    result = head->name.kind == QUIRE_STATE_SESSION ? session_read(out, &body, head, n_vocab, clock)
             : head->name.kind == QUIRE_STATE_PIN   ? pin_read(out, &body, head, n_vocab, clock)
                                                    : reuse_read(out, &body);
    if (result == QUIRE_STATE_OK_RESULT &&
        (!quire_state_is_whole(&body) || !is_of_name(out, &head->name))) {
        result = QUIRE_STATE_FIELDS_RESULT;
    }
    if (result != QUIRE_STATE_OK_RESULT) {
        quire_saved_fini(out);
    }
    return result;
}
