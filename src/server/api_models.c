/* api_models.c - about the server: models, health, properties, metrics, the pages.
 *
 * SPDX-License-Identifier: MIT */
#include "model/text.h"
#include "server/handlers.h"

#include "server/dashboard.h"
#include "server/generate.h"
#include "server/metrics.h"
#include "server/token_text.h"

#include <string.h>

int quire_api_dashboard(quire_http *http)
{
    return quire_http_reply_static(http, "text/html; charset=utf-8", quire_dashboard_page,
                                   quire_dashboard_page_bytes);
}

int quire_api_chat_page(quire_http *http)
{
    return quire_http_reply_static(http, "text/html; charset=utf-8", quire_chat_page,
                                   quire_chat_page_bytes);
}

/* Of a server with several. */
static void write_devices(quire_json_out *json, quire_engine *engine)
{
    quire_engine_device_stats devices[QUIRE_REPLICAS_MAX];
    const uint32_t n = quire_engine_devices_get(engine, devices);

    if (n < 2) {
        return;
    }
    quire_json_array(json, "devices");
    for (uint32_t i = 0; i < n; i++) {
        quire_json_object(json, NULL);
        quire_json_string(json, "name", devices[i].name);
        quire_json_bool(json, "lost", devices[i].is_lost);
        quire_json_object_end(json);
    }
    quire_json_array_end(json);
}

int quire_api_health(quire_http *http)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    const bool is_draining = atomic_load(&http->server->is_draining);
    const bool is_ready = http->engine != NULL && !is_draining;

    quire_json_object(&json, NULL);
    quire_json_string(&json, "status", is_ready ? "ok" : is_draining ? "draining" : "loading");
    if (http->server->opts.lost_device != NULL) {
        quire_json_string(&json, "lost_device", http->server->opts.lost_device);
    }
    if (http->engine != NULL) {
        write_devices(&json, http->engine);
    }
    quire_json_object_end(&json);
    return quire_http_reply_json(http, is_ready ? 200 : 503, &body);
}

static void write_model(quire_json_out *json, const quire_http *http)
{
    const quire_model_desc *desc = quire_model_desc_get(quire_engine_model(http->engine));

    quire_json_object(json, NULL);
    quire_json_string(json, "id", http->server->opts.model_name);
    quire_json_string(json, "object", "model");
    quire_json_i64(json, "created", 0);
    quire_json_string(json, "owned_by", "quire");
    quire_json_object(json, "meta");
    quire_json_string(json, "architecture", desc->arch_name);
    quire_json_string(json, "name", desc->name);
    quire_json_string(json, "file_type", desc->file_type);
    quire_json_u64(json, "n_vocab", desc->n_vocab);
    quire_json_u64(json, "n_ctx_train", desc->n_ctx_train);
    quire_json_u64(json, "n_ctx", quire_engine_n_ctx(http->engine));
    quire_json_u64(json, "n_embd", desc->n_embd);
    quire_json_u64(json, "n_params", desc->n_params);
    quire_json_u64(json, "size", desc->weight_bytes);
    quire_json_object_end(json);
    quire_json_object_end(json);
}

int quire_api_models(quire_http *http)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };

    quire_json_object(&json, NULL);
    quire_json_string(&json, "object", "list");
    quire_json_array(&json, "data");
    write_model(&json, http);
    quire_json_array_end(&json);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}

int quire_api_model(quire_http *http)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };

    if (strcmp(http->item, http->server->opts.model_name) != 0) {
        return quire_api_error_set(&http->err, 404, "model_not_found", "model",
                                   "no such model; GET /v1/models lists it");
    }
    write_model(&json, http);
    return quire_http_reply_json(http, 200, &body);
}

static void write_classes(quire_json_out *json, const quire_tiers *tiers)
{
    quire_json_array(json, "service_classes");
    for (uint32_t i = 0; i < tiers->classes.n; i++) {
        quire_json_string(json, NULL, tiers->classes.items[i].name);
    }
    quire_json_array_end(json);
    quire_json_string(json, "default_class", tiers->classes.items[tiers->default_index].name);
}

static void write_token(quire_json_out *json, const char *key, const quire_model *model,
                        int32_t token)
{
    quire_token_text text = { .n = 0 };

    if (token >= 0) {
        quire_token_text_get(model, token, &text);
    }
    quire_json_text(json, key, text.text, text.n);
}

