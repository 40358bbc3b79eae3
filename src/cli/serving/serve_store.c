/* serve_store.c - see serve_store.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_store.h"

#include "base/check.h"
#include "base/num.h"
#include "base/parse.h"
#include "cli/commands/device_choice.h"
#include "cli/serving/serve_shared.h"
#include "store/chain_store.h"
#include "store/common_store.h"
#include "store/file/file_store.h"
#include "store/host_store.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CACHE_DISK_DEFAULT (UINT64_C(20) << 30) /* of the table of settings */
#define STATE_SHARE        64u                  /* of cache_disk: the part for state */
#define OVERFLOW_SIZES     8u /* the file for offloaded pages: so many times the KV budget */
#define STATE_COPIES       2u /* of this identity, of other identities */

/* The most bytes of the items of state of one identity. */
static uint64_t state_bytes(const quire_serve_args *args)
{
    return quire_min_u64(QUIRE_SAVER_BYTES, args->cache_disk_bytes / STATE_SHARE);
}

/* The bytes of cache_disk that are left for pages. */
static uint64_t page_bytes(const quire_serve_args *args)
{
    return args->cache_disk_bytes - STATE_COPIES * state_bytes(args);
}

/* Take the next name off a list. Its length; *list is behind it. */
static size_t next_name(const char **list, const char **name)
{
    const size_t n = strcspn(*list, ",");

    *name = *list;
    *list += n + ((*list)[n] == ',');
    return n;
}

static bool is_name(const char *name, size_t n, const char *of)
{
    return strlen(of) == n && strncmp(name, of, n) == 0;
}

static int state_parts(const char *list, bool keeps[QUIRE_STATE_KIND_COUNT], quire_error *err)
{
    static const char *const names[] = { [QUIRE_STATE_SESSION] = "sessions",
                                         [QUIRE_STATE_PIN] = "pins",
                                         [QUIRE_STATE_REUSE] = "reuse" };
    const char *rest = list;

    memset(keeps, 0, QUIRE_STATE_KIND_COUNT * sizeof keeps[0]);
    while (*rest != '\0' && strcmp(list, "none") != 0) {
        const char *name;
        const size_t n = next_name(&rest, &name);
        uint32_t kind = 0;

        while (kind < QUIRE_STATE_KIND_COUNT && !is_name(name, n, names[kind])) {
            kind++;
        }
        if (kind == QUIRE_STATE_KIND_COUNT) {
            return quire_error_set(err, QUIRE_INVAL,
                                   "cache_state '%.60s': it is a list of sessions, pins and "
                                   "reuse, or none",
                                   list);
        }
        keeps[kind] = true;
    }
    return QUIRE_OK;
}

static void log_trouble(void *ctx, const char *line)
{
    quire_serve_log_line(ctx, QUIRE_LOG_ERRORS, "cache_dir: %s", line);
}

int quire_serve_state_read(quire_saver_opts *out, const quire_serve_args *args,
                           const quire_serve_log *log, quire_error *err)
{
    *out = (quire_saver_opts){ .dir = args->cache_dir,
                               .is_readonly = args->cache_dir_readonly,
                               .bytes_max = state_bytes(args),
                               .log = log_trouble,
                               .log_ctx = (void *)(uintptr_t)log };
    return state_parts(args->cache_state, out->keeps, err);
}

bool quire_serve_has_store(const quire_serve_args *args)
{
    return args->cache_dir != NULL || args->store != NULL || args->cache_host_bytes != 0;
}

int quire_serve_host_check(const quire_serve_args *args, quire_error *err)
{
    if (args->is_relay) {
        return QUIRE_OK;
    }
    if (args->cache_host_bytes != 0 && quire_device_is_cpu(args->common.device)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "cache_host_memory needs a device: without one the host's memory is "
                               "the cache's (kv_budget)");
    }
    if (args->cache_host_bytes != 0 && args->no_prefix_cache) {
        return quire_error_set(err, QUIRE_INVAL, "cache_host_memory needs the prefix cache");
    }
    return QUIRE_OK;
}

