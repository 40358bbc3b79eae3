/* metrics.c - the tables of metrics, written as Prometheus text and as documentation.
 *
 * SPDX-License-Identifier: MIT */
#include "server/metrics_internal.h"

#include "base/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Structs from which values are read. */
typedef struct sources {
    const quire_engine_stats *engine;
    const quire_server_stats *server;
    const quire_metrics_config *config;
} sources;

static const quire_metric_table *const tables[] = { &quire_metrics_main, &quire_metrics_classes,
                                                    &quire_metrics_memory, &quire_metrics_tier,
                                                    &quire_metrics_device };
#define N_TABLES (sizeof(tables) / sizeof(tables[0]))

/* ---- Prometheus text ---- */

/* A label's value between its quotes. */
static void add_escaped(quire_bytes *out, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '\n') {
            (void)quire_bytes_add(out, "\\n", 2);
        } else if (*text == '"' || *text == '\\') {
            (void)quire_bytes_addf(out, "\\%c", *text);
        } else {
            (void)quire_bytes_add(out, text, 1);
        }
    }
}

static void add_info(quire_bytes *out, const char *name, const quire_metrics_config *config)
{
    const struct {
        const char *name;
        const char *text;
        uint32_t number; /* if text is NULL */
    } values[] = {
        { "model", config->model, 0 },          { "kv", config->kv, 0 },
        { "version", config->version, 0 },      { "page_tokens", NULL, config->page_tokens },
        { "max_seq_len", NULL, config->n_ctx }, { "max_batch_size", NULL, config->n_running_max },
    };

    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        if (strcmp(values[i].name, name) == 0) {
            (void)quire_bytes_addf(out, "%s=\"", name);
            if (values[i].text != NULL) {
                add_escaped(out, values[i].text);
            } else {
                (void)quire_bytes_addf(out, "%" PRIu32, values[i].number);
            }
            (void)quire_bytes_add(out, "\"", 1);
        }
    }
}

static void write_info(quire_bytes *out, const char *name, const quire_metric_sample *s,
                       const quire_metrics_config *config)
{
    (void)quire_bytes_addf(out, "%s{", name);
    for (size_t i = 0; s->info[i] != NULL; i++) {
        (void)quire_bytes_addf(out, "%s", i > 0 ? "," : "");
        add_info(out, s->info[i], config);
    }
    (void)quire_bytes_addf(out, "} 1\n");
}

/* labels: "" or those before le. */
static void write_histogram(quire_bytes *out, const char *name, const char *labels,
                            const quire_histogram *h)
{
    const char *comma = labels[0] != '\0' ? "," : "";
    const char *open = labels[0] != '\0' ? "{" : "";
    const char *close = labels[0] != '\0' ? "}" : "";
    uint64_t below = 0;

    for (uint32_t i = 0; i < h->n_bounds; i++) {
        below += h->counts[i];
        (void)quire_bytes_addf(out, "%s_bucket{%s%sle=\"%g\"} %" PRIu64 "\n", name, labels, comma,
                               h->bounds[i], below);
    }
    (void)quire_bytes_addf(out, "%s_bucket{%s%sle=\"+Inf\"} %" PRIu64 "\n", name, labels, comma,
                           h->n);
    (void)quire_bytes_addf(out, "%s_sum%s%s%s %.9g\n", name, open, labels, close, h->sum);
    (void)quire_bytes_addf(out, "%s_count%s%s%s %" PRIu64 "\n", name, open, labels, close, h->n);
}

static void write_value(quire_bytes *out, const quire_metric_sample *s, const void *place,
                        const quire_engine_stats *engine)
{
    switch (s->type) {
    case VALUE_U64:
        (void)quire_bytes_addf(out, " %" PRIu64 "\n", *(const uint64_t *)place);
        break;
    case VALUE_U32:
        (void)quire_bytes_addf(out, " %" PRIu32 "\n", *(const uint32_t *)place);
        break;
    case VALUE_BOOL:
        (void)quire_bytes_addf(out, " %d\n", *(const bool *)place);
        break;
    case VALUE_US:
        (void)quire_bytes_addf(out, " %.3f\n", 1e-6 * (double)*(const uint64_t *)place);
        break;
    case VALUE_MS:
        (void)quire_bytes_addf(out, " %.9g\n", 1e-3 * *(const double *)place);
        break;
    case VALUE_STATE:
        (void)quire_bytes_addf(out, " %d\n",
                               *(const quire_store_state *)place == QUIRE_STORE_DEGRADED);
        break;
    case VALUE_F64:
        (void)quire_bytes_addf(out, " %.9g\n", *(const double *)place);
        break;
    default:
        (void)quire_bytes_addf(out, " %.9g\n", s->derive(engine));
        break;
    }
}

