/* opened.c - opens models and runtimes for the commands.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/opened.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/device_choice.h"
#include "cli/commands/opened_memory.h"
#include "cli/commands/opened_overflow.h"
#include "cli/commands/opened_retain.h"
#include "cli/commands/talk.h"
#include "cli/measuring/calibration_place.h"
#include "cli/measuring/parallel.h"
#include "model/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void show_loading(void *ctx, float done)
{
    (void)ctx;
    quire_progress("loading %3.0f %%", 100.0 * (double)done);
}

/* The runtime's options from args and want; n_ctx is 0 if neither gives it. */
quire_runtime_opts quire_opened_runtime_opts(const quire_common_args *args,
                                             const quire_opened_want *want)
{
    quire_runtime_opts opts = QUIRE_RUNTIME_OPTS_INIT;

    opts.n_ctx = want->n_ctx != 0 ? want->n_ctx : (uint32_t)args->n_ctx;
    opts.n_batch = (uint32_t)args->n_batch;
    opts.n_seqs_max = want->n_seqs_max != 0 ? want->n_seqs_max : 1;
    opts.n_threads = (uint32_t)args->n_threads;
    opts.page_tokens = (uint32_t)args->page_tokens;
    opts.kv_recent = (uint32_t)args->kv.recent;
    opts.kv_sinks = (uint32_t)args->kv.sinks;
    opts.state_format = quire_state_type_format(args->kv.state);
    opts.kv_budget_bytes = args->kv_budget_bytes;
    opts.beside_bytes = want->beside_bytes;
    opts.no_cascade = want->no_cascade;
    opts.lock_memory = want->lock_memory;
    opts.is_contiguous = want->is_contiguous;
    opts.has_bounds = want->has_bounds;
    opts.attends_host = want->attends_host;
    opts.kv_overflows = want->kv_overflows || want->overflow_dir != NULL;
    return opts;
}

void quire_opened_look(quire_opened *session, const char *model_path, const quire_model_desc *desc)
{
    if (!session->has_looked) {
        session->has_looked = true;
        session->calibration = quire_calibration_find(model_path, desc);
    }
}

/* Memory: free(*pairs), NULL on failure. */
static int choose_formats(quire_opened *session, const quire_common_args *args,
                          const quire_model_desc *desc, quire_kv_pair **pairs, quire_error *err)
{
    int rc;

    session->kv = args->kv;
    if (args->kv.choice.is_auto && args->kv.layers == NULL) {
        quire_opened_look(session, args->model, desc);
        session->kv.calibration = session->calibration;
    }
    *pairs = calloc(desc->n_stored, sizeof(**pairs));
    if (*pairs == NULL) {
        return quire_error_set(err, QUIRE_NOMEM, "out of memory");
    }
    rc = quire_kv_args_resolve(&session->kv, desc, *pairs, err);
    if (rc < 0) {
        free(*pairs);
        *pairs = NULL;
    }
    return rc;
}

/* Context of the callback that quire_model_open() calls before it loads weights. */
typedef struct admission {
    quire_opened *session;
    const quire_common_args *args;
    const quire_opened_want *want;
} admission;

int quire_opened_device_set(const quire_opened *session, const quire_model_desc *desc,
                            quire_runtime_opts *opts, quire_error *err)
{
    opts->device = session->device.name;
    opts->weights_set = session->has_sets ? session->place : 0;
    return quire_split_choice_apply(&session->split, &session->device, session->memory_limit_bytes,
                                    desc, opts, err);
}

/* The options of a runtime with one page, or with args' context. Memory: free(*pairs), also after a
 * failure. */
static int least_draft(const admission *a, const quire_model_desc *desc, quire_runtime_opts *opts,
                       quire_kv_pair **pairs, quire_error *err)
{
    static const quire_opened_want nothing_special;

    *opts = quire_opened_runtime_opts(a->args, &nothing_special);
    QUIRE_TRY(choose_formats(a->session, a->args, desc, pairs, err));
    opts->kv_pairs = *pairs;
    opts->n_ctx = opts->n_ctx != 0 ? opts->n_ctx : opts->page_tokens;
    return quire_opened_device_set(a->session, desc, opts, err);
}

