/* opened.h - a model and a runtime opened from a command's options, and the steps on them.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_OPENED_H
#define QUIRE_CLI_OPENED_H

#include <jansson.h>
#include <stdbool.h>

#include "cli/commands/split_choice.h"
#include "cli/settings/args.h"
#include "engine/overflow.h"
#include "engine/retention.h"
#include "model/memory.h"
#include "model/model.h"
#include "model/runtime.h"

typedef struct quire_opened {
    quire_model *model;
    const quire_model_desc *desc;
    quire_runtime *runtime;
    quire_offload *offload; /* of a runtime that was opened with overflow_dir or overflow_host;
                               else NULL */
    quire_overflow_attend attend;      /* of tokens that quire_opened_decode() computes */
    quire_attend_choice attend_choice; /* with QUIRE_OVERFLOW_ATTEND_AUTO */
    quire_retention *retention;        /* of a runtime that was opened with --retain; else NULL */
    quire_predictor *predictor; /* of the model, once --retain predict asked for it; else NULL */
    quire_kv_args kv;           /* source of the runtime's formats */
    quire_kv_pair *kv_pairs;    /* [n_stored], valid as long as the runtime */
    uint32_t n_ctx;
    uint32_t n_batch;
    uint64_t memory_limit_bytes; /* limit before the weights were loaded */
    quire_memory_place device;   /* of KV; name NULL: it is in the host's memory */
    /* The devices that args name, each once: their memory before weights were loaded, less that of
     * runtimes opened since. */
    quire_memory_part places[QUIRE_MODEL_SETS_MAX];
    uint32_t n_places;
    uint32_t place;           /* of these, that `device` is */
    bool has_sets;            /* of weights, one for each of these; else one for all */
    quire_split_choice split; /* with several devices for it */
    uint64_t runtime_bytes;   /* computed size of the runtime's KV and buffers at the host */
    uint64_t device_bytes;    /* and on the device, or the devices of a split together */
    double device_shares[QUIRE_DEVICE_SPLIT_MAX]; /* of these */
    quire_calibration *calibration; /* of the model; NULL = none, or not looked for yet */
    bool has_looked;                /* for a calibration */
    bool has_warned;                /* about a context beyond the trained one; once per session */
} quire_opened;

/* Open the model that args name, with progress on a terminal. The call fails before loading the
 * weights if they leave no room for args' context (for one page if -c is absent). Errors: as
 * quire_model_open(), QUIRE_NOMEM. */
int quire_opened_open_model(quire_opened *session, const quire_common_args *args, quire_error *err);

/* Look for the model's calibration once, as --kv auto does. Call before copying the session, so
 * that the copy shares the calibration. */
void quire_opened_look(quire_opened *session, const char *model_path, const quire_model_desc *desc);

/* Why large texts are refused with a device; see quire_opened_overflow_bytes(). */
#define QUIRE_OVERFLOW_NO_MEMORY                                                                   \
    "the host has too little memory for pages outside of the device (--kv-overflow-memory, "       \
    "--memory-limit), so requests larger than the KV budget are refused (--kv-overflow)"

/* A command's requirements on its runtime beyond the shared options; zero = none. */
typedef struct quire_opened_want {
    uint32_t n_ctx;      /* instead of args->n_ctx */
    uint32_t n_seqs_max; /* 0 = 1 */
    bool no_cascade;     /* see quire_attn_workspace_opts */
    uint32_t n_tokens;   /* of all sequences, shared ones once: size of the KV budget if args give
                            none; 0 = n_ctx */
    const quire_kv_pair *kv_pairs; /* [n_stored] formats instead of args'; NULL = args' */
    double kv_share; /* 0..1: KV budget, if args give none, as a share of the memory that weights
                        and buffers leave; 0 = unused */
    uint64_t beside_bytes; /* see quire_runtime_opts */
    bool lock_memory;
    bool is_contiguous;
    bool has_bounds;   /* see quire_runtime_opts */
    bool kv_overflows; /* the caller offloads pages: see quire_runtime_opts */
    bool attends_host; /* see quire_runtime_opts */
    /* The policy by which texts are condensed unless they ask for another: the KV budget may be as
     * small as the need of a longest one. NULL: texts keep all tokens. Borrowed. */
    const quire_retain_spec *condenses;
    uint32_t condense_chunk; /* tokens between two places; whole pages */
    /* quire_opened_step() does, to a file here; if there is a device to the host's memory, and from
     * there to the file. */
    const char *overflow_dir; /* NULL = no file */
    bool overflow_host;
    uint64_t
        overflow_host_bytes; /* quire_opened_overflow_bytes(), by quire_opened_open_runtime() */
    uint32_t n_devices;      /* that share such memory equally; 0 = 1 */
    uint32_t n_cpus;         /* devices beside them whose KV is in the host's memory */
} quire_opened_want;

/* quire_opened_open_model() for a runtime whose texts want's policy condenses: memory must have
 * room for a longest one of these. */
int quire_opened_open_model_for(quire_opened *session, const quire_common_args *args,
                                const quire_opened_want *want, quire_error *err);

/* The runtime's options from the shared options; the caller sets the formats. */
quire_runtime_opts quire_opened_runtime_opts(const quire_common_args *args,
                                             const quire_opened_want *want);

/* Set the device, or the split, in options with formats. desc: of the session's model, which may
 * not be open yet. Errors: quire_split_choice_apply(). */
int quire_opened_device_set(const quire_opened *session, const quire_model_desc *desc,
                            quire_runtime_opts *opts, quire_error *err);

/* Open the model's file without its weights, for quire_opened_plan() and quire_opened_draft(), with
 * the memory of args' devices. Errors: as quire_model_open(), and of these. */
