/* fuzz_store.c - bytes as a record, as a segment's header, marker and footer, and as a whole
 * segment file: each is read or refused, and values that were read are in range.
 *
 * An input whose first byte is odd has its checksums put right where that is possible, so that the
 * search comes past them.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "store/file/segment.h"
#include "store_mend.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX (256u << 10)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

static void record_try(unsigned char *bytes, size_t n, bool is_mended)
{
    const size_t n_record = quire_page_record_peek(bytes, n);
    int32_t tokens[QUIRE_PAGE_TOKENS_MAX];
    quire_page_record record;

    if (n_record == 0 || n_record > n) {
        return;
    }
    if (is_mended) {
        (void)fuzz_record_mend(bytes, n_record, false);
    }
    if (quire_page_record_open(bytes, n_record, &record) != QUIRE_STORE_OK) {
        return;
    }
    QUIRE_CHECK(record.text.n_tokens > 0 && record.text.n_tokens <= QUIRE_PAGE_TOKENS_MAX);
    quire_page_record_tokens(&record, tokens);
    for (uint32_t i = 0; i < record.n_parts; i++) {
        QUIRE_CHECK(record.parts[i] >= bytes &&
                    record.parts[i] + record.part_bytes[i] <= bytes + n_record);
    }
    record.text.tokens = tokens;
    QUIRE_CHECK(quire_page_record_check(&record, &record.text) == QUIRE_STORE_OK);
}

static void blocks_try(unsigned char *block, bool is_mended)
{
    quire_segment_head head;
    quire_store_drop drop;
    uint64_t sequence;

    if (is_mended) {
        fuzz_block_mend(block);
    }
    if (quire_segment_head_read(block, &head)) {
        QUIRE_CHECK(head.oldest <= head.number && head.number <= QUIRE_SEGMENT_NUMBER_MAX);
    }
    if (quire_marker_read(block, &drop, &sequence)) {
        QUIRE_CHECK(quire_marker_is_valid(&drop));
    }
}

static void footer_walk(const quire_segment_footer *footer, const unsigned char *body, uint64_t n)
{
    quire_segment_cursor cursor = quire_segment_roots(footer, body);

    for (uint32_t i = 0; i < footer->n_entries; i++) {
        quire_segment_entry entry;

        quire_segment_entry_get(body, i, &entry);
        QUIRE_CHECK(entry.root < footer->n_roots);
        QUIRE_CHECK(((uint64_t)entry.place + entry.blocks) * QUIRE_SEGMENT_BLOCK <= n);
    }
    for (uint32_t i = 0; i < footer->n_roots; i++) {
        quire_segment_root root;

        quire_segment_root_next(&cursor, &root);
        QUIRE_CHECK(root.salt_bytes <= QUIRE_PREFIX_SALT_MAX);
    }
    for (uint32_t i = 0; i < footer->n_drops; i++) {
        quire_segment_drop drop;

        quire_segment_drop_next(&cursor, &drop);
        QUIRE_CHECK(quire_marker_is_valid(&drop.drop));
    }
    QUIRE_CHECK(cursor.at == body + footer->body_bytes);
}

static void footer_try(unsigned char *bytes, size_t n, bool is_mended)
{
    const unsigned char *trailer = bytes + n - QUIRE_SEGMENT_BLOCK;
    quire_segment_footer footer;
    const unsigned char *body;

    if (is_mended) {
        fuzz_footer_mend(bytes, n);
    }
    if (!quire_segment_trailer_read(trailer, n, &footer)) {
        return;
    }
    body = bytes + n - quire_segment_footer_room(footer.body_bytes);
    if (quire_segment_body_check(trailer, &footer, body, n)) {
        footer_walk(&footer, body, n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    const bool is_mended = size_bytes > 0 && (data[0] & 1) != 0;
    size_t n;
    unsigned char *bytes;

    if (size_bytes < 1 || size_bytes > BYTES_MAX) {
        return 0;
    }
    /* Whole blocks, as the store reads them; the rest is zeros. */
    n = (size_bytes - 1 + QUIRE_SEGMENT_BLOCK) / QUIRE_SEGMENT_BLOCK * QUIRE_SEGMENT_BLOCK;
    bytes = aligned_alloc(QUIRE_SEGMENT_BLOCK, n);
    if (bytes == NULL) {
        return 0;
    }
    memset(bytes, 0, n);
    memcpy(bytes, data + 1, size_bytes - 1);
    footer_try(bytes, n, is_mended);
    for (size_t at = 0; at < n; at += QUIRE_SEGMENT_BLOCK) {
        record_try(bytes + at, n - at, is_mended);
        blocks_try(bytes + at, is_mended);
    }
    free(bytes);
    return 0;
}
