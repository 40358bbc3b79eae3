/* block_memory.h - the memory of a quire_block_state, which is also its file.
 *
 * To make a state: set all numbers, alloc(), write the parts by quire_block_part(), seal(). To read
 * one: parse(), which takes over the bytes of a file and checks all of them.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_RETAIN_BLOCK_MEMORY_H
#define QUIRE_RETAIN_BLOCK_MEMORY_H

#include "quire/block_state.h"
#include "quire/error.h"

/* Pages of a lane of n tokens. */
static inline uint32_t quire_block_n_pages(uint32_t n_tokens)
{
    return (n_tokens + QUIRE_BLOCK_PAGE_TOKENS - 1) / QUIRE_BLOCK_PAGE_TOKENS;
}

/* Make room for the tokens of n_tokens[lane], [n_layers * n_kv_head], and set all pointers. The
 * parts are zeros. Errors: QUIRE_NOMEM, QUIRE_LIMIT. Memory: quire_block_state_free(). */
int quire_block_state_alloc(quire_block_state *state, const uint32_t *n_tokens);

/* A part of a state that was made by alloc(), to write to. */
static inline void *quire_block_part(const quire_block_state *state, const void *part)
{
    return state->memory + ((const unsigned char *)part - state->memory);
}

/* Write the numbers and the hash: memory is then the file. */
void quire_block_state_seal(quire_block_state *state);

/* Read a file of n_bytes, which malloc() gave; they are the state's, on errors too. Errors:
 * QUIRE_CORRUPT (no such file, damaged), QUIRE_UNSUPP (of another version), QUIRE_NOMEM. */
int quire_block_state_parse(quire_block_state *out, unsigned char *bytes, size_t n_bytes,
                            quire_error *err);

void quire_block_state_free(quire_block_state *state); /* zeros are allowed */

#endif /* QUIRE_RETAIN_BLOCK_MEMORY_H */
