/* fuzz_chat_template.c - bytes as a chat template, with messages and an answer: refused with a
 * message, or run within its limits.
 *
 *   TEMPLATE [FF ANSWER [FF TOOLS [FF EXTRA]]]
 *
 * ANSWER is read as the model's, and is the content of a message. TOOLS is a field `tools`, EXTRA
 * the other fields of a message; both are JSON, or are refused as such. The byte FF is none of
 * UTF-8.
 *
 * Values of a template that refer to each other are never freed (chat_guard.h), so this target
 * looks for no leaks.
 *
 * SPDX-License-Identifier: MIT */
#include "base/check.h"
#include "model/chat_format.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define N_PARTS   4u
#define FEED_SIZE 7u /* bytes of an answer at once */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes);
/* The sanitizer's runtime looks for it. */
__attribute__((visibility("default"))) const char *__asan_default_options(void);

const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

static quire_model *model;

static void check_failure(int rc, const quire_error *err)
{
    QUIRE_CHECK(rc == QUIRE_INVAL || rc == QUIRE_UNSUPP || rc == QUIRE_LIMIT || rc == QUIRE_NOMEM);
    QUIRE_CHECK(err->message[0] != '\0' && strchr(err->message, '\n') == NULL);
}

/* ---- input ---- */

/* Cut the data at FF into terminated texts; those that are missing are "". */
static char *cut(const uint8_t *data, size_t n, const char *parts[N_PARTS])
{
    char *text = malloc(n + 1);
    unsigned n_parts = 1;

    QUIRE_CHECK(text != NULL);
    memcpy(text, data, n);
    text[n] = '\0';
    for (unsigned i = 0; i < N_PARTS; i++) {
        parts[i] = text + n;
    }
    parts[0] = text;
    for (size_t i = 0; i < n && n_parts < N_PARTS; i++) {
        if ((unsigned char)text[i] == 0xff) {
            text[i] = '\0';
            parts[n_parts++] = text + i + 1;
        }
    }
    return text;
}

/* ---- an answer ---- */

static void read_answer(const quire_chat_prompt *prompt, const char *text)
{
    const size_t n = strlen(text);
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_reader *reader;
    quire_chat_delta delta;
    quire_chat_answer answer;
    char *extra = NULL;
    int rc = quire_chat_reader_create(&reader, prompt, &err);

    QUIRE_CHECK(rc == QUIRE_OK);
    for (size_t i = 0; i < n && rc == QUIRE_OK; i += FEED_SIZE) {
        rc = quire_chat_reader_feed(reader, text + i, n - i < FEED_SIZE ? n - i : FEED_SIZE, false,
                                    &err);
        while (rc == QUIRE_OK && quire_chat_reader_delta(reader, &delta)) {
            QUIRE_CHECK(delta.call < QUIRE_CHAT_CALLS_MAX);
        }
    }
    rc = rc < 0 ? rc : quire_chat_reader_feed(reader, "", 0, true, &err);
    if (rc < 0) {
        check_failure(rc, &err);
    } else {
        quire_chat_reader_answer(reader, &answer);
        QUIRE_CHECK(answer.n_calls <= QUIRE_CHAT_CALLS_MAX);
        QUIRE_CHECK(quire_chat_answer_extra(&answer, &extra) == QUIRE_OK);
    }
    free(extra);
    quire_chat_reader_destroy(reader);
}

/* ---- a prompt ---- */

static void apply(const quire_chat_format *format, const quire_chat_ask *ask, const char *answer)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_prompt *prompt;
    quire_chat_rules rules;
    const int rc = quire_chat_format_apply(format, ask, &prompt, &err);

    if (rc < 0) {
        QUIRE_CHECK(prompt == NULL);
        check_failure(rc, &err);
        return;
    }
    quire_chat_prompt_rules(prompt, &rules);
    QUIRE_CHECK(rules.text.data[rules.text.n] == '\0');
    QUIRE_CHECK(rules.text.n <= QUIRE_CHAT_PROMPT_BYTES_MAX);
    QUIRE_CHECK(!ask->is_text_only || rules.grammar == NULL);
    if (!ask->is_text_only) {
        read_answer(prompt, answer);
    }
    quire_chat_prompt_destroy(prompt);
}

static void apply_all(const quire_chat_format *format, const char *const parts[N_PARTS])
{
    const char *extra = parts[3][0] != '\0' ? parts[3] : NULL;
    const quire_chat_message messages[] = { { "system", "Be brief.", NULL },
                                            { "user", "What is 2 + 3?", NULL },
                                            { "assistant", parts[1], extra },
                                            { "tool", "5", "{\"tool_call_id\":\"call00001\"}" },
                                            { "user", parts[1], NULL } };
    const quire_chat_ask asks[] = {
        { .messages = messages, .n_messages = 5, .tools = parts[2] },
        { .messages = messages, .n_messages = 3, .continues_final = true },
        { .messages = messages + 1,
          .n_messages = 2,
          .tools = parts[2],
          .tool_choice = QUIRE_TOOL_CHOICE_REQUIRED,
          .kwargs = "{\"enable_thinking\":false}" },
        { .messages = messages,
          .n_messages = 5,
          .tools = parts[2],
          .omits_generation_prompt = true,
          .is_text_only = true },
    };

    for (size_t i = 0; i < sizeof asks / sizeof asks[0]; i++) {
        apply(format, &asks[i], parts[1]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size_bytes)
{
    quire_error err = QUIRE_ERROR_INIT;
    quire_chat_format *format;
    const char *parts[N_PARTS];
    char *text = cut(data, size_bytes, parts);
    int rc;

    if (model == NULL) {
        QUIRE_CHECK(quire_model_open(&model, FUZZ_MODEL, NULL, &err) == QUIRE_OK);
    }
    rc = quire_chat_format_create(&format, model, parts[0], &err);
    if (rc < 0) {
        QUIRE_CHECK(format == NULL);
        check_failure(rc, &err);
    } else {
        apply_all(format, parts);
        quire_chat_format_destroy(format);
    }
    free(text);
    return 0;
}
