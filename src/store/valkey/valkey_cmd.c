/* valkey_cmd.c - see valkey_cmd.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/valkey/valkey_cmd.h"

#include "base/bytes.h"
#include "base/check.h"

#include <stdlib.h>
#include <string.h>

quire_vk_cmd *quire_vk_cmd_new(const quire_vk_arg *args, uint32_t n, uint32_t slot,
                               quire_vk_done done, void *ctx)
{
    quire_bytes text = { 0 };
    const quire_vk_arg *value = NULL;
    size_t n_head = 0;
    quire_vk_cmd *cmd;

    (void)quire_bytes_addf(&text, "*%u\r\n", n);
    for (uint32_t i = 0; i < n; i++) {
        (void)quire_bytes_addf(&text, "$%zu\r\n", args[i].n);
        if (args[i].n > QUIRE_VK_BORROW_BYTES) {
            QUIRE_CHECK(value == NULL);
            value = &args[i];
            n_head = text.n;
        } else {
            (void)quire_bytes_add(&text, args[i].data, args[i].n);
        }
        (void)quire_bytes_add(&text, "\r\n", 2);
    }
    cmd = text.status == QUIRE_OK ? malloc(sizeof *cmd + text.n) : NULL;
    if (cmd != NULL) {
        *cmd = (quire_vk_cmd){ .done = done, .ctx = ctx, .slot = slot };
        cmd->n_head = value != NULL ? n_head : text.n;
        cmd->n_tail = text.n - cmd->n_head;
        cmd->value = value != NULL ? value->data : NULL;
        cmd->n_value = value != NULL ? value->n : 0;
        memcpy(cmd->bytes, text.data, text.n);
    }
    quire_bytes_fini(&text);
    return cmd;
}

size_t quire_vk_cmd_bytes(const quire_vk_cmd *cmd)
{
    return cmd->n_head + cmd->n_value + cmd->n_tail;
}

uint32_t quire_vk_cmd_pieces(const quire_vk_cmd *cmd, size_t at, struct iovec out[3])
{
    const struct iovec all[3] = {
        { (void *)(uintptr_t)cmd->bytes, cmd->n_head },
        { (void *)(uintptr_t)cmd->value, cmd->n_value },
        { (void *)(uintptr_t)(cmd->bytes + cmd->n_head), cmd->n_tail },
    };
    uint32_t n = 0;

    for (uint32_t i = 0; i < 3; i++) {
        if (at >= all[i].iov_len) {
            at -= all[i].iov_len;
            continue;
        }
        out[n].iov_base = (unsigned char *)all[i].iov_base + at;
        out[n++].iov_len = all[i].iov_len - at;
        at = 0;
    }
    return n;
}

void quire_vk_cmd_end(quire_vk_cmd *cmd, const quire_resp *reply)
{
    if (cmd->done != NULL) {
        cmd->done(cmd->ctx, reply);
    }
    free(cmd);
}
