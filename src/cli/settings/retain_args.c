/* retain_args.c - --retain and --prefill-chunk beside other options.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/settings/args.h"

#include "base/check.h"
#include "retain/policy.h"

int quire_retain_args_check(const quire_common_args *args, quire_error *err)
{
    quire_error why = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    int rc;

    if (args->retain == NULL) {
        return args->prefill_chunk == 0
                   ? QUIRE_OK
                   : quire_error_set(err, QUIRE_INVAL,
                                     "--prefill-chunk says how often --retain drops tokens: give "
                                     "--retain too");
    }
    rc = quire_retain_parse(args->retain, &spec, &why);
    if (rc < 0) {
        return quire_error_set(err, rc, "--retain %s: %s", args->retain, why.message);
    }
    if (args->cache_dir != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--retain and --cache-dir: the directory holds the KV of all tokens "
                               "of a text, and --retain drops some");
    }
    if (args->kv_history != NULL) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--retain and --kv-history: the history shows pages of all heads, "
                               "and with --retain each head has pages of its own");
    }
    if (args->kv.layers != NULL || args->kv.choice.is_auto) {
        return quire_error_set(err, QUIRE_INVAL,
                               "--retain works with one KV format for all layers: use --kv f32, "
                               "f16, bf16 or q8 instead of %s",
                               args->kv.layers != NULL ? "--kv-layers" : "--kv auto");
    }
    return QUIRE_OK;
}
