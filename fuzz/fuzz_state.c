/* fuzz_state.c - bytes as an item of state: a session, a pin, a reuse model. Each is read or
 * refused. An item that was read is in range, and is the same after it is written and read again.
 *
 * An input whose first byte is odd has its checksum, length, name and version put right where that
 * is possible, so that the search comes past them.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "core/evict/reuse_model.h"
#include "engine/saver/saved.h"

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BYTES_MAX (256u << 10)
#define N_VOCAB   1000u

static const quire_saved_clock the_clock = { 5000000, 1000000000000 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);

/* The name that the content of an item asks for, if it can be told. */
static quire_state_name name_of(const unsigned char *item, size_t n, quire_state_kind kind)
{
    quire_state_reader body = quire_state_body(item, n);
    uint32_t tenant_bytes = 0, text_bytes;
    const char *tenant = NULL, *text;

    if (kind != QUIRE_STATE_REUSE) {
        tenant = quire_state_get_text(&body, false, QUIRE_PREFIX_SALT_MAX, &tenant_bytes);
    }
    text = quire_state_get_text(&body, true, QUIRE_SESSION_ID_MAX, &text_bytes);
    return quire_state_name_of(kind, tenant, tenant_bytes, text != NULL ? text : "");
}

static void mend(unsigned char *item, size_t n)
{
    const quire_state_kind kind = (quire_state_kind)(item[12] % QUIRE_STATE_KIND_COUNT);
    quire_state_head head = { .name = name_of(item, n, kind),
                              .time_us = quire_le_get(item + 48, 8) };
    quire_bytes bytes = { .data = (char *)item, .n = n, .capacity = n };

    (void)quire_state_seal(&bytes, &head);
}

/* A model accepts values in range alone, and predicts finite numbers from accepted ones. */
static void learned_try(const unsigned char *bytes, size_t n)
{
    quire_reuse_model *model = malloc(sizeof *model);
    static unsigned char whole[QUIRE_REUSE_SAVED_BYTES];

    QUIRE_CHECK(model != NULL);
    quire_reuse_model_init(model);
    quire_reuse_model_save(model, whole);
    memcpy(whole, bytes, n < sizeof whole ? n : sizeof whole);
    if (quire_reuse_model_load(model, whole, 77)) {
        for (uint32_t id = 0; id < QUIRE_REUSE_CLASSES; id++) {
            const float index = quire_reuse_index(model, id, id * 1000);

            QUIRE_CHECK(index >= 0.0f && index <= 1e30f);
        }
    }
    free(model);
}

static void write_again(const quire_saved *saved, const quire_state_head *head,
                        const unsigned char *item, size_t n)
{
    const quire_saved_writing how = { .clock = the_clock };
    quire_bytes again = { 0 };
    quire_saved twice;

    if (head->name.kind == QUIRE_STATE_SESSION) {
        /* text_bytes is not in the item. */
        QUIRE_CHECK(quire_saved_session_write(&again, &saved->session, &how) == QUIRE_OK);
    } else if (head->name.kind == QUIRE_STATE_PIN) {
        QUIRE_CHECK(quire_saved_pin_write(&again, &saved->pin, &how) == QUIRE_OK);
        QUIRE_CHECK(again.n == quire_saved_pin_bytes(&saved->pin));
    } else {
        QUIRE_CHECK(quire_saved_reuse_write(&again, saved->policy, saved->learned, saved->n_learned,
                                            &how) == QUIRE_OK);
        learned_try(saved->learned, saved->n_learned);
    }
    QUIRE_CHECK(again.n == n && memcmp(again.data + 16, item + 16, 32) == 0);
    QUIRE_CHECK(quire_saved_read(&twice, (unsigned char *)again.data, again.n, head, N_VOCAB,
                                 &the_clock) == QUIRE_STATE_OK_RESULT);
    quire_saved_fini(&twice);
    quire_bytes_fini(&again);
}

static void item_try(const unsigned char *item, size_t n, quire_state_head *head)
{
    quire_saved saved;

    if (quire_state_open(item, n, head) != QUIRE_STATE_OK_RESULT ||
        quire_saved_read(&saved, item, n, head, N_VOCAB, &the_clock) != QUIRE_STATE_OK_RESULT) {
        return;
    }
    for (uint32_t i = 0; i < saved.session.n_tokens; i++) {
        QUIRE_CHECK((uint32_t)saved.session.tokens[i] < N_VOCAB);
    }
    for (uint32_t i = 0; i < saved.session.n_messages; i++) {
        QUIRE_CHECK(strlen(saved.session.messages[i].role) <= n);
        QUIRE_CHECK(strlen(saved.session.messages[i].content) <= n);
    }
    write_again(&saved, head, item, n);
    quire_saved_fini(&saved);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    const size_t n = size_bytes > 0 ? size_bytes - 1 : 0;
    quire_state_head head = { 0 };
    unsigned char *item;

    if (size_bytes < 1 || size_bytes > BYTES_MAX || (item = malloc(n + 1)) == NULL) {
        return 0;
    }
    memcpy(item, data + 1, n);
    if (n >= QUIRE_STATE_HEAD_BYTES) {
        if ((data[0] & 1) != 0) {
            mend(item, n);
        }
        head.name.kind = (quire_state_kind)(item[12] % QUIRE_STATE_KIND_COUNT);
        memcpy(head.identity, item + 16, sizeof head.identity);
        memcpy(head.name.hash, item + 32, sizeof head.name.hash);
    }
    item_try(item, n, &head);
    free(item);
    return 0;
}
