/* valkey_cmd.h - one command on its way to a server, and its reply.
 *
 * A command is its bytes in the protocol (RESP), made once: it can be sent again, to the server
 * that a redirection names. Short arguments are copied. One long argument, a value, is borrowed
 * until the command is done.
 *
 * Thread: the store's.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_STORE_VALKEY_CMD_H
#define QUIRE_STORE_VALKEY_CMD_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "store/valkey/valkey_resp.h"

#define QUIRE_VK_BORROW_BYTES 4096u /* a longer argument is borrowed */
#define QUIRE_VK_SLOT_ANY     UINT32_MAX

typedef struct quire_vk_arg {
    const void *data;
    size_t n;
} quire_vk_arg;

#define QUIRE_VK_WORD(literal)                                                                     \
    (quire_vk_arg)                                                                                 \
    {                                                                                              \
        (literal), sizeof(literal) - 1                                                             \
    }

/* Called once for each command: with the reply, which ends with the call, or with NULL when there
 * will be none. */
typedef void (*quire_vk_done)(void *ctx, const quire_resp *reply);

typedef struct quire_vk_cmd {
    struct quire_vk_cmd *next; /* the link's */
    quire_vk_done done;
    void *ctx;
    uint32_t slot; /* of the cluster, or QUIRE_VK_SLOT_ANY */
    uint32_t n_redirects;
    uint64_t sent_us;  /* when its last byte was written; the link's */
    const void *value; /* the borrowed argument, between the two parts of `bytes` */
    size_t n_value;
    size_t n_head;
    size_t n_tail;
    unsigned char bytes[]; /* [n_head + n_tail] */
} quire_vk_cmd;

/* Make a command of n arguments, of which at most one is longer than QUIRE_VK_BORROW_BYTES. NULL:
 * out of memory. Memory: free(). */
quire_vk_cmd *quire_vk_cmd_new(const quire_vk_arg *args, uint32_t n, uint32_t slot,
                               quire_vk_done done, void *ctx);
size_t quire_vk_cmd_bytes(const quire_vk_cmd *cmd);
/* The pieces of a command behind its first `at` bytes. Returns their number. */
uint32_t quire_vk_cmd_pieces(const quire_vk_cmd *cmd, size_t at, struct iovec out[3]);
/* Call done, and free the command. */
void quire_vk_cmd_end(quire_vk_cmd *cmd, const quire_resp *reply);

#endif /* QUIRE_STORE_VALKEY_CMD_H */
