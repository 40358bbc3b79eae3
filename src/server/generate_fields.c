/* generate_fields.c - fields common to chat and text completions.
 *
 * SPDX-License-Identifier: MIT */
#include "server/generate.h"

#include "base/check.h"
#include "base/num.h"
#include "server/unsupported.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BIAS_MAX 100.0 /* OpenAI's */

static void read_bias_entry(quire_generation *gen, quire_fields *fields, const char *key,
                            json_t *value)
{
    const uint32_t n_vocab = quire_model_desc_get(quire_engine_model(gen->http->engine))->n_vocab;
    quire_logit_bias *to = &gen->bias[gen->params.sampler.n_bias];
    char *end;
    long token;

    errno = 0;
    token = strtol(key, &end, 10);
    if (errno != 0 || end == key || *end != '\0' || token < 0 || token >= (long)n_vocab) {
        quire_field_error(fields, "logit_bias", "\"%.32s\" is no token of the model (0 .. %u)", key,
                          n_vocab - 1);
    } else if (!json_is_number(value) || !(json_number_value(value) >= -BIAS_MAX) ||
               !(json_number_value(value) <= BIAS_MAX)) {
        quire_field_error(fields, "logit_bias", "of token %ld: expected a number within %g .. %g",
                          token, -BIAS_MAX, BIAS_MAX);
    } else {
        to->token = (int32_t)token;
        to->bias = (float)json_number_value(value);
        gen->params.sampler.n_bias++;
    }
}

static void read_bias(quire_generation *gen, quire_fields *fields)
{
    json_t *object = quire_field_object(fields, "logit_bias");
    const size_t n = json_object_size(object);
    const char *key;
    json_t *value;

    if (n == 0) {
        return;
    }
    if (n > QUIRE_LOGIT_BIAS_MAX) {
        quire_field_error(fields, "logit_bias", "%zu entries, at most %u", n, QUIRE_LOGIT_BIAS_MAX);
        return;
    }
    gen->bias = calloc(n, sizeof gen->bias[0]);
    if (gen->bias == NULL) {
        (void)quire_api_error_nomem(fields->err);
        return;
    }
    gen->params.sampler.bias = gen->bias;
    json_object_foreach(object, key, value)
    {
        read_bias_entry(gen, fields, key, value);
    }
}

static void add_stop(quire_generation *gen, quire_fields *fields, json_t *value)
{
    const size_t n = json_string_length(value);
    char **stop = &gen->stops[gen->params.n_stops];

    if (!json_is_string(value)) {
        quire_field_type_error(fields, "stop", "strings", value);
    } else if (n == 0 || n > QUIRE_STOP_BYTES_MAX) {
        quire_field_error(fields, "stop", "texts of 1 .. %u bytes, not %zu", QUIRE_STOP_BYTES_MAX,
                          n);
    } else {
        *stop = strdup(json_string_value(value));
        if (*stop == NULL) {
            (void)quire_api_error_nomem(fields->err);
        } else {
            gen->params.n_stops++;
        }
    }
}

static void read_stops(quire_generation *gen, quire_fields *fields)
{
    json_t *value = quire_field(fields, "stop");

    if (json_is_array(value)) {
        (void)quire_field_array(fields, "stop", QUIRE_STOPS_MAX);
        for (unsigned i = 0; i < json_array_size(value) && fields->err->http == 0; i++) {
            add_stop(gen, fields, json_array_get(value, i));
        }
    } else if (json_is_string(value)) {
        add_stop(gen, fields, value);
    } else if (value != NULL) {
        quire_field_type_error(fields, "stop", "a string or an array of strings", value);
    }
}

/* A limit on the answer's tokens; UINT32_MAX = only the context (absent, or llama-server's -1).
 * 0 is for requests whose reply has something of the prompt. */
static int64_t read_limit(const quire_generation *gen, quire_fields *fields, const char *name)
{
    const int64_t n = quire_field_int(fields, name, -1, -1, UINT32_MAX);

    if (n == 0 && !gen->has_echo && !gen->shows_prompt_logprobs) {
        quire_field_error(
            fields, name, "must be at least 1, or -1 for all that the context holds%s",
            gen->form->has_prompt_logprobs ? "; 0 needs \"prompt_logprobs\" or \"echo\"" : "");
    }
    return n < 0 ? UINT32_MAX : n;
}

