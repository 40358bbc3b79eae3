/* writer.c - prompt in, text out, KV kept.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/writer.h"
#include "model/runtime_shift.h"
#include "model/text.h"

#include "base/check.h"
#include "cli/commands/block_file.h"
#include "cli/commands/talk.h"
#include "engine/context_condense.h"
#include "engine/retention.h"
#include "engine/text_out.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct quire_writer {
    quire_opened *session;
    quire_sampler *sampler;
    quire_seq_id seq;
    int64_t n_predict;
    int32_t *text_tokens; /* [cap_text] of the text whose KV was computed */
    size_t cap_text;
    uint32_t n_held; /* tokens of seq: the text's without those that left */
    uint32_t n_gone; /* tokens that left a full context */
    uint32_t n_full; /* of the text when the last ones left */
    /* The number of tokens before the first mixed token: quire_opened_decode(); 0 = no token is
     * mixed. A text with mixed tokens has lost no token: its pages are on a device. */
    uint32_t n_mixed_from;
    quire_text_out *out;
    quire_bytes shown; /* text for the sink */
    quire_text_sink *sink;
    void *sink_ctx;
    quire_kv_disk *disk;        /* NULL = none */
    quire_new_file *block_file; /* of the state of the text; NULL = none */
    quire_context_overflow overflow;
    uint32_t n_keep;          /* whole tiles */
    quire_retain_spec retain; /* of QUIRE_CONTEXT_CONDENSE */
};

static const struct {
    const char *word;
    const char *text;
} stops[] = {
    [QUIRE_STOP_END] = { "end", "end of text" },
    [QUIRE_STOP_LIMIT] = { "limit", "as many tokens as -n asks for" },
    [QUIRE_STOP_CONTEXT] = { "context", "the context is full" },
    [QUIRE_STOP_INTERRUPTED] = { "interrupted", "interrupted" },
    [QUIRE_STOP_SINK] = { "output", "the output is closed" },
};

const char *quire_stop_text(quire_stop stop)
{
    return stops[stop].text;
}

const char *quire_stop_word(quire_stop stop)
{
    return stops[stop].word;
}

void quire_sampling_seed(quire_sampling_args *sampling)
{
    uint32_t seed = 0;

    if (sampling->seed >= 0) {
        return;
    }
    /* Fails only if the kernel lacks the call; then any seed is fine. */
    (void)!getrandom(&seed, sizeof(seed), 0);
    sampling->seed = seed >> 1; /* below 2^31: short enough to type again */
}

/* Tokens of the text up to the last one in KV. */
static uint32_t n_text(const quire_writer *writer)
{
    return writer->n_held + writer->n_gone;
}

/* Room for a text of n tokens. Errors: QUIRE_NOMEM. */
static int text_reserve(quire_writer *writer, size_t n)
{
    size_t cap = writer->cap_text;
    int32_t *larger;

    if (n <= cap) {
        return QUIRE_OK;
    }
    cap = n > 2 * cap ? n : 2 * cap;
    larger = realloc(writer->text_tokens, cap * sizeof(*larger));
    QUIRE_FAIL_IF(larger == NULL, QUIRE_NOMEM);
    writer->text_tokens = larger;
    writer->cap_text = cap;
    return QUIRE_OK;
}

static int writer_init(quire_writer *writer, const quire_sampling_args *sampling)
{
    quire_sampler_opts opts = QUIRE_SAMPLER_OPTS_INIT;

    quire_sampling_args_apply(sampling, &opts);
    opts.seed = (uint32_t)sampling->seed;
    opts.forbids_eog = sampling->ignores_eos;
    writer->n_predict = sampling->n_predict;
    QUIRE_TRY(text_reserve(writer, writer->session->n_ctx));
    QUIRE_TRY(quire_text_out_create(&writer->out, writer->session->model, NULL, 0, false));
    QUIRE_TRY(quire_sampler_create(&writer->sampler, writer->session->model, &opts, NULL));
    return quire_seq_open(quire_runtime_cache(writer->session->runtime), QUIRE_REGION_DYNAMIC,
                          &writer->seq);
}

int quire_writer_create(quire_writer **out, quire_opened *session,
                        const quire_sampling_args *sampling, quire_error *err)
{
    quire_writer *writer = calloc(1, sizeof(*writer));
    int rc = QUIRE_NOMEM;

    *out = NULL;
    if (writer != NULL) {
        writer->session = session;
        quire_context_condense_default(&writer->retain);
        rc = writer_init(writer, sampling);
    }
    if (rc < 0) {
        quire_writer_destroy(writer);
        return quire_opened_step_error(session, rc, err);
    }
    *out = writer;
    return QUIRE_OK;
}