static int admit(void *ctx, const quire_model_desc *desc, quire_error *err)
{
    const admission *a = ctx;
    quire_runtime_opts opts;
    quire_kv_pair *pairs;
    int rc = least_draft(a, desc, &opts, &pairs, err);

    if (rc == QUIRE_OK) {
        rc = quire_opened_retain_plan(a->session, a->args, desc, &opts, err);
    }
    if (rc == QUIRE_OK) {
        quire_opened_least_set(desc, a->want, &opts);
        opts.kv_budget_bytes =
            opts.kv_budget_bytes != 0 ? opts.kv_budget_bytes : opts.kv_least_bytes;
        rc = quire_memory_check(desc, &opts, a->session->memory_limit_bytes,
                                quire_opened_place(a->session), err);
    }
    free(pairs);
    return rc;
}

/* Divide the layers among devices, for the rest of the session: their weights are loaded there. */
static int split_weights(void *ctx, const quire_model_desc *desc, quire_model_split *out,
                         quire_error *err)
{
    const admission *a = ctx;
    quire_split_choice *choice = &a->session->split;
    quire_runtime_opts opts;
    quire_kv_pair *pairs;
    const int rc = least_draft(a, desc, &opts, &pairs, err);

    free(pairs);
    if (rc == QUIRE_OK) {
        choice->has_ends = true;
        memcpy(choice->end, opts.split.end, sizeof choice->end);
        quire_split_choice_weights(choice, desc, &opts.split, out);
    }
    return rc;
}

/* The place of a device, which is looked at if nobody has. Errors: quire_device_open(),
 * QUIRE_INVAL (several names). */
static int place_find(quire_opened *session, const char *name, uint32_t *place, quire_error *err)
{
    for (uint32_t i = 0; i < session->n_places; i++) {
        if (strcmp(session->places[i].name, name) == 0) {
            *place = i;
            return QUIRE_OK;
        }
    }
    if (strchr(name, ',') != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--device %.80s: several devices are for quire serve, or for "
                               "--split-mode layer",
                               name);
    }
    QUIRE_CHECK(session->n_places < QUIRE_MODEL_SETS_MAX);
    *place = session->n_places;
    QUIRE_TRY(quire_device_memory_look(&session->places[*place], name, err));
    session->n_places++;
    return QUIRE_OK;
}

/* KV is on a device from now on; NULL, "cpu": in the host's memory. Errors: place_find(). */
static int device_look(quire_opened *session, const char *name, quire_error *err)
{
    const quire_memory_part *part;

    session->device = (quire_memory_place){ .name = NULL };
    name = name != NULL ? name : "cpu";
    QUIRE_TRY(place_find(session, name, &session->place, err));
    part = &session->places[session->place];
    if (!part->is_cpu) {
        session->device =
            (quire_memory_place){ .name = name, .bytes = part->bytes, .is_hosts = part->is_hosts };
    }
    return QUIRE_OK;
}

/* The devices of several runtimes, or the one, and the layers of the model there. Errors:
 * device_look(), quire_device_layers(). */
static int devices_look(quire_opened *session, const quire_common_args *args,
                        quire_model_opts *opts, quire_error *err)
{
    const char *names[QUIRE_MODEL_SETS_MAX];
    uint32_t place;

    QUIRE_TRY(device_look(session, quire_device_choose(args->device), err));
    for (uint32_t i = 0; i < args->n_device_names; i++) {
        QUIRE_TRY(place_find(session, args->device_names[i], &place, err));
    }
    for (uint32_t i = 0; i < session->n_places; i++) {
        names[i] = session->places[i].name;
    }
    session->has_sets = args->n_device_layers > 0;
    return quire_device_layers(opts, names, session->n_places, args->n_device_layers, err);
}

