/* api_embeddings.c - POST /v1/embeddings: texts as vectors.
 *
 * Each input is a request of the engine, so inputs are computed together with one another and with
 * generations. A window of them is in the engine at a time; the others wait here, so that one
 * client does not fill the queue of its class.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "base/check.h"
#include "base/num.h"
#include "server/base64.h"
#include "server/prompt_tokens.h"
#include "server/unsupported.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WINDOW  32u  /* inputs in the engine at once */
#define WAIT_MS 100u /* between looks at the client */

/* pooling_type of a GGUF file. */
#define FILE_POOLING_RANK 4u

typedef struct input {
    int32_t *tokens; /* owned until submitted */
    uint32_t n_tokens;
    quire_request *request;
} input;

/* http->work owns it. */
typedef struct embedding {
    quire_http *http;
    input *inputs; /* [n_inputs] */
    uint32_t n_inputs;
    bool is_list; /* the inputs have numbers */
    uint32_t n_submitted;
    quire_request_params params;
    quire_tenant_salt salt;
    quire_tier tier;
    uint32_t n_dimensions; /* of a vector; 0 = the model's */
    bool is_base64;
    bool keeps_length; /* vectors are not made unit vectors */
    quire_bytes body;
    uint64_t prompt_tokens;
    uint64_t cached_tokens;
} embedding;

static void embedding_release(void *work)
{
    embedding *e = work;

    for (uint32_t i = 0; i < e->n_inputs; i++) {
        if (e->inputs[i].request != NULL) {
            quire_request_release(e->inputs[i].request);
        }
        free(e->inputs[i].tokens);
    }
    free(e->inputs);
    quire_bytes_fini(&e->body);
    free(e);
}

/* ---- fields ---- */

/* The model's own pooling; for a file that names none the last token's, the only one that has seen
 * the whole text. */
static quire_pooling pooling_of_model(embedding *e, quire_fields *fields)
{
    static const quire_pooling of_file[] = { QUIRE_POOLING_LAST, QUIRE_POOLING_MEAN,
                                             QUIRE_POOLING_CLS, QUIRE_POOLING_LAST };
    const uint32_t n = quire_model_desc_get(quire_engine_model(e->http->engine))->pooling;

    if (n >= FILE_POOLING_RANK) {
        quire_field_error(fields, "model",
                          "this model ranks texts (pooling_type rank), which is not supported");
        return QUIRE_POOLING_LAST;
    }
    return of_file[n];
}

static void read_pooling(embedding *e, quire_fields *fields)
{
    static const char *const names[] = { "mean", "cls", "last" };
    static const quire_pooling values[] = { QUIRE_POOLING_MEAN, QUIRE_POOLING_CLS,
                                            QUIRE_POOLING_LAST };
    const char *name = quire_field_string(fields, "pooling", 16);

    if (name == NULL) {
        e->params.pooling = pooling_of_model(e, fields);
        return;
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            e->params.pooling = values[i];
            return;
        }
    }
    quire_field_error(fields, "pooling", "must be \"mean\", \"cls\" or \"last\"");
}

static void read_fields(embedding *e, quire_fields *fields)
{
    const char *format = quire_field_string(fields, "encoding_format", 16);
    const uint32_t n_embd = quire_model_desc_get(quire_engine_model(e->http->engine))->n_embd;
    const char *salt = quire_field_string(fields, "cache_salt", QUIRE_CACHE_SALT_MAX);
    const quire_tiers *tiers = &e->http->server->tiers;

    (void)quire_field_string(fields, "model", 1024);
    (void)quire_field_string(fields, "user", 1024);
    if (format != NULL && strcmp(format, "float") != 0 && strcmp(format, "base64") != 0) {
        quire_field_error(fields, "encoding_format", "must be \"float\" or \"base64\"");
    }
    e->is_base64 = format != NULL && format[0] == 'b';
    e->n_dimensions = (uint32_t)quire_field_int(fields, "dimensions", 0, 1, n_embd);
    e->keeps_length = !quire_field_bool(fields, "normalize", true);
    quire_field_refuse(fields, "embd_normalize", "2",
                       "vectors have length 1, or with `normalize` false the model's");
    quire_field_refuse(fields, "truncate_prompt_tokens", "", "texts are not cut");
    quire_field_refuse(fields, "add_special_tokens", "true", "the model file says which");
    quire_field_refuse(fields, "input_type", "", "the text says all that the model reads");
    read_pooling(e, fields);
    e->params.is_uncached = !quire_field_bool(fields, "cache_prompt", false);
    e->params.sampler = (quire_sampler_opts)QUIRE_SAMPLER_OPTS_INIT;
    quire_tier_read(tiers, &e->http->caller, fields, &e->tier);
    e->params.class_index = e->tier.class_index;
    e->http->class_name = tiers->classes.items[e->tier.class_index].name;
    quire_http_salt(e->http, salt, &e->salt);
    e->params.tenant = e->salt.bytes;
    e->params.tenant_bytes = e->salt.n;
}