void quire_writer_destroy(quire_writer *writer)
{
    if (writer == NULL) {
        return;
    }
    if (writer->seq != QUIRE_SEQ_NULL) {
        (void)quire_seq_close(quire_runtime_cache(writer->session->runtime), writer->seq);
    }
    quire_sampler_destroy(writer->sampler);
    quire_text_out_destroy(writer->out);
    quire_bytes_fini(&writer->shown);
    free(writer->text_tokens);
    free(writer);
}

void quire_writer_sink_set(quire_writer *writer, quire_text_sink *sink, void *ctx)
{
    writer->sink = sink;
    writer->sink_ctx = ctx;
}

void quire_writer_show(quire_writer *writer, const int32_t *tokens, uint32_t n)
{
    quire_text_out_show(writer->out, tokens, n);
}

int quire_writer_stops_set(quire_writer *writer, const char *const *texts, uint32_t n)
{
    quire_text_out *text;

    QUIRE_TRY(quire_text_out_create(&text, writer->session->model, texts, n, false));
    quire_text_out_destroy(writer->out);
    writer->out = text;
    return QUIRE_OK;
}

void quire_writer_disk_set(quire_writer *writer, quire_kv_disk *disk)
{
    writer->disk = disk;
}

void quire_writer_retain_set(quire_writer *writer, const quire_retain_spec *spec)
{
    writer->retain = *spec;
}

int quire_writer_overflow_set(quire_writer *writer, quire_context_overflow overflow, uint32_t keep,
                              quire_error *err)
{
    const quire_context_on on = { .desc = writer->session->desc,
                                  .opts = quire_runtime_opts_get(writer->session->runtime),
                                  .offloads = writer->session->offload != NULL,
                                  .setting = "--context-overflow" };
    const uint32_t n_before = writer->n_keep;

    QUIRE_TRY(quire_context_overflow_check(&on, overflow, keep, err));
    writer->n_keep = quire_context_overflow_keep(keep);
    if (overflow == QUIRE_CONTEXT_CONDENSE) {
        QUIRE_TRY(quire_context_condense_check(&on, &writer->retain, keep, err));
        writer->n_keep = quire_context_condense_keep(&writer->retain, keep);
    }
    writer->overflow = overflow;
    if (writer->n_gone > 0 && writer->n_keep != n_before) {
        quire_writer_reset(writer); /* other tokens would have left */
    }
    return QUIRE_OK;
}

/* Errors: those of quire_runtime_shift(). */
static int move_tokens(quire_writer *writer, bool *is_torn)
{
    quire_runtime *runtime = writer->session->runtime;
    const uint32_t n_keep = writer->n_keep;
    uint32_t n;

    if (writer->overflow == QUIRE_CONTEXT_CONDENSE) {
        return quire_context_condense(&writer->retain, runtime, writer->seq, n_keep, is_torn);
    }
    n = quire_context_overflow_drop(writer->overflow, n_keep, writer->n_held);
    return quire_runtime_shift(runtime, writer->seq, n_keep, n_keep + n, is_torn);
}

/* The context is full: make room. Errors: those of quire_runtime_shift(). */
static int drop_tokens(quire_writer *writer, quire_writer_result *result)
{
    const quire_cache *cache = quire_runtime_cache(writer->session->runtime);
    bool is_torn;
    int rc = move_tokens(writer, &is_torn);
    uint32_t n;

    if (rc < 0) {
        if (is_torn) {
            quire_writer_reset(writer); /* no later text goes on from these tokens */
        }
        return rc;
    }
    n = writer->n_held - quire_seq_tokens(cache, writer->seq);
    result->n_condensings += writer->overflow == QUIRE_CONTEXT_CONDENSE;
    writer->n_full = n_text(writer);
    writer->n_held -= n;
    writer->n_gone += n;
    result->n_dropped += n;
    return QUIRE_OK;
}

void quire_writer_block_save(quire_writer *writer, quire_new_file *file)
{
    writer->block_file = file;
}

/* The state's text must be a beginning of the prompt, whose last token is computed in any case. The
 * model comes first: another one has other tokens of the same text. */