int quire_opened_describe(quire_opened *session, const quire_common_args *args, quire_error *err);

/* The options of a runtime before its memory is planned: with formats, the device, and the trained
 * context in place of none. Memory: free((void *)opts->kv_pairs). Errors: as
 * quire_kv_args_resolve(). */
int quire_opened_draft(quire_opened *session, const quire_common_args *args,
                       const quire_opened_want *want, quire_runtime_opts *opts, quire_error *err);

/* The options that a runtime would be created with. Allocates no memory for the runtime.
 * opts->kv_pairs points to session->kv_pairs, owned by the session. Errors: QUIRE_NOMEM (more than
 * the available memory), as quire_kv_args_resolve(). */
int quire_opened_plan(quire_opened *session, const quire_common_args *args,
                      const quire_opened_want *want, quire_runtime_opts *opts, quire_error *err);

/* Create the runtime. If neither args nor want give a context, it is the trained context, or the
 * longest that fits in memory, reported on stderr. A context longer than the trained one is also
 * reported. Errors: as quire_runtime_create(), QUIRE_NOMEM (it would not fit; nothing is
 * allocated). The model stays open. */
int quire_opened_open_runtime(quire_opened *session, const quire_common_args *args,
                              const quire_opened_want *want, quire_error *err);

/* Note the memory of a runtime with these options: quire_opened_beside() leaves as much out. */
void quire_opened_count(quire_opened *session, const quire_runtime_opts *opts);

/* A copy of a session with a runtime, for a second runtime on the same model. The copy's memory
 * limit is the memory that the first runtime leaves. Close only the copy's runtime, before the
 * session. */
quire_opened quire_opened_beside(const quire_opened *session);

/* The same for a runtime on another device, or on the same one again; its name as
 * quire_opened_open_model() takes it from args. Errors: quire_device_open(). */
int quire_opened_beside_on(quire_opened *out, const quire_opened *session, const char *device,
                           quire_error *err);

/* Open the model and the runtime with unchanged args. Errors: as of both calls, and
 * quire_opened_overflow_check(). */
int quire_opened_open(quire_opened *session, const quire_common_args *args, quire_error *err);

/* The cache whose pages hold the session's KV. Memory: borrowed. */
const quire_cache *quire_opened_cache(const quire_opened *session);

/* A step of the session's runtime. With --retain tokens may be dropped before it. Where the runtime
 * has an offload and pages are short, pages of the slices' sequences move there first.
 * Errors: quire_runtime_step(). */
int quire_opened_step(quire_opened *session, const quire_slice *slices, uint32_t n_slices,
                      const float **logits);
/* The same for a token that was generated. With --kv-overflow-attend the pages that are outside of
 * the device's memory may be attended where they lie (engine/overflow.h). *is_mixed: they were, so
 * the token's K and V follow from the rounding of both kernels, and no other text is to get them.
 */
int quire_opened_decode(quire_opened *session, const quire_slice *slice, const float **logits,
                        bool *is_mixed);
/* Memory of the host for pages that a device has no room for: --kv-overflow-memory, or half of the
 * memory that the limit leaves beside the runtime that args and want ask for. *bytes: the part
 * of each device; 0 if that is less than the least; with --kv-overflow tier an error. It is decided
 * before the plan: the session needs only its description. Errors: QUIRE_NOMEM (less than the
 * least; more than there is), which name --kv-overflow-memory; as quire_kv_args_resolve(). */
int quire_opened_overflow_bytes(quire_opened *session, const quire_common_args *args,
                                const quire_opened_want *want, uint64_t *bytes, quire_error *err);
/* Pages are short for a sequence: whether some of its pages were moved away. */
bool quire_opened_relieve(quire_opened *session, quire_seq_id seq);

void quire_opened_close_runtime(quire_opened *session);
/* Close the open parts; a zeroed session is allowed. */
void quire_opened_close(quire_opened *session);

/* Tokens of a text, allocated; Ctrl-C ends it. Memory: free(*tokens). Errors: those of
 * quire_model_tokenize_all(), with its message. */
int quire_opened_tokenize(const quire_opened *session, const char *text, size_t text_bytes,
                          bool parse_special, int32_t **tokens, size_t *n_tokens, quire_error *err);

/* Compute tokens of one sequence in steps of at most n_batch; *logits belongs to the last token.
 * progress is the name in the progress line (NULL: no line). Errors: as quire_runtime_step(),
 * QUIRE_CANCELED after Ctrl-C (the steps done so far stay). */
int quire_opened_prefill(quire_opened *session, quire_seq_id seq, const int32_t *tokens,
                         size_t n_tokens, const char *progress, const float **logits);

/* Fill err for a failed step, distinguishing budget, limit and memory. Returns status. */
int quire_opened_step_error(const quire_opened *session, int status, quire_error *err);

/* The runtime's KV formats, for people: quire_kv_args_text(). Returns buffer. */
#define QUIRE_SESSION_KV_TEXT_MAX 160u
char *quire_opened_kv_text(const quire_opened *session, char *buffer, size_t buffer_bytes);

/* Formats and memory of the KV cache as JSON: the formats as text, as a list by layers and in bits
 * per value; bytes live, charged and taken from the OS, pages, and the bytes of the tokens alone;
 * offloaded pages, and bytes of them that were attended in the host's memory.
 * NULL when out of memory. */
json_t *quire_opened_kv_json(const quire_opened *session, uint64_t n_tokens);

/* A whole file ("-" = stdin), with a zero byte after it that does not count.
 * Memory: free(*text). Errors: QUIRE_IO, QUIRE_NOMEM, QUIRE_LIMIT (over 1 GiB). */
int quire_read_file(const char *path, char **text, size_t *text_bytes, quire_error *err);

#endif /* QUIRE_CLI_OPENED_H */
