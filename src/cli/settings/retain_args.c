/* retain_args.c - --retain, --prefill-chunk and --attend beside other options.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/args.h"

#include "base/check.h"
#include "retain/page_choice.h"
#include "retain/policy.h"

#include <string.h>

int quire_attend_read(const char *text, double *share, quire_error *err)
{
    return quire_attend_parse(text, share) == QUIRE_OK
               ? QUIRE_OK
               : quire_error_set(err, QUIRE_INVAL,
                                 "--attend %s: top:SHARE is wanted, a share above 0 and at most 1",
                                 text);
}

/* Refuse settings that exclude --retain and --attend, because with these options each page belongs
 * to one lane. */
static int check_lanes(const quire_common_args *args, const char *name, quire_error *err)
{
    if (args->kv_overflow == QUIRE_KV_OVERFLOW_TIER) {
        return quire_error_set(
            err, QUIRE_INVAL,
            "--%s and --kv-overflow tier: with --%s each head has pages of its "
            "own, which all stay in memory%s",
            name, name,
            strcmp(name, "attend") == 0 ? "; quire serve --attend can have pages in a file" : "");
    }
    if (args->cache_dir != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--%s and --cache-dir: the directory holds the KV of all tokens of "
                               "a text, and with --%s each head has pages of its own",
                               name, name);
    }
    if (args->kv_history != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--%s and --kv-history: the history shows pages of all heads, and "
                               "with --%s each head has pages of its own",
                               name, name);
    }
    if (args->kv.layers != NULL || args->kv.choice.is_auto) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--%s works with one pair of KV formats for all layers: use --kv "
                               "with a format instead of %s",
                               name, args->kv.layers != NULL ? "--kv-layers" : "--kv auto");
    }
    return QUIRE_OK;
}

int quire_retain_args_check(const quire_common_args *args, quire_error *err)
{
    quire_error why = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    double share;
    int rc;

    if (args->attend != NULL) {
        QUIRE_TRY(quire_attend_read(args->attend, &share, err));
        QUIRE_TRY(check_lanes(args, "attend", err));
    }
    if (args->retain == NULL) {
        return args->prefill_chunk == 0
                   ? QUIRE_OK
                   : quire_error_set(err, QUIRE_INVAL,
                                     "--prefill-chunk says how often --retain drops tokens: give "
                                     "--retain too");
    }
    rc = quire_retain_parse_lanes(args->retain, &spec, &why);
    if (rc < 0) {
        return quire_error_set(err, rc, "--retain %s: %s", args->retain, why.message);
    }
    return check_lanes(args, "retain", err);
}
