/* tokenize.c - text to tokens: special tokens, then the texts between them, piece by piece.
 *
 * For most BPE vocabularies libllama splits text with std::regex (unicode.cpp at ggml 0.25.1),
 * which recurses once per character of a match: 30,000 letters in a row overflow a stack of 8 MiB.
 * So all but short pieces go to a thread of their own, with a stack as large as the longest piece
 * can need. Only the used part of the stack takes memory: 12 KiB for ordinary text.
 *
 * SPDX-License-Identifier: MIT */
#include "model/model_internal.h"
#include "model/text.h"
#include "model/tokenizer.h"

#include "base/check.h"
#include "base/clock.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Stack per character, measured with gcc 12's libstdc++ for runs of letters, digits, spaces and
 * marks under the patterns of 27 pre-tokenizers: 320 bytes at -O2 and -O3, at most 416 at -O0 and
 * -O1; clang 14 takes 192. A character has at least one byte. */
#define STACK_BYTES_PER_BYTE 1024
/* Stack for all other needs: 12 KiB were measured. */
#define STACK_BYTES_BASE ((size_t)1 << 20)
/* Unmapped below the stack; a whole number of pages wherever pages have at most 64 KiB. */
#define STACK_GUARD_BYTES ((size_t)1 << 16)
/* Pieces up to this length need about 40 KiB, which every thread's stack has. The smallest default
 * in use, musl's, is 128 KiB. Of such a stack glibc takes 66 KiB for ggml's thread-local variables
 * if ggml is compiled for AMX. */
#define PLAIN_BYTES_MAX 64

/* The length of pieces: short enough that a cancelled request ends within milliseconds, long enough
 * to hide the cost of a call (up to 1 ms if regular expressions are compiled). */
#define PIECE_BYTES ((size_t)1 << 16)
/* The most tokens of a byte of text: U+FFFD for a byte that is no UTF-8, and U+2581 for a blank,
 * are three bytes long. */
#define TOKENS_PER_BYTE_MAX 3u

struct quire_tokenizer {
    const struct llama_vocab *vocab;
    enum llama_vocab_type type;
    quire_specials *specials;
    quire_spm *spm; /* NULL for other types */
    quire_bpe_cut cut;
    _Atomic(quire_token_order *) order; /* NULL until it is needed */
    /* No token stands for more bytes of text; SIZE_MAX = not known. */
    size_t token_bytes_max;
};

typedef struct tokenizing {
    const quire_tokenizer *tokenizer;
    quire_tokenize_watch watch;
    const char *text;
    size_t n_bytes;
    quire_fragment *fragments;
    size_t n_fragments;
    size_t first;           /* the fragment that the tokens begin with */
    size_t piece_bytes_max; /* of all pieces for libllama */
    quire_token_list list;
    int rc;
} tokenizing;

/* ---- facts about the vocabulary ---- */

/* The code of a text of one character below U+0800, as GPT-2 writes bytes; -1 for others. */
static int byte_character(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;

    if (at[0] != 0 && at[0] < 0x80 && at[1] == 0) {
        return at[0];
    }
    if ((at[0] & 0xe0) == 0xc0 && (at[1] & 0xc0) == 0x80 && at[2] == 0) {
        return (at[0] & 0x1f) << 6 | (at[1] & 0x3f);
    }
    return -1;
}

/* Byte-level texts have a character for each byte. If a byte has no token, no token stands for the
 * byte, so the number of tokens has no lower bound. */
static size_t bpe_token_bytes_max(const struct llama_vocab *vocab)
{
    const int32_t n_vocab = llama_vocab_n_tokens(vocab);
    bool is_there[0x144] = { false }; /* U+0021 .. U+007E, U+00A1 .. U+00FF, U+0100 .. U+0143 */
    size_t n_there = 0;
    size_t bytes_max = 1;

    for (int32_t id = 0; id < n_vocab; id++) {
        const char *text = llama_vocab_get_text(vocab, id);
        const int code = byte_character(text);
        size_t n = 0;

        for (size_t i = 0; text[i] != '\0'; i++) {
            n += ((unsigned char)text[i] & 0xc0) != 0x80;
        }
        bytes_max = n > bytes_max ? n : bytes_max;
        if (((code >= 0x21 && code <= 0x7e) || (code >= 0xa1 && code < 0x144 && code != 0xad)) &&
            !is_there[code]) {
            is_there[code] = true;
            n_there++;
        }
    }
    return n_there == 256 ? bytes_max : SIZE_MAX;
}

