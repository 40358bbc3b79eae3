/* sessions.h - conversations that outlive a request.
 *
 * A session has a name (tenant, id), its messages, and the tokens whose KV was computed for them. A
 * session holds no pages: the prefix tree caches them under the session's owner number. Under
 * memory pressure a session may lose pages but never its messages; missing KV is recomputed.
 *
 * Kept tokens take precedence over re-tokenizing: when the prompt text of a turn begins with the
 * text of the session's tokens, these tokens are reused and only the rest is tokenized. A model may
 * generate a text in other pieces than its tokenizer would cut; re-tokenizing such an answer would
 * break the prefix. kept_tokens.h describes how the two are joined.
 *
 * Turns. A request with a session sends either the whole history or only new messages. It is the
 * history if its messages equal the first messages of the session, or if it contains an assistant
 * message (it then replaces the session's messages from the first difference on). Otherwise its
 * messages are appended to the session's, without the system messages that both begin with.
 *
 * Bounds: sessions_max (the session idle longest is evicted), messages and bytes per session, an
 * idle TTL. A session used by a request neither expires nor is evicted.
 *
 * Thread: any; each call takes the table's lock briefly.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_SESSIONS_H
#define QUIRE_ENGINE_SESSIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/kept_tokens.h"
#include "model/model.h"
#include "model/text.h"
#include "quire/error.h"

typedef struct quire_sessions quire_sessions;
typedef uint64_t quire_session_ref; /* one use of a session; 0 = none */

#define QUIRE_SESSION_ID_MAX       128u /* bytes */
#define QUIRE_SESSION_MESSAGES_MAX 4096u
#define QUIRE_SESSION_BYTES_MAX    ((size_t)16 << 20) /* of text */

typedef struct quire_sessions_opts {
    uint32_t sessions_max; /* default 1024 */
    uint64_t ttl_us; /* idle time after which a session is closed; default 30 minutes, 0 = never */
} quire_sessions_opts;

#define QUIRE_SESSIONS_OPTS_INIT                                                                   \
    {                                                                                              \
        .sessions_max = 1024, .ttl_us = (uint64_t)30 * 60 * 1000000                                \
    }

int quire_sessions_create(quire_sessions **out, const quire_model *model,
                          const quire_sessions_opts *opts);
void quire_sessions_destroy(quire_sessions *sessions);

/* Begin to use a session, and create it if it does not exist. Errors: QUIRE_LIMIT (sessions_max
 * sessions, all in use), QUIRE_INVAL (id too long or empty), QUIRE_AGAIN (another request uses the
 * session), QUIRE_NOMEM; err explains. Memory: end with quire_sessions_leave(). */
int quire_sessions_enter(quire_sessions *sessions, const void *tenant, uint32_t tenant_bytes,
                         const char *id, uint64_t now_us, quire_session_ref *out, quire_error *err);
void quire_sessions_leave(quire_sessions *sessions, quire_session_ref ref, uint64_t now_us);

/* The owner number under which its pages are published: see quire_prefix_acquire_opts. */
uint64_t quire_sessions_owner(const quire_sessions *sessions, quire_session_ref ref);

/* Whether the session was closed since the request entered it. */
bool quire_sessions_is_closed(const quire_sessions *sessions, quire_session_ref ref);
/* Whether the session with this owner number is open: not closed since. Cost: O(sessions). */
bool quire_sessions_has_owner(const quire_sessions *sessions, uint64_t owner);

/* The whole conversation of a request, by the rule of turns above: pointers into the session and
 * into `messages`. Memory: free(*out); its strings are valid until leave or commit. Errors:
 * QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_sessions_history(const quire_sessions *sessions, quire_session_ref ref,
                           const quire_chat_message *messages, size_t n_messages,
                           quire_chat_message **out, size_t *n_out);

/* Tokens of a prompt text, reusing the session's tokens (see above); ref 0 has none to reuse.
 * Memory: free(out->tokens). Bounds and errors: as quire_kept_tokens_join(). */
int quire_sessions_tokenize(const quire_sessions *sessions, quire_session_ref ref, const char *text,
                            size_t text_bytes, const quire_tokenize_opts *opts,
                            quire_joined_tokens *out, quire_error *err);