/* max_completion_tokens is the newer name, n_predict llama-server's; the smallest one counts. */
static void read_max_tokens(quire_generation *gen, quire_fields *fields)
{
    static const char *const names[] = { "max_tokens", "max_completion_tokens", "n_predict" };
    int64_t least = UINT32_MAX;

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const int64_t n = read_limit(gen, fields, names[i]);

        least = n < least ? n : least;
    }
    gen->params.max_tokens = least == UINT32_MAX ? 0 : (uint32_t)least;
    gen->params.sampler.min_tokens =
        (uint32_t)quire_field_int(fields, "min_tokens", 0, 0, UINT32_MAX);
    gen->params.is_prompt_only = least == 0;
    if (least < UINT32_MAX && gen->params.sampler.min_tokens > gen->params.max_tokens) {
        quire_field_error(fields, "min_tokens", "more than the %u tokens of max_tokens",
                          gen->params.max_tokens);
    }
}

static void read_stop_tokens(quire_generation *gen, quire_fields *fields)
{
    const uint32_t n_vocab = quire_model_desc_get(quire_engine_model(gen->http->engine))->n_vocab;
    json_t *list = quire_field_array(fields, "stop_token_ids", QUIRE_STOP_TOKENS_MAX);
    quire_sampler_opts *sampler = &gen->params.sampler;

    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *value = json_array_get(list, i);
        const json_int_t token = json_is_integer(value) ? json_integer_value(value) : -1;

        if (token < 0 || token >= (json_int_t)n_vocab) {
            quire_field_error(fields, "stop_token_ids",
                              "element %zu is no token of the model (0 .. %u)", i, n_vocab - 1);
            return;
        }
        gen->stop_tokens[sampler->n_stop_tokens++] = (int32_t)token;
    }
    sampler->stop_tokens = gen->stop_tokens;
}

/* llama-server's names; `logprobs` is that of OpenAI's completions. */
static int64_t read_n_probs(quire_generation *gen, quire_fields *fields)
{
    const int64_t n = quire_field_int(fields, "n_probs", 0, 0, QUIRE_LOGPROBS_MAX);

    gen->returns_tokens = quire_field_bool(fields, "return_tokens", false);
    return n > 0 ? n : -1;
}

/* vLLM's field: false and null mean none. */
static void read_prompt_logprobs(quire_generation *gen, quire_fields *fields)
{
    static const char name[] = "prompt_logprobs";

    if (!gen->form->has_prompt_logprobs) {
        quire_field_refuse(fields, name, "false", "the reply has no place for it");
        return;
    }
    if (quire_field(fields, name) == NULL || json_is_false(quire_field(fields, name))) {
        return;
    }
    gen->n_shown_prompt_tops = (uint32_t)quire_field_int(fields, name, 0, 0, QUIRE_LOGPROBS_MAX);
    gen->shows_prompt_logprobs = true;
    gen->params.has_prompt_logprobs = true;
    gen->params.n_prompt_top_logprobs = gen->n_shown_prompt_tops;
    if (gen->is_stream) {
        quire_field_error(fields, name, "not with \"stream\": true");
    }
}

static void read_logprobs(quire_generation *gen, quire_fields *fields)
{
    if (!gen->is_chat) {
        const int64_t n_probs = gen->form->is_llama ? read_n_probs(gen, fields) : -1;
        const int64_t n = quire_field_int(fields, "logprobs", n_probs, 0, QUIRE_LOGPROBS_MAX);

        gen->params.has_logprobs = n >= 0;
        gen->params.n_top_logprobs = n > 0 ? (uint32_t)n : 0;
        if (gen->has_echo && gen->params.has_logprobs) {
            gen->params.has_prompt_logprobs = true;
            gen->params.n_prompt_top_logprobs =
                quire_max_u32(gen->params.n_prompt_top_logprobs, gen->params.n_top_logprobs);
        }
        return;
    }
    gen->params.has_logprobs = quire_field_bool(fields, "logprobs", false);
    gen->params.n_top_logprobs =
        (uint32_t)quire_field_int(fields, "top_logprobs", 0, 0, QUIRE_LOGPROBS_MAX);
    if (gen->params.n_top_logprobs > 0 && !gen->params.has_logprobs) {
        quire_field_error(fields, "top_logprobs", "needs \"logprobs\": true");
    }
}

