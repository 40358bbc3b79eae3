/* calibration.h - measured costs of a model's KV formats, and the file of these costs.
 *
 * The cost of a format in one side (K or V) of one layer is a mean KL divergence of the logits from
 * those of f16, with all other sides in q8, minus the divergence with q8 everywhere. Costs
 * approximately add up. Formats for any size follow from the costs (kv_allocate.h).
 *
 * The file is YAML, for people to read:
 *
 *   version: 1
 *   fingerprint: 0123456789abcdef    quire_model_desc.fingerprint
 *   model, text                      names, for people
 *   n_ctx, n_chunks, n_scored        of the text; predictions that were compared
 *   kv_recent, kv_sinks              tokens read in 8 bit meanwhile
 *   measured: [q8, q3]               formats that were measured; the others follow from them
 *   uniform_wins: false              true: chosen by costs, formats were measured behind choice
 *   choice: 0-1=q8;*=q4              the formats chosen then
 *   layers:                          one entry per stored layer
 *   - k: {q8: 0, q6: 4117, ...}      cost of each format in billionths of a nat
 *     v: {...}
 *
 * A file is untrusted: parsing checks every value, and that the file belongs to this model.
 *
 * Thread: any; a calibration belongs to one thread.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_CALIBRATION_H
#define QUIRE_MODEL_CALIBRATION_H

#include "model/kv_allocate.h"

#define QUIRE_CALIBRATION_VERSION   1u
#define QUIRE_CALIBRATION_BYTES_MAX (1u << 20) /* of a file; 512 layers take a tenth */
#define QUIRE_CALIBRATION_COST_MAX  1e3        /* nats; beyond any vocabulary's logarithm */

typedef struct quire_calibration {
    char model[128];
    char text[128];
    uint32_t n_ctx;
    uint32_t n_chunks;
    uint32_t n_scored;
    uint32_t kv_recent;
    uint32_t kv_sinks;
    uint32_t measured; /* 1 << format */
    bool uniform_wins; /* then pairs are one pair for all layers, see quire_calibration_choose() */
    uint32_t n_stored;
    quire_kv_cost *costs; /* [n_stored]; INFINITY for formats that are no choice (bf16) */
    quire_kv_pair *pairs; /* [n_stored] the choice */
} quire_calibration;

/* Make an empty calibration for a model: the costs of f32 and f16 are 0, those of q8 to q3 are
 * INFINITY until they are set, and all pairs are f16. Errors: QUIRE_NOMEM. Memory:
 * quire_calibration_fini(). */
int quire_calibration_init(quire_calibration *out, const quire_model_desc *desc, quire_error *err);
/* Zeros are fine. */
void quire_calibration_fini(quire_calibration *calibration);

/* Sum of the costs of a choice. */
double quire_calibration_sum(const quire_calibration *calibration, const quire_kv_pair *pairs);

/* The pair for all layers that costs least, of at most `bits`; false when none is that small. */
bool quire_calibration_uniform(const quire_calibration *calibration, const quire_model_desc *desc,
                               double bits, quire_kv_pair *out);

/* The least costly formats of at most `bits` on average. After a check that contradicted the costs
 * (uniform_wins), a size whose best uniform pair is the pair of calibration->pairs gets this pair.
 * pairs: [n_stored]; may be calibration->pairs. Errors: as quire_kv_allocate(). */
int quire_calibration_choose(const quire_calibration *calibration, const quire_model_desc *desc,
                             double bits, quire_kv_pair *pairs, quire_error *err);

/* Find the smallest size, in steps of 1/64 bit, for which the chosen formats cost at most kld_max;
 * with all sides at f16 if no smaller size does. Errors: QUIRE_NOMEM. */
int quire_calibration_bits_for(const quire_calibration *calibration, const quire_model_desc *desc,
                               double kld_max, double *bits, quire_error *err);

/* The file's text. Errors: QUIRE_RANGE (a q format's cost is not 0 to QUIRE_CALIBRATION_COST_MAX;
 * err names layer, side and cost), QUIRE_NOMEM. Memory: free(*text), NULL on failure. */
int quire_calibration_format(const quire_calibration *calibration, const quire_model_desc *desc,
                             char **text, size_t *text_bytes, quire_error *err);

/* Read a file's text. On failure *out is empty. Messages do not name the file. Errors:
 * QUIRE_CORRUPT (no such YAML, values out of range), QUIRE_UNSUPP (another version), QUIRE_INVAL
 * (made for another model), QUIRE_NOMEM. Memory: quire_calibration_fini(). */
int quire_calibration_parse(quire_calibration *out, const char *text, size_t text_bytes,
                            const quire_model_desc *desc, quire_error *err);

#endif /* QUIRE_MODEL_CALIBRATION_H */
