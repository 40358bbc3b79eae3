/* api_infill.c - POST /infill: text between a prefix and a suffix, as llama-server.
 *
 *   [repo] "myproject\n" {[file] name "\n" text}... [file] "filename\n"
 *   [BOS] [prefix] input_prefix prompt [suffix] input_suffix [middle]
 *
 * The first line is input_extra; its tokens are left out where the model has none. llama-server
 * cuts the texts to its batch. Here they are cut to the context, and at steps: an editor sends the
 * same texts again and again, longer at the cursor, and a cut that moved with each letter would
 * leave nothing of the prompt in the cache.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "server/generate.h"
#include "server/prompt_tokens.h"

#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SNIPPET       "\n\n--- snippet ---\n\n" /* before an extra text, without [file] */
#define CUT_STEPS     4u                        /* a cut takes a fourth of the room at once */
#define FILE_NAME_MAX 4096u

/* The request's own fields, taken out of the body. */
typedef struct infill_fields {
    json_t *prefix, *suffix, *extra, *prompt;
} infill_fields;

typedef struct infill {
    quire_generation *gen;
    quire_fields *fields;
    quire_fim_tokens fim;
    quire_piece_tokens prefix, suffix, extra, prompt;
} infill;

static const quire_piece_opts extra_opts = { "input_extra", false, false };

/* ---- the model ---- */

static int check_model(infill *in)
{
    const struct {
        int32_t token;
        const char *key;
    } needed[] = { { in->fim.prefix, "fim_pre_token_id" },
                   { in->fim.suffix, "fim_suf_token_id" },
                   { in->fim.middle, "fim_mid_token_id" } };
    char missing[128] = "";

    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        const size_t n = strlen(missing);

        if (needed[i].token < 0) {
            (void)snprintf(missing + n, sizeof missing - n, "%s%s", n > 0 ? ", " : "",
                           needed[i].key);
        }
    }
    return missing[0] == '\0'
               ? QUIRE_OK
               : quire_api_error_set(&in->gen->http->err, 501, "no_infill_tokens", NULL,
                                     "this model cannot fill in: its file names no token for %s "
                                     "(tokenizer.ggml), and none has a known text",
                                     missing);
}

/* ---- texts ---- */

static int push(infill *in, int32_t token, quire_piece_tokens *out)
{
    return quire_piece_tokens_push(in->gen->http, &token, 1, out);
}

static int add_file_name(infill *in, const char *name)
{
    quire_bytes line = { 0 };
    int rc = push(in, in->fim.file, &in->extra);

    if (rc == QUIRE_OK) {
        rc = quire_bytes_addf(&line, "%s\n", name) < 0
                 ? quire_api_error_nomem(&in->gen->http->err)
                 : quire_piece_tokens_text(in->gen->http, &extra_opts, line.data, &in->extra);
    }
    quire_bytes_fini(&line);
    return rc;
}

static int add_chunk(infill *in, json_t *chunk, size_t i)
{
    char path[48];
    quire_fields fields = { .object = chunk, .path = path, .err = in->fields->err };
    const char *name = NULL;
    json_t *text = NULL;

    (void)snprintf(path, sizeof path, "input_extra[%zu]", i);
    if (!json_is_object(chunk)) {
        quire_field_error(in->fields, "input_extra", "element %zu must be {\"filename\", \"text\"}",
                          i);
        return QUIRE_INVAL;
    }
    name = quire_field_string(&fields, "filename", FILE_NAME_MAX);
    (void)quire_field_string(&fields, "text", SIZE_MAX);
    text = quire_field_required(&fields, "text");
    if (fields.err->http != 0) {
        return QUIRE_INVAL;
    }
    if (in->fim.file >= 0) {
        QUIRE_TRY(add_file_name(in, name != NULL ? name : "tmp"));
    } else {
        QUIRE_TRY(quire_piece_tokens_text(in->gen->http, &extra_opts, SNIPPET, &in->extra));
    }
    return quire_piece_tokens_add(in->gen->http, in->fields, &extra_opts, text, &in->extra);
}

static int add_extra(infill *in, json_t *chunks)
{
    if (chunks != NULL && !json_is_array(chunks)) {
        quire_field_type_error(in->fields, "input_extra", "an array", chunks);
        return QUIRE_INVAL;
    }
    if (in->fim.repo >= 0) {
        QUIRE_TRY(push(in, in->fim.repo, &in->extra));
        QUIRE_TRY(quire_piece_tokens_text(in->gen->http, &extra_opts, "myproject\n", &in->extra));
    }
    for (size_t i = 0; i < json_array_size(chunks); i++) {
        QUIRE_TRY(add_chunk(in, json_array_get(chunks, i), i));
    }
    return in->fim.file >= 0 ? add_file_name(in, "filename") : QUIRE_OK;
}

static int read_texts(infill *in, const infill_fields *from)
{
    static const quire_piece_opts prefix = { "input_prefix", false, false };
    static const quire_piece_opts suffix = { "input_suffix", false, false };
    static const quire_piece_opts prompt = { "prompt", false, true };
    quire_http *http = in->gen->http;

    if (from->prefix == NULL || from->suffix == NULL) {
        quire_field_error(in->fields, from->prefix == NULL ? "input_prefix" : "input_suffix",
                          "is required");
        return QUIRE_INVAL;
    }
    if (from->prompt != NULL && !json_is_string(from->prompt)) {
        quire_field_type_error(in->fields, "prompt", "a string", from->prompt);
        return QUIRE_INVAL;
    }
    QUIRE_TRY(quire_piece_tokens_add(http, in->fields, &prefix, from->prefix, &in->prefix));
    QUIRE_TRY(quire_piece_tokens_add(http, in->fields, &suffix, from->suffix, &in->suffix));
    if (from->prompt != NULL) {
        QUIRE_TRY(quire_piece_tokens_add(http, in->fields, &prompt, from->prompt, &in->prompt));
    }
    return add_extra(in, from->extra);
}

