/* saved.h - sessions, pins and the learned reuse model as items of state
 * (store/state/state_item.h).
 *
 * Times. A process has a clock of its own that starts anywhere (quire_engine_opts.clock_us); an
 * item has microseconds since 1970. quire_saved_clock turns one into the other. An item from the
 * future counts as from now.
 *
 *   session   tenant, id, created, turns, tokens, messages       the head's time: its last use
 *   pin       tenant, name, class, TTL, end, tokens              its creation
 *   reuse     policy, bytes of core/prefix/prefix_learned.h      when it was copied
 *
 * Writing appends a whole item to `item`, which is empty, and seals it. Reading takes an item that
 * quire_state_open() has passed. It checks each field all the same: a program may have written
 * nonsense with a right checksum.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_ENGINE_SAVER_SAVED_H
#define QUIRE_ENGINE_SAVER_SAVED_H

#include "engine/adapt/adapt.h"
#include "engine/sessions.h"
#include "store/state/state_item.h"

typedef struct quire_saved_clock {
    uint64_t now_us;  /* of the engine */
    uint64_t wall_us; /* at the same moment, since 1970 */
} quire_saved_clock;

uint64_t quire_saved_wall_us(const quire_saved_clock *clock, uint64_t then_us);
uint64_t quire_saved_then_us(const quire_saved_clock *clock, uint64_t wall_us);

typedef struct quire_saved_writing {
    quire_saved_clock clock;
    unsigned char identity[QUIRE_HASH128_BYTES];
} quire_saved_writing;

/* The fields that an item was read into. Memory: the strings are in the item, the rest ends with
 * quire_saved_fini(). */
typedef struct quire_saved {
    quire_session_info session;
    quire_adapt_pin_view pin;
    const char *policy;
    const unsigned char *learned; /* [n_learned] */
    size_t n_learned;
    int32_t *tokens;
    quire_chat_message *messages;
} quire_saved;
void quire_saved_fini(quire_saved *saved);

quire_state_name quire_saved_session_name(const quire_session_info *session);
quire_state_name quire_saved_pin_name(const quire_adapt_pin_view *pin);
quire_state_name quire_saved_reuse_name(const char *policy);

/* Bytes of the item that a session or a pin makes. */
size_t quire_saved_session_bytes(const quire_session_info *session);
size_t quire_saved_pin_bytes(const quire_adapt_pin_view *pin);

int quire_saved_session_write(quire_bytes *item, const quire_session_info *session,
                              const quire_saved_writing *how);
int quire_saved_pin_write(quire_bytes *item, const quire_adapt_pin_view *pin,
                          const quire_saved_writing *how);
int quire_saved_reuse_write(quire_bytes *item, const char *policy, const unsigned char *learned,
                            size_t n_learned, const quire_saved_writing *how);

/* Read an item of the kind of head->name. n_vocab bounds token ids. Results: OK; FIELDS; EXPIRED
 * (a pin); IO (memory is short). */
quire_state_result quire_saved_read(quire_saved *out, const unsigned char *item, size_t n_bytes,
                                    const quire_state_head *head, uint32_t n_vocab,
                                    const quire_saved_clock *clock);

#endif /* QUIRE_ENGINE_SAVER_SAVED_H */
