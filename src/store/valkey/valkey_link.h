/* valkey_link.h - the connection to one server: pipelined, never waiting, ended by its own clock.
 *
 *   idle --breaker--> connecting --> TLS --> greeting (AUTH, SELECT, PING) --> ready
 *     ^                                                                          |
 *     '---- lost, silent, slow, or it talks nonsense: commands end without reply ---'
 *
 * Commands are sent in order, replies come in order. Only a ready link takes commands; else a
 * command ends at once. So a server that is away costs a caller nothing.
 *
 * Time bounds: while replies are outstanding, some byte must move within silence_us. Greetings must
 * end, and the oldest command must be answered, within the longer one of silence_us and
 * QUIRE_VK_PATIENCE_US. A link that breaks a bound is closed. The
 * breaker (valkey_breaker.h) says when it is opened again. An idle link sends PING every
 * QUIRE_VK_PING_US, so that trouble is found before a request meets it.
 *
 * A name is resolved (getaddrinfo()) in the store's thread, which waits for that.
 *
 * Thread: the store's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_LINK_H
#define QUIRE_STORE_VALKEY_LINK_H

#include "store/valkey/valkey_breaker.h"
#include "store/valkey/valkey_cmd.h"
#include "store/valkey/valkey_tls.h"
#include "store/valkey/valkey_url.h"

#define QUIRE_VK_PATIENCE_US     1000000u
#define QUIRE_VK_PING_US         1000000u
#define QUIRE_VK_PAUSE_MIN_US    100000u /* of the breaker */
#define QUIRE_VK_PAUSE_MAX_US    5000000u
#define QUIRE_VK_READ_BYTES      65536u
#define QUIRE_VK_REPLY_BYTES_MAX ((size_t)258 << 20) /* the largest record and its head */
#define QUIRE_VK_TROUBLE_MAX     112u
#define QUIRE_VK_REFUSAL_MAX     256u /* bytes of a line about a refused command */

struct quire_vk_link;

/* State that all links of a store share. */
typedef struct quire_vk_net {
    const char *user;     /* NULL = none */
    const char *password; /* NULL = none */
    uint32_t database;
    quire_vk_tls *tls;   /* NULL = no TLS */
    uint64_t silence_us; /* timeout_ms of the options */
    uint64_t latency_max_us;
    /* A command's reply, or NULL: the receiver ends the command or sends it again. */
    void (*reply)(void *ctx, struct quire_vk_link *link, quire_vk_cmd *cmd,
                  const quire_resp *reply);
    void (*ready)(void *ctx, struct quire_vk_link *link);
    /* The link was ready, or tried to be, and is closed now: link->trouble says why. */
    void (*lost)(void *ctx, struct quire_vk_link *link);
    /* A message that the server sends to a listening link without a request. */
    void (*message)(void *ctx, const quire_resp *reply);
    void *ctx;
} quire_vk_net;

typedef enum quire_vk_link_state {
    QUIRE_VK_IDLE,
    QUIRE_VK_CONNECTING,
    QUIRE_VK_TLS,
    QUIRE_VK_GREETING,
    QUIRE_VK_READY
} quire_vk_link_state;

typedef struct quire_vk_link {
    const quire_vk_net *net;
    quire_valkey_addr addr;
    quire_vk_link_state state;
    bool is_listening; /* after SUBSCRIBE: replies are messages */
    int fd;
    quire_vk_session *tls;
    bool wants_write; /* TLS: to go on it must write */
    quire_resp_reader *reader;
    size_t n_since;      /* bytes since the last whole reply */
    quire_vk_cmd *first; /* oldest command without reply */
    quire_vk_cmd *last;
    quire_vk_cmd *out; /* first command that is not written completely */
    size_t out_at;     /* bytes of it that are written */
    uint64_t moved_us; /* a byte moved, or the first command came */
    uint64_t replied_us;
    uint64_t begun_us; /* CONNECTING and on */
    quire_breaker breaker;
    bool was_ready; /* since the last loss */
    char trouble[QUIRE_VK_TROUBLE_MAX];
} quire_vk_link;

/* NULL: out of memory. Memory: quire_vk_link_free(). */
quire_vk_link *quire_vk_link_new(const quire_vk_net *net, const quire_valkey_addr *addr);
/* Ends all commands. */
void quire_vk_link_free(quire_vk_link *link);

/* Queue a command; the link owns it. The link is ready. */
void quire_vk_link_send(quire_vk_link *link, quire_vk_cmd *cmd);
/* Do the work that is due: connect, ping, give up. */
void quire_vk_link_tick(quire_vk_link *link, uint64_t now_us);
/* When tick has something to do next; UINT64_MAX = never. */
uint64_t quire_vk_link_due_us(const quire_vk_link *link);
/* For poll(): 0 = the link has no descriptor. */
short quire_vk_link_events(const quire_vk_link *link);
void quire_vk_link_io(quire_vk_link *link, short revents, uint64_t now_us);
/* Close the link for a reason, which becomes its trouble. */
void quire_vk_link_fail(quire_vk_link *link, uint64_t now_us, const char *why);

#endif /* QUIRE_STORE_VALKEY_LINK_H */
