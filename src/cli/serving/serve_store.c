/* serve_store.c - see serve_store.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_store.h"

#include "base/check.h"
#include "store/file/file_store.h"

int quire_serve_store_check(const quire_serve_args *args, quire_error *err)
{
    const uint64_t disk_min = (uint64_t)(QUIRE_FILE_SEGMENTS_MIN + 1) * ((uint64_t)64 << 20);
    const char *needs = NULL;

    if (args->cache_dir != NULL) {
        if (args->no_prefix_cache) {
            return quire_error_set(err, QUIRE_INVAL, "cache_dir needs the prefix cache");
        }
        if (args->cache_disk_bytes < disk_min) {
            return quire_error_set(err, QUIRE_INVAL, "cache_disk: at least %llu bytes are needed",
                                   (unsigned long long)disk_min);
        }
        return QUIRE_OK;
    }
    needs = args->cache_dir_readonly ? "cache_dir_readonly" : needs;
    needs = args->store_all ? "store_all" : needs;
    if (needs != NULL) {
        return quire_error_set(err, QUIRE_INVAL, "%s needs a cache_dir", needs);
    }
    return QUIRE_OK;
}

static void log_trouble(void *ctx, const char *line)
{
    quire_serve_log_line(ctx, QUIRE_LOG_ERRORS, "cache_dir: %s", line);
}

int quire_serve_store_open(quire_store **out, const quire_serve_args *args,
                           const quire_serve_log *log, quire_error *err)
{
    quire_file_store_opts opts = QUIRE_FILE_STORE_OPTS_INIT;

    *out = NULL;
    if (args->cache_dir == NULL) {
        return QUIRE_OK;
    }
    opts.dir = args->cache_dir;
    opts.capacity_bytes = args->cache_disk_bytes;
    opts.write_rate = args->store_write_rate;
    opts.is_readonly = args->cache_dir_readonly;
    opts.log = log_trouble;
    opts.log_ctx = (void *)(uintptr_t)log;
    return quire_file_store_create(out, &opts, err);
}

static void give_back(void *ctx, quire_transfer *transfer)
{
    (void)ctx;
    quire_transfer_free(transfer);
}

void quire_serve_store_close(quire_store *store)
{
    if (store != NULL) {
        store->ops->close(store, give_back, NULL);
    }
}
