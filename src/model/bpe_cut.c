/* bpe_cut.c - places in a text for BPE where its two sides can be tokenized apart.
 *
 * A pre-tokenizer cuts a text into words by regular expressions, and merging stays within words.
 * The expressions of all pre-tokenizers of libllama (llama-vocab.cpp at ggml 0.25.1) were read for
 * places with two properties: a word ends there in any text, and the sides left and right of the
 * place are cut into the same words alone as in the whole text:
 *
 *   newline   x \n | y    One newline behind a character that is no white space. A word continues
 *                          behind the newline only if y is white space, '/' (tekken, gpt-4o:
 *                          "[\r\n/]*"), or a character that BLOOM leaves outside of words:
 *                          "(|.,!?" and their like in other scripts. So y is none of these.
 *   blank     x | ' ' y    One blank between characters that are no white space. The blank is a run
 *                          of white space by itself, so no other character changes where the run
 *                          ends. Words begin with the blank ("\s?\p{L}+"), or stand on both sides
 *                          of it. One of x and y is no punctuation, because DeepSeek Coder and
 *                          BLOOM leave punctuation outside of words. If x is punctuation, y is a
 *                          letter, because DeepSeek Coder splits off digits last.
 *
 * SuperBPE joins words across newlines and blanks. EXAONE-MoE, Gemma 4, Granite's embedding model
 * of 311M and Sarvam join words across blanks.
 *
 * Three expressions try the rest of a run from each of its characters: "\s+$" of DeepSeek LLM and
 * "\s*[\r\n]+" before "\s{512}" of Jais 2 in runs of white space, "(?=(\d{3})+(?!\d))" of SuperBPE
 * in runs of digits.
 *
 * SPDX-License-Identifier: MIT */
#include "model/tokenizer.h"

#include <string.h>

void quire_bpe_cut_init(quire_bpe_cut *cut, const char *pre)
{
    static const char *const no_blanks[] = { "superbpe", "exaone-moe", "gemma4",
                                             "granite-embed-multi-311m", "sarvam-moe" };

    *cut = (quire_bpe_cut){ .has_newline = strcmp(pre, "superbpe") != 0, .has_blank = true };
    for (size_t i = 0; i < sizeof(no_blanks) / sizeof(no_blanks[0]); i++) {
        if (strcmp(pre, no_blanks[i]) == 0) {
            cut->has_blank = false;
        }
    }
    cut->is_byte_level = strcmp(pre, "gemma4") != 0 && strcmp(pre, "sarvam-moe") != 0 &&
                         strcmp(pre, "granite-embed-multi-311m") != 0;
    cut->has_slow_blanks = strcmp(pre, "deepseek-llm") == 0 || strcmp(pre, "jais-2") == 0;
    cut->chars_per_scan = strcmp(pre, "jais-2") == 0 ? 512 : 1;
    cut->has_slow_digits = strcmp(pre, "superbpe") == 0;
}

static bool is_letter(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static bool is_alnum(char c)
{
    return (c >= '0' && c <= '9') || is_letter(c);
}

static bool is_graph(char c)
{
    return c >= '!' && c <= '~';
}

/* A first byte of characters that are no white space and no punctuation of BLOOM's: U+00C0 to
 * U+05FF, U+4000 to U+DFFF. */
static bool is_plain_lead(char c)
{
    const unsigned char byte = (unsigned char)c;

    return (byte >= 0xc3 && byte <= 0xd7) || (byte >= 0xe4 && byte <= 0xed);
}

/* Whether the character that ends before text[end] is no white space. */
static bool is_solid_before(const char *text, size_t end)
{
    const unsigned char last = (unsigned char)text[end - 1];

    if (last < 0x80) {
        return is_graph(text[end - 1]);
    }
    /* White space of more than one byte begins with C2, E1, E2, E3. */
    for (size_t n = 2; n <= 4 && n <= end; n++) {
        const unsigned char lead = (unsigned char)text[end - n];

        if (lead >= 0xc0) {
            return lead != 0xc2 && (lead < 0xe1 || lead > 0xe3);
        }
    }
    return false;
}

/* Whether the text can be cut before text[at]; 2 <= at, at + 1 < n_bytes. */
static bool can_cut(const quire_bpe_cut *cut, const char *text, size_t at)
{
    const char before = text[at - 1];
    const char c = text[at];
    const char after = text[at + 1];

    if (cut->has_newline && before == '\n') {
        return is_solid_before(text, at - 1) && (is_alnum(c) || is_plain_lead(c));
    }
    if (cut->has_blank && c == ' ') {
        return (is_alnum(before) && (is_graph(after) || is_plain_lead(after))) ||
               (is_graph(before) && is_letter(after));
    }
    return false;
}

size_t quire_bpe_cut_next(const quire_bpe_cut *cut, const char *text, size_t text_bytes,
                          size_t min_bytes)
{
    for (size_t at = min_bytes > 2 ? min_bytes : 2; at + 1 < text_bytes; at++) {
        if (can_cut(cut, text, at)) {
            return at;
        }
    }
    return text_bytes;
}

/* Bytes of the white space at the beginning of text, newlines aside; 0 = something else. */
static size_t blank_bytes(const char *text, size_t n_bytes)
{
    static const char wide[][4] = {
        "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\xa8",
        "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"
    };

    if (text[0] == ' ' || (text[0] >= '\t' && text[0] < '\r' && text[0] != '\n')) {
        return 1;
    }
    for (size_t i = 0; i < sizeof(wide) / sizeof(wide[0]); i++) {
        const size_t n = strlen(wide[i]);

        if (n <= n_bytes && memcmp(text, wide[i], n) == 0) {
            return n;
        }
    }
    /* U+2000 to U+200A */
    return n_bytes >= 3 && memcmp(text, "\xe2\x80", 2) == 0 && (unsigned char)text[2] <= 0x8a ? 3
                                                                                              : 0;
}

static size_t slow_bytes(const quire_bpe_cut *cut, const char *text, size_t n_bytes)
{
    if (cut->has_slow_digits) {
        return text[0] >= '0' && text[0] <= '9';
    }
    return blank_bytes(text, n_bytes);
}

/* Whether the expression fails at the end of a run, before `next`, and then tries the rest of the
 * run again. "\s+$" fails before letters, punctuation and newlines, which are cut off first. */
static bool is_slow_end(const quire_bpe_cut *cut, const char *next, size_t n_bytes)
{
    if (!cut->has_slow_blanks) {
        return true;
    }
    if (cut->chars_per_scan > 1) {
        return n_bytes == 0 || (*next != '\r' && *next != '\n');
    }
    return n_bytes > 0 && *next != '\r' && *next != '\n' &&
           (!is_graph(*next) || (*next >= '0' && *next <= '9'));
}

uint64_t quire_bpe_cut_squares(const quire_bpe_cut *cut, const char *text, size_t text_bytes)
{
    uint64_t squares = 0;
    uint64_t run = 0;

    if (!cut->has_slow_blanks && !cut->has_slow_digits) {
        return 0;
    }
    for (size_t i = 0; i <= text_bytes;) {
        const size_t n = i < text_bytes ? slow_bytes(cut, text + i, text_bytes - i) : 0;

        if (n == 0 && run > 0 && is_slow_end(cut, text + i, text_bytes - i)) {
            squares += run * run;
        }
        run = n > 0 ? run + 1 : 0;
        i += n > 0 ? n : 1;
    }
    return squares / cut->chars_per_scan;
}