/* The turn under way is computed by this device, of several; else by device 0. Of a session that a
 * request uses, by its ref, or by its owner number (cost: O(sessions)). */
void quire_sessions_device_set(quire_sessions *sessions, quire_session_ref ref, uint32_t device);
void quire_sessions_owner_device_set(quire_sessions *sessions, uint64_t owner, uint32_t device);

/* Store a finished turn: the whole conversation including the answer, and the tokens whose KV is
 * published (prompt and answer without the last token: quire_request_tokens_take()). Both replace
 * the session's messages and tokens. Errors: QUIRE_LIMIT, QUIRE_NOMEM (the session is unchanged),
 * QUIRE_NOTFOUND (the session was closed meanwhile and the turn is lost). Memory: messages are
 * copied; tokens come from malloc() and are taken over, on errors too. */
int quire_sessions_commit(quire_sessions *sessions, quire_session_ref ref,
                          const quire_chat_message *messages, size_t n_messages, int32_t *tokens,
                          uint32_t n_tokens, uint64_t now_us);

/* Forget a session. The caller drops its pages with quire_prefix_drop_owner(*owner). A request that
 * uses the session continues; its commit returns QUIRE_NOTFOUND. Errors: QUIRE_NOTFOUND. */
int quire_sessions_close(quire_sessions *sessions, const void *tenant, uint32_t tenant_bytes,
                         const char *id, uint64_t *owner);
/* Close one session that is idle past its TTL, and return its owner number; also returns the owners
 * of sessions evicted earlier, one per call. 0 = none left. A session that is used again after its
 * TTL but before this call starts empty. */
uint64_t quire_sessions_expire(quire_sessions *sessions, uint64_t now_us);

/* Times of sessions are of a clock that may have begun after them (a restart): their differences
 * count modulo 2^64. A time that is to come has age 0. */
static inline uint64_t quire_session_age_us(uint64_t then_us, uint64_t now_us)
{
    return now_us - then_us <= UINT64_MAX / 2 ? now_us - then_us : 0;
}

typedef struct quire_session_info {
    const char *id;
    const void *tenant;
    uint32_t tenant_bytes;
    uint64_t owner;
    uint64_t created_us;
    uint64_t used_us;
    uint32_t n_turns; /* commits */
    const quire_chat_message *messages;
    uint32_t n_messages;
    size_t text_bytes;
    const int32_t *tokens;
    uint32_t n_tokens;
    uint64_t changed; /* quire_sessions_changes() after the last change of content or use */
    uint32_t device;  /* of the engine, that computed the tokens of the last turn */
    bool is_in_use;
} quire_session_info;

/* Visit all sessions (tenant NULL) or a tenant's, most recently used first, until visit returns
 * non-zero; returns that value. The lock is held: visit must not call this module, and pointers in
 * info are valid only during the call. */
int quire_sessions_visit(const quire_sessions *sessions, const void *tenant, uint32_t tenant_bytes,
                         int (*visit)(void *ctx, const quire_session_info *info), void *ctx);

/* Call look for one session, under the same rules. Errors: QUIRE_NOTFOUND. */
int quire_sessions_look(const quire_sessions *sessions, const void *tenant, uint32_t tenant_bytes,
                        const char *id, void (*look)(void *ctx, const quire_session_info *info),
                        void *ctx);

/* Grows with each change of the content, the last use or the existence of a session. */
uint64_t quire_sessions_changes(const quire_sessions *sessions);

/* Bring back a session of an earlier process: its names, times, turns, messages, tokens and device
 * (owner and changed are not read; the content is copied). The session becomes the last used one,
 * so callers restore sessions in the order of their use. *change is its `changed`. Errors:
 * QUIRE_CANCELED (its TTL has ended), QUIRE_LIMIT (sessions_max, or the bounds of a turn),
 * QUIRE_AGAIN (there is such a session), QUIRE_NOMEM. */
int quire_sessions_restore(quire_sessions *sessions, const quire_session_info *saved,
                           uint64_t now_us, uint64_t *change);

uint32_t quire_sessions_count(const quire_sessions *sessions);
/* Sessions ended by their TTL or by sessions_max. */
uint64_t quire_sessions_evictions_total(const quire_sessions *sessions);

#endif /* QUIRE_ENGINE_SESSIONS_H */