void quire_serve_device_leave(quire_serve_args *args)
{
    args->common.device = "cpu";
    args->common.device_names = NULL;
    args->common.n_device_names = 0;
    args->common.n_device_layers = 0;
    args->common.split_mode = QUIRE_SPLIT_NONE;
    args->common.tensor_split = NULL;
    args->cache_host_bytes = 0; /* the host's memory is the cache's now */
    args->is_relay = false;
    args->n_cpus = 1;
    args->card = NULL;
    args->n_cards = 0;
    args->common.kv_overflow_attend = QUIRE_OVERFLOW_ATTEND_DEVICE;
}

/* Whether no device has pages in the host's memory below its own. */
static bool has_no_card(const quire_serve_args *args)
{
    return args->card == NULL && quire_device_is_cpu(args->common.device);
}

/* Pages of running requests lie in the host's memory below a device's alone. */
static int attend_check(const quire_serve_args *args, quire_error *err)
{
    const char *choice = quire_kv_overflow_attends[args->common.kv_overflow_attend];

    if (args->common.kv_overflow_attend == QUIRE_OVERFLOW_ATTEND_DEVICE) {
        return QUIRE_OK;
    }
    if (has_no_card(args)) {
        return quire_error_set(err, QUIRE_INVAL,
                               "kv_overflow_attend %s needs a device: without one all pages are "
                               "read by the CPU",
                               choice);
    }
    if (args->common.split_mode != QUIRE_SPLIT_NONE) {
        return quire_error_set(err, QUIRE_INVAL,
                               "kv_overflow_attend %s and split_mode layer: no pages lie outside "
                               "of the devices' memory",
                               choice);
    }
    if (args->common.kv_overflow == QUIRE_KV_OVERFLOW_REFUSE) {
        return quire_error_set(err, QUIRE_INVAL,
                               "kv_overflow_attend %s and kv_overflow refuse: no pages lie in the "
                               "host's memory then",
                               choice);
    }
    return QUIRE_OK;
}

int quire_serve_store_check(const quire_serve_args *args, quire_error *err)
{
    const uint64_t disk_min = (uint64_t)(QUIRE_FILE_SEGMENTS_MIN + 1) * ((uint64_t)64 << 20);
    bool keeps[QUIRE_STATE_KIND_COUNT];
    const char *needs = NULL;

    QUIRE_TRY(quire_serve_host_check(args, err));
    QUIRE_TRY(attend_check(args, err));
    if (args->cache_dir != NULL) {
        if (args->no_prefix_cache) {
            return quire_error_set(err, QUIRE_INVAL, "cache_dir needs the prefix cache");
        }
        if (page_bytes(args) < disk_min) {
            return quire_error_set(
                err, QUIRE_INVAL, "cache_disk: at least %llu bytes are needed",
                (unsigned long long)(disk_min + disk_min / (STATE_SHARE / 2 - 1)));
        }
        return state_parts(args->cache_state, keeps, err);
    }
    needs = args->store_all && !quire_serve_has_store(args)
                ? "store_all needs a cache_dir, a store or cache_host_memory"
                : needs;
    /* The default is among the settings that --check-config prints, and may be given. */
    needs = args->cache_disk_bytes != CACHE_DISK_DEFAULT ? "cache_disk needs a cache_dir" : needs;
    needs = args->cache_dir_readonly ? "cache_dir_readonly needs a cache_dir" : needs;
    if (needs != NULL) {
        return quire_error_set(err, QUIRE_INVAL, "%s", needs);
    }
    return state_parts(args->cache_state, keeps, err);
}

static quire_file_store_opts file_opts(const quire_serve_args *args, uint64_t record_bytes)
{
    quire_file_store_opts opts = QUIRE_FILE_STORE_OPTS_INIT;

    opts.dir = args->cache_dir;
    opts.capacity_bytes = page_bytes(args);
    opts.record_bytes = record_bytes;
    opts.write_rate = args->store_write_rate;
    opts.is_readonly = args->cache_dir_readonly;
    return opts;
}

/* A page that never fits into the host's memory would be copied all the time. */
int quire_serve_store_room_check(const quire_serve_args *args, uint64_t record_bytes,
                                 quire_error *err)
{
    const quire_file_store_opts file = file_opts(args, record_bytes);
    char given[16], needed[16];

    if (args->is_relay) {
        return QUIRE_OK; /* there is none for pages that are too large */
    }
    if (quire_serve_has_store(args) && record_bytes == 0) {
        return quire_error_set(err, QUIRE_INVAL, "pages of this model are too large for a store");
    }
    if (args->cache_host_bytes != 0 && args->cache_host_bytes < record_bytes) {
        return quire_error_set(err, QUIRE_INVAL,
                               "cache_host_memory is %s, but a page of this model with its head "
                               "takes %s",
                               quire_format_bytes(args->cache_host_bytes, given, sizeof(given)),
                               quire_format_bytes(record_bytes, needed, sizeof(needed)));
    }
    return args->cache_dir != NULL ? quire_file_store_check(&file, err) : QUIRE_OK;
}

