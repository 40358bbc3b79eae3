/* hub.h - the hub's list of a repository's files, and the token for requests.
 *
 * GET HUB/api/models/OWNER/REPO/tree/REVISION?recursive=true lists files with their sizes; large
 * ones have lfs.oid, their sha256, others oid, the hash of a git blob. A long list comes in pages,
 * by rel="next" in Link. HUB/OWNER/REPO/resolve/REVISION/FILE is a file.
 *
 * Thread: the main thread (environment).
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_HUB_H
#define QUIRE_CLI_HUB_H

#include "cli/pull/http_transfer.h"
#include "cli/pull/model_files.h"
#include "cli/pull/model_name.h"

#define QUIRE_HUB_REPLY_BYTES_MAX ((size_t)16 << 20) /* of one page of a list */
#define QUIRE_HUB_PAGES_MAX       64u
#define QUIRE_HUB_TOKEN_MAX       512u

/* Options that all requests of a pull share. */
typedef struct quire_hub_opts {
    const char *token_file; /* NULL = none */
    uint32_t stall_s;
    quire_retry retry; /* copied for each request */
} quire_hub_opts;

/* The token: of token_file, else HF_TOKEN, else the file HF_TOKEN_PATH, else the file token in
 * HF_HOME or ~/.cache/huggingface. *has_token is false when there is none. Errors: QUIRE_IO
 * (token_file cannot be read), QUIRE_INVAL (not a token); err never has the token. */
int quire_hub_token(const char *token_file, char buffer[QUIRE_HUB_TOKEN_MAX], bool *has_token,
                    quire_error *err);

/* The GGUF files of a name's repository and revision. Files whose paths are not safe are left out.
 * token: NULL = none. Errors: quire_transfer_run(), QUIRE_CORRUPT (no list), QUIRE_LIMIT.
 * Memory: quire_model_files_fini(). */
int quire_hub_files(const quire_model_name *name, const char *token, const quire_hub_opts *opts,
                    quire_model_files *out, quire_error *err);

/* The URL of a file. Errors: QUIRE_LIMIT. */
int quire_hub_file_url(const quire_model_name *name, const char *file,
                       char buffer[QUIRE_NAME_URL_MAX], quire_error *err);

#endif /* QUIRE_CLI_HUB_H */
