/* metrics.h - the tables of metrics, the source of the Prometheus text and of docs/metrics.md.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_METRICS_H
#define QUIRE_SERVER_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bytes.h"
#include "engine/replicas.h"
#include "engine/stats.h"
#include "server/kv_events/kv_events.h"

/* Figures that the server adds to the engine's. */
typedef struct quire_server_stats {
    uint64_t http_requests_total[6]; /* by hundreds of the status: 1xx .. 5xx at 1..5 */
    uint64_t client_gone_total;
    uint32_t connections;
    /* Of --record; all 0 without. */
    bool is_recording;
    bool has_lost_device;
    uint64_t recorded_total;
    uint64_t record_dropped_total;
    quire_kv_events_stats kv_events; /* of --kv-events; all 0 without */
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];
    uint32_t n_devices;
} quire_server_stats;

/* Constants of a running server, for quire_cache_config_info. */
typedef struct quire_metrics_config {
    const char *model;
    const char *kv; /* formats */
    const char *version;
    uint32_t page_tokens;
    uint32_t n_ctx;
    uint32_t n_running_max;
    const quire_classes *classes; /* classes of the engine; NULL = no series by class */
} quire_metrics_config;

/* Prometheus text format 0.0.4. Errors: QUIRE_NOMEM. */
int quire_metrics_write(quire_bytes *out, const quire_engine_stats *engine,
                        const quire_server_stats *server, const quire_metrics_config *config);

/* The table of docs/metrics.md. Errors: QUIRE_NOMEM. */
int quire_metrics_document(quire_bytes *out);

#endif /* QUIRE_SERVER_METRICS_H */
