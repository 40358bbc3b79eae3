/* overflow_choice.c - see overflow_choice.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/overflow_choice.h"

#include "base/check.h"
#include "engine/context_condense.h"
#include "retain/policy.h"

const char *const quire_overflow_words[] = { "refuse", "shift", "sinks", "condense", NULL };
const char *const quire_overflow_chat_words[] = { "refuse",   "shift",          "sinks",
                                                  "condense", "truncate_turns", NULL };
_Static_assert(sizeof quire_overflow_chat_words / sizeof quire_overflow_chat_words[0] ==
                   QUIRE_OVERFLOW_TURNS + 2,
               "truncate_turns is the last word");

/* Errors: quire_context_condense_policy_check(). */
static int check_policy(const quire_common_args *common, quire_error *err)
{
    quire_retain_spec spec;

    if (common->retain == NULL) {
        return QUIRE_OK;
    }
    QUIRE_TRY(quire_retain_parse(common->retain, &spec, err)); /* checked before */
    return quire_context_condense_policy_check(&spec, "--context-overflow", err);
}

/* Each prompt is a whole text. */
static int check_turns(const quire_overflow_choice *choice, const quire_common_args *common,
                       quire_error *err)
{
    const char *name = quire_overflow_chat_words[choice->how];

    if (common->retain != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--context-overflow %s and --retain: a conversation without its "
                               "oldest turns is another text, which is condensed anew",
                               name);
    }
    return !choice->is_keep_given
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL,
                                 "--context-overflow %s and --context-keep: the system message "
                                 "stays; shift, sinks and condense keep first tokens",
                                 name);
}

int quire_overflow_choice_check(const quire_overflow_choice *choice,
                                const quire_common_args *common, quire_error *err)
{
    const char *name = quire_overflow_chat_words[choice->how];

    if (choice->how == QUIRE_CONTEXT_REFUSE) {
        return QUIRE_OK;
    }
    if (choice->how == QUIRE_OVERFLOW_TURNS) {
        return check_turns(choice, common, err);
    }
    if (choice->how == QUIRE_CONTEXT_CONDENSE) {
        QUIRE_TRY(check_policy(common, err));
    }
    if (common->attend != NULL ||
        (common->retain != NULL && choice->how != QUIRE_CONTEXT_CONDENSE)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--context-overflow %s and --%s: there each head has pages of its "
                               "own, whose tokens do not move; a larger -c costs little with "
                               "--retain, and condense has its policies",
                               name, common->attend != NULL ? "attend" : "retain");
    }
    if (common->cache_dir != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--context-overflow %s and --cache-dir: the directory holds the KV "
                               "of whole texts",
                               name);
    }
    return QUIRE_OK;
}

void quire_overflow_choice_take(quire_overflow_choice *choice, quire_common_args *common)
{
    if (choice->how == QUIRE_CONTEXT_CONDENSE) {
        choice->retain = common->retain; /* the text is whole until its context is full */
        common->retain = NULL;
    }
}

int quire_overflow_choice_apply(const quire_overflow_choice *choice, quire_writer *writer,
                                quire_error *err)
{
    const quire_context_overflow how = choice->how == QUIRE_OVERFLOW_TURNS
                                           ? QUIRE_CONTEXT_REFUSE
                                           : (quire_context_overflow)choice->how;
    quire_retain_spec spec;

    if (choice->retain != NULL) {
        QUIRE_TRY(quire_retain_parse(choice->retain, &spec, err));
        quire_writer_retain_set(writer, &spec);
    }
    return quire_writer_overflow_set(writer, how, (uint32_t)choice->keep, err);
}