int quire_api_props(quire_http *http)
{
    const quire_server_opts *opts = &http->server->opts;
    const quire_model *model = quire_engine_model(http->engine);
    const char *chat_template =
        opts->chat_template != NULL ? opts->chat_template : quire_model_chat_template(model);
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    char policy[QUIRE_RETAIN_TEXT_MAX];
    char attend[32];

    quire_json_object(&json, NULL);
    quire_json_object(&json, "default_generation_settings");
    quire_json_u64(&json, "n_ctx", quire_engine_n_ctx(http->engine));
    quire_answer_sampling_write(&json, "params", &opts->sampler);
    quire_json_object_end(&json);
    quire_json_u64(&json, "total_slots", opts->n_running_max);
    quire_json_string(&json, "model_alias", opts->model_name);
    quire_json_string(&json, "chat_template", chat_template);
    write_token(&json, "bos_token", model, quire_model_bos(model));
    write_token(&json, "eos_token", model, quire_model_eos(model));
    quire_json_object(&json, "modalities");
    quire_json_bool(&json, "vision", false);
    quire_json_bool(&json, "audio", false);
    quire_json_object_end(&json);
    quire_json_bool(&json, "endpoint_slots", true);
    quire_json_string(&json, "build_info", opts->version);
    quire_json_object(&json, "quire");
    quire_json_string(&json, "kv", opts->kv_name);
    quire_json_u64(&json, "page_tokens", opts->page_tokens);
    quire_json_string(&json, "context_overflow",
                      opts->truncates_turns ? "truncate_turns"
                                            : quire_context_overflow_name(opts->context_overflow));
    quire_json_u64(&json, "context_keep", opts->context_keep);
    quire_json_string(&json, "retain",
                      opts->retain.policy != NULL
                          ? quire_retain_text(&opts->retain, policy, sizeof policy)
                          : "none");
    (void)snprintf(attend, sizeof attend, "top:%g", opts->attend_share);
    quire_json_string(&json, "attend", opts->attend_share > 0 ? attend : "none");
    write_classes(&json, &http->server->tiers);
    quire_json_object_end(&json);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}

/* As many slots as requests may run at once. They have no texts and no places of their own here, so
 * the first ones are those that work. */
int quire_api_slots(quire_http *http)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    quire_engine_stats stats;
    uint32_t n_busy;

    quire_engine_stats_get(http->engine, &stats);
    n_busy = (uint32_t)(stats.requests_prefilling + stats.requests_decoding);
    quire_json_array(&json, NULL);
    for (uint32_t i = 0; i < http->server->opts.n_running_max; i++) {
        quire_json_object(&json, NULL);
        quire_json_u64(&json, "id", i);
        quire_json_u64(&json, "n_ctx", quire_engine_n_ctx(http->engine));
        quire_json_bool(&json, "speculative", false);
        quire_json_bool(&json, "is_processing", i < n_busy);
        quire_json_object_end(&json);
    }
    quire_json_array_end(&json);
    return quire_http_reply_json(http, 200, &body);
}

int quire_api_metrics(quire_http *http)
{
    const quire_server *server = http->server;
    const quire_metrics_config config = {
        .model = server->opts.model_name,
        .kv = server->opts.kv_name,
        .version = server->opts.version,
        .page_tokens = server->opts.page_tokens,
        .n_ctx = quire_engine_n_ctx(http->engine),
        .n_running_max = server->opts.n_running_max,
        .classes = &server->tiers.classes,
    };
    quire_server_stats stats = { .client_gone_total = atomic_load(&server->client_gone_total),
                                 .connections = atomic_load(&server->n_connections) };
    quire_record_stats record = { .written = 0, .has_failed = true };
    quire_engine_stats engine;
    quire_bytes body = { 0 };

    if (server->opts.record != NULL) {
        quire_record_stats_get(server->opts.record, &record);
    }
    stats.is_recording = !record.has_failed;
    stats.has_lost_device = server->opts.lost_device != NULL;
    stats.recorded_total = record.written;
    stats.record_dropped_total = record.dropped;
    quire_kv_events_stats_get(server->opts.kv_events, &stats.kv_events);
    for (unsigned i = 0; i < 6; i++) {
        stats.http_requests_total[i] = atomic_load(&server->replies_total[i]);
    }
    quire_engine_stats_get(http->engine, &engine);
    stats.n_devices = quire_engine_devices_get(http->engine, stats.devices);
    (void)quire_metrics_write(&body, &engine, &stats, &config);
    return quire_http_reply(http, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}