/* The memory of the host and of args' devices. Errors: quire_split_choice_read(), devices_look(),
 * quire_device_layers(). */
static int memory_look(quire_opened *session, const quire_common_args *args, quire_model_opts *opts,
                       quire_error *err)
{
    const quire_split_choice *split = &session->split;

    session->memory_limit_bytes =
        args->memory_limit_bytes != 0 ? args->memory_limit_bytes : quire_memory_available();
    QUIRE_TRY(quire_split_choice_read(&session->split, args, err));
    if (split->n == 0) {
        return devices_look(session, args, opts, err);
    }
    QUIRE_TRY(quire_split_choice_layers(&session->split, opts, args->n_device_layers, err));
    opts->split = args->n_device_layers > 0 ? split_weights : NULL;
    return quire_split_choice_look(split, args->device, &session->device, err);
}

int quire_opened_open_model(quire_opened *session, const quire_common_args *args, quire_error *err)
{
    static const quire_opened_want nothing_special;

    return quire_opened_open_model_for(session, args, &nothing_special, err);
}

int quire_opened_open_model_for(quire_opened *session, const quire_common_args *args,
                                const quire_opened_want *want, quire_error *err)
{
    admission a = { session, args, want };
    quire_model_opts opts = {
        .progress = show_loading, .admit = admit, .admit_ctx = &a, .split_ctx = &a
    };
    int rc;

    memset(session, 0, sizeof(*session));
    QUIRE_TRY(memory_look(session, args, &opts, err));
    rc = quire_model_open(&session->model, args->model, &opts, err);
    quire_progress_end();
    if (rc < 0) {
        quire_opened_close(session);
        return rc;
    }
    session->desc = quire_model_desc_get(session->model);
    return QUIRE_OK;
}

int quire_opened_describe(quire_opened *session, const quire_common_args *args, quire_error *err)
{
    static const quire_opened_want nothing_special;
    admission a = { session, args, &nothing_special };
    quire_model_opts opts = { .describe_only = true, .split_ctx = &a };

    memset(session, 0, sizeof(*session));
    QUIRE_TRY(memory_look(session, args, &opts, err));
    QUIRE_TRY(quire_model_open(&session->model, args->model, &opts, err));
    session->desc = quire_model_desc_get(session->model);
    return QUIRE_OK;
}

int quire_opened_draft(quire_opened *session, const quire_common_args *args,
                       const quire_opened_want *want, quire_runtime_opts *opts, quire_error *err)
{
    quire_kv_pair *pairs;
    int rc;

    *opts = quire_opened_runtime_opts(args, want);
    QUIRE_TRY(choose_formats(session, args, session->desc, &pairs, err));
    if (want->kv_pairs != NULL) {
        memcpy(pairs, want->kv_pairs, session->desc->n_stored * sizeof(*pairs));
    }
    opts->kv_pairs = pairs;
    opts->n_ctx = opts->n_ctx != 0 ? opts->n_ctx : session->desc->n_ctx_train;
    rc = quire_opened_device_set(session, session->desc, opts, err);
    if (rc < 0) {
        free(pairs);
        opts->kv_pairs = NULL;
    }
    return rc;
}