int quire_tokenizer_create(quire_tokenizer **out, const struct llama_vocab *vocab, const char *pre)
{
    quire_tokenizer *t = calloc(1, sizeof(*t));
    int rc;

    *out = NULL;
    QUIRE_FAIL_IF(t == NULL, QUIRE_NOMEM);
    t->vocab = vocab;
    atomic_init(&t->order, NULL);
    t->type = llama_vocab_type(vocab);
    t->token_bytes_max = SIZE_MAX;
    rc = quire_specials_create(&t->specials, vocab);
    if (rc == QUIRE_OK && t->type == LLAMA_VOCAB_TYPE_SPM) {
        rc = quire_spm_create(&t->spm, vocab);
    }
    if (rc == QUIRE_OK && t->type == LLAMA_VOCAB_TYPE_BPE) {
        quire_bpe_cut_init(&t->cut, pre);
        t->token_bytes_max = t->cut.is_byte_level ? bpe_token_bytes_max(vocab) : SIZE_MAX;
    }
    if (rc < 0) {
        quire_tokenizer_destroy(t);
        return rc;
    }
    *out = t;
    return QUIRE_OK;
}

void quire_tokenizer_destroy(quire_tokenizer *tokenizer)
{
    if (tokenizer == NULL) {
        return;
    }
    quire_spm_destroy(tokenizer->spm);
    quire_specials_destroy(tokenizer->specials);
    quire_token_order_destroy(atomic_load(&tokenizer->order));
    free(tokenizer);
}

int quire_tokenizer_order(quire_tokenizer *tokenizer, const quire_token_order **out)
{
    quire_token_order *order = atomic_load(&tokenizer->order);
    quire_token_order *other = NULL;

    if (order == NULL) {
        QUIRE_TRY(quire_token_order_create(&order, tokenizer->vocab));
        if (!atomic_compare_exchange_strong(&tokenizer->order, &other, order)) {
            quire_token_order_destroy(order); /* another thread was first */
            order = other;
        }
    }
    *out = order;
    return QUIRE_OK;
}

int quire_model_tokenizer_create(quire_model *model, quire_error *err)
{
    char pre[64] = "", kind[64] = "";
    int rc;

    (void)llama_model_meta_val_str(model->llama, "tokenizer.ggml.model", kind, sizeof(kind));
    (void)llama_model_meta_val_str(model->llama, "tokenizer.ggml.pre", pre, sizeof(pre));
    if (strcmp(kind, "gemma4") == 0) { /* libllama reads no pre-tokenizer then */
        (void)snprintf(pre, sizeof(pre), "%s", kind);
    }
    rc = quire_tokenizer_create(&model->tokenizer, model->vocab, pre);
    return rc < 0 ? quire_error_set(err, rc, "no memory for the tokenizer") : QUIRE_OK;
}

/* ---- bounds ---- */

int quire_tokenize_watch_check(const quire_tokenize_watch *watch)
{
    const quire_tokenize_opts *opts = watch->opts;

    QUIRE_FAIL_IF(opts->is_canceled != NULL && opts->is_canceled(opts->ctx), QUIRE_CANCELED);
    QUIRE_FAIL_IF(opts->time_max_s > 0 && quire_clock_ns() > watch->deadline_ns, QUIRE_LIMIT);
    return QUIRE_OK;
}

/* Room for n more tokens than there are. */
static int list_reserve(quire_token_list *list, size_t n)
{
    size_t cap = list->cap > 0 ? list->cap : 64;
    int32_t *more;

    while (cap - list->n < n) {
        cap *= 2;
    }
    if (cap == list->cap) {
        return QUIRE_OK;
    }
    more = realloc(list->tokens, cap * sizeof(*more));
    QUIRE_FAIL_IF(more == NULL, QUIRE_NOMEM);
    list->tokens = more;
    list->cap = cap;
    return QUIRE_OK;
}

int quire_token_list_add(quire_token_list *list, int32_t token)
{
    QUIRE_FAIL_IF(list->n >= list->tokens_max, QUIRE_RANGE);
    QUIRE_TRY(list_reserve(list, 1));
    list->tokens[list->n++] = token;
    return QUIRE_OK;
}

/* ---- pieces for libllama ---- */

