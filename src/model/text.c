/* text.c - tokens to text, and chat templates, through libllama's C API; Zephyr's template is ours.
 *
 * SPDX-License-Identifier: MIT */
#include "model/text.h"
#include "model/chat_internal.h"
#include "model/model_internal.h"

#include "base/check.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static bool is_token(const quire_model *model, int32_t token)
{
    return token >= 0 && token < (int32_t)model->desc.n_vocab;
}

/* libllama returns minus the needed length when the buffer is too small. */
static int64_t length_of(int32_t n)
{
    return n >= 0 ? n : -(int64_t)n;
}

static int32_t capped(size_t cap)
{
    return cap > INT32_MAX ? INT32_MAX : (int32_t)cap;
}

int64_t quire_model_token_text(const quire_model *model, int32_t token, bool is_special,
                               char *buffer, size_t cap)
{
    QUIRE_FAIL_IF(!is_token(model, token), QUIRE_INVAL);
    return length_of(llama_token_to_piece(model->vocab, token, buffer, capped(cap), 0, is_special));
}

bool quire_model_is_eog(const quire_model *model, int32_t token)
{
    return is_token(model, token) && llama_vocab_is_eog(model->vocab, token);
}

static bool has_attr(const quire_model *model, int32_t token, int attrs)
{
    return is_token(model, token) && (llama_vocab_get_attr(model->vocab, token) & attrs) != 0;
}

bool quire_model_is_special(const quire_model *model, int32_t token)
{
    return has_attr(model, token,
                    LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_USER_DEFINED |
                        LLAMA_TOKEN_ATTR_UNKNOWN);
}

bool quire_model_strips_before(const quire_model *model, int32_t token)
{
    return has_attr(model, token, LLAMA_TOKEN_ATTR_LSTRIP);
}

bool quire_model_strips_behind(const quire_model *model, int32_t token)
{
    return has_attr(model, token, LLAMA_TOKEN_ATTR_RSTRIP);
}

bool quire_model_adds_bos(const quire_model *model)
{
    return llama_vocab_get_add_bos(model->vocab);
}

int32_t quire_model_bos(const quire_model *model)
{
    const int32_t bos = llama_vocab_bos(model->vocab);

    return is_token(model, bos) ? bos : -1;
}

int32_t quire_model_eos(const quire_model *model)
{
    const int32_t eos = llama_vocab_eos(model->vocab);

    return is_token(model, eos) ? eos : -1;
}

void quire_model_fim(const quire_model *model, quire_fim_tokens *out)
{
    const struct llama_vocab *vocab = model->vocab;
    int32_t *const tokens[] = { &out->prefix, &out->suffix, &out->middle, &out->repo, &out->file };

    *out = (quire_fim_tokens){ llama_vocab_fim_pre(vocab), llama_vocab_fim_suf(vocab),
                               llama_vocab_fim_mid(vocab), llama_vocab_fim_rep(vocab),
                               llama_vocab_fim_sep(vocab) };
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        *tokens[i] = is_token(model, *tokens[i]) ? *tokens[i] : -1;
    }
}

const struct llama_model *quire_model_llama(const quire_model *model)
{
    return model->llama;
}

const char *quire_model_chat_template(const quire_model *model)
{
    return llama_model_chat_template(model->llama, NULL);
}

/* Zephyr's template, which TinyLlama uses too: every message ends with the EOS token. libllama
 * takes this template for GLM-Edge's, where nothing ends a message, so this function writes the
 * messages itself. */
static bool is_zephyr(const char *chat_template)
{
    return strstr(chat_template, "<|user|>\n' + message['content'] + eos_token") != NULL ||
           strstr(chat_template, "<|user|>\\n' + message['content'] + eos_token") != NULL;
}

typedef struct bounded_text {
    char *buffer;
    size_t cap;
    size_t n_bytes; /* also counts bytes that did not fit */
} bounded_text;

static void add_text(bounded_text *t, const char *text)
{
    size_t n = strlen(text);

    if (t->n_bytes < t->cap) {
        memcpy(t->buffer + t->n_bytes, text, n < t->cap - t->n_bytes ? n : t->cap - t->n_bytes);
    }
    t->n_bytes += n;
}

static int64_t render_zephyr(const quire_model *model, const quire_chat_message *messages,
                             size_t n_messages, bool add_assistant, bounded_text *out)
{
    const int32_t eos = llama_vocab_eos(model->vocab);
    const char *end = is_token(model, eos) ? llama_vocab_get_text(model->vocab, eos) : "";

    for (size_t i = 0; i < n_messages; i++) {
        add_text(out, "<|");
        add_text(out, messages[i].role);
        add_text(out, "|>\n");
        add_text(out, messages[i].content);
        add_text(out, end);
        add_text(out, "\n");
    }
    if (add_assistant) {
        add_text(out, "<|assistant|>\n");
    }
    return (int64_t)out->n_bytes;
}

int64_t quire_model_chat_render(const quire_model *model, const char *chat_template,
                                const quire_chat_message *messages, size_t n_messages,
                                bool add_assistant, char *buffer, size_t cap)
{
    struct llama_chat_message *list;
    int32_t n;

    chat_template = chat_template != NULL ? chat_template : quire_model_chat_template(model);
    QUIRE_FAIL_IF(chat_template == NULL, QUIRE_UNSUPP);
    if (is_zephyr(chat_template)) {
        bounded_text out = { buffer, cap, 0 };

        return render_zephyr(model, messages, n_messages, add_assistant, &out);
    }
    list = calloc(n_messages > 0 ? n_messages : 1, sizeof *list);
    QUIRE_FAIL_IF(list == NULL, QUIRE_NOMEM);
    for (size_t i = 0; i < n_messages; i++) {
        list[i].role = messages[i].role;
        list[i].content = messages[i].content;
    }
    n = llama_chat_apply_template(chat_template, list, n_messages, add_assistant, buffer,
                                  capped(cap));
    free(list);
    return n < 0 ? QUIRE_UNSUPP : n;
}

bool quire_chat_message_instructs(const quire_chat_message *message)
{
    return strcmp(message->role, "system") == 0 || strcmp(message->role, "developer") == 0;
}

bool quire_chat_message_has_calls(const quire_chat_message *message)
{
    return message->extra != NULL && strstr(message->extra, "\"tool_calls\"") != NULL;
}
