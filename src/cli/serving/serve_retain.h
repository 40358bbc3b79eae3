/* serve_retain.h - --retain, --retain-chunk and --attend of quire serve.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_RETAIN_H
#define QUIRE_CLI_SERVE_RETAIN_H

#include "cli/commands/opened.h"
#include "cli/serving/serve_args.h"
#include "cli/serving/serve_log.h"

/* Set the policy of requests that name none; opts has its other fields. Errors: QUIRE_INVAL (the
 * policy; --context-overflow), those of quire_condensing_policy_check(). */
int quire_serve_retain_read(const quire_serve_args *args, quire_server_opts *opts,
                            quire_error *err);

/* Set the share of requests that name none; opts has its other fields, the policy too. Errors:
 * QUIRE_INVAL (no share; other options). */
int quire_serve_attend_read(const quire_serve_args *args, quire_server_opts *opts,
                            quire_error *err);

/* Load the maps of `predict`, which requests may ask for too, if there are any. A file that cannot
 * be used is a warning unless --retain is predict. Errors: those of quire_predictor_find(). */
int quire_serve_retain_learn(quire_opened *session, const quire_serve_args *args,
                             const quire_server_opts *opts, const quire_serve_log *log,
                             quire_error *err);

/* Bytes beside KV pages and the buffers of a step: of the policy of requests that name none, or of
 * --attend, for as many requests as run or are parked, and the maps of `predict`, if there are any.
 * session: the described model; it gets the maps. */
uint64_t quire_serve_retain_bytes(quire_opened *session, const quire_serve_args *args,
                                  const quire_server_opts *opts);

/* Whether the described model supports --retain and --attend in a runtime of these options: the
 * engine's own check, before the weights are loaded. Errors: those of quire_predictor_find(),
 * quire_condensing_check() and quire_attending_check(), QUIRE_NOMEM. */
int quire_serve_retain_check(quire_opened *described, const quire_serve_args *args,
                             const quire_server_opts *opts, const quire_runtime_opts *plan,
                             quire_error *err);

/* The KV budget may be as small as the need of a longest text that --retain condenses, if requests
 * that name nothing are condensed on the way. opts: borrowed. */
void quire_serve_retain_want(const quire_serve_args *args, const quire_server_opts *opts,
                             quire_opened_want *want);

/* --retain-chunk, rounded up to whole pages. */
uint32_t quire_serve_retain_chunk(const quire_serve_args *args);

#endif /* QUIRE_CLI_SERVE_RETAIN_H */