/* The length of the piece at `begin`; end: that of its fragment. */
static size_t piece_bytes(const tokenizing *z, size_t begin, size_t end)
{
    if (z->tokenizer->type != LLAMA_VOCAB_TYPE_BPE) {
        return end - begin;
    }
    return quire_bpe_cut_next(&z->tokenizer->cut, z->text + begin, end - begin, PIECE_BYTES);
}

static int piece_check(const tokenizing *z, size_t begin, size_t n, quire_error *err)
{
    uint64_t squares;

    if (z->tokenizer->type != LLAMA_VOCAB_TYPE_BPE || z->watch.opts->time_max_s == 0) {
        return QUIRE_OK;
    }
    if (n > QUIRE_TOKENIZE_PIECE_BYTES_MAX) {
        return quire_error_set(
            err, QUIRE_LIMIT,
            "the text has %zu bytes without a blank or newline between words; at "
            "most %zu can be tokenized",
            n, QUIRE_TOKENIZE_PIECE_BYTES_MAX);
    }
    squares = quire_bpe_cut_squares(&z->tokenizer->cut, z->text + begin, n);
    if (squares > QUIRE_TOKENIZE_SQUARES_MAX) {
        return quire_error_set(err, QUIRE_LIMIT,
                               "the text has runs of %s whose squared lengths add up to %" PRIu64
                               "; this model's tokenizer can do %" PRIu64,
                               z->tokenizer->cut.has_slow_digits ? "digits" : "blanks", squares,
                               QUIRE_TOKENIZE_SQUARES_MAX);
    }
    return QUIRE_OK;
}

/* Check the pieces before any is tokenized: their lengths, and the least number of their tokens. */
static int pieces_check(tokenizing *z, quire_error *err)
{
    size_t tokens_min = 0;

    for (size_t i = z->first; i < z->n_fragments && z->tokenizer->spm == NULL; i++) {
        const quire_fragment *fragment = &z->fragments[i];

        for (size_t at = fragment->begin; fragment->token < 0 && at < fragment->end;) {
            const size_t n = piece_bytes(z, at, fragment->end);

            QUIRE_TRY(piece_check(z, at, n, err));
            z->piece_bytes_max = n > z->piece_bytes_max ? n : z->piece_bytes_max;
            at += n;
            tokens_min += n / z->tokenizer->token_bytes_max;
        }
        tokens_min += fragment->token >= 0;
    }
    return tokens_min > z->list.tokens_max ? QUIRE_RANGE : QUIRE_OK;
}

static int piece_tokenize(tokenizing *z, size_t begin, size_t n)
{
    quire_token_list *list = &z->list;
    size_t cap = n * TOKENS_PER_BYTE_MAX + 8;

    QUIRE_TRY(quire_tokenize_watch_check(&z->watch));
    for (;;) {
        int32_t n_tokens;

        QUIRE_TRY(list_reserve(list, cap));
        cap = list->cap - list->n;
        n_tokens =
            llama_tokenize(z->tokenizer->vocab, z->text + begin, (int32_t)n, list->tokens + list->n,
                           cap > INT32_MAX ? INT32_MAX : (int32_t)cap, false, false);
        QUIRE_FAIL_IF(n_tokens == INT32_MIN, QUIRE_LIMIT);
        if (n_tokens >= 0) {
            QUIRE_FAIL_IF((size_t)n_tokens > list->tokens_max - list->n, QUIRE_RANGE);
            list->n += (size_t)n_tokens;
            return QUIRE_OK;
        }
        cap = (size_t) - (int64_t)n_tokens; /* so many it needs */
    }
}

static int fragment_tokenize(tokenizing *z, const quire_fragment *fragment)
{
    const quire_tokenizer *t = z->tokenizer;
    size_t n;

    if (fragment->token >= 0) {
        return quire_token_list_add(&z->list, fragment->token);
    }
    if (t->spm != NULL) {
        return quire_spm_tokenize(t->spm, z->text + fragment->begin,
                                  fragment->end - fragment->begin, &z->watch, &z->list);
    }
    for (size_t at = fragment->begin; at < fragment->end; at += n) {
        n = piece_bytes(z, at, fragment->end);
        QUIRE_TRY(piece_tokenize(z, at, n));
    }
    return QUIRE_OK;
}

static void *fragments_tokenize(void *arg)
{
    tokenizing *z = arg;

    z->rc = QUIRE_OK;
    for (size_t i = z->first; i < z->n_fragments && z->rc == QUIRE_OK; i++) {
        z->rc = fragment_tokenize(z, &z->fragments[i]);
    }
    return NULL;
}