int quire_serve_dir_check(const quire_serve_args *args, quire_error *err)
{
    const char *dir = args->cache_dir;
    int rc = QUIRE_OK;
    int fd;

    if (dir == NULL) {
        return QUIRE_OK;
    }
    if (args->cache_dir_readonly) {
        return access(dir, R_OK | X_OK) == 0
                   ? QUIRE_OK
                   : quire_error_set_errno(err, errno, "cannot read the cache directory %s", dir);
    }
    if (mkdir(dir, 0700) == 0) {
        (void)rmdir(dir);
        return QUIRE_OK;
    }
    if (errno != EEXIST) {
        return quire_error_set_errno(err, errno, "cannot make the cache directory %s", dir);
    }
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) != 0) {
        rc = quire_error_set_errno(err, errno, "cannot write to the cache directory %s", dir);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return rc;
}

static int file_open(quire_store **out, const quire_serve_store_from *from, quire_error *err)
{
    quire_file_store_opts opts = file_opts(from->args, from->record_bytes);

    *out = NULL;
    if (from->args->cache_dir == NULL) {
        return QUIRE_OK;
    }
    opts.log = log_trouble;
    opts.log_ctx = (void *)(uintptr_t)from->log;
    quire_serve_tenants_disk(from->tenants, &opts);
    return quire_file_store_create(out, &opts, err);
}

/* Whether the host has memory for the pages of devices that are not the CPU, beside the KV of those
 * that are. */
static int memory_settle(quire_serve_args *args, quire_opened *described, uint64_t beside_bytes,
                         quire_error *err)
{
    const char *card = args->card != NULL ? args->card : args->common.device;
    quire_opened_want want = quire_serve_want(args);
    quire_opened beside;
    int rc;

    want.beside_bytes = beside_bytes;
    want.n_devices = args->n_cards;
    want.n_cpus = args->card != NULL ? args->n_cpus : 0;
    quire_opened_look(described, args->common.model, described->desc);
    QUIRE_TRY(quire_opened_beside_on(&beside, described, card, err));
    rc =
        quire_opened_overflow_bytes(&beside, &args->common, &want, &args->overflow_host_bytes, err);
    args->no_overflow_memory = args->overflow_host_bytes == 0;
    return rc;
}

/* With the device that auto stands for, and this model. */
static int attend_settle(const quire_serve_args *args, const quire_opened *described,
                         quire_error *err)
{
    quire_error why = QUIRE_ERROR_INIT;
    int rc;

    if (args->common.kv_overflow_attend == QUIRE_OVERFLOW_ATTEND_DEVICE) {
        return QUIRE_OK;
    }
    QUIRE_TRY(attend_check(args, err));
    rc = quire_overflow_check(described->desc, &why);
    return rc < 0 ? quire_error_set(err, rc, "kv_overflow_attend %s: %.200s",
                                    quire_kv_overflow_attends[args->common.kv_overflow_attend],
                                    why.message)
                  : QUIRE_OK;
}

bool quire_serve_moves_tokens(const quire_serve_args *args)
{
    return args->context_overflow > 1;
}

bool quire_serve_attends_on_card(const quire_serve_args *args)
{
    return args->attend != NULL && !has_no_card(args);
}

