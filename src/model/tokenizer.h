/* tokenizer.h - the parts that tokenize.c puts together; for src/model and its tests.
 *
 *   text -> special_split.c -> special tokens and the texts between them (fragments)
 *   a fragment of an SPM vocabulary -> spm.c
 *   a fragment of a BPE vocabulary -> bpe_cut.c cuts it into pieces -> libllama, piece by piece
 *   a fragment of another vocabulary -> libllama
 *
 * libllama's own split takes time quadratic in the number of special tokens. Its SPM tokenizer
 * takes time quadratic in the number of characters that are no tokens. The parts below give the
 * same tokens in linear time (SPM: n log n in one word).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_TOKENIZER_H
#define QUIRE_MODEL_TOKENIZER_H

#include "model/text.h"
#include "model/token_order.h"

#include <llama.h>

/* ---- tokenize.c ---- */

typedef struct quire_tokenizer quire_tokenizer;

/* Facts about a vocabulary that tokenizing needs beside libllama's. pre: tokenizer.ggml.pre, "" if
 * absent. vocab must outlive it. Errors: QUIRE_NOMEM, QUIRE_LIMIT (texts above 2 GiB in all). */
int quire_tokenizer_create(quire_tokenizer **out, const struct llama_vocab *vocab, const char *pre);
void quire_tokenizer_destroy(quire_tokenizer *tokenizer);

/* The vocabulary in the order of its texts, made at the first call. Memory: the tokenizer's.
 * Thread: any. Errors: QUIRE_NOMEM. */
int quire_tokenizer_order(quire_tokenizer *tokenizer, const quire_token_order **out);

/* The conditions for stopping early. */
typedef struct quire_tokenize_watch {
    const quire_tokenize_opts *opts;
    uint64_t deadline_ns; /* of quire_clock_ns() */
} quire_tokenize_watch;

/* QUIRE_OK; QUIRE_CANCELED; QUIRE_LIMIT: the time is over. To be called every
 * QUIRE_TOKENIZE_STEPS steps of some ten nanoseconds each. */
int quire_tokenize_watch_check(const quire_tokenize_watch *watch);
#define QUIRE_TOKENIZE_STEPS 65536u

/* Tokens so far; opts->tokens_max bounds them. */
typedef struct quire_token_list {
    int32_t *tokens;
    size_t n;
    size_t cap;
    size_t tokens_max; /* SIZE_MAX = any number */
} quire_token_list;

/* Errors: QUIRE_NOMEM, QUIRE_RANGE (tokens_max). */
int quire_token_list_add(quire_token_list *list, int32_t token);

/* ---- special_split.c ---- */

/* Bytes [begin, end) of a text: a special token, or text (token -1). */
typedef struct quire_fragment {
    uint32_t begin, end;
    int32_t token;
} quire_fragment;

typedef struct quire_specials quire_specials;

int quire_specials_create(quire_specials **out, const struct llama_vocab *vocab);
void quire_specials_destroy(quire_specials *specials);

/* Split a text of at most INT32_MAX bytes at its special tokens as libllama does: longer ones
 * first, each from left to right; white space that a token swallows is in no fragment. Without
 * parse_special only user-defined tokens count. Memory: free(*out). Errors: QUIRE_NOMEM, those of
 * the watch. Cost: linear; for each length of special tokens in the text, a pass over the places
 * where one may begin. */
int quire_specials_split(const quire_specials *specials, const char *text, size_t text_bytes,
                         const quire_tokenize_watch *watch, quire_fragment **out, size_t *n_out);

/* ---- special_order.c ---- */

typedef struct quire_special {
    int32_t id;
    uint32_t n_bytes;
    const char *text;
    int32_t shorter; /* the longest special token that this one begins with; -1 = none */
    uint32_t group;  /* number of those with its length */
    bool is_control; /* counts with parse_special only */
    bool strips_left, strips_right;
} quire_special;

/* The work of orders that a vocabulary may cost: texts that libllama is asked about, times the
 * special tokens that it looks for in each. About a second. */
#define QUIRE_SPECIAL_WORK_MAX ((uint64_t)1 << 25)
typedef struct quire_special_work {
    uint32_t n_specials; /* of all lengths */
    uint64_t left;
} quire_special_work;

/* Order special tokens of one length, which are sorted by id, as libllama takes them from a text.
 * libllama's sort leaves specials of equal length in no defined order. So libllama is asked about
 * pairs of specials in which one can end where the other begins, as far as the work allows.
 * *is_ordered says whether such pairs exist; without any, the order does not matter. Errors:
 * QUIRE_NOMEM. */
int quire_specials_order(const struct llama_vocab *vocab, quire_special *specials, uint32_t n,
                         quire_special_work *work, bool *is_ordered);

/* ---- spm.c ---- */

typedef struct quire_spm quire_spm;

int quire_spm_create(quire_spm **out, const struct llama_vocab *vocab);
void quire_spm_destroy(quire_spm *spm);
/* The tokens of a text without special tokens, with a blank before it where the vocabulary says so.
 * Errors: QUIRE_NOMEM, QUIRE_RANGE, QUIRE_UNSUPP (no token for a byte), those of the watch. */
int quire_spm_tokenize(const quire_spm *spm, const char *text, size_t text_bytes,
                       const quire_tokenize_watch *watch, quire_token_list *list);

/* ---- bpe_cut.c ---- */

/* The places at which the pre-tokenizer of a BPE vocabulary can be stopped and started again. */
typedef struct quire_bpe_cut {
    bool has_newline;   /* behind a newline */
    bool has_blank;     /* before a blank between words */
    bool is_byte_level; /* tokens are written in GPT-2's characters for bytes */
    /* Kinds of characters: after every chars_per_scan of them, the pre-tokenizer looks at the rest
     * of their run again. */
    bool has_slow_blanks, has_slow_digits;
    uint32_t chars_per_scan;
} quire_bpe_cut;

void quire_bpe_cut_init(quire_bpe_cut *cut, const char *pre);

/* The length of the first piece of a text. The piece has at least min_bytes (if the text has as
 * many), and ends at the first place behind them at which the tokens of both sides together are the
 * tokens of the whole text. */
size_t quire_bpe_cut_next(const quire_bpe_cut *cut, const char *text, size_t text_bytes,
                          size_t min_bytes);

/* The number of characters that the pre-tokenizer looks at again, in runs whose time grows with the
 * square of their length; 0 without such runs. */
uint64_t quire_bpe_cut_squares(const quire_bpe_cut *cut, const char *text, size_t text_bytes);

#endif /* QUIRE_MODEL_TOKENIZER_H */