/* ---- the stack ---- */

static int run_on_thread(tokenizing *z, char *stack, size_t stack_bytes)
{
    pthread_attr_t attr;
    pthread_t thread;
    int failed;

    QUIRE_FAIL_IF(pthread_attr_init(&attr) != 0, QUIRE_NOMEM);
    failed = pthread_attr_setstack(&attr, stack, stack_bytes);
    if (failed == 0) {
        failed = pthread_create(&thread, &attr, fragments_tokenize, z);
    }
    (void)pthread_attr_destroy(&attr);
    QUIRE_FAIL_IF(failed != 0, QUIRE_NOMEM);
    (void)pthread_join(thread, NULL);
    return z->rc;
}

/* This function maps the stack itself. Stacks of the thread library count as memory in full, and
 * Linux refuses a stack larger than the machine's memory.
 */
static int run_on_large_stack(tokenizing *z)
{
    const size_t n_bytes = z->piece_bytes_max;
    size_t stack_bytes, map_bytes;
    char *map;
    int rc;

    QUIRE_FAIL_IF(n_bytes > (SIZE_MAX >> 1) / STACK_BYTES_PER_BYTE, QUIRE_NOMEM);
    stack_bytes = STACK_BYTES_BASE + n_bytes * STACK_BYTES_PER_BYTE;
    stack_bytes += (STACK_GUARD_BYTES - stack_bytes % STACK_GUARD_BYTES) % STACK_GUARD_BYTES;
    map_bytes = STACK_GUARD_BYTES + stack_bytes;
    map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    QUIRE_FAIL_IF(map == MAP_FAILED, QUIRE_NOMEM);
    rc = mprotect(map, STACK_GUARD_BYTES, PROT_NONE) == 0 ? QUIRE_OK : QUIRE_NOMEM;
    if (rc == QUIRE_OK) {
        rc = run_on_thread(z, map + STACK_GUARD_BYTES, stack_bytes);
    }
    (void)munmap(map, map_bytes);
    return rc;
}

/* Whether a character beyond U+10FFFF may begin with p[0]: F4 90 .. F4 BF and F5 .. F7 do so. */
static bool is_beyond_unicode(const char *p, size_t n)
{
    const unsigned char lead = (unsigned char)p[0];

    return n >= 2 && (lead > 0xf4 || (lead == 0xf4 && (unsigned char)p[1] >= 0x90));
}

/* libllama's byte-level tokenizers decode such bytes to a character that they throw on when they
 * encode it (unicode.cpp at ggml 0.25.1); any other bytes that are no UTF-8 count as U+FFFD each.
 * The byte FF begins no character, so FF in place of these bytes gives U+FFFD each, too. *copy is
 * NULL when the text needs no change. */
static int text_mend(const char *text, size_t text_bytes, char **copy)
{
    *copy = NULL;
    for (size_t i = 0; i < text_bytes; i++) {
        if (!is_beyond_unicode(text + i, text_bytes - i)) {
            continue;
        }
        if (*copy == NULL) {
            *copy = malloc(text_bytes);
            QUIRE_FAIL_IF(*copy == NULL, QUIRE_NOMEM);
            memcpy(*copy, text, text_bytes);
        }
        (*copy)[i] = (char)0xff;
    }
    return QUIRE_OK;
}

/* ---- whole texts ---- */

/* BOS or EOS, as libllama adds them: WPM texts stand between BOS and SEP, even if the file's flags
 * say otherwise. */
static int end_add(tokenizing *z, bool is_bos)
{
    const struct llama_vocab *vocab = z->tokenizer->vocab;
    const bool is_wpm = z->tokenizer->type == LLAMA_VOCAB_TYPE_WPM;
    int32_t token;

    if (!z->watch.opts->add_special) {
        return QUIRE_OK;
    }
    if (is_bos) {
        token = is_wpm || llama_vocab_get_add_bos(vocab) ? llama_vocab_bos(vocab) : -1;
    } else {
        token = is_wpm                           ? llama_vocab_sep(vocab)
                : llama_vocab_get_add_eos(vocab) ? llama_vocab_eos(vocab)
                                                 : -1;
    }
    return token >= 0 ? quire_token_list_add(&z->list, token) : QUIRE_OK;
}