int quire_opened_plan(quire_opened *session, const quire_common_args *args,
                      const quire_opened_want *want, quire_runtime_opts *opts, quire_error *err)
{
    *opts = quire_opened_runtime_opts(args, want);
    QUIRE_TRY(choose_formats(session, args, session->desc, &session->kv_pairs, err));
    if (want->kv_pairs != NULL) {
        memcpy(session->kv_pairs, want->kv_pairs,
               session->desc->n_stored * sizeof(*want->kv_pairs));
    }
    opts->kv_pairs = session->kv_pairs;
    QUIRE_TRY(quire_opened_device_set(session, session->desc, opts, err));
    opts->kv_overflows |= want->overflow_host && opts->device != NULL;
    QUIRE_TRY(quire_runtime_device_check(opts, err));
    QUIRE_TRY(quire_opened_retain_plan(session, args, session->desc, opts, err));
    quire_opened_least_set(session->desc, want, opts);
    if (want->kv_share > 0.0 && opts->kv_budget_bytes == 0) {
        QUIRE_TRY(quire_opened_share_memory(session, want->kv_share, opts, err));
    }
    opts->n_ctx = opts->n_ctx != 0
                      ? opts->n_ctx
                      : quire_opened_default_ctx(session, opts, session->memory_limit_bytes,
                                                 quire_opened_place(session));
    if (want->n_tokens != 0 && opts->kv_budget_bytes == 0) {
        opts->kv_budget_bytes = quire_opened_budget_of(session->desc, opts, want->n_tokens);
    }
    quire_opened_least_set(session->desc, want, opts); /* of the context that was chosen here */
    QUIRE_TRY(quire_opened_least_check(session->desc, want, opts, err));
    return quire_memory_check(session->desc, opts, session->memory_limit_bytes,
                              quire_opened_place(session), err);
}

const quire_cache *quire_opened_cache(const quire_opened *session)
{
    return session->retention != NULL ? quire_lanes_cache(quire_retention_lanes(session->retention))
                                      : quire_runtime_cache(session->runtime);
}

int quire_opened_step(quire_opened *session, const quire_slice *slices, uint32_t n_slices,
                      const float **logits)
{
    bool is_relieved = true;
    int rc = QUIRE_NOPAGES;

    if (session->retention != NULL) {
        return quire_retention_step(session->retention, session->runtime, slices, n_slices, logits);
    }
    while (rc == QUIRE_NOPAGES && is_relieved) {
        rc = quire_runtime_step(session->runtime, slices, n_slices, logits);
        is_relieved = false;
        for (uint32_t i = 0; i < n_slices && rc == QUIRE_NOPAGES && !is_relieved; i++) {
            is_relieved = quire_opened_relieve(session, slices[i].seq);
        }
    }
    return rc;
}

int quire_opened_open_runtime(quire_opened *session, const quire_common_args *args,
                              const quire_opened_want *wanted, quire_error *err)
{
    quire_opened_want settled = *wanted;
    const quire_opened_want *want = &settled;
    quire_runtime_opts opts;
    uint32_t room;

    QUIRE_TRY(quire_opened_overflow_settle(session, args, &settled, err));
    QUIRE_TRY(quire_opened_plan(session, args, want, &opts, err));
    room = quire_opened_retain_room(args);
    if (opts.n_ctx - room > session->desc->n_ctx_train && !session->has_warned) {
        session->has_warned = true;
        quire_say("warning: a context of %u tokens, but the model was trained on %u",
                  opts.n_ctx - room, session->desc->n_ctx_train);
    }
    QUIRE_TRY(quire_runtime_create(&session->runtime, session->model, &opts, err));
    quire_device_say(args->device, session->runtime);
    QUIRE_TRY(quire_opened_overflow_open(session, want, err));
    QUIRE_TRY(quire_opened_retain_open(session, args, err));
    quire_opened_count(session, &opts);
    session->n_ctx = opts.n_ctx - room;
    session->n_batch = opts.n_batch;
    return QUIRE_OK;
}

/* Take the memory of device i of a split from the devices of its name. Its buffers count as much as
 * its share of KV: an estimate. */
static void parts_beside(const quire_opened *session, uint32_t i, quire_memory_place *place)
{
    const uint64_t taken = quire_memory_share(session->device_shares[i], session->device_bytes);

    for (uint32_t k = 0; k < place->n_parts; k++) {
        quire_memory_part *part = &place->parts[k];

        if (part->bytes != UINT64_MAX && strcmp(part->name, place->parts[i].name) == 0) {
            part->bytes = quire_rest_of(part->bytes, taken);
        }
    }
}

