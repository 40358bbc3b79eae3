/* opened_retain.h - the part of opened.h that --retain adds.
 *
 * Thread: owner.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_OPENED_RETAIN_H
#define QUIRE_CLI_OPENED_RETAIN_H

#include "cli/commands/opened.h"

/* Positions of the runtime behind the session's context: quire_retention_room(). 0 without
 * --retain. */
uint32_t quire_opened_retain_room(const quire_common_args *args);

/* With --retain: the options of a runtime that keeps a share of the tokens. Errors: those of
 * quire_retention_plan() and quire_predictor_find(), which is asked once a session. */
int quire_opened_retain_plan(quire_opened *session, const quire_common_args *args,
                             const quire_model_desc *desc, quire_runtime_opts *opts,
                             quire_error *err);

/* With --retain: put lanes before the session's runtime, which is closed after a failure. */
int quire_opened_retain_open(quire_opened *session, const quire_common_args *args,
                             quire_error *err);

/* With --retain or --attend: one line on stderr with the policy, the kept share and the most
 * memory, or that all tokens are kept; with --attend also the share of the pages that was read. */
void quire_opened_say_retained(const quire_opened *session);

/* With --retain, the same figures; NULL when out of memory. */
json_t *quire_opened_retained_json(const quire_opened *session);

#endif /* QUIRE_CLI_OPENED_RETAIN_H */