/* One series; labels as they go between braces, "" = none. */
static void write_series(quire_bytes *out, const char *name, const char *labels,
                         const quire_metric_sample *s, const void *place,
                         const quire_engine_stats *engine)
{
    if (s->type == VALUE_HISTOGRAM) {
        write_histogram(out, name, labels, place);
        return;
    }
    (void)quire_bytes_addf(out, labels[0] != '\0' ? "%s{%s}" : "%s", name, labels);
    write_value(out, s, place, engine);
}

/* A series of a thing with a name that needs no escapes: a-z 0-9 _ - +. */
static void write_named(quire_bytes *out, const char *name, const char *label, const char *of,
                        const quire_metric_sample *s, const char *base, const sources *from)
{
    char labels[QUIRE_CLASS_NAME_MAX + 80];

    (void)snprintf(labels, sizeof labels, "%s=\"%s\"%s%s", label, of, s->labels != NULL ? "," : "",
                   s->labels != NULL ? s->labels : "");
    write_series(out, name, labels, s, base + s->offset, from->engine);
}

/* A series for each store below memory. */
static void write_parts(quire_bytes *out, const char *name, const quire_metric_sample *s,
                        const sources *from)
{
    const quire_tier_stats *tier = &from->engine->tier;

    for (uint32_t i = 0; i < tier->n_parts; i++) {
        write_named(out, name, "store", tier->parts[i].name, s, (const char *)&tier->parts[i],
                    from);
    }
}

/* A series for each device; several may have one name. */
static void write_devices(quire_bytes *out, const char *name, const quire_metric_sample *s,
                          const sources *from)
{
    for (uint32_t i = 0; i < from->server->n_devices; i++) {
        const quire_engine_device_stats *device = &from->server->devices[i];
        char labels[160];

        (void)snprintf(labels, sizeof labels, "device=\"%u\",name=\"%s\"%s%s", i, device->name,
                       s->labels != NULL ? "," : "", s->labels != NULL ? s->labels : "");
        write_series(out, name, labels, s, (const char *)device + s->offset, from->engine);
    }
}

/* A series for each class. */
static void write_classes(quire_bytes *out, const char *name, const quire_metric_sample *s,
                          const sources *from)
{
    const quire_classes *classes = from->config->classes;

    for (uint32_t i = 0; classes != NULL && i < classes->n && i < from->engine->n_classes; i++) {
        const char *base = s->from == FROM_CLASS ? (const char *)&from->engine->classes[i]
                                                 : (const char *)&classes->items[i];

        write_named(out, name, "class", classes->items[i].name, s, base, from);
    }
}

static void write_sample(quire_bytes *out, const char *name, const quire_metric_sample *s,
                         const sources *from)
{
    const char *base =
        s->from == FROM_SERVER ? (const char *)from->server : (const char *)from->engine;

    if (s->from == FROM_CLASS || s->from == FROM_CLASS_CONFIG) {
        write_classes(out, name, s, from);
    } else if (s->from == FROM_PART) {
        write_parts(out, name, s, from);
    } else if (s->from == FROM_DEVICE) {
        write_devices(out, name, s, from);
    } else if (s->type == VALUE_INFO) {
        write_info(out, name, s, from->config);
    } else {
        write_series(out, name, s->labels != NULL ? s->labels : "", s, base + s->offset,
                     from->engine);
    }
}

int quire_metrics_write(quire_bytes *out, const quire_engine_stats *engine,
                        const quire_server_stats *server, const quire_metrics_config *config)
{
    const sources from = { engine, server, config };

    for (size_t t = 0; t < N_TABLES; t++) {
        for (size_t i = 0; i < tables[t]->n; i++) {
            const quire_metric_family *f = &tables[t]->families[i];

            (void)quire_bytes_addf(out, "# HELP %s %s\n# TYPE %s %s\n", f->name, f->help, f->name,
                                   f->type);
            for (size_t j = 0; j < f->n_samples; j++) {
                write_sample(out, f->name, &f->samples[j], &from);
            }
        }
    }
    return out->status;
}

/* ---- documentation ---- */

static const char heading[] = "| name | type | unit | labels | meaning |\n"
                              "|---|---|---|---|---|\n";

int quire_metrics_document(quire_bytes *out)
{
    (void)quire_bytes_add(out, heading, sizeof(heading) - 1);
    for (size_t t = 0; t < N_TABLES; t++) {
        for (size_t i = 0; i < tables[t]->n; i++) {
            const quire_metric_family *f = &tables[t]->families[i];

            (void)quire_bytes_addf(out, "| `%s` | %s | %s | %s | %s |\n", f->name, f->type, f->unit,
                                   f->labels != NULL ? f->labels : "", f->help);
        }
    }
    return out->status;
}