/* ---- inputs ---- */

static void input_name(const embedding *e, uint32_t i, char *name, size_t size)
{
    if (e->is_list) {
        (void)snprintf(name, size, "input[%u]", i);
    } else {
        (void)snprintf(name, size, "input");
    }
}

static int add_input(embedding *e, quire_fields *fields, json_t *value, const char *name)
{
    const quire_prompt_source source = { name, false };
    input *to = &e->inputs[e->n_inputs];
    int rc = QUIRE_INVAL;

    if (json_is_string(value)) {
        rc = quire_prompt_tokens_text(e->http, &source, value, &to->tokens, &to->n_tokens);
    } else if (json_is_array(value)) {
        rc = quire_prompt_tokens_array(e->http, &source, value, &to->tokens, &to->n_tokens);
    } else {
        quire_field_error(fields, name, "must be a string or tokens, not %s",
                          quire_json_type_text(value));
    }
    e->n_inputs++; /* owns its tokens, also after an error */
    if (rc == QUIRE_OK &&
        (to->n_tokens == 0 || (json_is_string(value) && json_string_length(value) == 0))) {
        quire_field_error(fields, name, "must not be empty");
        rc = QUIRE_INVAL;
    }
    return rc;
}

static int read_inputs(embedding *e, quire_fields *fields)
{
    json_t *value = quire_field_required(fields, "input");
    const bool is_one = !json_is_array(value) || json_is_integer(json_array_get(value, 0));
    const size_t n = is_one ? 1 : json_array_size(value);

    QUIRE_FAIL_IF(fields->err->http != 0, QUIRE_INVAL);
    if (n == 0) {
        quire_field_error(fields, "input", "must not be empty");
        return QUIRE_INVAL;
    }
    if (n > QUIRE_EMBEDDING_INPUTS_MAX) {
        quire_field_error(fields, "input", "%zu inputs, at most %u", n, QUIRE_EMBEDDING_INPUTS_MAX);
        return QUIRE_INVAL;
    }
    e->inputs = calloc(n, sizeof e->inputs[0]);
    if (e->inputs == NULL) {
        return quire_api_error_nomem(fields->err);
    }
    e->is_list = !is_one;
    for (size_t i = 0; i < n; i++) {
        char name[32];

        input_name(e, (uint32_t)i, name, sizeof name);
        QUIRE_TRY(add_input(e, fields, is_one ? value : json_array_get(value, i), name));
    }
    return QUIRE_OK;
}

/* ---- computing ---- */

/* The engine's message begins with "prompt:"; the client's field is "input". */
static int wrong_input(embedding *e, const quire_error *cause)
{
    static const char prompt[] = "prompt: ";
    const size_t n = sizeof prompt - 1;
    char name[32];

    if (strncmp(cause->message, prompt, n) != 0 ||
        (cause->status != QUIRE_INVAL && cause->status != QUIRE_RANGE)) {
        return quire_api_error_from(&e->http->err, cause);
    }
    input_name(e, e->n_submitted, name, sizeof name);
    return quire_api_error_set(&e->http->err, 400,
                               cause->status == QUIRE_RANGE ? "context_length_exceeded"
                                                            : "invalid_value",
                               name, "%s: %s", name, cause->message + n);
}

/* Submit inputs up to the end of the window; with none in the engine, wait for a place. */
static int submit_some(embedding *e, uint32_t first)
{
    while (e->n_submitted < e->n_inputs && e->n_submitted < first + WINDOW) {
        input *in = &e->inputs[e->n_submitted];
        quire_error cause = QUIRE_ERROR_INIT;

        e->params.tokens = in->tokens;
        e->params.n_tokens = in->n_tokens;
        e->params.id = e->http->id;
        cause.status = quire_engine_submit(e->http->engine, &e->params, &in->request, &cause);
        if (cause.status == QUIRE_LIMIT && e->n_submitted > first) {
            return QUIRE_OK; /* the queue is full: go on when one has ended */
        }
        if (cause.status == QUIRE_LIMIT) {
            e->http->err.retry_after_s = 1;
            return quire_api_error_set(&e->http->err, 429, "queue_full", NULL,
                                       "the queue of class %s is full, try again in 1 s",
                                       e->http->class_name);
        }
        if (cause.status == QUIRE_AGAIN) {
            return quire_api_error_set(&e->http->err, 503, "draining", NULL,
                                       "the server takes no more requests");
        }
        if (cause.status < 0) {
            return wrong_input(e, &cause);
        }
        free(in->tokens);
        in->tokens = NULL;
        e->n_submitted++;
    }
    return QUIRE_OK;
}