static int load_state(quire_writer *writer, const quire_block_state *state, const int32_t *tokens,
                      size_t n_tokens, quire_error *err)
{
    QUIRE_TRY(quire_retention_state_check(writer->session->retention, writer->session->runtime,
                                          state, err));
    if (state->n_text >= n_tokens ||
        memcmp(state->tokens, tokens, state->n_text * sizeof(*tokens)) != 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "the prompt does not begin with its text of %u tokens, or ends "
                               "with it",
                               state->n_text);
    }
    QUIRE_TRY(quire_retention_load(writer->session->retention, writer->session->runtime,
                                   writer->seq, state, err));
    memcpy(writer->text_tokens, state->tokens, state->n_text * sizeof(*tokens));
    writer->n_held = state->n_text;
    return QUIRE_OK;
}

int quire_writer_block_resume(quire_writer *writer, const char *path, const int32_t *tokens,
                              size_t n_tokens, quire_error *err)
{
    quire_error why = QUIRE_ERROR_INIT;
    quire_block_state state;
    int rc = quire_block_file_read(&state, path, err);

    if (rc == QUIRE_OK) {
        rc = load_state(writer, &state, tokens, n_tokens, &why);
        if (rc < 0) {
            quire_error_set(err, rc, "%s cannot be resumed: %s", path, why.message);
        }
    }
    quire_block_state_free(&state);
    return rc;
}

uint32_t quire_writer_tokens(const quire_writer *writer)
{
    return writer->n_held;
}

/* Keep the first n tokens of the text, or fewer if the page of token n has lost its hot form and
 * cannot be appended to. If tokens left the context behind token n, only those that never leave are
 * kept: so the sequence's tokens depend on the text alone. With --retain the n tokens are kept if
 * the tokens behind them can be forgotten; else the sequence begins anew. */
static int keep_first(quire_writer *writer, uint32_t n_tokens)
{
    quire_opened *session = writer->session;
    quire_cache *cache = quire_runtime_cache(session->runtime);
    uint32_t n_held = 0;

    if (session->retention != NULL) { /* its contexts do not overflow */
        return quire_retention_truncate(session->retention, session->runtime, writer->seq, n_tokens,
                                        &writer->n_held);
    }
    if (writer->n_gone == 0 || n_tokens >= writer->n_full) {
        n_held = quire_runtime_keepable(session->runtime, writer->seq, n_tokens - writer->n_gone);
    }
    if (writer->n_gone > 0 && n_held + writer->n_gone < writer->n_full) {
        n_held = n_tokens < writer->n_keep ? n_tokens : writer->n_keep;
        n_held = quire_runtime_keepable(session->runtime, writer->seq, n_held);
        writer->n_gone = 0;
    }
    QUIRE_TRY(quire_seq_truncate(cache, writer->seq, n_held));
    writer->n_held = n_held;
    writer->n_mixed_from = n_held <= writer->n_mixed_from ? 0 : writer->n_mixed_from;
    return QUIRE_OK;
}

void quire_writer_reset(quire_writer *writer)
{
    int rc = keep_first(writer, 0);

    QUIRE_CHECK(rc == QUIRE_OK); /* nothing is shared with another sequence, so nothing is copied */
    quire_sampler_reset(writer->sampler);
}

/* Compute the whole steps of a prompt, without its last token, and write the state behind them. A
 * longer prompt with the same beginning has the same steps. */
static int save_state(quire_writer *writer, const int32_t *tokens, uint32_t n_tokens,
                      quire_writer_result *result, quire_error *err)
{
    const double start_s = quire_now_s();
    const float *logits;
    const uint32_t n_steps = (n_tokens - 1 - writer->n_held) / writer->session->n_batch;
    const uint32_t n = n_steps * writer->session->n_batch;
    int32_t *held = writer->text_tokens + writer->n_held;
    int rc;

    if (writer->n_held + n == 0) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--save-block-state: a prompt of %u tokens has no whole step of %u "
                               "(-b) before its last token",
                               n_tokens, writer->session->n_batch);
    }
    rc = quire_opened_prefill(writer->session, writer->seq, tokens + writer->n_held, n, "reading",
                              &logits);
    if (rc < 0) {
        return quire_opened_step_error(writer->session, rc, err);
    }
    memcpy(held, tokens + writer->n_held, n * sizeof(*tokens));
    writer->n_held += n;
    result->prefill_s = quire_now_s() - start_s;
    return quire_block_file_write(writer->block_file, writer->session, tokens, err);
}