int quire_serve_overflow_settle(quire_serve_args *args, quire_opened *described,
                                uint64_t beside_bytes, quire_error *err)
{
    QUIRE_TRY(attend_settle(args, described, err));
    args->no_kv_overflow = args->no_overflow_memory = false;
    if (!quire_serve_overflow_is_on_any(args)) {
        return QUIRE_OK;
    }
    if (args->common.split_mode != QUIRE_SPLIT_NONE) {
        args->no_kv_overflow = true;
        return args->common.kv_overflow != QUIRE_KV_OVERFLOW_TIER
                   ? QUIRE_OK
                   : quire_error_set(err, QUIRE_UNSUPP,
                                     "kv_overflow tier and split_mode layer cannot go together: "
                                     "pages of running requests stay in the devices' memory");
    }
    if (args->common.kv_overflow == QUIRE_KV_OVERFLOW_TIER) {
        QUIRE_TRY(quire_overflow_check(described->desc, err));
    } else if (args->retain != NULL || quire_serve_moves_tokens(args) ||
               quire_serve_attends_on_card(args) ||
               quire_overflow_check(described->desc, NULL) < 0) {
        args->no_kv_overflow = true;
        return QUIRE_OK;
    }
    return has_no_card(args) ? QUIRE_OK : memory_settle(args, described, beside_bytes, err);
}

const char *quire_serve_overflow_note(const quire_serve_args *args)
{
    if (args->no_overflow_memory) {
        return QUIRE_OVERFLOW_NO_MEMORY;
    }
    if (!args->no_kv_overflow) {
        return NULL;
    }
    if (args->common.split_mode != QUIRE_SPLIT_NONE) {
        return "the layers are on several devices (split_mode), so requests larger than the KV "
               "budget are refused (kv_overflow)";
    }
    return args->retain != NULL
               ? "with --retain requests larger than the KV budget are refused (kv_overflow)"
           : quire_serve_attends_on_card(args)
               ? "with --attend on a device requests larger than the KV budget are refused "
                 "(kv_overflow)"
           : quire_serve_moves_tokens(args)
               ? "with this --context-overflow requests larger than the KV budget are refused "
                 "(kv_overflow)"
               : "no layer of this model reads the whole text, or one reads K and V of more than "
                 "two layers, so requests larger than the KV budget are refused (kv_overflow)";
}

static bool has_file(const quire_serve_args *args)
{
    return args->cache_dir != NULL && !args->cache_dir_readonly;
}

/* On a device that is the CPU, or another one. */
static bool is_on_at(const quire_serve_args *args, bool is_cpu)
{
    const bool has_place = is_cpu ? has_file(args) : !args->no_overflow_memory;

    return args->common.kv_overflow != QUIRE_KV_OVERFLOW_REFUSE && !args->no_kv_overflow &&
           has_place;
}

bool quire_serve_overflow_is_on(const quire_serve_args *args)
{
    return is_on_at(args, quire_device_is_cpu(args->common.device));
}

bool quire_serve_overflow_is_on_any(const quire_serve_args *args)
{
    return quire_serve_overflow_is_on(args) ||
           (args->card != NULL &&
            (is_on_at(args, false) || (args->n_cpus > 0 && is_on_at(args, true))));
}

bool quire_serve_attends_host(const quire_serve_args *args)
{
    return args->common.kv_overflow_attend != QUIRE_OVERFLOW_ATTEND_DEVICE &&
           !quire_device_is_cpu(args->common.device) && quire_serve_overflow_is_on(args);
}

/* Devices that share the room on disk for large requests. */
static uint32_t n_files(const quire_serve_args *args)
{
    const uint32_t n = args->n_cpus + (is_on_at(args, false) ? args->n_cards : 0);

    return quire_max_u32(n, 1);
}