/* ---- room ---- */

/* Keep at most n_max tokens of the end. */
static void cut_front(quire_piece_tokens *tokens, size_t n_max)
{
    const size_t step = n_max / CUT_STEPS + 1;
    size_t n_cut;

    if (tokens->n <= n_max) {
        return;
    }
    n_cut = (tokens->n - n_max + step - 1) / step * step;
    n_cut = n_cut < tokens->n ? n_cut : tokens->n;
    tokens->n -= n_cut;
    memmove(tokens->tokens, tokens->tokens + n_cut, tokens->n * sizeof *tokens->tokens);
}

/* Make the texts fit: the suffix has a fourth of the room, or the room that the prefix leaves;
 * extra texts have the rest. An answer without a limit has a fourth of the context. */
static int fit(infill *in)
{
    const size_t n_ctx = quire_engine_n_ctx(in->gen->http->engine);
    const size_t n_max = in->gen->params.max_tokens;
    const size_t n_answer = n_max > 0 && n_max < n_ctx / 2 ? n_max
                            : n_max > 0                    ? n_ctx / 2
                                                           : n_ctx / 4;
    const size_t n_fixed = in->prompt.n + 4; /* BOS and the three tokens */
    size_t room;
    size_t n_suffix;

    if (n_fixed + n_answer > n_ctx) {
        return quire_api_error_set(&in->gen->http->err, 400, "context_length_exceeded", "prompt",
                                   "prompt: %zu tokens, the context has %zu and keeps %zu for the "
                                   "answer",
                                   in->prompt.n, n_ctx, n_answer);
    }
    room = n_ctx - n_answer - n_fixed;
    n_suffix = in->prefix.n < room - room / 4 ? room - in->prefix.n : room / 4;
    in->suffix.n = in->suffix.n < n_suffix ? in->suffix.n : n_suffix;
    cut_front(&in->prefix, room - in->suffix.n);
    cut_front(&in->extra, room - in->suffix.n - in->prefix.n);
    return QUIRE_OK;
}

static int join(infill *in, quire_piece_tokens *out)
{
    const quire_model *model = quire_engine_model(in->gen->http->engine);
    quire_http *http = in->gen->http;

    QUIRE_TRY(quire_piece_tokens_push(http, in->extra.tokens, in->extra.n, out));
    if (quire_model_adds_bos(model) && quire_model_bos(model) >= 0) {
        QUIRE_TRY(push(in, quire_model_bos(model), out));
    }
    QUIRE_TRY(push(in, in->fim.prefix, out));
    QUIRE_TRY(quire_piece_tokens_push(http, in->prefix.tokens, in->prefix.n, out));
    QUIRE_TRY(quire_piece_tokens_push(http, in->prompt.tokens, in->prompt.n, out));
    QUIRE_TRY(push(in, in->fim.suffix, out));
    QUIRE_TRY(quire_piece_tokens_push(http, in->suffix.tokens, in->suffix.n, out));
    return push(in, in->fim.middle, out);
}

/* ---- the request ---- */

static json_t *take(quire_fields *fields, const char *name)
{
    json_t *value = json_incref(quire_field(fields, name));

    (void)json_object_del(fields->object, name);
    return value;
}

static int read_prompt(infill *in, const infill_fields *from)
{
    quire_generation *gen = in->gen;
    quire_piece_tokens all = { 0 };
    int rc;

    quire_model_fim(quire_engine_model(gen->http->engine), &in->fim);
    QUIRE_TRY(check_model(in));
    if (gen->session_id[0] != '\0') {
        quire_field_error(in->fields, "session_id", "a session takes no text to be filled in");
        return QUIRE_INVAL;
    }
    QUIRE_TRY(read_texts(in, from));
    QUIRE_TRY(fit(in));
    rc = join(in, &all);
    if (rc < 0) {
        free(all.tokens);
        return rc;
    }
    (void)quire_generation_prompt_add(gen, all.tokens, (uint32_t)all.n);
    return quire_generation_prompt_keep(gen, NULL, 0);
}

static int read_request(quire_generation *gen, quire_fields *fields)
{
    const infill_fields from = { take(fields, "input_prefix"), take(fields, "input_suffix"),
                                 take(fields, "input_extra"), take(fields, "prompt") };
    infill in = { .gen = gen, .fields = fields };
    int rc;

    quire_field_refuse(fields, "echo", "false", "the answer is the text in the middle alone");
    rc = quire_generation_fields(gen, fields);
    rc = rc < 0 ? rc : read_prompt(&in, &from);
    free(in.prefix.tokens);
    free(in.suffix.tokens);
    free(in.extra.tokens);
    free(in.prompt.tokens);
    json_decref(from.prefix);
    json_decref(from.suffix);
    json_decref(from.extra);
    json_decref(from.prompt);
    return rc;
}

int quire_api_infill(quire_http *http)
{
    return quire_generation_answer(http, &quire_form_llama, read_request);
}
