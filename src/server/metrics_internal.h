/* metrics_internal.h - types for the rows of the tables of metrics; for metrics*.c only.
 *
 * A row is a family of series: its name, its description for Prometheus and for people, and its
 * samples. A sample is an offset in one of the structs of figures. A sample of quire_class_stats
 * yields one series per class, with the label class="name"; one of quire_store_part yields one
 * series per store below memory, with the label store="name"; one of quire_engine_device_stats
 * yields one series per device, with the labels device="number" and name="name".
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_SERVER_METRICS_INTERNAL_H
#define QUIRE_SERVER_METRICS_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>

#include "server/metrics.h"

typedef enum quire_metric_type {
    VALUE_U64,
    VALUE_U32,
    VALUE_US, /* uint64_t microseconds, written as seconds */
    VALUE_MS, /* double milliseconds, written as seconds */
    VALUE_F64,
    VALUE_BOOL,
    VALUE_DERIVED,
    VALUE_STATE, /* quire_store_state: 1 when it is DEGRADED */
    VALUE_HISTOGRAM,
    VALUE_INFO /* always 1; the labels hold the information */
} quire_metric_type;

/* The struct that the offset refers to. */
typedef enum quire_metric_from {
    FROM_ENGINE,       /* quire_engine_stats */
    FROM_SERVER,       /* quire_server_stats */
    FROM_CLASS,        /* quire_class_stats of each class */
    FROM_CLASS_CONFIG, /* quire_class of each */
    FROM_PART,         /* quire_store_part of each store below memory */
    FROM_DEVICE        /* quire_engine_device_stats of each device */
} quire_metric_from;

typedef struct quire_metric_sample {
    const char *labels; /* "state=\"live\""; NULL = none */
    quire_metric_type type;
    quire_metric_from from;
    size_t offset;
    double (*derive)(const quire_engine_stats *engine);
    const char *const *info; /* names of the config's texts; NULL-terminated */
} quire_metric_sample;

typedef struct quire_metric_family {
    const char *name;
    const char *type;   /* of Prometheus */
    const char *unit;   /* for people */
    const char *labels; /* for people; NULL = none */
    const char *help;
    const quire_metric_sample *samples;
    size_t n_samples;
} quire_metric_family;

typedef struct quire_metric_table {
    const quire_metric_family *families;
    size_t n;
} quire_metric_table;

extern const quire_metric_table quire_metrics_main;    /* metrics_table.c */
extern const quire_metric_table quire_metrics_classes; /* metrics_memory.c */
extern const quire_metric_table quire_metrics_memory;
extern const quire_metric_table quire_metrics_tier;   /* metrics_tier.c */
extern const quire_metric_table quire_metrics_device; /* metrics_device.c */

#define ENGINE(labels_, type_, field)                                                              \
    {                                                                                              \
        .labels = (labels_), .type = (type_), .offset = offsetof(quire_engine_stats, field)        \
    }
#define SERVER(labels_, type_, field)                                                              \
    {                                                                                              \
        .labels = (labels_), .type = (type_), .from = FROM_SERVER,                                 \
        .offset = offsetof(quire_server_stats, field)                                              \
    }
#define CLASS(labels_, type_, field)                                                               \
    {                                                                                              \
        .labels = (labels_), .type = (type_), .from = FROM_CLASS,                                  \
        .offset = offsetof(quire_class_stats, field)                                               \
    }
#define CLASS_CONFIG(labels_, type_, field)                                                        \
    {                                                                                              \
        .labels = (labels_), .type = (type_), .from = FROM_CLASS_CONFIG,                           \
        .offset = offsetof(quire_class, field)                                                     \
    }
#define STORE(labels_, type_, field)                                                               \
    {                                                                                              \
        .labels = (labels_), .type = (type_), .from = FROM_PART,                                   \
        .offset = offsetof(quire_store_part, stats.field)                                          \
    }
#define DEVICE(labels_, type_, field)                                                              \
    {                                                                                              \
        .labels = (labels_), .type = (type_), .from = FROM_DEVICE,                                 \
        .offset = offsetof(quire_engine_device_stats, field)                                       \
    }
#define DERIVED(labels_, function)                                                                 \
    {                                                                                              \
        .labels = (labels_), .type = VALUE_DERIVED, .derive = (function)                           \
    }
#define INFO(names)                                                                                \
    {                                                                                              \
        .type = VALUE_INFO, .info = (names)                                                        \
    }
#define SAMPLES(...)                                                                               \
    .samples = (const quire_metric_sample[]){ __VA_ARGS__ },                                       \
    .n_samples =                                                                                   \
        sizeof((const quire_metric_sample[]){ __VA_ARGS__ }) / sizeof(quire_metric_sample)
#define ONE(type_, field) SAMPLES(ENGINE(NULL, (type_), field))

#define REASON(name) "reason=\"" name "\""

#endif /* QUIRE_SERVER_METRICS_INTERNAL_H */
