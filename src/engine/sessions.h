/* sessions.h - conversations that outlive a request.
 *
 * A session is a name (tenant, id) and what was said: messages, and the tokens whose KV was
 * computed for them. It holds no pages: those are the prefix tree's, where they are cached under
 * the session's owner number. So a session under memory pressure loses pages, never its words; what
 * is missing is computed again.
 *
 * Kept tokens win over re-tokenizing: when the prompt text of a turn begins with the text of the
 * session's tokens, these tokens are used as they are and only the rest is tokenized. A model may
 * have generated a text in other pieces than its tokenizer would cut it into; without this every
 * such answer would break the prefix. kept_tokens.h says how they are joined.
 *
 * Turns. A request with a session sends the whole history or only what is new. It is the history
 * when its messages equal the first ones of the session, or when it holds an assistant message (it
 * then replaces the session's from where they differ); else its messages follow those of the
 * session, without the system messages that both begin with.
 *
 * Bounds: sessions_max (the one idle longest goes first), messages and bytes per session, an idle
 * TTL. A session in use by a request is neither expired nor evicted.
 *
 * Thread: any; every call takes the table's lock, which no call holds for long.
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
    uint64_t ttl_us;       /* idle for so long: closed; default 30 minutes, 0 = never */
} quire_sessions_opts;

#define QUIRE_SESSIONS_OPTS_INIT                                                                   \
    {                                                                                              \
        .sessions_max = 1024, .ttl_us = (uint64_t)30 * 60 * 1000000                                \
    }

int quire_sessions_create(quire_sessions **out, const quire_model *model,
                          const quire_sessions_opts *opts);
void quire_sessions_destroy(quire_sessions *sessions);

/* Use a session, which is created if there is none. While one request uses it others get
 * QUIRE_AGAIN. Errors: QUIRE_LIMIT (sessions_max, all in use), QUIRE_INVAL (id too long or empty),
 * QUIRE_AGAIN, QUIRE_NOMEM; err says which.
 * Memory: end with quire_sessions_leave(). */
int quire_sessions_enter(quire_sessions *sessions, const void *tenant, uint32_t tenant_bytes,
                         const char *id, uint64_t now_us, quire_session_ref *out, quire_error *err);
void quire_sessions_leave(quire_sessions *sessions, quire_session_ref ref, uint64_t now_us);

/* The number under which its pages are published: see quire_prefix_acquire_opts. */
uint64_t quire_sessions_owner(const quire_sessions *sessions, quire_session_ref ref);

/* The conversation that a request's messages stand for, by the rule above: pointers into the
 * session and into `messages`. Memory: free(*out); its strings are valid until leave or commit.
 * Errors: QUIRE_LIMIT, QUIRE_NOMEM. */
int quire_sessions_history(const quire_sessions *sessions, quire_session_ref ref,
                           const quire_chat_message *messages, size_t n_messages,
                           quire_chat_message **out, size_t *n_out);

/* Tokens of a prompt text, the session's first (see above); ref 0 has none. Memory:
 * free(out->tokens). Bounds and errors: as quire_kept_tokens_join(). */
int quire_sessions_tokenize(const quire_sessions *sessions, quire_session_ref ref, const char *text,
                            size_t text_bytes, const quire_tokenize_opts *opts,
                            quire_joined_tokens *out, quire_error *err);

/* What a turn has become: the whole conversation with the answer, which is copied, and the tokens
 * whose KV is published (prompt and answer but for the last token), which are the session's from
 * here on: quire_request_tokens_take(). Both replace what was kept. Errors: QUIRE_LIMIT,
 * QUIRE_NOMEM (the session is then as before), QUIRE_NOTFOUND (it was closed meanwhile: nobody will
 * find this turn). Memory: tokens come from malloc(), and are freed on errors too. */
int quire_sessions_commit(quire_sessions *sessions, quire_session_ref ref,
                          const quire_chat_message *messages, size_t n_messages, int32_t *tokens,
                          uint32_t n_tokens, uint64_t now_us);

/* Forget a session. The pages are the caller's to drop (quire_prefix_drop_owner()); *owner says
 * whose. A request that uses it goes on; its commit gets QUIRE_NOTFOUND, as this call does where
 * there is no such session. */
int quire_sessions_close(quire_sessions *sessions, const void *tenant, uint32_t tenant_bytes,
                         const char *id, uint64_t *owner);
/* One owner whose session is idle past its TTL and was closed by this call, or was evicted before
 * it; 0 when there is none. A session that is used again past its TTL, before this call, begins
 * anew. */
uint64_t quire_sessions_expire(quire_sessions *sessions, uint64_t now_us);

typedef struct quire_session_info {
    const char *id;
    const void *tenant;
    uint32_t tenant_bytes;
    uint64_t owner;
    uint64_t created_us;
    uint64_t used_us;
    uint32_t n_turns; /* commits */
    uint32_t n_messages;
    size_t text_bytes;
    const int32_t *tokens;
    uint32_t n_tokens;
    bool is_in_use;
} quire_session_info;

/* Visit all (tenant NULL) or a tenant's, most recently used first, until visit returns non-zero;
 * returns that. The lock is held: visit must not call back, and what info points to is valid during
 * the call only. */
int quire_sessions_visit(const quire_sessions *sessions, const void *tenant, uint32_t tenant_bytes,
                         int (*visit)(void *ctx, const quire_session_info *info), void *ctx);

/* The same for one. Errors: QUIRE_NOTFOUND. */
int quire_sessions_look(const quire_sessions *sessions, const void *tenant, uint32_t tenant_bytes,
                        const char *id, void (*look)(void *ctx, const quire_session_info *info),
                        void *ctx);

uint32_t quire_sessions_count(const quire_sessions *sessions);
/* Those that ended by their TTL or because of sessions_max. */
uint64_t quire_sessions_evictions_total(const quire_sessions *sessions);

#endif /* QUIRE_ENGINE_SESSIONS_H */