static int wait_for(embedding *e, input *in, const quire_request_result **out)
{
    quire_request_token token;
    quire_error cause = QUIRE_ERROR_INIT;
    int rc;

    do {
        QUIRE_TRY(quire_http_check(e->http));
        rc = quire_request_wait(in->request, 0, WAIT_MS, &token);
    } while (rc == QUIRE_AGAIN);
    *out = quire_request_result_get(in->request);
    if ((*out)->finish == QUIRE_FINISH_CANCEL) {
        return quire_api_error_set(&e->http->err, 503, "stopping", NULL,
                                   "the request was cancelled by the server");
    }
    if ((*out)->finish == QUIRE_FINISH_ERROR || (*out)->vector == NULL) {
        cause.status = (*out)->status < 0 ? (*out)->status : QUIRE_NOMEM;
        (void)snprintf(cause.message, sizeof cause.message, "%s", (*out)->message);
        return quire_api_error_from(&e->http->err, &cause);
    }
    return QUIRE_OK;
}

/* ---- replies ---- */

/* The numbers of a vector, shortened to n_dimensions first and of length 1 then. */
static void write_vector(embedding *e, quire_json_out *json, const quire_request_result *result)
{
    const uint32_t n =
        e->n_dimensions > 0 ? quire_min_u32(e->n_dimensions, result->n_vector) : result->n_vector;
    quire_bytes floats = { 0 };
    quire_bytes text = { 0 };
    double square = 0.0;
    double scale = 1.0;

    for (uint32_t i = 0; i < n; i++) {
        square += (double)result->vector[i] * (double)result->vector[i];
    }
    if (!e->keeps_length && square > 0.0) {
        scale = 1.0 / sqrt(square);
    }
    if (!e->is_base64) {
        quire_json_array(json, "embedding");
    }
    for (uint32_t i = 0; i < n; i++) {
        const float x = (float)((double)result->vector[i] * scale);

        if (e->is_base64) {
            (void)quire_bytes_add(&floats, &x, sizeof x);
        } else {
            quire_json_number(json, NULL, (double)x);
        }
    }
    if (!e->is_base64) {
        quire_json_array_end(json);
        return;
    }
    (void)quire_base64_add(&text, floats.data, floats.n);
    quire_json_text(json, "embedding", text.data, text.n);
    if (floats.status < 0 || text.status < 0) {
        json->bytes->status = QUIRE_NOMEM;
    }
    quire_bytes_fini(&floats);
    quire_bytes_fini(&text);
}

static int write_inputs(embedding *e, quire_json_out *json)
{
    for (uint32_t i = 0; i < e->n_inputs; i++) {
        const quire_request_result *result;

        QUIRE_TRY(submit_some(e, i));
        QUIRE_TRY(wait_for(e, &e->inputs[i], &result));
        e->prompt_tokens += result->n_prompt_tokens;
        e->cached_tokens += result->n_cached_tokens;
        quire_json_object(json, NULL);
        quire_json_string(json, "object", "embedding");
        quire_json_u64(json, "index", i);
        write_vector(e, json, result);
        quire_json_object_end(json);
        quire_request_release(e->inputs[i].request);
        e->inputs[i].request = NULL;
    }
    return QUIRE_OK;
}

static int answer(embedding *e)
{
    quire_json_out json = { &e->body, false };

    quire_json_object(&json, NULL);
    quire_json_string(&json, "object", "list");
    quire_json_array(&json, "data");
    QUIRE_TRY(write_inputs(e, &json));
    quire_json_array_end(&json);
    quire_json_string(&json, "model", e->http->server->opts.model_name);
    if (e->tier.reply != NULL) {
        quire_json_string(&json, "service_tier", e->tier.reply);
    }
    quire_json_object(&json, "usage");
    quire_json_u64(&json, "prompt_tokens", e->prompt_tokens);
    quire_json_u64(&json, "total_tokens", e->prompt_tokens);
    quire_json_object(&json, "prompt_tokens_details");
    quire_json_u64(&json, "cached_tokens", e->cached_tokens);
    quire_json_object_end(&json);
    quire_json_object_end(&json);
    quire_json_object_end(&json);
    e->http->n_prompt_tokens = (uint32_t)e->prompt_tokens;
    e->http->n_cached_tokens = (uint32_t)e->cached_tokens;
    e->http->finish = "embedding";
    return quire_http_reply_json(e->http, 200, &e->body);
}

int quire_api_embeddings(quire_http *http)
{
    quire_fields_asked asked = { .n = 0 };
    quire_fields fields = { .err = &http->err, .asked = &asked };
    embedding *e = calloc(1, sizeof *e);
    int rc;

    if (e == NULL) {
        return quire_api_error_nomem(&http->err);
    }
    e->http = http;
    http->work = e;
    http->work_release = embedding_release;
    (void)snprintf(http->id, sizeof http->id, "embd-%016" PRIx64 "%06llx", http->server->id_base,
                   (unsigned long long)atomic_fetch_add(&http->server->n_ids, 1));
    QUIRE_TRY(quire_http_json(http, &fields.object));
    read_fields(e, &fields);
    rc = http->err.http == 0 ? read_inputs(e, &fields) : QUIRE_INVAL;
    if (rc == QUIRE_OK) {
        quire_fields_near(&fields, http->ignored);
    }
    quire_http_json_release(http, fields.object);
    QUIRE_TRY(rc);
    return answer(e);
}