quire_overflow_opts quire_serve_overflow(const quire_serve_args *args, uint64_t budget_bytes)
{
    quire_overflow_opts opts = { .dir = NULL };

    if (!quire_serve_overflow_is_on(args)) {
        return opts;
    }
    opts.dir = has_file(args) ? args->cache_dir : NULL;
    opts.capacity_bytes = args->kv_overflow_disk_bytes != 0
                              ? args->kv_overflow_disk_bytes / n_files(args)
                              : OVERFLOW_SIZES * budget_bytes;
    if (!quire_device_is_cpu(args->common.device)) {
        opts.host_bytes = args->overflow_host_bytes;
        opts.attend = (quire_overflow_attend)args->common.kv_overflow_attend;
    }
    return opts;
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

/* One store over another; either may be NULL. Errors: QUIRE_NOMEM; then both are closed. */
static int put_over(quire_store **out, quire_store *near, quire_store *far, bool is_near_volatile,
                    quire_error *err)
{
    const quire_chain_store_opts chain = { .near = near,
                                           .far = far,
                                           .is_near_volatile = is_near_volatile };

    if (near == NULL || far == NULL) {
        *out = near != NULL ? near : far;
        return QUIRE_OK;
    }
    if (quire_chain_store_create(out, &chain) < 0) {
        quire_serve_store_close(far);
        quire_serve_store_close(near);
        return quire_error_set(err, QUIRE_NOMEM, "no memory for two stores");
    }
    return QUIRE_OK;
}

/* The store in the host's memory; NULL if there is to be none. A relay is for pages that fit. */
static int host_open(quire_store **out, const quire_serve_store_from *from, quire_error *err)
{
    const quire_host_store_opts opts = { .capacity_bytes = from->args->cache_host_bytes,
                                         .policy = (quire_evict_policy)from->args->cache_policy };

    const bool fits = from->record_bytes != 0 && from->record_bytes <= opts.capacity_bytes;

    *out = NULL;
    if (from->args->is_relay && !fits) {
        return QUIRE_OK;
    }
    if (opts.capacity_bytes != 0 && quire_host_store_create(out, &opts) < 0) {
        return quire_error_set(err, QUIRE_NOMEM, "no memory for a store in memory");
    }
    return QUIRE_OK;
}

static int no_memory(quire_error *err)
{
    return quire_error_set(err, QUIRE_NOMEM, "no memory for the stores of several devices");
}

/* Make a store that was opened one of several devices, if there are several. */
static int common_make(quire_store **store, const quire_serve_common *common, quire_error *err)
{
    quire_store *own = *store;

    if (!common->has_several || own == NULL) {
        return QUIRE_OK;
    }
    if (quire_common_store_create(store, own, 0) < 0) {
        quire_serve_store_close(own);
        return no_memory(err);
    }
    return QUIRE_OK;
}

/* Each returns a store of the device's own, NULL if the settings name none. */
static int file_of(quire_store **out, const quire_serve_store_from *from,
                   quire_serve_common *common, quire_error *err)
{
    *out = NULL;
    if (from->args->cache_dir == NULL) {
        return QUIRE_OK;
    }
    if (common->file != NULL) {
        return quire_common_store_share(out, common->file) < 0 ? no_memory(err) : QUIRE_OK;
    }
    QUIRE_TRY(file_open(out, from, err));
    QUIRE_TRY(common_make(out, common, err));
    common->file = common->has_several ? *out : NULL;
    return QUIRE_OK;
}

static int shared_of(quire_store **out, const quire_serve_store_from *from,
                     quire_serve_common *common, quire_error *err)
{
    uint32_t i = 0;

    *out = NULL;
    while (i < common->n_shared &&
           memcmp(common->identities[i], from->identity, sizeof from->identity) != 0) {
        i++;
    }
    if (i < common->n_shared) {
        return quire_common_store_share(out, common->shared[i]) < 0 ? no_memory(err) : QUIRE_OK;
    }
    QUIRE_TRY(quire_serve_shared_open(out, from->args, from->identity, from->log, err));
    QUIRE_TRY(common_make(out, common, err));
    if (common->has_several && *out != NULL) {
        memcpy(common->identities[i], from->identity, sizeof from->identity);
        common->shared[common->n_shared++] = *out;
    }
    return QUIRE_OK;
}

static int host_of(quire_store **out, const quire_serve_store_from *from,
                   quire_serve_common *common, quire_error *err)
{
    if (common->host != NULL) {
        return quire_host_store_share(out, common->host) < 0 ? no_memory(err) : QUIRE_OK;
    }
    QUIRE_TRY(host_open(out, from, err));
    common->host = common->has_several ? *out : NULL;
    return QUIRE_OK;
}

int quire_serve_store_open(quire_store **out, const quire_serve_store_from *from,
                           quire_serve_common *common, quire_error *err)
{
    quire_store *file = NULL;
    quire_store *far = NULL;
    quire_store *host = NULL;
    int rc;

    *out = NULL;
    QUIRE_TRY(file_of(&file, from, common, err));
    rc = shared_of(&far, from, common, err);
    if (rc < 0) {
        quire_serve_store_close(file);
        return rc;
    }
    QUIRE_TRY(put_over(&far, file, far, false, err));
    rc = host_of(&host, from, common, err);
    if (rc < 0) {
        quire_serve_store_close(far);
        return rc;
    }
    return put_over(out, host, far, true, err);
}