static void read_reuse(quire_generation *gen, quire_fields *fields)
{
    const char *salt = quire_field_string(fields, "cache_salt", QUIRE_CACHE_SALT_MAX);
    const char *session = quire_field_string(fields, "session_id", QUIRE_SESSION_ID_MAX);

    quire_http_salt(gen->http, salt, &gen->salt);
    if (session != NULL) {
        if (session[0] == '\0') {
            quire_field_error(fields, "session_id", "must not be empty");
        }
        memcpy(gen->session_id, session, strlen(session) + 1);
    }
    /* A hint about requests with a common prefix; the tokens show this anyway. */
    (void)quire_field_string(fields, "prompt_cache_key", 1024);
    gen->params.is_uncached = !quire_field_bool(fields, "cache_prompt", true);
    gen->has_explanation = quire_field_bool(fields, "explain_cache", false);
}

/* context_overflow: the request's value, or the server's default. Log-probabilities of a prompt are
 * those of its whole text, so the default does not hold for a request that wants them. The engine
 * refuses a request that names both. */
static void read_overflow_choice(quire_generation *gen, quire_fields *fields)
{
    const char *name = quire_field_string(fields, "context_overflow", 32);

    if (name == NULL) {
        gen->truncates_turns = gen->http->server->opts.truncates_turns;
        gen->params.context_overflow = gen->params.has_prompt_logprobs
                                           ? QUIRE_CONTEXT_REFUSE
                                           : gen->http->server->opts.context_overflow;
        return;
    }
    gen->truncates_turns = strcmp(name, "truncate_turns") == 0;
    if (gen->truncates_turns) {
        if (!gen->is_chat) {
            quire_field_error(fields, "context_overflow", "a text has no turns to drop");
        }
    } else if (!quire_context_overflow_find(name, &gen->params.context_overflow)) {
        quire_field_error(fields, "context_overflow",
                          "must be \"refuse\", \"truncate_turns\", \"shift\", \"sinks\" or "
                          "\"condense\"");
    }
}

static void read_overflow(quire_generation *gen, quire_fields *fields)
{
    const int64_t keep = quire_field_int(fields, "context_keep", -1, 0, UINT32_MAX);

    read_overflow_choice(gen, fields);
    gen->params.context_keep = keep >= 0 ? (uint32_t)keep : gen->http->server->opts.context_keep;
    if (keep >= 0 && gen->params.context_overflow == QUIRE_CONTEXT_REFUSE) {
        quire_field_error(fields, "context_keep",
                          "needs \"context_overflow\": \"shift\", \"sinks\" or \"condense\"");
    }
    gen->keeps_instructions =
        keep < 0 && gen->params.context_overflow == QUIRE_CONTEXT_CONDENSE && gen->is_chat;
}

/* retain: a policy, "none", or the server's default. A text that may overflow its context, or whose
 * prompt's log-probabilities are wanted, keeps all tokens unless the request itself names a policy,
 * which the engine then refuses; with "condense" the policy chooses the tokens that the overflow
 * keeps. */
static void read_retain(quire_generation *gen, quire_fields *fields)
{
    const bool overflows =
        gen->truncates_turns || gen->params.context_overflow != QUIRE_CONTEXT_REFUSE;
    const bool condenses = gen->params.context_overflow == QUIRE_CONTEXT_CONDENSE;
    const bool is_named = quire_field_retain(fields, &gen->retain);

    if (is_named && gen->retain.policy == NULL && condenses) {
        if (quire_field(fields, "context_overflow") != NULL) {
            quire_field_error(fields, "retain",
                              "\"none\" keeps all tokens, \"context_overflow\": \"condense\" does "
                              "not");
        }
        gen->params.context_overflow = QUIRE_CONTEXT_REFUSE; /* against the server's default */
        gen->keeps_instructions = false;
    }
    if (is_named && gen->retain.policy != NULL && gen->truncates_turns) {
        quire_field_error(fields, "retain", "not with \"context_overflow\": \"truncate_turns\"");
    }
    if (!is_named) {
        gen->retain = gen->http->server->opts.retain;
        gen->retain.policy = (overflows && !condenses) || gen->params.has_prompt_logprobs
                                 ? NULL
                                 : gen->retain.policy;
    }
    gen->params.retain = gen->retain.policy != NULL ? &gen->retain : NULL;
}

