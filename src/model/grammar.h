/* grammar.h - checks a client's grammar before libllama sees the grammar.
 *
 * A grammar is written by a client, and libllama (ggml 0.25.1, llama-grammar.cpp) trusts it.
 * libllama prints text that it cannot parse, and recurses once per bracket. It walks the beginnings
 * of rules again and again (2^n steps for "a ::= b | b", "b ::= c | c", ...). It never ends at
 * "x{3,2}" and at a left recursion behind a rule that is only indirectly empty. It takes gigabytes
 * for a long literal repeated 2,000 times. So this module parses and judges the text first, and
 * only a grammar that passes reaches libllama.
 *
 * The language is GBNF: rules "name ::= alternatives", literals, character sets, ".", groups, and
 * the repetitions * + ? {m} {m,} {m,n}. References to tokens (<name>, <[id]>) are refused, because
 * control tokens are no part of the text; so are rules defined twice and empty sets.
 *
 * Ambiguity is not judged. With a grammar that can read a text in exponentially many ways (s ::=
 * "a" s "b" | "a" s "c"), libllama keeps all of them; quire_sampler_pick() gives up when their
 * number grows too large.
 *
 * Thread: any.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_GRAMMAR_H
#define QUIRE_MODEL_GRAMMAR_H

#include "quire/error.h"

#define QUIRE_GRAMMAR_BYTES_MAX  (256u << 10)
#define QUIRE_GRAMMAR_RULES_MAX  8192u /* named ones and groups */
#define QUIRE_GRAMMAR_DEPTH_MAX  128u  /* groups within groups; rules that begin rules */
#define QUIRE_GRAMMAR_REPEAT_MAX 2000u /* libllama's own limit */
#define QUIRE_GRAMMAR_ELEMENTS_MAX                                                                 \
    (256u << 10)                           /* characters and references, repetitions unrolled */
#define QUIRE_GRAMMAR_STEPS_MAX (4u << 20) /* of libllama's search for left recursion */

/* Errors: QUIRE_INVAL (err names the place and the reason), QUIRE_LIMIT (err names the bound),
 * QUIRE_NOMEM. */
int quire_grammar_check(const char *gbnf, quire_error *err);

#endif /* QUIRE_MODEL_GRAMMAR_H */
