/* kv_pack.h - news of pages as vLLM's batches of events, in msgpack.
 *
 *   batch  [timestamp, [event, ...], rank]       seconds since 1970; data-parallel rank: the device
 *   event  ["BlockStored", [hash, ...], parent or nil, [token, ...], block_size,
 *           nil (lora_id), nil (medium), nil (lora_name), [keys or nil, ...] (extra_keys)]
 *          ["BlockRemoved", [hash, ...], nil (medium)]
 *          ["AllBlocksCleared"]
 *
 * Pages that follow one another in a text and in the news are one BlockStored: parent is that of
 * the first, token_ids are all of theirs. Removed pages in a row are one BlockRemoved. extra_keys
 * is left out without a tenant and cache_salt. Otherwise it has the names that are not empty,
 * tenant first, beside the first page of a text, and nil beside the others. medium nil: the memory
 * where the server computes.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_KV_PACK_H
#define QUIRE_SERVER_KV_PACK_H

#include "base/bytes.h"
#include "server/kv_events/kv_news.h"

typedef struct quire_kv_packed {
    uint32_t stored; /* pages */
    uint32_t removed;
    uint32_t cleared;
    uint8_t rank; /* of their device */
} quire_kv_packed;

/* Append a batch to out: items of bytes[n] from `at` on (quire_kv_news_take()) that name
 * pages_max pages at most, all of one device. *packed gets the contents of the batch in numbers.
 * Returns the position of the next item; out->status has an error. */
size_t quire_kv_pack(quire_bytes *out, const unsigned char *bytes, size_t n, size_t at,
                     uint32_t pages_max, double seconds, quire_kv_packed *packed);

#endif /* QUIRE_SERVER_KV_PACK_H */
