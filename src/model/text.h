/* text.h - a model's text: tokens of a text, bytes of a token, chat templates, UTF-8 streams.
 *
 * Thread: any; each call is independent.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_TEXT_H
#define QUIRE_MODEL_TEXT_H

#include "model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* With a bound on time, the longest piece of text that goes to a BPE tokenizer at once, because a
 * tokenizer cannot be stopped inside a piece (times: bench/results/tokenize.md). Ordinary text has
 * pieces of 64 KiB: see bpe_cut.c. */
#define QUIRE_TOKENIZE_PIECE_BYTES_MAX ((size_t)2 << 20)
/* With a bound on time, the most characters that the pre-tokenizer may look at again in a piece.
 * DeepSeek LLM's pre-tokenizer does so in runs of blanks: a run of 8,192 reaches the bound. */
#define QUIRE_TOKENIZE_SQUARES_MAX ((uint64_t)1 << 26)
/* The time that a server allows for tokenizing one text. */
#define QUIRE_TOKENIZE_TIME_MAX_S 30u

typedef struct quire_tokenize_opts {
    bool add_special;    /* BOS and EOS, where the vocabulary says so */
    bool parse_special;  /* control tokens too, not only user-defined ones */
    size_t tokens_max;   /* 0 = any number */
    uint32_t time_max_s; /* 0 = any time */
    /* Asked between pieces of some milliseconds, on a thread of the call; NULL = never. */
    bool (*is_canceled)(void *ctx);
    void *ctx;
} quire_tokenize_opts;

/* Token ids of text, which may be any bytes. Bytes that are no UTF-8 become byte tokens (SPM) or
 * U+FFFD (BPE). The ids are those of libllama, in linear time (SPM: n log n in one word). Memory:
 * free(*tokens); NULL after an error. Errors: QUIRE_RANGE (more than tokens_max, known as soon as
 * it is certain), QUIRE_CANCELED, QUIRE_LIMIT (2 GiB; time_max_s, and with it
 * QUIRE_TOKENIZE_PIECE_BYTES_MAX and QUIRE_TOKENIZE_SQUARES_MAX), QUIRE_NOMEM (also: no thread, or
 * no address space for its stack); err, which may be NULL, says which. Thread: any with a stack of
 * 128 KiB; blocks until done. */
int quire_model_tokenize_all(const quire_model *model, const char *text, size_t text_bytes,
                             const quire_tokenize_opts *opts, int32_t **tokens, size_t *n_tokens,
                             quire_error *err);

/* The end of a text: from the last special token on that begins at most at `from`. Its tokens are
 * the last tokens of the whole text. Without such a special token, or with one at the beginning of
 * the text, begin is 0, and the result has all tokens of the text. Otherwise as
 * quire_model_tokenize_all().
 * Cost: as long as the end, and a search for special tokens in the whole text. */
typedef struct quire_text_from {
    const char *data; /* [n] */
    size_t n;
    size_t from;
} quire_text_from;
typedef struct quire_tokenized {
    int32_t *tokens; /* [n]; free() */
    size_t n;
    size_t begin; /* bytes of text before them */
} quire_tokenized;
int quire_model_tokenize_end(const quire_model *model, const quire_text_from *text,
                             const quire_tokenize_opts *opts, quire_tokenized *out,
                             quire_error *err);

/* Tokens of a text into a buffer, without bounds. Returns the number of tokens, also when it
 * exceeds cap (then nothing is written), or an error of the above. */
int64_t quire_model_tokenize(const quire_model *model, const char *text, size_t text_bytes,
                             bool add_special, bool parse_special, int32_t *tokens, size_t cap);

/* Bytes of one token, without a terminator; the count as above. is_special renders control
 * tokens as text. */
int64_t quire_model_token_text(const quire_model *model, int32_t token, bool is_special,
                               char *buffer, size_t cap);

bool quire_model_is_eog(const quire_model *model, int32_t token);
/* Whether the tokenizer takes this token out of a prompt as a whole before it splits the remaining
 * text. */
bool quire_model_is_special(const quire_model *model, int32_t token);
/* Whether such a token swallows white space before it, and behind it. */
bool quire_model_strips_before(const quire_model *model, int32_t token);
bool quire_model_strips_behind(const quire_model *model, int32_t token);
bool quire_model_adds_bos(const quire_model *model);
int32_t quire_model_bos(const quire_model *model); /* -1 if none */
int32_t quire_model_eos(const quire_model *model); /* the end of a text; -1 if none */

/* Tokens for filling in the middle of a text: those that the file names
 * (tokenizer.ggml.fim_pre_token_id, ...), or whose texts libllama knows ("<|fim_prefix|>", ...). -1
 * = none. */
typedef struct quire_fim_tokens {
    int32_t prefix;
    int32_t suffix;
    int32_t middle;
    int32_t repo; /* the name of a repository follows */
    int32_t file; /* the name of a file and its text follow */
} quire_fim_tokens;
void quire_model_fim(const quire_model *model, quire_fim_tokens *out);

/* The template in the file (tokenizer.chat_template), NULL if none. */
const char *quire_model_chat_template(const quire_model *model);

/* A message. extra: the other fields of an OpenAI message as a JSON object, NULL if there are none:
 * "tool_calls" [{"id", "type": "function", "function": {"name", "arguments"}}] and
 * "reasoning_content" of an assistant, "tool_call_id" and "name" of a tool. Built-in templates
 * render role and content only. */
typedef struct quire_chat_message {
    const char *role;
    const char *content;
    const char *extra;
} quire_chat_message;

/* Whether a message instructs the model and is no part of a turn: its role is "system", or
 * "developer", the newer name. */
bool quire_chat_message_instructs(const quire_chat_message *message);
/* Whether a message has calls of tools. */
bool quire_chat_message_has_calls(const quire_chat_message *message);

/* Render messages with a template name or text (NULL = the model's). Returns the length, also when
 * it exceeds cap; QUIRE_UNSUPP for a template that is not recognised. */
int64_t quire_model_chat_render(const quire_model *model, const char *chat_template,
                                const quire_chat_message *messages, size_t n_messages,
                                bool add_assistant, char *buffer, size_t cap);

/* Incremental bytes -> text: holds back an incomplete UTF-8 sequence until it is whole or broken.
 */
typedef struct quire_utf8_stream {
    unsigned char held[4];
    uint32_t n_held;
} quire_utf8_stream;

/* Feed n bytes; writes at most n + 3 bytes of whole UTF-8 to out (invalid bytes become U+FFFD, so
 * give it room for 3 * (n + 3)). Returns the number of bytes written. */
size_t quire_utf8_stream_feed(quire_utf8_stream *stream, const char *bytes, size_t n, char *out);
/* The same without output; false when the bytes do not continue the text as UTF-8 (the stream is
 * then of no more use).
 */
bool quire_utf8_stream_skip(quire_utf8_stream *stream, const char *bytes, size_t n);
/* Flush the held bytes as U+FFFD. */
size_t quire_utf8_stream_flush(quire_utf8_stream *stream, char *out);

#ifdef __cplusplus
}
#endif

#endif /* QUIRE_MODEL_TEXT_H */
