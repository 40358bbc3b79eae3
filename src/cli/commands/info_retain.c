/* info_retain.c - see info_retain.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/commands/info_retain.h"

#include "base/check.h"
#include "model/runtime_rows.h"

int quire_info_retain_read(const char *policy, uint32_t chunk, uint32_t page_tokens,
                           const quire_model_desc *desc, quire_condensing *out, quire_error *err)
{
    const char *fixed = quire_desc_rows_fixed(desc);
    quire_error why = QUIRE_ERROR_INIT;
    quire_retain_spec spec;
    int rc = quire_retain_parse(policy, &spec, &why);

    if (rc < 0) {
        return quire_error_set(err, rc, "--retain %s: %s", policy, why.message);
    }
    QUIRE_TRY(quire_condensing_policy_check(&spec, "--retain", err));
    if (quire_condensing_is_by_lane(&spec)) {
        return quire_error_set(err, QUIRE_UNSUPP,
                               "--retain %s gives each lane a number of tokens of its own: quire "
                               "info shows texts whose lanes keep the same number",
                               policy);
    }
    if (fixed != NULL) {
        return quire_error_set(err, QUIRE_UNSUPP, "--retain %s and %s", policy, fixed);
    }
    quire_condensing_init(out, &spec, (chunk + page_tokens - 1) / page_tokens * page_tokens,
                          page_tokens, NULL);
    return QUIRE_OK;
}

uint32_t quire_info_retain_held(const quire_condensing *c, uint32_t n_tokens)
{
    return n_tokens - quire_condensing_gone(c, quire_condensing_before(c, n_tokens - 1));
}
