/* api_error.c - error bodies of OpenAI and Anthropic.
 *
 * SPDX-License-Identifier: MIT */
#include "server/api_error.h"

#include "server/json_out.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int quire_api_error_set(quire_api_error *err, int http, const char *code, const char *param,
                        const char *format, ...)
{
    va_list args;

    if (err->http != 0) {
        return QUIRE_INVAL;
    }
    err->http = http;
    err->code = code;
    (void)snprintf(err->param, sizeof err->param, "%s", param != NULL ? param : "");
    va_start(args, format);
    (void)vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    return QUIRE_INVAL;
}

int quire_api_error_nomem(quire_api_error *err)
{
    return quire_api_error_set(err, 503, "out_of_memory", NULL, "out of memory, try again later");
}

/* Replace a name at the beginning of a text, if an end of the name follows. */
static void rename_in(char *text, size_t size, const char *from, const char *to)
{
    const size_t n = strlen(from);
    char rest[QUIRE_ERROR_MESSAGE_MAX];

    if (strncmp(text, from, n) == 0 && strchr(".:", text[n]) != NULL) {
        (void)snprintf(rest, sizeof rest, "%s", text + n);
        (void)snprintf(text, size, "%s%s", to, rest);
    }
}

void quire_api_error_rename(quire_api_error *err, const char *from, const char *to)
{
    rename_in(err->param, sizeof err->param, from, to);
    rename_in(err->message, sizeof err->message, from, to);
}

/* "grammar, line 2, column 1: ..." and "logit_bias: ..." name the field; "out of memory" does not.
 */
static void param_of(char *param, size_t size, const char *message)
{
    const size_t n = strspn(message, "abcdefghijklmnopqrstuvwxyz_");

    if (n > 0 && n < size && (message[n] == ':' || message[n] == ',')) {
        memcpy(param, message, n);
        param[n] = '\0';
    }
}

bool quire_api_error_names_field(const quire_error *cause)
{
    char param[QUIRE_API_PARAM_MAX] = "";

    param_of(param, sizeof param, cause->message);
    return param[0] != '\0';
}

static const char *code_of(int status)
{
    switch (status) {
    case QUIRE_INVAL:
        return "invalid_value";
    case QUIRE_RANGE:
        return "context_length_exceeded";
    case QUIRE_NOPAGES:
        return "out_of_pages";
    case QUIRE_LIMIT:
        return "limit_reached";
    case QUIRE_NOTFOUND:
        return "not_found";
    case QUIRE_LOST:
        return "device_lost";
    default:
        return NULL;
    }
}

int quire_api_error_from(quire_api_error *err, const quire_error *cause)
{
    char param[QUIRE_API_PARAM_MAX] = "";
    int status = cause->status;

    if (status == QUIRE_NOMEM) {
        return quire_api_error_nomem(err);
    }
    param_of(param, sizeof param, cause->message);
    if (status == QUIRE_LIMIT && param[0] != '\0') {
        status = QUIRE_INVAL; /* a field exceeds a limit: a retry does not help */
    }
    return quire_api_error_set(err, quire_status_http(status), code_of(status), param, "%s",
                               cause->message[0] != '\0' ? cause->message
                                                         : quire_status_text(status));
}

static const char *type_of(int http)
{
    switch (http) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return http >= 500 ? "server_error" : "invalid_request_error";
    }
}

static const char *anthropic_type_of(int http)
{
    switch (http) {
    case 408:
        return "timeout_error";
    case 413:
        return "request_too_large";
    case 503:
        return "overloaded_error";
    default:
        return http >= 500 ? "api_error" : type_of(http);
    }
}

static void write_anthropic(quire_bytes *out, const quire_api_error *err)
{
    quire_json_out json = { out, false };

    quire_json_object(&json, NULL);
    quire_json_string(&json, "type", "error");
    quire_json_object(&json, "error");
    quire_json_string(&json, "type", anthropic_type_of(err->http));
    quire_json_string(&json, "message", err->message);
    quire_json_string(&json, "code", err->code);
    quire_json_object_end(&json);
    quire_json_object_end(&json);
}

void quire_api_error_write(quire_bytes *out, const quire_api_error *err, quire_error_form form)
{
    quire_json_out json = { out, false };

    if (form == QUIRE_ERROR_ANTHROPIC) {
        write_anthropic(out, err);
        return;
    }
    quire_json_object(&json, NULL);
    quire_json_object(&json, "error");
    quire_json_string(&json, "message", err->message);
    quire_json_string(&json, "type", type_of(err->http));
    quire_json_string(&json, "param", err->param[0] != '\0' ? err->param : NULL);
    quire_json_string(&json, "code", err->code);
    if (err->missing_bytes > 0) {
        quire_json_u64(&json, "missing_bytes", err->missing_bytes);
    }
    quire_json_object_end(&json);
    quire_json_object_end(&json);
}