quire_opened quire_opened_beside(const quire_opened *session)
{
    quire_opened other = *session;

    other.memory_limit_bytes = quire_rest_of(session->memory_limit_bytes, session->runtime_bytes);
    if (other.device.name != NULL && other.device.bytes != UINT64_MAX) {
        other.device.bytes = quire_rest_of(session->device.bytes, session->device_bytes);
        other.places[other.place].bytes = other.device.bytes;
    }
    for (uint32_t i = 0; i < other.device.n_parts; i++) {
        parts_beside(session, i, &other.device);
    }
    other.runtime = NULL;
    other.offload = NULL;
    other.retention = NULL;
    other.kv_pairs = NULL;
    return other;
}

int quire_opened_beside_on(quire_opened *out, const quire_opened *session, const char *device,
                           quire_error *err)
{
    const char *before = session->device.name != NULL ? session->device.name : "cpu";

    *out = quire_opened_beside(session);
    if (strcmp(before, device) == 0) {
        return QUIRE_OK;
    }
    if (session->device.is_hosts) { /* so are its weights, beside those of other devices */
        out->memory_limit_bytes = quire_rest_of(out->memory_limit_bytes,
                                                session->desc->device_weight_bytes[session->place]);
    }
    return device_look(out, device, err);
}

int quire_opened_open(quire_opened *session, const quire_common_args *args, quire_error *err)
{
    quire_opened_want want = { 0 };
    int rc = quire_opened_open_model(session, args, err);

    if (rc == QUIRE_OK) {
        rc = quire_opened_overflow_check(session, args, err);
    }
    if (rc == QUIRE_OK) {
        quire_opened_overflow_want(session, args, &want);
        rc = quire_opened_open_runtime(session, args, &want, err);
    }
    if (rc < 0) {
        quire_opened_close(session);
    }
    return rc;
}

void quire_opened_close_runtime(quire_opened *session)
{
    if (session->offload != NULL) {
        quire_runtime_cache_end(session->runtime);
        quire_overflow_close(session->offload, NULL);
    }
    quire_retention_close(session->retention); /* its pages may be the device's */
    quire_runtime_destroy(session->runtime);
    session->offload = NULL;
    session->retention = NULL;
    session->runtime = NULL;
    free(session->kv_pairs);
    session->kv_pairs = NULL;
}

void quire_opened_close(quire_opened *session)
{
    quire_opened_close_runtime(session);
    quire_predictor_free(session->predictor);
    session->predictor = NULL;
    quire_calibration_free(session->calibration);
    session->calibration = NULL;
    session->has_looked = false;
    quire_model_close(session->model);
    session->model = NULL;
    session->desc = NULL;
}

static bool is_interrupted(void *ctx)
{
    (void)ctx;
    return quire_interrupt_seen();
}

int quire_opened_tokenize(const quire_opened *session, const char *text, size_t text_bytes,
                          bool parse_special, int32_t **tokens, size_t *n_tokens, quire_error *err)
{
    const quire_tokenize_opts opts = { .add_special = true,
                                       .parse_special = parse_special,
                                       .is_canceled = is_interrupted };

    return quire_model_tokenize_all(session->model, text, text_bytes, &opts, tokens, n_tokens, err);
}

int quire_opened_prefill(quire_opened *session, quire_seq_id seq, const int32_t *tokens,
                         size_t n_tokens, const char *progress, const float **logits)
{
    size_t done = 0;
    int rc = QUIRE_OK;

    while (done < n_tokens && rc == QUIRE_OK) {
        size_t n = n_tokens - done < session->n_batch ? n_tokens - done : session->n_batch;
        bool is_last = done + n == n_tokens;
        quire_slice slice = { .seq = seq,
                              .tokens = tokens + done,
                              .n_tokens = (uint32_t)n,
                              .logits = is_last ? QUIRE_LOGITS_LAST : QUIRE_LOGITS_NONE };

        if (progress != NULL && n_tokens > session->n_batch) {
            quire_progress("%s %zu of %zu tokens", progress, done, n_tokens);
        }
        rc =
            quire_interrupt_seen() ? QUIRE_CANCELED : quire_opened_step(session, &slice, 1, logits);
        done += n;
    }
    quire_progress_end();
    return rc;
}

