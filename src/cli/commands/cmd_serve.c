/* cmd_serve.c - quire serve: its settings and their translation for engine and server. serve.c runs
 * it.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve_args.h"

#include "base/check.h"
#include "base/parse.h"
#include "cli/commands/commands.h"
#include "cli/serving/serve.h"
#include "cli/serving/serve_retain.h"
#include "cli/serving/serve_store.h"
#include "engine/pins.h"

#define BYTES_MAX   1e15
#define SECONDS(us) ((uint32_t)((us) / 1000000))

static const char *const admissions[] = { "grow", "reserve", NULL };
static const char *const losses[] = { "end", "cpu", NULL }; /* quire_device_lost */
static const char *const overflows[] = { "refuse", "truncate_turns", "shift",
                                         "sinks",  "condense",       NULL };
#define NAME(symbol, value, name) name,
static const char *const policies[] = { QUIRE_EVICT_POLICY_MAP(NAME) NULL };
#undef NAME
static const char *const log_levels[] = { "errors", "info", "requests", NULL };

_Static_assert(QUIRE_ADMIT_GROW == 0 && QUIRE_ADMIT_RESERVE == 1, "the order of admissions[]");

/* clang-format off */
static const quire_opt options[] = {
    QUIRE_ROW_MODEL, QUIRE_ROW_THREADS,
    QUIRE_ROW_CTX("the context of the training, or less if memory allows only less"),
    QUIRE_ROWS_KV("q8", QUIRE_KV_DEFAULT_SERVE),
    QUIRE_ROWS_BUDGET("the share that --cache-memory-ratio sets"),
    { .names = { "--cache-memory-ratio" }, .type = QUIRE_OPT_REAL, .unit = "R", .min = 0.001,
      .max = 1, .initial = "0.5", .block_key = "cache_memory_ratio",
      .offset = offsetof(quire_serve_args, cache_memory_ratio),
      .help = "KV pages get this share of the memory that is left beside weights and buffers" },
    QUIRE_ROW_PAGE_OR("auto", "tokens in a KV page, a multiple of 64; auto: the size that suits "
                      "the memories of the pages. The server measures it at its first start, and "
                      "keeps it: docs/gpu.md"),
    QUIRE_ROW_DEVICE,
    { .names = { "--on-device-lost" }, .type = QUIRE_OPT_CHOICE, .choices = losses,
      .initial = "end", .offset = offsetof(quire_serve_args, on_device_lost),
      .help = "when the device is lost: end with exit status 1, or load the model again and go on "
              "with --device cpu" },
    { .names = { "--page-curve" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .offset = offsetof(quire_serve_args, page_curve),
      .help = "the output of quire tune-pages --json on this machine: speeds by the size of a "
              "page, shown at /v1/cache/regions and on the dashboard. The log warns if it "
              "suggests larger pages. With --page-tokens auto its size is taken" },
    { .names = { "--lock-memory" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(quire_serve_args, lock_memory),
      .help = "lock KV pages in memory (mlock), so that they are never swapped out" },

    { .section = "Settings",
      .names = { "--config" }, .type = QUIRE_OPT_TEXT, .unit = "FILE", .is_flag_only = true,
      .offset = offsetof(quire_serve_args, config),
      .help = "read settings from a YAML file (or QUIRE_CONFIG)" },
    { .names = { "--check-config" }, .type = QUIRE_OPT_FLAG, .is_flag_only = true,
      .offset = offsetof(quire_serve_args, check_config),
      .help = "check all settings without loading weights, and print each with the place it comes "
              "from" },
    { .names = { "--json" }, .type = QUIRE_OPT_FLAG, .is_flag_only = true,
      .offset = offsetof(quire_serve_args, common.is_json),
      .help = "print one JSON document on stdout instead of text" },

    { .section = "Address and model",
      .names = { "--host" }, .type = QUIRE_OPT_TEXT, .unit = "ADDRESS", .initial = "127.0.0.1",
      .offset = offsetof(quire_serve_args, host),
      .help = "address to listen on; an address that other machines can reach needs API keys" },
    { .names = { "--port" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0, .max = 65535,
      .initial = "8080", .offset = offsetof(quire_serve_args, port),
      .help = "port to listen on; 0 takes a free one" },
    { .names = { "--allowed-hosts" }, .type = QUIRE_OPT_TEXT, .unit = "LIST",
      .initial_text = "none: without keys loopback, with keys any",
      .offset = offsetof(quire_serve_args, allowed_hosts),
      .help = "names of this server beside localhost, for example of a proxy in front of it, with "
              "commas; requests whose Host is another are refused. *: any" },
    { .names = { "--cors-origins" }, .type = QUIRE_OPT_TEXT, .unit = "LIST", .initial_text = "none",
      .offset = offsetof(quire_serve_args, cors_origins),
      .help = "origins of web pages that may call this server from a browser, such as "
              "https://app.example:8443, with commas. *: all pages" },
    { .names = { "--tls-cert" }, .type = QUIRE_OPT_TEXT, .unit = "FILE", .initial_text = "no TLS",
      .offset = offsetof(quire_serve_args, tls_cert),
      .help = "speak TLS alone, with this certificate (PEM; behind it those between it and the "
              "root)" },
    { .names = { "--tls-key" }, .type = QUIRE_OPT_TEXT, .unit = "FILE", .initial_text = "none",
      .offset = offsetof(quire_serve_args, tls_key),
      .help = "private key of the certificate (PEM, without a password)" },
    { .names = { "--model-name" }, .type = QUIRE_OPT_TEXT, .unit = "NAME",
      .initial_text = "the file's name without .gguf",
      .offset = offsetof(quire_serve_args, model_name),
      .help = "name of the model for clients" },
    { .names = { "--chat-template" }, .type = QUIRE_OPT_TEXT, .unit = "NAME",
      .initial_text = "the model's own",
      .offset = offsetof(quire_serve_args, chat_template),
      .help = "built-in template that makes a prompt of the messages of a chat, without tools; an "
              "unknown name lists all names" },
    { .names = { "--chat-template-file" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .initial_text = "the model's own",
      .offset = offsetof(quire_serve_args, chat_template_file),
      .help = "Jinja template in place of the model's own" },

    { .section = "Batching",
      .names = { "-np", "--parallel", "--max-batch-size" }, .type = QUIRE_OPT_COUNT, .unit = "N",
      .min = 1, .max = 4096, .initial = "64", .block_key = "max_batch_size",
      .offset = offsetof(quire_serve_args, max_batch_size),
      .help = "requests that run at once" },
    { .names = { "--max-queue" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_ENGINE_QUEUE_MAX, .initial = "256",
      .offset = offsetof(quire_serve_args, max_queue),
      .help = "requests of a class that may wait beside the running ones; further requests get "
              "429" },
    { .names = { "--chunk-tokens" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 65536,
      .initial = "256", .offset = offsetof(quire_serve_args, chunk_tokens),
      .help = "most tokens of a step that computes prompts. A running answer waits up to one such "
              "step for its next token" },
    { .names = { "--max-tokens" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,
      .max = QUIRE_TOKENS_MAX, .initial = "0", .initial_text = "0, up to the context",
      .offset = offsetof(quire_serve_args, max_tokens),
      .help = "most tokens that an answer may have, whatever the request asks for" },
    { .names = { "--admission" }, .type = QUIRE_OPT_CHOICE, .choices = admissions,
      .initial = "grow", .offset = offsetof(quire_serve_args, admission),
      .help = "grow: a request begins when its prompt fits into the KV memory, and may be "
              "preempted later; reserve: a request begins when prompt and max_tokens fit" },

    { .section = "Service classes",
      .names = { "--default-class" }, .type = QUIRE_OPT_TEXT, .unit = "NAME",
      .initial_text = "standard, or where there is none of this name the lowest class",
      .offset = offsetof(quire_serve_args, default_class),
      .help = "class of requests that name no class" },
    { .names = { "--class-aging" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 0.001,
      .max = 86400, .initial = "20s", .offset = offsetof(quire_serve_args, class_aging_us),
      .help = "a waiting request counts as one class higher each time it has waited this long, so "
              "that no class starves" },

    { .section = "Guaranteed memory",
      .names = { "--pinned" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0, .max = BYTES_MAX,
      .initial = "0", .initial_text = "0, no such memory; with a ceiling: the floor if it is set, "
                                      "else a quarter of the ceiling",
      .offset = offsetof(quire_serve_args, pinned_bytes),
      .help = "KV memory for pinned classes and their pins, which other classes cannot take. With "
              "--pinned-ceiling this is the size at the start" },
    { .names = { "--pinned-ceiling" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,
      .max = BYTES_MAX, .initial = "0", .initial_text = "0, the pinned memory keeps its size",
      .offset = offsetof(quire_serve_args, pinned_ceiling_bytes),
      .help = "let the pinned memory follow the need of the pinned classes, up to this size" },
    { .names = { "--pinned-floor" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,
      .max = BYTES_MAX, .initial = "0", .offset = offsetof(quire_serve_args, pinned_floor_bytes),
      .help = "least size of the pinned memory, with --pinned-ceiling" },
    { .names = { "--dynamic-floor" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,
      .max = BYTES_MAX, .initial = "0", .initial_text = "0, a quarter of the KV budget",
      .offset = offsetof(quire_serve_args, dynamic_floor_bytes),
      .help = "KV memory that always stays with the other classes, with --pinned-ceiling" },
    { .names = { "--no-spill" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(quire_serve_args, no_spill),
      .help = "when the pinned memory is full, requests of pinned classes wait instead of taking "
              "memory of other classes" },
    { .names = { "--max-pins" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,
      .max = QUIRE_ENGINE_PINS_MAX, .initial = "256",
      .offset = offsetof(quire_serve_args, max_pins), .help = "most pins at once; 0: pins are "
                                                              "refused" },

    { .section = "Prefix cache",
      .names = { "--no-prefix-cache" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(quire_serve_args, no_prefix_cache),
      .help = "compute every prompt in full, and keep no text in the cache" },
    { .names = { "--state-every" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = QUIRE_TOKENS_MAX, .initial = "1024",
      .offset = offsetof(quire_serve_args, state_every_tokens),
      .help = "of models with recurrent layers, cache a state every N tokens of a text, rounded up "
              "to whole pages; states at the ends of prompts and texts are cached as well" },
    { .names = { "--cache-policy" }, .type = QUIRE_OPT_CHOICE, .choices = policies,
      .initial = "default", .offset = offsetof(quire_serve_args, cache_policy),
      .help = "policy that chooses pages to evict within a class and tenant: docs/eviction.md" },
    { .names = { "--cache-ttl" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 0,
      .max = 31536000, .initial = "0", .initial_text = "0, never",
      .offset = offsetof(quire_serve_args, cache_ttl_us),
      .help = "drop cached text that was not used for this time" },
    { .names = { "--low-traffic-after" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 0,
      .max = 31536000, .initial = "0", .initial_text = "0, no such rule",
      .offset = offsetof(quire_serve_args, low_traffic_after_us),
      .help = "evict first the cached text that is older than this and has fewer hits per hour "
              "than --low-traffic-hits-per-hour" },
    { .names = { "--low-traffic-hits-per-hour" }, .type = QUIRE_OPT_REAL, .unit = "N", .min = 0,
      .max = 1e6, .initial = "1", .offset = offsetof(quire_serve_args, low_traffic_hits_per_hour),
      .help = "hits per hour below which --low-traffic-after applies" },
    { .names = { "--no-precache" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(quire_serve_args, no_precache),
      .help = "do not use idle time to compute evicted text that is likely to be requested again" },

    { .section = "Pages on disk",
      .names = { "--cache-dir" }, .type = QUIRE_OPT_TEXT, .unit = "DIR", .initial_text = "none",
      .offset = offsetof(quire_serve_args, cache_dir),
      .help = "keep KV pages in this directory, so that they survive eviction and restarts: "
              "docs/tiers.md" },
    { .names = { "--cache-disk" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,
      .max = BYTES_MAX, .initial = "20GiB", .offset = offsetof(quire_serve_args, cache_disk_bytes),
      .help = "most disk space that the directory takes; the oldest unused pages go first" },
    { .names = { "--cache-host-memory" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,
      .max = BYTES_MAX,
      .initial_text = "none; several devices of a kind without another store have a sixteenth of "
                      "the host's memory, at most 256 MiB",
      .offset = offsetof(quire_serve_args, cache_host_bytes),
      .seen_offset = offsetof(quire_serve_args, is_host_given),
      .help = "with --device: memory of the host for copies of cached pages that are worth keeping "
              "(with --store-all: of all cached pages), in front of --cache-dir and --store. "
              "Several devices have it in common. 0: none" },
    { .names = { "--kv-overflow" }, .type = QUIRE_OPT_CHOICE, .choices = quire_kv_overflows,
      .initial = "auto", .offset = offsetof(quire_serve_args, common.kv_overflow),
      .help = "requests whose KV is larger than --kv-budget. tier: the rest of their pages lies in "
              "a nameless file in --cache-dir, or with --device in the host's memory and from "
              "there on in that file, and each step reads it from there. refuse: such requests "
              "are refused, as without --cache-dir and --device. auto: tier for models that can, "
              "refuse for others" },
    { .names = { "--kv-overflow-disk" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,
      .max = BYTES_MAX, .initial = "0", .initial_text = "0, eight times the KV budget",
      .offset = offsetof(quire_serve_args, kv_overflow_disk_bytes),
      .help = "most disk space of that file, beside --cache-disk; several devices share it in "
              "equal parts" },
    { .names = { "--kv-overflow-memory" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,
      .max = BYTES_MAX, .initial = "0",
      .initial_text = "0, half of the host's memory beside the model",
      .offset = offsetof(quire_serve_args, common.kv_overflow_memory_bytes),
      .help = "with --device: most memory of the host for such pages, with the buffers of the file "
              "behind it; several devices share it in equal parts" },
    { .names = { "--kv-overflow-attend" }, .type = QUIRE_OPT_CHOICE,
      .choices = quire_kv_overflow_attends, .initial = "device",
      .offset = offsetof(quire_serve_args, common.kv_overflow_attend),
      .help = "with --device: where generated tokens read such pages: on the device, to which each "
              "step copies them (device), where they lie, by the CPU's kernels, while the device "
              "reads the others (host), or where steps took less time so far (auto). With host and "
              "auto the last bits of such answers depend on which pages lay where, and other "
              "requests get no pages of these tokens" },
    { .names = { "--cache-dir-readonly" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(quire_serve_args, cache_dir_readonly),
      .help = "read pages from the directory, and write none; several processes may read" },
    { .names = { "--store-all" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(quire_serve_args, store_all),
      .help = "write every page at once; without this option, pages are written when they are "
              "used a second time, belong to a session or a pin, are predicted to return, or when "
              "the server ends" },
    { .names = { "--cache-state" }, .type = QUIRE_OPT_TEXT, .unit = "LIST",
      .initial = "sessions,pins,reuse", .offset = offsetof(quire_serve_args, cache_state),
      .help = "parts of the server's state that the directory keeps beside pages, so that they "
              "survive a restart: a list of sessions, pins and reuse (the eviction policy's model "
              "of reuse), or none. Parts that are not in the list are removed from the directory" },
    { .names = { "--store-write-rate" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,
      .max = BYTES_MAX, .initial = "64MiB",
      .offset = offsetof(quire_serve_args, store_write_rate),
      .help = "most bytes written in a second, for the life of an SSD; 0 is no limit" },
    { .names = { "--prefetch-steps" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0, .max = 65536,
      .initial = "0", .block_key = "prefetch_steps",
      .offset = offsetof(quire_serve_args, prefetch_steps),
      .help = "read the pages of a waiting request from disk when it is expected to begin within "
              "N steps; 0 reads them when it begins" },

    { .section = "Pages shared with other machines",
      .names = { "--store" }, .type = QUIRE_OPT_TEXT, .unit = "URL", .initial_text = "none",
      .offset = offsetof(quire_serve_args, store),
      .help = "share KV pages with other machines through servers of Valkey or Redis: "
              "valkey://HOST[:PORT][,HOST...], valkeys:// with TLS: docs/tiers.md" },
    { .names = { "--store-key-file" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .initial_text = "none", .offset = offsetof(quire_serve_args, store_key_file),
      .help = "secret of at least 32 bytes that all machines have in common; pages that were not "
              "made with it are not used. --store needs it" },
    { .names = { "--store-user" }, .type = QUIRE_OPT_TEXT, .unit = "NAME",
      .initial_text = "the servers' default user", .offset = offsetof(quire_serve_args, store_user),
      .help = "user of the servers (ACL)" },
    { .names = { "--store-password" }, .type = QUIRE_OPT_TEXT, .unit = "WORD", .is_secret = true,
      .initial_text = "none", .offset = offsetof(quire_serve_args, store_password),
      .help = "password of the servers. Other users of the machine can read command lines: prefer "
              "QUIRE_STORE_PASSWORD, or --store-password-file" },
    { .names = { "--store-password-file" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .initial_text = "none", .offset = offsetof(quire_serve_args, store_password_file),
      .help = "file whose first line is the password of the servers" },
    { .names = { "--store-tls-ca" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .initial_text = "the system's", .offset = offsetof(quire_serve_args, store_tls_ca),
      .help = "authorities (PEM) whose certificates the servers may have" },
    { .names = { "--store-tls-cert" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .initial_text = "none", .offset = offsetof(quire_serve_args, store_tls_cert),
      .help = "certificate (PEM) that this machine shows to the servers" },
    { .names = { "--store-tls-key" }, .type = QUIRE_OPT_TEXT, .unit = "FILE",
      .initial_text = "none", .offset = offsetof(quire_serve_args, store_tls_key),
      .help = "private key (PEM) of that certificate" },
    { .names = { "--store-ttl" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 1,
      .max = 31536000, .initial = "24h", .offset = offsetof(quire_serve_args, store_ttl_us),
      .help = "shared pages go this time after they were written" },
    { .names = { "--store-quota" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,
      .max = BYTES_MAX, .initial = "0", .initial_text = "0, no quota",
      .offset = offsetof(quire_serve_args, store_quota_bytes),
      .help = "most bytes that a tenant may write in the time of --store-ttl, on all machines "
              "together" },
    { .names = { "--store-timeout" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 0.005,
      .max = 60, .initial = "50ms", .offset = offsetof(quire_serve_args, store_timeout_us),
      .help = "a server that is silent for this time, or whose replies take half of it on "
              "average, is left alone for a while" },

    { .section = "Events for routers",
      .names = { "--kv-events" }, .type = QUIRE_OPT_TEXT, .unit = "ENDPOINT",
      .initial_text = "none", .offset = offsetof(quire_serve_args, kv_events),
      .help = "publish which pages of text memory has, in vLLM's format, on a ZeroMQ PUB socket: "
              "tcp://HOST:PORT (HOST a numeric address or *) or ipc://PATH: docs/events.md. The "
              "events hold token ids, and there is no authentication" },
    { .names = { "--kv-events-replay" }, .type = QUIRE_OPT_TEXT, .unit = "ENDPOINT",
      .initial_text = "none", .offset = offsetof(quire_serve_args, kv_events_replay),
      .help = "answer requests for past batches of events on a ZeroMQ ROUTER socket" },
    { .names = { "--kv-events-topic" }, .type = QUIRE_OPT_TEXT, .unit = "TEXT",
      .initial_text = "empty", .offset = offsetof(quire_serve_args, kv_events_topic),
      .help = "topic of the events: the first frame of each message. Routers may want the "
              "server's name and the model's in it" },

    { .section = "Recording and tuning",
      .names = { "--record" }, .type = QUIRE_OPT_TEXT, .unit = "FILE", .initial_text = "none",
      .offset = offsetof(quire_serve_args, record),
      .help = "append a line for each request to a file that quire sim and quire analyze read: "
              "times, lengths and keyed hashes of blocks, no texts" },
    { .names = { "--record-plain" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(quire_serve_args, record_plain),
      .help = "with --record: write token ids instead of hashes" },
    { .names = { "--auto-tune" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(quire_serve_args, auto_tune),
      .help = "change settings as the last hour's requests suggest, within the --tune bounds" },
    { .names = { "--tune-interval" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 0,
      .max = 86400, .initial = "10m", .offset = offsetof(quire_serve_args, tune_interval_us),
      .help = "time between two measurements of the last hour's requests; 0: only when "
              "/v1/cache/tuning is called" },
    { .names = { "--tune-pinned-min" }, .type = QUIRE_OPT_REAL, .unit = "R", .min = 0, .max = 1,
      .initial = "0", .offset = offsetof(quire_serve_args, tune_pinned_min),
      .help = "least share of the KV budget that --auto-tune leaves pinned" },
    { .names = { "--tune-pinned-max" }, .type = QUIRE_OPT_REAL, .unit = "R", .min = 0, .max = 1,
      .initial = "0.8", .offset = offsetof(quire_serve_args, tune_pinned_max),
      .help = "largest share of the KV budget that --auto-tune may pin; no effect with "
              "--pinned-ceiling" },
    { .names = { "--tune-ttl-min" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 1,
      .max = 31536000, .initial = "1m", .offset = offsetof(quire_serve_args, tune_ttl_min_us),
      .help = "least --cache-ttl that --auto-tune may set; without --cache-ttl it sets none" },
    { .names = { "--tune-ttl-max" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 1,
      .max = 31536000, .initial = "7d", .offset = offsetof(quire_serve_args, tune_ttl_max_us),
      .help = "longest --cache-ttl that --auto-tune may set" },
    { .names = { "--recent-memory" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 0,
      .max = QUIRE_RECENT_BYTES_MAX, .initial = "4MiB",
      .offset = offsetof(quire_serve_args, recent_bytes),
      .help = "memory for hashes of the last hour's requests; 0: no tuning" },
    { .names = { "--no-what-if" }, .type = QUIRE_OPT_FLAG,
      .offset = offsetof(quire_serve_args, no_what_if),
      .help = "do not estimate the hit rates of caches with more and with less memory" },

    { .section = "Sessions",
      .names = { "--max-sessions" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1, .max = 1 << 20,
      .initial = "1024", .offset = offsetof(quire_serve_args, max_sessions),
      .help = "most sessions; beyond, the session that was idle longest is closed" },
    { .names = { "--session-ttl" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 0,
      .max = 31536000, .initial = "30m", .offset = offsetof(quire_serve_args, session_ttl_us),
      .help = "close a session that had no request for this time; 0: never" },
    { .names = { "--context-overflow" }, .type = QUIRE_OPT_CHOICE, .choices = overflows,
      .initial = "refuse", .offset = offsetof(quire_serve_args, context_overflow),
      .help = "when a text no longer fits the context: refuse the request, drop the oldest turns "
              "of a conversation, or drop tokens behind the first --context-keep ones: the older "
              "half (shift) or the oldest 64 (sinks), and the others move to lower positions, or "
              "some of the older half, chosen by the policy of --retain or keydiff:0.5 (condense); "
              "sinks and condense need K in f16, bf16 or f32, as with --kv f16:q8; the field "
              "context_overflow of a request overrides this" },
    { .names = { "--context-keep" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 0,
      .max = QUIRE_TOKENS_MAX, .initial = "64", .offset = offsetof(quire_serve_args, context_keep),
      .help = "first tokens that shift, sinks and condense keep, rounded up to a multiple of 64; "
              "of chats condense keeps the first instruction and the tools as well; the field "
              "context_keep of a request overrides this" },
    { .names = { "--retain" }, .type = QUIRE_OPT_TEXT, .unit = "POLICY[:SHARE][,KEY=VALUE...]",
      .offset = offsetof(quire_serve_args, retain),
      .help = "keep only a share of a text's tokens in each layer and head, chosen by a policy: "
              "reconstruct, predict, entropy, snap, expected, heavy, keydiff, window, last, "
              "stride or random (docs/retention.md); the field retain of a request overrides "
              "this" },
    { .names = { "--retain-chunk" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 64,
      .max = QUIRE_TOKENS_MAX, .initial = "1024",
      .offset = offsetof(quire_serve_args, retain_chunk),
      .help = "tokens between two places at which such a text drops tokens, rounded up to whole "
              "pages" },
    { .names = { "--attend" }, .type = QUIRE_OPT_TEXT, .unit = "top:SHARE",
      .offset = offsetof(quire_serve_args, attend),
      .help = "generated tokens read only the share of the pages that can matter most to their "
              "queries, in each layer and head (docs/retention.md); the field attend of a request "
              "overrides this. Without this option the field can only be top:1 or none. With "
              "--attend top:1 requests read all pages, unless their field says otherwise" },

    { .section = "Limits",
      .names = { "--max-body" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 1024,
      .max = 1 << 30, .initial = "8MiB", .offset = offsetof(quire_serve_args, max_body_bytes),
      .help = "largest body of a request; a larger one gets 413" },
    { .names = { "--max-header" }, .type = QUIRE_OPT_SIZE, .unit = "BYTES", .min = 4096,
      .max = 1 << 24, .initial = "32KiB", .offset = offsetof(quire_serve_args, max_header_bytes),
      .help = "memory for the headers of a request; larger headers get 431" },
    { .names = { "--max-connections" }, .type = QUIRE_OPT_COUNT, .unit = "N", .min = 1,
      .max = 16384, .initial = "256", .offset = offsetof(quire_serve_args, max_connections),
      .help = "most connections at once" },
    { .names = { "--idle-timeout" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 1,
      .max = 86400, .initial = "60s", .offset = offsetof(quire_serve_args, idle_timeout_us),
      .help = "close a connection on which nothing was sent for this time" },
    { .names = { "--max-time" }, .type = QUIRE_OPT_DURATION, .unit = "TIME", .min = 0,
      .max = 31536000, .initial = "10m", .offset = offsetof(quire_serve_args, max_time_us),
      .help = "cancel requests that take longer than this; 0: never" },

    { .section = "Keys",
      .names = { "--api-key" }, .type = QUIRE_OPT_TEXT, .unit = "KEY", .is_secret = true,
      .is_key = true,
      .initial_text = "none: everybody on this machine is one tenant",
      .offset = offsetof(quire_serve_args, api_key),
      .help = "API key of the tenant \"default\". Other users of the machine can read command "
              "lines: prefer QUIRE_API_KEY, or api_keys in the file" },
    { .names = { "--admin-key" }, .type = QUIRE_OPT_TEXT, .unit = "KEY", .is_secret = true,
      .is_key = true,
      .initial_text = "none", .offset = offsetof(quire_serve_args, admin_key),
      .help = "API key for administration only" },

    { .section = "Log",
      .names = { "--log-level" }, .type = QUIRE_OPT_CHOICE, .choices = log_levels,
      .initial = "info", .offset = offsetof(quire_serve_args, log_level),
      .help = "errors: errors alone; info: also start and end of the server; requests: also a line "
              "for each request" },
    { .names = { "--log-file" }, .type = QUIRE_OPT_TEXT, .unit = "FILE", .initial_text = "stderr",
      .offset = offsetof(quire_serve_args, log_file), .help = "append the log to this file" },

    QUIRE_ROWS_SAMPLER(quire_serve_args, "Sampling where a request does not say otherwise"),
};
/* clang-format on */

quire_engine_opts quire_serve_engine_opts(const quire_serve_args *args)
{
    quire_engine_opts opts = QUIRE_ENGINE_OPTS_INIT;

    opts.n_running_max = (uint32_t)args->max_batch_size;
    opts.queue_max = (uint32_t)args->max_queue;
    opts.chunk_tokens = (uint32_t)args->chunk_tokens;
    opts.tokens_max = (uint32_t)args->max_tokens;
    opts.admit = (quire_admit)args->admission;
    opts.cache_policy = (quire_evict_policy)args->cache_policy;
    opts.no_prefix_cache = args->no_prefix_cache;
    opts.state_every_tokens = (uint32_t)args->state_every_tokens;
    opts.cache_ttl_us = args->cache_ttl_us;
    opts.low_traffic_after_us = args->low_traffic_after_us;
    opts.low_traffic_hits_per_hour =
        args->low_traffic_after_us != 0 ? args->low_traffic_hits_per_hour : 0.0;
    opts.aging_us = args->class_aging_us;
    opts.pinned_bytes = quire_serve_pinned_at_first(args);
    opts.pinned_stays = args->no_spill;
    opts.pinned.floor_bytes = args->pinned_floor_bytes;
    opts.pinned.ceiling_bytes = args->pinned_ceiling_bytes;
    opts.pinned.dynamic_floor_bytes = args->dynamic_floor_bytes;
    opts.pins_max = (uint32_t)args->max_pins;
    /* Idle time would compute texts with all of their tokens. */
    opts.precache.is_off = args->no_precache || args->retain != NULL;
    opts.retain_chunk = quire_serve_retain_chunk(args);
    opts.recent_bytes = (size_t)args->recent_bytes;
    opts.no_shadow = args->no_what_if;
    opts.tier.copies_all = args->store_all;
    opts.tier.prefetch_steps = (uint32_t)args->prefetch_steps;
    opts.sessions.sessions_max = (uint32_t)args->max_sessions;
    opts.sessions.ttl_us = args->session_ttl_us;
    return opts;
}

quire_server_opts quire_serve_server_opts(const quire_serve_args *args)
{
    quire_server_opts opts = QUIRE_SERVER_OPTS_INIT;

    opts.host = args->host;
    opts.port = (uint16_t)args->port;
    opts.allowed_hosts = args->allowed_hosts;
    opts.cors_origins = args->cors_origins;
    opts.tls_cert = args->tls_cert;
    opts.tls_key = args->tls_key;
    opts.body_bytes_max = (size_t)args->max_body_bytes;
    opts.header_bytes_max = (size_t)args->max_header_bytes;
    opts.connections_max = (uint32_t)args->max_connections;
    opts.idle_timeout_s = SECONDS(args->idle_timeout_us);
    /* Less than a second is not "no limit". */
    opts.request_time_max_s = SECONDS(args->max_time_us + 999999);
    opts.version = QUIRE_VERSION;
    opts.tune_bounds.pinned_share_min = args->tune_pinned_min;
    opts.tune_bounds.pinned_share_max = args->tune_pinned_max;
    opts.tune_bounds.ttl_min_us = args->tune_ttl_min_us;
    opts.tune_bounds.ttl_max_us = args->tune_ttl_max_us;
    opts.page_tokens = (uint32_t)args->common.page_tokens;
    opts.n_running_max = (uint32_t)args->max_batch_size;
    opts.chat_template = args->chat_template;
    opts.default_class = args->default_class;
    opts.truncates_turns = args->context_overflow == 1;
    /* With truncate_turns it stays QUIRE_CONTEXT_REFUSE. */
    (void)quire_context_overflow_find(overflows[args->context_overflow], &opts.context_overflow);
    opts.context_keep = (uint32_t)args->context_keep;
    quire_sampling_args_apply(&args->sampling, &opts.sampler);
    return opts;
}

quire_opened_want quire_serve_want(const quire_serve_args *args)
{
    const uint32_t n_running = (uint32_t)args->max_batch_size;
    const uint32_t n_fetches = quire_serve_has_store(args) ? QUIRE_TIER_FETCHES_MAX : 0;

    return (quire_opened_want){
        /* One more: a text is condensed into another sequence. */
        .n_seqs_max = n_running + quire_engine_parked_max(n_running) + n_fetches + 1,
        .kv_share = args->cache_memory_ratio,
        .kv_overflows = quire_serve_overflow_is_on_any(args),
        .attends_host = quire_serve_attends_host(args),
        .lock_memory = args->lock_memory,
        .has_bounds = args->attend != NULL,
    };
}

/* The size of a step follows from max_batch_size: there is no --batch. */
static int parse(int argc, char *const *argv, void *opaque, quire_error *err)
{
    quire_serve_args *args = opaque;
    int rc =
        quire_settings_read(&args->settings, &quire_command_serve, NULL, argc, argv, args, err);

    args->common.n_batch = args->chunk_tokens + args->max_batch_size;
    args->is_page_auto = args->common.page_tokens == 0;
    if (args->is_page_auto) {
        args->common.page_tokens = QUIRE_TILE_TOKENS; /* until quire_serve_page_size_settle() */
    }
    return rc;
}

static int check(const void *opaque, quire_error *err)
{
    const quire_serve_args *args = opaque;

    QUIRE_TRY(quire_common_check(args, err));
    return quire_sampling_args_check(&args->sampling, err);
}

const quire_command quire_command_serve = {
    .name = "serve",
    .usage = "[-m] FILE [options]",
    .summary = "Serves a model over HTTP: OpenAI's API, metrics, administration.",
    .notes = "Settings can also be given in the YAML file of --config (--kv-recent as kv_recent), "
             "and in the\nenvironment (QUIRE_KV_RECENT). A flag wins over the environment, the "
             "environment over the file.\ndocs/configuration.md describes all settings.\n\n"
             "example: quire serve -m model.gguf -c 8192 --kv q8",
    .options = options,
    .n_options = sizeof(options) / sizeof(options[0]),
    .positional = "--model",
    .args_bytes = sizeof(quire_serve_args),
    .has_settings = true,
    .parse = parse,
    .check = check,
    .run = quire_serve_run,
};
