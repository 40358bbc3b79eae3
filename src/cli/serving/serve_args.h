/* serve_args.h - the settings of quire serve.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_CLI_SERVE_ARGS_H
#define QUIRE_CLI_SERVE_ARGS_H

#include "cli/commands/opened.h"
#include "cli/settings/args.h"
#include "cli/settings/settings.h"
#include "engine/engine.h"
#include "server/server.h"

/* --log-level: each level includes the levels before it. */
typedef enum quire_log_level {
    QUIRE_LOG_ERRORS,
    QUIRE_LOG_INFO,
    QUIRE_LOG_REQUESTS
} quire_log_level;

/* A server whose device is lost. */
typedef enum quire_device_lost {
    QUIRE_DEVICE_LOST_END, /* ends, so that a supervisor starts it again */
    QUIRE_DEVICE_LOST_CPU  /* goes on with its KV in the host's memory */
} quire_device_lost;

typedef struct quire_serve_args {
    quire_common_args common;
    quire_sampling_args sampling;
    const char *config;
    bool check_config;
    /* address */
    const char *host;
    int64_t port;
    const char *allowed_hosts; /* NULL = none */
    const char *cors_origins;
    const char *tls_cert;
    const char *tls_key;
    const char *model_name;
    const char *chat_template;
    const char *chat_template_file;
    /* batching */
    int64_t max_batch_size;
    int64_t max_queue;
    int64_t chunk_tokens;
    int64_t max_tokens; /* 0 = the context */
    int admission;      /* quire_admit */
    int64_t prefetch_steps;
    /* classes, guaranteed memory */
    const char *default_class;
    uint64_t class_aging_us;
    uint64_t pinned_bytes;
    uint64_t pinned_floor_bytes;
    uint64_t pinned_ceiling_bytes;
    uint64_t dynamic_floor_bytes;
    bool no_spill;
    int64_t max_pins;
    /* cache */
    int cache_policy; /* quire_evict_policy */
    double cache_memory_ratio;
    bool no_prefix_cache;
    int64_t state_every_tokens;
    uint64_t cache_ttl_us;
    uint64_t low_traffic_after_us;
    double low_traffic_hits_per_hour;
    bool lock_memory;
    bool no_precache;
    /* pages on disk */
    const char *cache_dir; /* NULL = none */
    uint64_t cache_disk_bytes;
    uint64_t cache_host_bytes; /* of copies of a device's pages; 0 = none */
    bool is_host_given;        /* also as 0: then several devices have no relay */
    bool cache_dir_readonly;
    bool store_all;
    const char *cache_state; /* see quire_serve_state_read() */
    uint64_t store_write_rate;
    uint64_t kv_overflow_disk_bytes; /* 0 = as quire_serve_overflow() says */
    int on_device_lost;              /* quire_device_lost */
    /* No settings: see quire_serve_overflow_settle(), quire_serve_devices_read(). */
    bool is_relay; /* cache_host_bytes are no setting: several devices pass on pages there */
    bool no_kv_overflow;
    bool no_overflow_memory;      /* of the host: no device but the CPU has a place for pages */
    uint64_t overflow_host_bytes; /* for pages of each device */
    uint32_t n_cpus;              /* devices that are the CPU */
    const char *card; /* of several devices the first one that is not the CPU; NULL = none is */
    uint32_t n_cards; /* of them, that are not the CPU */
    /* pages shared with other machines */
    const char *store; /* URL; NULL = none */
    const char *store_key_file;
    const char *store_user;
    const char *store_password;
    const char *store_password_file;
    const char *store_tls_ca;
    const char *store_tls_cert;
    const char *store_tls_key;
    uint64_t store_ttl_us;
    uint64_t store_quota_bytes;
    uint64_t store_timeout_us;
    /* events for routers; NULL = none */
    const char *kv_events;
    const char *kv_events_replay;
    const char *kv_events_topic;
    /* watching itself */
    const char *record;
    bool record_plain;
    bool no_what_if;
    uint64_t recent_bytes;
    uint64_t tune_interval_us;
    bool auto_tune;
    double tune_pinned_min;
    double tune_pinned_max;
    uint64_t tune_ttl_min_us;
    uint64_t tune_ttl_max_us;
    /* sessions */
    int64_t max_sessions;
    uint64_t session_ttl_us;
    int context_overflow; /* 0 = refuse, 1 = truncate_turns, 2 = shift, 3 = sinks, 4 = condense */
    int64_t context_keep;
    const char *retain; /* a policy; NULL = texts keep all tokens */
    int64_t retain_chunk;
    const char *attend; /* "top:SHARE"; NULL = pages have no bounds, and all are read */
    /* limits */
    uint64_t max_body_bytes;
    uint64_t max_header_bytes;
    int64_t max_connections;
    uint64_t idle_timeout_us;
    uint64_t max_time_us;
    /* keys, log */
    const char *api_key;
    const char *admin_key;
    int log_level; /* quire_log_level */
    const char *log_file;
    const char *page_curve; /* a file of quire tune-pages --json, to show; NULL = none */
    bool is_page_auto;      /* no setting: common.page_tokens is quire_serve_page_size_settle()'s */

    quire_settings settings; /* sources of all values above */
} quire_serve_args;

/* Options of engine and server; the caller sets model, runtime, keys and log. */
quire_engine_opts quire_serve_engine_opts(const quire_serve_args *args);
quire_server_opts quire_serve_server_opts(const quire_serve_args *args);
/* Requirements on the runtime. */
quire_opened_want quire_serve_want(const quire_serve_args *args);

/* The size of the pinned region at the start. */
uint64_t quire_serve_pinned_at_first(const quire_serve_args *args);
/* Check that the memory sizes agree. Errors: QUIRE_INVAL. */
int quire_serve_memory_check(const quire_serve_args *args, quire_error *err);
/* Check the settings of recording and tuning. */
int quire_serve_watch_check(const quire_serve_args *args, quire_error *err);
/* Check that the KV budget holds the configured sizes. Errors: QUIRE_INVAL. */
int quire_serve_budget_check(const quire_serve_args *args, uint64_t budget_bytes, quire_error *err);

/* The parts of docs/configuration.md made from tables: all settings, and the names of chat
 * templates. Errors: QUIRE_NOMEM. */
int quire_serve_settings_document(quire_bytes *out);
int quire_serve_templates_document(quire_bytes *out);

#endif /* QUIRE_CLI_SERVE_ARGS_H */
