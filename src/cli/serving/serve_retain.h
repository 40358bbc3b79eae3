/* serve_retain.h - --retain and --retain-chunk of quire serve.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_RETAIN_H
#define QUIRE_CLI_SERVE_RETAIN_H

#include "cli/serving/serve_args.h"

/* Set the policy of requests that name none; opts has its other fields. Errors: QUIRE_INVAL (the
 * policy; --context-overflow), those of quire_condensing_policy_check(). */
int quire_serve_retain_read(const quire_serve_args *args, quire_server_opts *opts,
                            quire_error *err);

/* --retain-chunk, rounded up to whole pages. */
uint32_t quire_serve_retain_chunk(const quire_serve_args *args);

#endif /* QUIRE_CLI_SERVE_RETAIN_H */
