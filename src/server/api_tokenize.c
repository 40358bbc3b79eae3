/* api_tokenize.c - POST /tokenize and /detokenize, in the shapes of llama.cpp's server.
 *
 * SPDX-License-Identifier: MIT */
#include "model/text.h"
#include "server/handlers.h"

#include "base/check.h"
#include "base/parse.h"
#include "server/prompt_tokens.h"
#include "server/token_text.h"

#include <stdlib.h>
#include <string.h>

/* A reply of /tokenize against the largest body. A text of one byte for each token gives 7 times
 * its bytes as tokens; with pieces it would give 30 times. */
#define REPLY_BODIES_MAX 8u

typedef struct tokenize_fields {
    const char *content;
    size_t n_content;
    bool adds_special;
    bool parses_special;
    bool has_pieces;
} tokenize_fields;

static int tokenize(quire_http *http, const tokenize_fields *from, int32_t **tokens, size_t *n)
{
    quire_error cause = QUIRE_ERROR_INIT;
    quire_tokenize_opts opts;

    quire_http_tokenize_opts(http, 0, &opts);
    opts.add_special = from->adds_special;
    opts.parse_special = from->parses_special;
    if (quire_model_tokenize_all(quire_engine_model(http->engine), from->content, from->n_content,
                                 &opts, tokens, n, &cause) < 0) {
        return quire_http_tokenize_error(http, "content", &cause);
    }
    return QUIRE_OK;
}

static bool is_utf8(const quire_token_text *piece)
{
    quire_utf8_stream stream = { { 0 }, 0 };
    char whole[3 * (QUIRE_TOKEN_TEXT_MAX + 3)];
    const size_t n_whole = quire_utf8_stream_feed(&stream, piece->text, piece->n, whole);

    return stream.n_held == 0 && n_whole == piece->n && memcmp(piece->text, whole, n_whole) == 0;
}

/* {"id", "piece"}: the piece is a string, or an array of bytes if it is incomplete UTF-8. */
static void write_piece(quire_json_out *json, const quire_model *model, int32_t token)
{
    quire_token_text piece;

    quire_token_text_get(model, token, &piece);
    quire_json_object(json, NULL);
    quire_json_i64(json, "id", token);
    if (is_utf8(&piece)) {
        quire_json_text(json, "piece", piece.text, piece.n);
    } else {
        quire_json_array(json, "piece");
        for (size_t i = 0; i < piece.n; i++) {
            quire_json_u64(json, NULL, (unsigned char)piece.text[i]);
        }
        quire_json_array_end(json);
    }
    quire_json_object_end(json);
}

static int refuse_pieces(quire_http *http, size_t bytes_max)
{
    quire_fields fields = { .err = &http->err };
    char limit[16];

    quire_field_error(&fields, "with_pieces", "the reply is longer than %s",
                      quire_format_bytes(bytes_max, limit, sizeof limit));
    return QUIRE_INVAL;
}

static int reply_tokens(quire_http *http, const tokenize_fields *from, const int32_t *tokens,
                        size_t n)
{
    const size_t bytes_max = REPLY_BODIES_MAX * http->server->opts.body_bytes_max;
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };

    quire_json_object(&json, NULL);
    quire_json_array(&json, "tokens");
    for (size_t i = 0; i < n; i++) {
        if (from->has_pieces && body.n > bytes_max) {
            quire_bytes_fini(&body);
            return refuse_pieces(http, bytes_max);
        }
        if (from->has_pieces) {
            write_piece(&json, quire_engine_model(http->engine), tokens[i]);
        } else {
            quire_json_i64(&json, NULL, tokens[i]);
        }
    }
    quire_json_array_end(&json);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}

int quire_api_tokenize(quire_http *http)
{
    quire_fields fields = { .err = &http->err };
    tokenize_fields from;
    int32_t *tokens = NULL;
    size_t n = 0;
    int rc = QUIRE_INVAL;

    QUIRE_TRY(quire_http_json(http, &fields.object));
    (void)quire_field_required(&fields, "content");
    from.content = quire_field_string(&fields, "content", SIZE_MAX);
    from.adds_special = quire_field_bool(&fields, "add_special", false);
    from.parses_special = quire_field_bool(&fields, "parse_special", true);
    from.has_pieces = quire_field_bool(&fields, "with_pieces", false);
    if (http->err.http == 0) {
        from.n_content = strlen(from.content);
        rc = tokenize(http, &from, &tokens, &n);
    }
    quire_http_json_release(http, fields.object);
    if (rc == QUIRE_OK) {
        rc = reply_tokens(http, &from, tokens, n);
    }
    free(tokens);
    return rc;
}

/* A token of few digits may stand for hundreds of bytes: the text is bounded as that of a request
 * is, which could be tokenized again. */
static void add_token_text(quire_http *http, quire_fields *fields, json_t *value, quire_bytes *text)
{
    const quire_model *model = quire_engine_model(http->engine);
    const uint32_t n_vocab = quire_model_desc_get(model)->n_vocab;
    const json_int_t token = json_is_integer(value) ? json_integer_value(value) : -1;
    quire_token_text piece;

    if (token < 0 || token >= (json_int_t)n_vocab) {
        quire_field_error(fields, "tokens", "expected tokens of the model, 0 .. %u", n_vocab - 1);
        return;
    }
    quire_token_text_get(model, (int32_t)token, &piece);
    (void)quire_bytes_add(text, piece.text, piece.n);
    if (text->n > http->server->opts.body_bytes_max) {
        char limit[16];

        quire_field_error(
            fields, "tokens", "their text is longer than %s",
            quire_format_bytes(http->server->opts.body_bytes_max, limit, sizeof limit));
    }
}

int quire_api_detokenize(quire_http *http)
{
    quire_fields fields = { .err = &http->err };
    quire_bytes text = { 0 };
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    json_t *array;

    QUIRE_TRY(quire_http_json(http, &fields.object));
    (void)quire_field_required(&fields, "tokens");
    array = quire_field_array(&fields, "tokens", SIZE_MAX);
    for (size_t i = 0; http->err.http == 0 && i < json_array_size(array); i++) {
        add_token_text(http, &fields, json_array_get(array, i), &text);
    }
    quire_http_json_release(http, fields.object);
    if (text.status < 0) {
        (void)quire_api_error_nomem(&http->err);
    }
    if (http->err.http == 0) {
        quire_json_object(&json, NULL);
        quire_json_text(&json, "content", text.data, text.n);
        quire_json_object_end(&json);
    }
    quire_bytes_fini(&text);
    return http->err.http == 0 ? quire_http_reply_json(http, 200, &body) : QUIRE_INVAL;
}
