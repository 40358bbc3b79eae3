/* api_tuning.c - GET and POST /v1/cache/tuning: settings suggested by the last hour's requests.
 *
 * SPDX-License-Identifier: MIT */
#include "server/handlers.h"

#include "base/check.h"
#include "engine/tuning.h"

#include <stdlib.h>

/* Microseconds as seconds. */
static double seconds(double us)
{
    return us / 1e6;
}

static void write_value(quire_json_out *json, const char *key, quire_tune_knob knob, double value)
{
    switch (knob) {
    case QUIRE_TUNE_TTL:
    case QUIRE_TUNE_LOW_TRAFFIC:
        quire_json_number(json, key, seconds(value));
        break;
    case QUIRE_TUNE_POLICY:
        quire_json_string(json, key, quire_evict_policy_name((quire_evict_policy)value));
        break;
    case QUIRE_TUNE_MEMORY:
        quire_json_u64(json, key, (uint64_t)value);
        break;
    default:
        quire_json_number(json, key, value);
        break;
    }
}

static const char *unit_of(quire_tune_knob knob)
{
    switch (knob) {
    case QUIRE_TUNE_TTL:
    case QUIRE_TUNE_LOW_TRAFFIC:
        return "seconds";
    case QUIRE_TUNE_MEMORY:
        return "bytes";
    case QUIRE_TUNE_POLICY:
        return "policy";
    default:
        return "share";
    }
}

static void write_facts(quire_json_out *json, const quire_tune_facts *f)
{
    quire_json_object(json, "facts");
    quire_json_u64(json, "requests", f->requests);
    quire_json_number(json, "span_s", seconds((double)f->span_us));
    quire_json_number(json, "hit_rate", f->hit_rate);
    quire_json_number(json, "hit_rate_half", f->hit_rate_half);
    quire_json_number(json, "hit_rate_double", f->hit_rate_double);
    quire_json_number(json, "hit_rate_infinite", f->hit_rate_infinite);
    quire_json_number(json, "one_time_share", f->one_time_share);
    quire_json_number(json, "gap_p50_s", seconds((double)f->gap_p50_us));
    quire_json_number(json, "gap_p90_s", seconds((double)f->gap_p90_us));
    quire_json_number(json, "gap_p99_s", seconds((double)f->gap_p99_us));
    quire_json_number(json, "pinned_need_p99_bytes", f->pinned_need_p99_bytes);
    quire_json_u64(json, "distinct_bytes", f->distinct_bytes);
    if (f->best_policy_hit_rate > 0.0) {
        quire_json_string(json, "best_policy", quire_evict_policy_name(f->best_policy));
        quire_json_number(json, "best_policy_hit_rate", f->best_policy_hit_rate);
        quire_json_number(json, "current_policy_hit_rate", f->current_policy_hit_rate);
    }
    quire_json_object_end(json);
}

static void write_settings(quire_json_out *json, const quire_tune_settings *s)
{
    quire_json_object(json, "settings");
    write_value(json, "pinned_share", QUIRE_TUNE_PINNED_SHARE, s->pinned_share);
    write_value(json, "cache_ttl", QUIRE_TUNE_TTL, (double)s->ttl_us);
    write_value(json, "low_traffic_after", QUIRE_TUNE_LOW_TRAFFIC, (double)s->low_traffic_after_us);
    write_value(json, "kv_budget", QUIRE_TUNE_MEMORY, (double)s->memory_bytes);
    write_value(json, "cache_policy", QUIRE_TUNE_POLICY, (double)s->policy);
    quire_json_object_end(json);
}

static void write_change(quire_json_out *json, const quire_tune_change *c, bool is_applied)
{
    quire_json_object(json, NULL);
    quire_json_string(json, "setting", quire_tune_knob_name(c->knob));
    quire_json_string(json, "unit", unit_of(c->knob));
    write_value(json, "from", c->knob, c->from);
    write_value(json, "to", c->knob, c->to);
    quire_json_bool(json, "applicable", c->is_applicable);
    quire_json_bool(json, "applied", is_applied);
    quire_json_string(json, "reason", c->reason);
    quire_json_object_end(json);
}

static int reply_tuning(quire_http *http, const quire_engine_tuning *t)
{
    quire_bytes body = { 0 };
    quire_json_out json = { &body, false };
    quire_engine_stats stats;

    quire_engine_stats_get(http->engine, &stats);
    quire_json_object(&json, NULL);
    if (t->time_us == 0) {
        quire_json_null(&json, "ago_s");
    } else {
        const uint64_t now_us = stats.uptime_us > t->time_us ? stats.uptime_us : t->time_us;

        quire_json_number(&json, "ago_s", seconds((double)(now_us - t->time_us)));
        write_facts(&json, &t->facts);
        write_settings(&json, &t->settings);
    }
    quire_json_array(&json, "changes");
    for (uint32_t i = 0; i < t->n_changes; i++) {
        write_change(&json, &t->changes[i], t->is_applied[i]);
    }
    quire_json_array_end(&json);
    quire_json_object_end(&json);
    return quire_http_reply_json(http, 200, &body);
}

int quire_api_tuning_get(quire_http *http)
{
    quire_engine_tuning tuning = { .time_us = 0 };

    quire_engine_tuning_get(http->engine, &tuning);
    return reply_tuning(http, &tuning);
}

/* Tune now; "apply" also applies the changes that it may. */
int quire_api_tuning_run(quire_http *http)
{
    quire_fields fields = { .err = &http->err };
    quire_engine_tune_opts opts = { .bounds = http->server->opts.tune_bounds };
    quire_engine_tuning tuning = { .time_us = 0 };
    int rc;

    if (http->body.n > 0) {
        QUIRE_TRY(quire_http_json(http, &fields.object));
        opts.is_applied = quire_field_bool(&fields, "apply", false);
        opts.compares_policies = quire_field_bool(&fields, "compare_policies", false);
        quire_http_json_release(http, fields.object);
        QUIRE_FAIL_IF(http->err.http != 0, QUIRE_INVAL);
    }
    rc = quire_engine_tune(http->engine, &opts, &tuning);
    if (rc == QUIRE_NOMEM) {
        return quire_api_error_nomem(&http->err);
    }
    if (rc < 0) {
        return quire_api_error_set(&http->err, 409, "tuning_unavailable", NULL,
                                   "somebody else is at it just now, or the server remembers no "
                                   "requests (recent_memory)");
    }
    return reply_tuning(http, &tuning);
}