int quire_opened_step_error(const quire_opened *session, int status, quire_error *err)
{
    quire_cache_stats stats;
    char used[16], budget[16], trouble[QUIRE_OVERFLOW_TROUBLE_MAX];
    char why[QUIRE_RUNTIME_WHY_BYTES];

    switch (status) {
    case QUIRE_NOPAGES:
        quire_cache_stats_get(quire_runtime_cache(session->runtime), &stats);
        return quire_error_set(err, status,
                               "the KV budget is used up (%s of %s): raise --kv-budget, choose a "
                               "smaller --kv format or shorten the text%s",
                               quire_format_bytes(stats.charged_bytes, used, sizeof(used)),
                               quire_format_bytes(stats.budget_bytes, budget, sizeof(budget)),
                               quire_opened_overflow_trouble(session, trouble, sizeof trouble));
    case QUIRE_LIMIT:
        return quire_error_set(err, status, "the context of %u tokens is full (-c sets it)",
                               session->n_ctx);
    case QUIRE_NOMEM:
        return quire_error_set(err, status, "out of memory: choose a smaller -c or --kv format");
    case QUIRE_CANCELED:
        return quire_error_set(err, status, "interrupted");
    case QUIRE_LOST:
        return quire_error_set(err, status,
                               "device %s was lost, and the KV on it%s: repeat the command, or use "
                               "--device cpu",
                               quire_runtime_lost_name(session->runtime),
                               quire_runtime_lost_why(session->runtime, why, sizeof why));
    default:
        return quire_error_set(err, status, "a step failed: %s%s", quire_status_text(status),
                               quire_opened_overflow_trouble(session, trouble, sizeof trouble));
    }
}

char *quire_opened_kv_text(const quire_opened *session, char *buffer, size_t buffer_bytes)
{
    return quire_kv_args_text(&session->kv, session->desc, session->kv_pairs, buffer, buffer_bytes);
}

json_t *quire_opened_kv_json(const quire_opened *session, uint64_t n_tokens)
{
    const quire_model_desc *desc = session->desc;
    const quire_kv_pair *pairs = session->kv_pairs;
    const quire_kv_form form = quire_kv_form_of(desc, quire_runtime_opts_get(session->runtime));
    quire_cache_stats stats;
    json_t *kv;
    char layers[QUIRE_KV_LAYERS_TEXT_MAX];
    char summary[QUIRE_SESSION_KV_TEXT_MAX];

    quire_cache_stats_get(quire_opened_cache(session), &stats);
    kv = json_pack("{s:s, s:s, s:f, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "format",
                   quire_kv_summary(desc, pairs, summary, sizeof(summary)), "layers",
                   quire_kv_layers_text(desc, pairs, layers, sizeof(layers)), "bits_per_value",
                   quire_kv_bits(desc, pairs), "recent_tokens", (int)session->kv.recent,
                   "sink_tokens", (int)session->kv.sinks, "tokens", (json_int_t)n_tokens,
                   "computed_bytes", (json_int_t)quire_kv_tokens_bytes(&form, n_tokens),
                   "live_bytes", (json_int_t)stats.live_bytes, "charged_bytes",
                   (json_int_t)stats.charged_bytes, "extent_bytes", (json_int_t)stats.extent_bytes,
                   "budget_bytes", (json_int_t)stats.budget_bytes, "pages",
                   (json_int_t)stats.pages_live);
    if (kv != NULL && session->offload != NULL) {
        quire_offload_stats offload;

        quire_offload_stats_get(session->offload, &offload);
        json_object_set_new(
            kv, "offloaded",
            json_pack(
                "{s:I, s:I, s:I}", "pages", (json_int_t)offload.pages, "file_pages",
                (json_int_t)(session->device.name != NULL ? offload.below.pages : offload.pages),
                "attended_bytes", (json_int_t)offload.file.attended_bytes_total));
    }
    if (kv != NULL && session->retention != NULL) {
        json_object_set_new(kv, "retained", quire_opened_retained_json(session));
    }
    return kv;
}