/* The last special token that begins at most at `from`. */
static void first_find(tokenizing *z, size_t from)
{
    for (size_t i = z->n_fragments; i > 1 && z->first == 0; i--) {
        const quire_fragment *fragment = &z->fragments[i - 1];

        z->first = fragment->token >= 0 && fragment->begin <= from ? i - 1 : 0;
    }
}

static int text_tokenize(tokenizing *z, size_t from, quire_error *err)
{
    QUIRE_TRY(quire_specials_split(z->tokenizer->specials, z->text, z->n_bytes, &z->watch,
                                   &z->fragments, &z->n_fragments));
    first_find(z, from);
    QUIRE_TRY(pieces_check(z, err));
    if (z->first == 0) {
        QUIRE_TRY(end_add(z, true));
    }
    if (z->piece_bytes_max <= PLAIN_BYTES_MAX) {
        (void)fragments_tokenize(z);
        QUIRE_TRY(z->rc);
    } else {
        QUIRE_TRY(run_on_large_stack(z));
    }
    return end_add(z, false);
}

static int failure(const tokenizing *z, int rc, quire_error *err)
{
    const quire_tokenize_opts *opts = z->watch.opts;

    if (err->status == rc) {
        return rc; /* has a message */
    }
    switch (rc) {
    case QUIRE_RANGE:
        return quire_error_set(err, rc, "the text has more than %zu tokens", opts->tokens_max);
    case QUIRE_LIMIT:
        return quire_error_set(err, rc, "%zu bytes of text could not be tokenized in %u s",
                               z->n_bytes, opts->time_max_s);
    case QUIRE_UNSUPP:
        return quire_error_set(err, rc, "the vocabulary lacks tokens for bytes of the text");
    default:
        return quire_error_set(err, rc, "tokenizing %zu bytes of text: %s", z->n_bytes,
                               quire_status_text(rc));
    }
}

int quire_model_tokenize_end(const quire_model *model, const quire_text_from *text,
                             const quire_tokenize_opts *opts, quire_tokenized *out,
                             quire_error *err)
{
    tokenizing z = { .tokenizer = model->tokenizer,
                     .watch = { opts, quire_clock_ns() + opts->time_max_s * UINT64_C(1000000000) },
                     .text = text->data,
                     .n_bytes = text->n,
                     .list = { .tokens_max = opts->tokens_max > 0 ? opts->tokens_max : SIZE_MAX } };
    quire_error local = QUIRE_ERROR_INIT;
    char *copy = NULL;
    int rc = QUIRE_OK;

    *out = (quire_tokenized){ 0 };
    err = err != NULL ? err : &local;
    *err = local;
    if (text->n > INT32_MAX) {
        return quire_error_set(err, QUIRE_LIMIT,
                               "the text has %zu bytes; at most %d can be tokenized", text->n,
                               INT32_MAX);
    }
    if (z.tokenizer->spm == NULL) { /* SPM takes bytes as they are */
        rc = text_mend(text->data, text->n, &copy);
        z.text = copy != NULL ? copy : text->data;
    }
    if (rc == QUIRE_OK) {
        rc = text_tokenize(&z, text->from, err);
    }
    if (rc == QUIRE_OK) {
        *out = (quire_tokenized){ z.list.tokens, z.list.n,
                                  z.first > 0 ? z.fragments[z.first].begin : 0 };
    } else {
        free(z.list.tokens);
        rc = failure(&z, rc, err);
    }
    free(copy);
    free(z.fragments);
    return rc;
}

int quire_model_tokenize_all(const quire_model *model, const char *text, size_t text_bytes,
                             const quire_tokenize_opts *opts, int32_t **tokens, size_t *n_tokens,
                             quire_error *err)
{
    const quire_text_from whole = { text, text_bytes, 0 };
    quire_tokenized made;
    const int rc = quire_model_tokenize_end(model, &whole, opts, &made, err);

    *tokens = made.tokens;
    *n_tokens = made.n;
    return rc;
}

int64_t quire_model_tokenize(const quire_model *model, const char *text, size_t text_bytes,
                             bool add_special, bool parse_special, int32_t *tokens, size_t cap)
{
    const quire_tokenize_opts opts = { .add_special = add_special, .parse_special = parse_special };
    int32_t *all;
    size_t n;

    QUIRE_TRY(quire_model_tokenize_all(model, text, text_bytes, &opts, &all, &n, NULL));
    if (n > 0 && n <= cap) {
        memcpy(tokens, all, n * sizeof(*tokens));
    }
    free(all);
    return (int64_t)n;
}
