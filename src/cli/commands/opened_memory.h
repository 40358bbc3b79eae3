/* opened_memory.h - the context and the KV budget of a session's runtime, by the memory that there
 * is; for opened.c, and those who check the same without loading.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_OPENED_MEMORY_H
#define QUIRE_CLI_OPENED_MEMORY_H

#include "cli/commands/opened.h"

/* Where KV is, for quire_memory_check(). */
static inline const quire_memory_place *quire_opened_place(const quire_opened *session)
{
    return session->device.name != NULL ? &session->device : NULL;
}

/* The trained context, or as much of it as memory up to a limit, and the device, hold. */
uint32_t quire_opened_default_ctx(const quire_opened *session, const quire_runtime_opts *opts,
                                  uint64_t limit_bytes, const quire_memory_place *place);

/* KV of n_tokens, plus each sequence's own memory: its last page, and its first and recent tokens
 * in their hot form. */
uint64_t quire_opened_budget_of(const quire_model_desc *desc, const quire_runtime_opts *opts,
                                uint32_t n_tokens);

/* Set kv_least_bytes for want's policy if opts have a context. opts: with formats and device. */
void quire_opened_least_set(const quire_model_desc *desc, const quire_opened_want *want,
                            quire_runtime_opts *opts);
/* Whether a budget is as large as that. Errors: QUIRE_NOPAGES; err names the policy. */
int quire_opened_least_check(const quire_model_desc *desc, const quire_opened_want *want,
                             const quire_runtime_opts *opts, quire_error *err);

/* Set the KV budget to a share of the memory that weights and buffers leave, and a context that
 * fits beside QUIRE_CACHED_STATES_DEFAULT states. Errors: QUIRE_NOMEM. */
int quire_opened_share_memory(const quire_opened *session, double share, quire_runtime_opts *opts,
                              quire_error *err);

/* Bytes by which weights, buffers and all of the KV budget are more than the host's memory limit;
 * 0: they fit. The check of a plan counts what running sequences can take, and cached texts fill
 * the rest of a server's budget. */
uint64_t quire_opened_budget_excess(const quire_opened *session, const quire_runtime_opts *opts);

/* A KV budget may be larger than all memory: then nothing is left. */
static inline uint64_t quire_rest_of(uint64_t bytes, uint64_t taken)
{
    return bytes > taken ? bytes - taken : 0;
}

#endif /* QUIRE_CLI_OPENED_MEMORY_H */