/* attend: a share, "none", or the server's default. A text that drops tokens reads all pages unless
 * the request itself names a share, which the engine then refuses. */
static void read_attend(quire_generation *gen, quire_fields *fields)
{
    const bool drops =
        gen->params.retain != NULL || gen->params.context_overflow != QUIRE_CONTEXT_REFUSE;

    if (!quire_field_attend(fields, &gen->params.attend_share) && !drops) {
        gen->params.attend_share = gen->http->server->opts.attend_share;
    }
}

static void read_class(quire_generation *gen, quire_fields *fields)
{
    const quire_tiers *tiers = &gen->http->server->tiers;

    quire_tier_read(tiers, &gen->http->caller, fields, &gen->tier);
    gen->params.class_index = gen->tier.class_index;
    gen->http->class_name = tiers->classes.items[gen->tier.class_index].name;
    if (!json_is_string(quire_field(fields, "priority"))) {
        gen->params.priority =
            (int32_t)quire_field_int(fields, "priority", 0, INT32_MIN, INT32_MAX);
    }
}

static void read_stream(quire_generation *gen, quire_fields *fields)
{
    json_t *object = quire_field_object(fields, "stream_options");
    quire_fields options = { .object = object, .path = "stream_options", .err = fields->err };

    gen->is_stream = quire_field_bool(fields, "stream", false);
    if (object == NULL) {
        return;
    }
    if (!gen->is_stream) {
        quire_field_error(fields, "stream_options", "needs \"stream\": true");
    }
    gen->has_usage_event = quire_field_bool(&options, "include_usage", false);
    quire_field_refuse(&options, "continuous_usage_stats", "false", "usage comes once, at the end");
    quire_field_refuse(&options, "include_obfuscation", "false", QUIRE_NO_OBFUSCATION);
}

static quire_unsupported_kind request_kind(const quire_generation *gen)
{
    if (gen->is_chat) {
        return QUIRE_UNSUPPORTED_OF_CHAT;
    }
    return gen->form->is_llama ? QUIRE_UNSUPPORTED_OF_LLAMA : QUIRE_UNSUPPORTED_OF_TEXT;
}

/* n_cmpl is llama-server's name. */
static uint32_t read_n(quire_fields *fields)
{
    const int64_t n = quire_field_int(fields, "n", 1, 1, QUIRE_SERVER_CHOICES_MAX);

    return (uint32_t)quire_field_int(fields, "n_cmpl", n, 1, QUIRE_SERVER_CHOICES_MAX);
}

/* OpenAI's best_of generates more answers than it returns. */
static void refuse_best_of(const quire_generation *gen, quire_fields *fields)
{
    char n[12];

    (void)snprintf(n, sizeof n, "%" PRIu32, gen->n_per_prompt);
    quire_field_refuse(fields, "best_of", n, "all answers are returned, `n` of them");
}

int quire_generation_fields(quire_generation *gen, quire_fields *fields)
{
    gen->params.sampler = gen->http->server->opts.sampler;
    quire_unsupported_refuse(fields, request_kind(gen));
    (void)quire_field_string(fields, "model", 1024); /* any name selects the only model */
    read_stream(gen, fields);
    quire_sampling_read(gen, fields);
    read_bias(gen, fields);
    read_stops(gen, fields);
    read_stop_tokens(gen, fields);
    read_prompt_logprobs(gen, fields);
    read_max_tokens(gen, fields);
    read_logprobs(gen, fields);
    quire_constraint_read(gen, fields);
    read_reuse(gen, fields);
    read_overflow(gen, fields);
    read_retain(gen, fields);
    read_attend(gen, fields);
    read_class(gen, fields);
    /* The end token is never chosen; a complete grammar still ends the text. */
    gen->params.sampler.forbids_eog = quire_field_bool(fields, "ignore_eos", false);
    gen->n_per_prompt = read_n(fields);
    refuse_best_of(gen, fields);
    if (gen->session_id[0] != '\0' && gen->n_per_prompt > 1) {
        quire_field_error(fields, "n", "a session takes one answer");
    }
    if (gen->session_id[0] != '\0' && gen->params.is_prompt_only) {
        quire_field_error(fields, "max_tokens", "a turn of a session has an answer");
    }
    return fields->err->http != 0 ? QUIRE_INVAL : QUIRE_OK;
}
