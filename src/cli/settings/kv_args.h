/* kv_args.h - options of a command line for the formats of the KV cache.
 *
 *   --kv K[:V] | auto | auto:BITS    one pair for all layers, or a size: by the measured costs
 *                                    of a calibrated model, else by quire_kv_auto()
 *   --kv-layers LIST                 formats by layer (quire_kv_layers_parse())
 *   -ctk K, -ctv V                   one side instead of that of --kv's pair, wherever they stand;
 *                                    as llama.cpp names them
 *   --state-type f32|f16             states of recurrent layers that are kept for later texts
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_KV_ARGS_H
#define QUIRE_CLI_KV_ARGS_H

#include "model/calibration.h"

#define QUIRE_KV_TOKENS_MAX 65536 /* --kv-recent and --kv-sinks */

typedef struct quire_kv_args {
    quire_kv_choice choice; /* --kv; its pair is the formats only without -ctk and -ctv */
    quire_format k;         /* -ctk and -ctv, where has_k and has_v */
    quire_format v;
    const char *layers; /* NULL = not given */
    int64_t recent;     /* tokens; multiples of 64 */
    int64_t sinks;
    int state;                            /* index into quire_state_types */
    const quire_calibration *calibration; /* of the model, borrowed; NULL = none: general rules */
    bool has_choice;
    bool has_k;
    bool has_v;
} quire_kv_args;

/* The values of --state-type, NULL behind them, and their format. */
extern const char *const quire_state_types[];
quire_format quire_state_type_format(int index);

/* The same window and states with the formats of a choice and nothing else. */
quire_kv_args quire_kv_args_of(const quire_kv_args *args, const quire_kv_choice *choice);

/* Refuse contradictory options. Errors: QUIRE_INVAL. */
int quire_kv_args_check(const quire_kv_args *args, quire_error *err);

/* The formats of a model's layers. pairs: [desc->n_stored].
 * Errors: as quire_kv_auto() and quire_kv_layers_parse(). */
int quire_kv_args_resolve(const quire_kv_args *args, const quire_model_desc *desc,
                          quire_kv_pair *pairs, quire_error *err);

/* The chosen formats as text for people: "q8:q4", "auto 4.50 -> 4.47 bits: q8 in 4 layers, q4 in
 * 18", the same with "(calibrated)" where a calibration chose.
 * Returns buffer. */
char *quire_kv_args_text(const quire_kv_args *args, const quire_model_desc *desc,
                         const quire_kv_pair *pairs, char *buffer, size_t buffer_bytes);

#endif /* QUIRE_CLI_KV_ARGS_H */
