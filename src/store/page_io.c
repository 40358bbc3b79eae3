/* page_io.c - see page_io.h.
 *
 * SPDX-License-Identifier: MIT */
#include "store/page_io.h"

#include "base/check.h"

#include <string.h>

int quire_page_parts_end(quire_page_parts *out, size_t state_bytes)
{
    QUIRE_FAIL_IF(out->n_groups == 0, QUIRE_INVAL);
    if (state_bytes > 0) {
        out->state = out->n_groups;
        out->bytes[out->n_groups++] = state_bytes;
    }
    out->record_bytes =
        quire_page_record_bytes(out->page_tokens, QUIRE_PREFIX_SALT_MAX, out->n_groups, out->bytes);
    return out->record_bytes > 0 ? QUIRE_OK : QUIRE_RANGE;
}

int quire_page_parts_get(const quire_cache *cache, uint32_t page_tokens, quire_page_parts *out)
{
    *out = (quire_page_parts){ .page_tokens = page_tokens };
    while (out->n_groups < quire_cache_groups(cache)) {
        const size_t bytes = quire_cache_payload_bytes(cache, (quire_group_id)out->n_groups);

        if (bytes == 0) {
            break;
        }
        out->bytes[out->n_groups++] = bytes;
    }
    return quire_page_parts_end(
        out, quire_cache_payload_bytes(cache, (quire_group_id)quire_cache_groups(cache)));
}

int quire_page_write(const quire_cache *cache, const quire_page_parts *parts,
                     const quire_page_text *text, const quire_page_id *pages, const void *state,
                     quire_transfer *transfer)
{
    size_t bytes[QUIRE_GROUPS_MAX];
    unsigned char *to[QUIRE_GROUPS_MAX];

    for (uint32_t g = 0; g < parts->n_groups; g++) {
        const bool is_there = pages[g] != QUIRE_PAGE_NULL || (state != NULL && g == parts->state);

        bytes[g] = is_there ? parts->bytes[g] : 0;
    }
    QUIRE_TRY(quire_page_record_begin(transfer->record, transfer->capacity, text, parts->n_groups,
                                      bytes, to));
    for (uint32_t g = 0; g < parts->n_groups; g++) {
        if (state != NULL && g == parts->state) {
            memcpy(to[g], state, bytes[g]);
        } else if (bytes[g] > 0) {
            QUIRE_TRY(quire_cache_page_gather(cache, pages[g], to[g], bytes[g]));
        }
    }
    return QUIRE_OK;
}

/* Whether a group may have a hole in the first n_tokens tokens of a page. */
static bool may_lack(const quire_page_parts *parts, uint32_t group, uint32_t n_tokens)
{
    return group > 0 && (group == parts->state || n_tokens == parts->page_tokens);
}

static bool has_parts(const quire_page_parts *parts, const quire_page_record *record,
                      uint32_t n_tokens)
{
    if (record->n_parts != parts->n_groups || n_tokens == 0 || n_tokens > record->text.n_tokens) {
        return false;
    }
    for (uint32_t g = 0; g < parts->n_groups; g++) {
        const bool is_hole = record->part_bytes[g] == 0 && may_lack(parts, g, n_tokens);

        if (record->part_bytes[g] != parts->bytes[g] && !is_hole) {
            return false;
        }
    }
    return true;
}

int quire_page_read(quire_cache *cache, const quire_page_parts *parts, quire_seq_id seq,
                    const quire_page_record *record, uint32_t n_tokens)
{
    const uint32_t first = record->text.first_token;
    const uint32_t entry = first / parts->page_tokens;

    QUIRE_FAIL_IF(!has_parts(parts, record, n_tokens), QUIRE_CORRUPT);
    QUIRE_FAIL_IF(first % parts->page_tokens != 0 || first != quire_seq_tokens(cache, seq),
                  QUIRE_CORRUPT);
    QUIRE_TRY(quire_seq_append(cache, seq, n_tokens));
    for (uint32_t g = 0; g < parts->n_groups; g++) {
        const quire_group_id group = (quire_group_id)g;
        quire_seq_table table;

        if (g > 0 && g == parts->state) {
            continue;
        }
        if (record->part_bytes[g] == 0) {
            QUIRE_TRY(quire_seq_release(cache, seq, group, first, first + n_tokens, NULL));
            continue;
        }
        QUIRE_TRY(quire_seq_table_get(cache, seq, group, &table));
        QUIRE_TRY(quire_cache_page_scatter(
            cache, table.leaves[entry / QUIRE_LEAF_ENTRIES][entry % QUIRE_LEAF_ENTRIES].page,
            record->parts[g], record->part_bytes[g]));
    }
    return QUIRE_OK;
}

const void *quire_page_state(const quire_page_parts *parts, const quire_page_record *record,
                             uint32_t n_tokens)
{
    const bool has_state = parts->state > 0 && record->part_bytes[parts->state] > 0 &&
                           record->text.n_tokens == n_tokens;

    return has_state ? record->parts[parts->state] : NULL;
}

uint32_t quire_page_same(const quire_page_record *record, const int32_t *tokens, uint32_t n_tokens)
{
    int32_t found[QUIRE_PAGE_TOKENS_MAX];
    uint32_t n = 0;

    quire_page_record_tokens(record, found);
    while (n < n_tokens && n < record->text.n_tokens && found[n] == tokens[n]) {
        n++;
    }
    return n;
}
