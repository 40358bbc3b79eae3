/* kv_formats.h - the number formats of K and V of each stored layer.
 *
 * A choice is a pair of formats per stored layer. It comes from one pair for all layers (--kv
 * q8:q4), from a list by layers (--kv-layers "0-1,-2--1=q8;*=q4:q4"), or is made for a size (--kv
 * auto), by general rules or by a calibration of the model.
 *
 * Layer numbers count the layers that store KV, from 0; negative ones count from the end (-1 is the
 * last). Bits are average bits per stored value in the long-context limit: codes, scales and means
 * of all layers count, the recent window and the sinks (a constant) do not.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_KV_FORMATS_H
#define QUIRE_MODEL_KV_FORMATS_H

#include "model/model.h"
#include "quire/codec.h"
#include "quire/error.h"

#define QUIRE_KV_RECENT_DEFAULT 128 /* tokens that stay in the hot format, from a query back */
#define QUIRE_KV_SINKS_DEFAULT  64  /* tokens at the start that stay hot */
#define QUIRE_KV_AUTO_BITS      4.5 /* size of --kv auto without a number */
#define QUIRE_KV_BITS_MIN       3.0
#define QUIRE_KV_BITS_MAX       32.0

typedef struct quire_kv_pair {
    quire_format k;
    quire_format v;
} quire_kv_pair;

/* The choice of a user, before a model is known. */
typedef struct quire_kv_choice {
    bool is_auto;       /* a size instead of formats */
    double bits;        /* of auto */
    quire_kv_pair pair; /* otherwise */
} quire_kv_choice;

/* Parse "f16" or "q8:f16". Errors: QUIRE_INVAL (then *out is unchanged). */
int quire_kv_pair_parse(const char *text, quire_kv_pair *out);

/* Guess the pair that a wrong text was likely meant to be: "q8_0:q4_0", llama.cpp's names, gives
 * q8:q4. Returns false when no name is near. */
bool quire_kv_pair_suggest(const char *text, quire_kv_pair *out);

/* "f16" when both are the same, else "q8:f16". Returns buffer, of at least 24 bytes. */
char *quire_kv_pair_name(quire_kv_pair pair, char *buffer, size_t buffer_bytes);

bool quire_kv_pair_equals(quire_kv_pair a, quire_kv_pair b);

/* Parse a pair, "auto" or "auto:4.5". Errors: QUIRE_INVAL, QUIRE_RANGE (bits); then *out is
 * unchanged. */
int quire_kv_choice_parse(const char *text, quire_kv_choice *out);

/* As it would be written: "q8:q4", "auto:4.5". Returns buffer, of at least 24 bytes. */
char *quire_kv_choice_name(const quire_kv_choice *choice, char *buffer, size_t buffer_bytes);

/* All stored layers of desc get one pair. pairs: [desc->n_stored]. */
void quire_kv_uniform(const quire_model_desc *desc, quire_kv_pair pair, quire_kv_pair *pairs);

/* Parse a list by layers: "LAYERS=K[:V];...", LAYERS being "*", "3", "0-1", "-2--1" or several with
 * commas. The first entry that names a layer counts. Errors: QUIRE_INVAL (grammar, a layer that no
 * entry names), QUIRE_RANGE (no such layer); err says which. */
int quire_kv_layers_parse(const char *text, const quire_model_desc *desc, quire_kv_pair *pairs,
                          quire_error *err);

/* The same list for given pairs: "0-1,20-21=q8;2-19=q4", "*=q8". Returns buffer, of at least
 * QUIRE_KV_LAYERS_TEXT_MAX bytes. */
#define QUIRE_KV_LAYERS_TEXT_MAX 8192u
char *quire_kv_layers_text(const quire_model_desc *desc, const quire_kv_pair *pairs, char *buffer,
                           size_t buffer_bytes);

/* For people: "q8:q4", or "q8 in 4 layers, q4 in 18", cut when the buffer is full. Returns buffer.
 */
char *quire_kv_summary(const quire_model_desc *desc, const quire_kv_pair *pairs, char *buffer,
                       size_t buffer_bytes);

/* The general rules: pairs of at most `bits` on average (kv_auto.c has the figures behind them). No
 * side gets less than in the best pair for all layers of that size. The remaining bits go first to
 * the first two and the last two stored layers (8 bit if the size allows), and to K before V. K has
 * still more weight in small models (< 1.5e9 parameters), if six or more query heads share a kv
 * head, or if K has a bias. Errors: QUIRE_RANGE (less than any formats can reach; err gives the
 * least), QUIRE_NOMEM. */
int quire_kv_auto(const quire_model_desc *desc, double bits, quire_kv_pair *pairs,
                  quire_error *err);

/* The dimensions of a side that a stored layer has: 0 for V that is a part of K. */
static inline uint32_t quire_kv_dims(const quire_model_desc *desc, uint32_t stored, quire_side side)
{
    const quire_layer_sizes sizes = quire_stored_sizes_of(desc, stored);

    return side == QUIRE_SIDE_K ? sizes.d_k : desc->latent.is_there ? 0 : sizes.d_v;
}

/* Numbers that all stored layers keep of a token. */
uint64_t quire_kv_values_per_token(const quire_model_desc *desc);

/* Bytes of one token of all KV heads of a stored layer's K or V. */
uint64_t quire_kv_side_bytes_per_token(const quire_model_desc *desc, uint32_t stored,
                                       quire_format format, quire_side side);

/* Average bits per stored value. */
double quire_kv_bits(const quire_model_desc *desc, const quire_kv_pair *pairs);

/* Whether some side of some layer is stored in a sealed format, and so needs the hot group. */
bool quire_kv_is_sealed(const quire_model_desc *desc, const quire_kv_pair *pairs);

/* Bytes of one token, all stored layers, outside of hot pages. */
uint64_t quire_kv_bytes_per_token(const quire_model_desc *desc, const quire_kv_pair *pairs);

/* The same of one stored layer. */
uint64_t quire_kv_layer_bytes_per_token(const quire_model_desc *desc, uint32_t stored,
                                        quire_kv_pair pair);

/* Hot-page bytes of one token: the sealed sides in QUIRE_FORMAT_HOT. 0 when there are none. */
uint64_t quire_kv_hot_bytes_per_token(const quire_model_desc *desc, const quire_kv_pair *pairs);

/* The same two of one pair in all layers, and the bits per stored value. */
uint64_t quire_kv_uniform_bytes_per_token(const quire_model_desc *desc, quire_kv_pair pair);
double quire_kv_uniform_bits(const quire_model_desc *desc, quire_kv_pair pair);
uint64_t quire_kv_uniform_hot_bytes_per_token(const quire_model_desc *desc, quire_kv_pair pair);

/* Share of the (query, key) pairs of queries [begin, end) of a sequence that read a sealed side's
 * hot form, by the distance rule of quire/attn.h. */
double quire_kv_hot_share(uint32_t begin, uint32_t end, uint32_t recent, uint32_t sinks);

#endif /* QUIRE_MODEL_KV_FORMATS_H */
