/* request_events.c - the engine's side of a request: tokens, the end.
 *
 * Texts and alternatives lie in blocks that never move, so a client's pointers stay valid until it
 * releases the request. The list of events may move: clients get copies of its entries.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/loop/loop_object.h"

#include "base/check.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES     4032u
#define EVENTS_FIRST    64u
#define ALIGN_UP(n, to) (((n) + (to)-1) / (to) * (to))

/* Copy n bytes into a block that never moves; NULL without memory. */
static void *keep(quire_request *request, const void *data, size_t n)
{
    const size_t size = ALIGN_UP(n, sizeof(max_align_t));
    quire_request_block *block = request->client.blocks;
    void *at;

    if (block == NULL || size > block->capacity - block->used) {
        const size_t capacity = size > BLOCK_BYTES ? size : BLOCK_BYTES;

        block = malloc(sizeof *block + capacity);
        if (block == NULL) {
            return NULL;
        }
        *block = (quire_request_block){ .next = request->client.blocks, .capacity = capacity };
        request->client.blocks = block;
    }
    at = (unsigned char *)block->data + block->used;
    block->used += size;
    memcpy(at, data, n);
    return at;
}

/* Make room for another event. */
static int events_reserve(quire_request *request)
{
    const uint32_t capacity =
        request->client.events_capacity > 0 ? request->client.events_capacity * 2 : EVENTS_FIRST;
    quire_request_token *events;

    if (request->client.n_events < request->client.events_capacity) {
        return QUIRE_OK;
    }
    events = realloc(request->client.events, capacity * sizeof *events);
    QUIRE_FAIL_IF(events == NULL, QUIRE_NOMEM);
    request->client.events = events;
    request->client.events_capacity = capacity;
    return QUIRE_OK;
}

int quire_request_push(quire_request *request, const quire_request_token *token)
{
    quire_request_token kept = *token;
    int rc = QUIRE_NOMEM;

    (void)pthread_mutex_lock(&request->client.lock);
    if (token->text_bytes > 0) {
        kept.text = keep(request, token->text, token->text_bytes);
        if (kept.text == NULL) {
            goto out;
        }
    } else {
        kept.text = "";
    }
    if (token->n_tops > 0) {
        kept.tops = keep(request, token->tops, token->n_tops * sizeof *token->tops);
        if (kept.tops == NULL) {
            goto out;
        }
    }
    rc = events_reserve(request);
    if (rc == QUIRE_OK) {
        request->client.events[request->client.n_events++] = kept;
        (void)pthread_cond_broadcast(&request->client.changed);
    }
out:
    (void)pthread_mutex_unlock(&request->client.lock);
    return rc;
}

void quire_loop_to_compute_set(quire_request *request, uint32_t n_tokens)
{
    atomic_ullong *sum = &request->loop->inbox.n_to_compute;

    (void)atomic_fetch_add(sum, n_tokens);
    (void)atomic_fetch_sub(sum, request->n_to_compute);
    request->n_to_compute = n_tokens;
}

void quire_request_finish(quire_request *request, const quire_request_result *result)
{
    quire_request_result kept = *result;

    (void)pthread_mutex_lock(&request->client.lock);
    QUIRE_ASSERT(!request->client.is_done);
    if (result->tail_bytes > 0) {
        kept.tail = keep(request, result->tail, result->tail_bytes);
    }
    if (result->tail_bytes == 0 || kept.tail == NULL) {
        kept.tail = "";
        kept.tail_bytes = 0;
    }
    kept.n_generated_tokens = request->client.n_events;
    request->result = kept;
    request->client.is_done = true;
    (void)pthread_cond_broadcast(&request->client.changed);
    (void)pthread_mutex_unlock(&request->client.lock);
    quire_request_unref(request);
}

void quire_request_explained(quire_request *request, const quire_explanation *explanation)
{
    (void)pthread_mutex_lock(&request->client.lock);
    request->client.explanation = *explanation;
    request->client.has_explanation = true;
    (void)pthread_mutex_unlock(&request->client.lock);
}