/* Append the tokens of a prompt behind the text, up to token n or to the end of the context. */
static int prompt_fill(quire_writer *writer, const int32_t *tokens, uint32_t n,
                       const float **logits)
{
    const uint32_t from = n_text(writer), room = writer->session->n_ctx - writer->n_held;
    const uint32_t n_more = n - from < room ? n - from : room;
    const int rc = quire_opened_prefill(writer->session, writer->seq, tokens + from, n_more,
                                        "reading", logits);

    writer->n_held = quire_seq_tokens(quire_runtime_cache(writer->session->runtime), writer->seq);
    memcpy(writer->text_tokens + from, tokens + from, (n_text(writer) - from) * sizeof(*tokens));
    return rc;
}

/* Append them up to token n; tokens leave a full context. */
static int prompt_step(quire_writer *writer, const int32_t *tokens, uint32_t n,
                       quire_writer_result *result, const float **logits)
{
    QUIRE_TRY(text_reserve(writer, n));
    while (n_text(writer) < n) {
        if (writer->n_held == writer->session->n_ctx) {
            QUIRE_TRY(drop_tokens(writer, result));
        }
        QUIRE_TRY(prompt_fill(writer, tokens, n, logits));
    }
    return QUIRE_OK;
}

/* Store the text's pages, those of mixed tokens not. */
static void store(const quire_writer *writer)
{
    const uint32_t page_tokens = quire_runtime_opts_get(writer->session->runtime)->page_tokens;
    const uint32_t n_whole = writer->n_mixed_from - writer->n_mixed_from % page_tokens;

    if (writer->disk != NULL) {
        quire_kv_disk_write(writer->disk, writer->seq, writer->text_tokens,
                            writer->n_mixed_from > 0 ? n_whole : writer->n_held);
    }
}

/* Of a model with recurrent layers: compute a prompt up to where its state is stored, and store it.
 * A later prompt that begins with these tokens goes on from the state. */
static int prompt_begin(quire_writer *writer, const int32_t *tokens, uint32_t n_tokens,
                        quire_writer_result *result, const float **logits)
{
    const uint32_t n =
        writer->disk != NULL ? quire_kv_disk_state_end(writer->disk, n_tokens - 1) : 0;

    if (n <= writer->n_held) {
        return QUIRE_OK;
    }
    QUIRE_TRY(prompt_step(writer, tokens, n, result, logits));
    store(writer);
    return QUIRE_OK;
}

static int read_prompt(quire_writer *writer, const int32_t *tokens, uint32_t n_tokens,
                       quire_writer_result *result, const float **logits)
{
    double start_s = quire_now_s();
    uint32_t same = 0;
    int rc;

    while (same < n_tokens && same < n_text(writer) && writer->text_tokens[same] == tokens[same]) {
        same++;
    }
    /* Always recompute the last token: its KV may be there, but its logits are not. */
    same = same == n_tokens ? n_tokens - 1 : same;
    QUIRE_TRY(keep_first(writer, same));
    if (writer->disk != NULL) {
        same = writer->n_held;
        writer->n_held = quire_kv_disk_read(writer->disk, writer->seq, tokens, n_tokens - 1);
        memcpy(writer->text_tokens + same, tokens + same,
               (writer->n_held - same) * sizeof(*tokens));
        result->n_stored = writer->n_held - same;
    }
    same = n_text(writer);
    rc = prompt_begin(writer, tokens, n_tokens, result, logits);
    rc = rc == QUIRE_OK ? prompt_step(writer, tokens, n_tokens, result, logits) : rc;
    result->n_prompt = rc == QUIRE_CANCELED ? n_text(writer) : n_tokens;
    result->n_reused = same;
    result->prefill_s += quire_now_s() - start_s;
    if (writer->disk != NULL && quire_kv_disk_has_windows(writer->disk)) {
        store(writer);
    }
    return rc;
}

/* Returns QUIRE_CANCELED when the sink wants no more. */
static int show(const quire_writer *writer)
{
    return writer->shown.n == 0 ||
                   writer->sink(writer->sink_ctx, writer->shown.data, writer->shown.n)
               ? QUIRE_OK
               : QUIRE_CANCELED;
}

static int emit(quire_writer *writer, int32_t token, bool *is_end)
{
    int32_t stop_index;

    quire_bytes_clear(&writer->shown);
    QUIRE_TRY(quire_text_out_feed(writer->out, token, &writer->shown, &stop_index));
    *is_end = stop_index >= 0;
    return show(writer);
}

