/* model_damage.h - the damages to the structure of a model file, one by one, in a fixed order.
 *
 * model_damage.c has those of keys, tensors and the file itself, model_damage_vocab.c those of the
 * vocabulary.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_TESTS_MODEL_DAMAGE_H
#define QUIRE_TESTS_MODEL_DAMAGE_H

#include "gguf_pieces.h"

typedef struct model_damage {
    gguf_pieces pieces; /* begins as a copy of the whole model */
    piece_arena arena;
    char what[160]; /* the damage, for people */
    const char *at; /* the key or the tensor that is damaged; NULL: the file, or several */
} model_damage;

/* A kind of damages: a number of them for a model, and number i of these. It returns false when it
 * would change nothing. */
typedef struct damage_group {
    uint32_t (*count)(const gguf_pieces *whole);
    bool (*apply)(model_damage *d, uint32_t i);
} damage_group;

extern const damage_group damage_groups_vocab[];
extern const uint32_t n_damage_groups_vocab;

/* Number of damages of a model, those that would change nothing included. */
uint32_t model_damages(const gguf_pieces *whole);

/* Set d->pieces and d->what. False: damage i would change nothing. */
bool model_damage_apply(model_damage *d, const gguf_pieces *whole, uint32_t i);

/* ---- for the groups ---- */

/* Set what from printf's arguments. */
void damage_say(model_damage *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The bytes of a string as a value: its length before it. */
uint8_t *damage_string(model_damage *d, const char *text, size_t *n);
/* A string of n letters. */
char *damage_letters(model_damage *d, size_t n);

/* Set a key, or add it. */
void damage_key_set(model_damage *d, const char *name, uint32_t type, const void *value, size_t n);
void damage_key_set_u32(model_damage *d, const char *name, uint32_t value);
void damage_key_set_str(model_damage *d, const char *name, const char *text);

/* Make the array of a key n long: shorter, or longer by repetitions of its first element. Returns
 * false when it is no array, or that long, or empty. */
bool damage_array_resize(model_damage *d, piece_key *key, uint64_t n);

/* Element i of an array of strings gets another text. */
bool damage_array_text_set(model_damage *d, piece_key *key, uint64_t i, const char *text);

#endif /* QUIRE_TESTS_MODEL_DAMAGE_H */
