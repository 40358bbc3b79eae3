/* store_mend.c - see store_mend.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store_mend.h"

#include "base/hash128.h"
#include "store/file/segment.h"

#include <string.h>

#define AT_KEY 32u /* of a record: page_record.h */

/* Of blocks: magic, version, checksum of all but itself. */
void fuzz_block_mend(unsigned char *block)
{
    quire_hash128_parts(block, 8, block + 24, QUIRE_SEGMENT_BLOCK - 24, block + 8);
}

size_t fuzz_record_mend(unsigned char *bytes, size_t n, bool has_own_key)
{
    const size_t n_record = quire_page_record_peek(bytes, n);
    int32_t tokens[QUIRE_PAGE_TOKENS_MAX];
    quire_page_record record;
    quire_page_key key;

    if (n_record == 0 || n_record > n ||
        quire_page_record_fields(bytes, n_record, &record) != QUIRE_STORE_OK) {
        return 0;
    }
    if (has_own_key) {
        quire_page_record_tokens(&record, tokens);
        quire_prefix_key_add(&record.text.parent, tokens, record.text.n_tokens, &key);
        memcpy(bytes + AT_KEY, key.bytes, sizeof key.bytes);
    }
    quire_page_record_seal(bytes, record.sequence);
    return n_record;
}

void fuzz_footer_mend(unsigned char *bytes, size_t n)
{
    unsigned char *trailer = bytes + n - QUIRE_SEGMENT_BLOCK;
    quire_segment_footer footer;

    fuzz_block_mend(trailer);
    if (quire_segment_trailer_read(trailer, n, &footer)) {
        quire_segment_trailer_write(trailer, &footer,
                                    bytes + n - quire_segment_footer_room(footer.body_bytes));
    }
}

void fuzz_segment_mend(unsigned char *bytes, size_t n)
{
    size_t at = QUIRE_SEGMENT_BLOCK;

    fuzz_block_mend(bytes);
    while (at + QUIRE_SEGMENT_BLOCK < n) {
        const size_t n_record = fuzz_record_mend(bytes + at, n - at, false);

        if (n_record == 0 && memcmp(bytes + at, "QKVD", 4) == 0) {
            fuzz_block_mend(bytes + at);
        }
        at += n_record > 0 ? n_record : QUIRE_SEGMENT_BLOCK;
    }
    if (n > QUIRE_SEGMENT_BLOCK && memcmp(bytes + n - QUIRE_SEGMENT_BLOCK, "QKVT", 4) == 0) {
        fuzz_footer_mend(bytes, n);
    }
}