/* Writes until stopped. Returns a failed step's status. */
static int write_on(quire_writer *writer, const float *logits, quire_writer_result *result)
{
    quire_opened *session = writer->session;
    double start_s = quire_now_s();

    for (;;) {
        int32_t token = quire_sampler_pick(writer->sampler, logits);
        quire_slice slice = {
            .seq = writer->seq, .tokens = &token, .n_tokens = 1, .logits = QUIRE_LOGITS_LAST
        };
        bool is_end, is_mixed;
        int rc;

        if (result->n_steps == 0) {
            result->first_s = result->prefill_s + quire_now_s() - start_s;
        }
        if (quire_model_is_eog(session->model, token)) {
            result->stop = QUIRE_STOP_END;
            return QUIRE_OK;
        }
        rc = emit(writer, token, &is_end);
        if (rc == QUIRE_CANCELED) {
            result->stop = QUIRE_STOP_SINK;
            return QUIRE_OK;
        }
        QUIRE_TRY(rc);
        result->n_output++;
        if (is_end) {
            result->stop = QUIRE_STOP_END;
            return QUIRE_OK;
        }
        if (writer->n_predict >= 0 && result->n_output >= writer->n_predict) {
            result->stop = QUIRE_STOP_LIMIT;
            return QUIRE_OK;
        }
        if (writer->n_held == session->n_ctx) {
            if (writer->overflow == QUIRE_CONTEXT_REFUSE) {
                result->stop = QUIRE_STOP_CONTEXT;
                return QUIRE_OK;
            }
            QUIRE_TRY(drop_tokens(writer, result));
        }
        if (quire_interrupt_seen()) {
            result->stop = QUIRE_STOP_INTERRUPTED;
            return QUIRE_OK;
        }
        QUIRE_TRY(text_reserve(writer, (size_t)n_text(writer) + 1));
        start_s = quire_now_s();
        QUIRE_TRY(quire_opened_decode(session, &slice, &logits, &is_mixed));
        if (is_mixed && writer->n_mixed_from == 0) {
            writer->n_mixed_from = writer->n_held;
        }
        result->decode_s += quire_now_s() - start_s;
        result->n_steps++;
        writer->text_tokens[n_text(writer)] = token;
        writer->n_held++;
    }
}

int quire_writer_run(quire_writer *writer, const int32_t *tokens, size_t n_tokens,
                     quire_writer_result *result, quire_error *err)
{
    const quire_opened *session = writer->session;
    const uint32_t n_before = writer->n_held;
    const size_t n_max =
        writer->overflow == QUIRE_CONTEXT_REFUSE ? session->n_ctx : QUIRE_TOKENS_MAX;
    const float *logits = NULL;
    int rc;

    memset(result, 0, sizeof(*result));
    if (n_tokens == 0) {
        return quire_error_set(err, QUIRE_INVAL, "the prompt is empty");
    }
    if (n_tokens > n_max) {
        return quire_error_set(err, QUIRE_LIMIT,
                               writer->overflow == QUIRE_CONTEXT_REFUSE
                                   ? "the prompt has %zu tokens, the context holds %zu: shorten it "
                                     "or raise -c"
                                   : "the prompt has %zu tokens, at most %zu are read",
                               n_tokens, n_max);
    }
    if (session->retention != NULL) { /* the prompt reads all pages, in any steps */
        quire_retention_attend_from(session->retention, (uint32_t)n_tokens);
    }
    if (writer->block_file != NULL) {
        QUIRE_TRY(save_state(writer, tokens, (uint32_t)n_tokens, result, err));
    }
    rc = read_prompt(writer, tokens, (uint32_t)n_tokens, result, &logits);
    if (writer->block_file != NULL) {
        result->n_reused = n_before; /* the steps before the state were computed now */
    }
    result->stop = rc == QUIRE_CANCELED ? QUIRE_STOP_INTERRUPTED : QUIRE_STOP_LIMIT;
    if (rc == QUIRE_OK && writer->n_predict != 0) {
        quire_sampler_prompt(writer->sampler, tokens, n_tokens);
        rc = write_on(writer, logits, result);
        quire_bytes_clear(&writer->shown);
        if (quire_text_out_finish(writer->out, &writer->shown) == QUIRE_OK &&
            result->stop != QUIRE_STOP_SINK) {
            (void)show(writer);
        }
    }
    store(writer);
    return rc < 0 ? quire_opened_step_error(session, rc, err) : QUIRE_OK;
}
