/* serve.c - see serve.h.
 *
 * SPDX-License-Identifier: MIT */
#include "cli/serving/serve.h"
#include "model/text.h"

#include "base/check.h"
#include "base/parse.h"
#include "base/text_buffer.h"
#include "cli/commands/device_choice.h"
#include "cli/commands/talk.h"
#include "cli/serving/serve_args.h"
#include "cli/serving/serve_check.h"
#include "cli/serving/serve_classes.h"
#include "cli/serving/serve_devices.h"
#include "cli/serving/serve_events.h"
#include "cli/serving/serve_keys.h"
#include "cli/serving/serve_log.h"
#include "cli/serving/serve_page_curve.h"
#include "cli/serving/serve_retain.h"
#include "cli/serving/serve_shared.h"
#include "cli/serving/serve_signals.h"
#include "cli/serving/serve_store.h"
#include "cli/serving/serve_template.h"
#include "cli/serving/serve_tune.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS        20  /* how often a draining server is asked whether it is done */
#define DEVICE_LOOK_MS 200 /* how often the engine is asked whether its device was lost */

/* ---- before the weights ---- */

typedef struct serving {
    quire_serve_args *args;
    quire_serve_log log;
    quire_tiers tiers;
    quire_serve_devices devices;
    quire_serve_tenants tenants;
    quire_serve_keys keys;
    quire_server_opts opts;
    char model_name[128];
    char kv_name[QUIRE_SESSION_KV_TEXT_MAX];
    char budget_note[QUIRE_SERVE_BUDGET_NOTE_MAX];
    char *template_text;    /* of --chat-template-file; NULL = none */
    char *page_curve;       /* of --page-curve and --page-tokens auto; NULL = none */
    uint32_t n_running_max; /* of each device */
    uint32_t n_ctx;
    uint64_t beside_bytes; /* see quire_opened_want */
    quire_record *record;  /* NULL = no recording */
    quire_server *server;
    quire_opened session;
    quire_engine *engine;
    quire_kv_events *events;  /* NULL = none */
    quire_store *store;       /* NULL = none, or the engine has it */
    quire_serve_tuner *tuner; /* NULL = no automatic tuning */
} serving;

static uint32_t n_devices(const serving *s)
{
    return s->devices.n > 1 ? s->devices.n : 1;
}

static void name_model(serving *s)
{
    const char *path = s->args->common.model;
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    size_t n = strlen(name);

    if (s->args->model_name != NULL) {
        s->opts.model_name = s->args->model_name;
        return;
    }
    n = n > 5 && strcmp(name + n - 5, ".gguf") == 0 ? n - 5 : n;
    (void)snprintf(s->model_name, sizeof(s->model_name), "%.*s", (int)n, name);
    s->opts.model_name = s->model_name;
}

/* A quota or a binding of a tenant without a key would have no effect. */
static int check_tenant(const serving *s, const char *list, uint32_t i, const char *name,
                        quire_error *err)
{
    for (uint32_t j = 0; j < s->keys.n; j++) {
        if (!s->keys.list[j].is_admin && strcmp(s->keys.list[j].tenant, name) == 0) {
            return QUIRE_OK;
        }
    }
    return quire_error_set(err, QUIRE_INVAL, "%.200s: %s[%u]: there is no key of a tenant '%.60s'",
                           s->args->settings.path, list, i + 1, name);
}

static int check_tenants(const serving *s, quire_error *err)
{
    for (uint32_t i = 0; i < s->tenants.n; i++) {
        QUIRE_TRY(check_tenant(s, "tenants", i, s->tenants.names[i], err));
    }
    for (uint32_t i = 0; i < s->devices.n_bindings; i++) {
        const char *name = s->devices.bound[i];

        if (name != NULL) {
            QUIRE_TRY(check_tenant(s, "placement", i, name, err));
        }
    }
    return QUIRE_OK;
}

/* Check the settings alone, without the model. */
static int check(serving *s, quire_error *err)
{
    QUIRE_TRY(quire_serve_memory_check(s->args, err));
    QUIRE_TRY(quire_serve_watch_check(s->args, err));
    QUIRE_TRY(quire_serve_store_check(s->args, err));
    QUIRE_TRY(quire_serve_shared_check(s->args, err));
    QUIRE_TRY(quire_serve_events_check(s->args, err));
    QUIRE_TRY(quire_serve_classes_read(&s->tiers, s->args, err));
    QUIRE_TRY(quire_serve_devices_read(&s->devices, s->args, &s->tiers, err));
    QUIRE_TRY(quire_serve_tenants_read(&s->tenants, s->args, err));
    QUIRE_TRY(quire_serve_keys_read(&s->keys, s->args, &s->tiers, err));
    QUIRE_TRY(check_tenants(s, err));
    s->opts = quire_serve_server_opts(s->args);
    s->n_running_max = s->opts.n_running_max;
    s->opts.n_running_max *= n_devices(s); /* of all devices together */
    QUIRE_TRY(quire_serve_retain_read(s->args, &s->opts, err));
    QUIRE_TRY(quire_serve_attend_read(s->args, &s->opts, err));
    s->opts.chat_template = s->template_text != NULL ? s->template_text : s->opts.chat_template;
    s->opts.classes = s->tiers.classes;
    s->opts.accounts = s->tenants.names;
    s->opts.n_accounts = s->tenants.n;
    s->opts.keys = s->keys.list;
    s->opts.n_keys = s->keys.n;
    return quire_server_opts_check(&s->opts, err);
}

/* Apply the settings to this model. */
static int prepare(serving *s, quire_runtime_opts *plan, quire_error *err)
{
    quire_opened_want want;
    quire_opened described = { .model = NULL };
    int rc;

    name_model(s);
    QUIRE_TRY(quire_serve_template_check(s->args, s->template_text, err));
    s->args->common.device = quire_device_choose(s->args->common.device); /* auto: once for all */
    if (s->devices.n < 2 || !quire_serve_devices_can_end(&s->devices)) {
        QUIRE_TRY(quire_serve_host_check(s->args, err)); /* of several the first may be cpu */
    }
    QUIRE_TRY(quire_serve_devices_look(&s->devices, err));
    rc = quire_opened_describe(&described, &s->args->common, err);
    if (rc == QUIRE_OK) {
        s->beside_bytes =
            quire_serve_retain_bytes(&described, s->args, &s->opts) + s->args->cache_host_bytes;
        rc = quire_serve_overflow_settle(s->args, &described, s->beside_bytes, err);
    }
    if (rc == QUIRE_OK) {
        want = quire_serve_want(s->args);
        want.beside_bytes = s->beside_bytes;
        quire_serve_retain_want(s->args, &s->opts, &want);
        want.kv_share = quire_serve_devices_share(&s->devices, 0, want.kv_share);
        rc = quire_opened_plan(&described, &s->args->common, &want, plan, err);
    }
    if (rc == QUIRE_OK) {
        const quire_serve_described d = { &described, s->args, &s->opts, &s->devices, &want, plan };

        rc = quire_serve_described_check(&d, err);
        quire_serve_budget_note(&d, s->budget_note);
    }
    if (rc == QUIRE_OK) {
        (void)quire_opened_kv_text(&described, s->kv_name, sizeof(s->kv_name));
        s->opts.kv_name = s->kv_name;
    }
    quire_opened_close(&described);
    plan->kv_pairs = NULL; /* was the description's */
    s->n_ctx = plan->n_ctx;
    return rc < 0 ? rc : quire_serve_budget_check(s->args, plan->kv_budget_bytes, err);
}

/* A file's name may be any bytes. */
static json_t *model_json(const serving *s)
{
    return quire_json_bytes(s->opts.model_name, strlen(s->opts.model_name));
}

static json_t *classes_json(const serving *s)
{
    const quire_classes *classes = &s->tiers.classes;
    json_t *list = json_array();

    for (uint32_t i = 0; i < classes->n; i++) {
        const quire_class *c = &classes->items[i];

        (void)json_array_append_new(list,
                                    json_pack("{s:s, s:i, s:b, s:b}", "name", c->name, "weight",
                                              (int)c->weight, "pinned", (int)c->is_pinned,
                                              "is_default", (int)(i == s->tiers.default_index)));
    }
    return list;
}

static void print_classes(const serving *s)
{
    const quire_classes *classes = &s->tiers.classes;

    printf("# classes:");
    for (uint32_t i = 0; i < classes->n; i++) {
        const quire_class *c = &classes->items[i];

        printf("%s %s (weight %u%s%s)", i > 0 ? "," : "", c->name, c->weight,
               c->is_pinned ? ", pinned" : "",
               i == s->tiers.default_index ? ", of requests that name none" : "");
    }
    printf("; tenants with an account of their own: %u\n", s->tenants.n);
}

#define NO_PREFETCH "prefetch_steps has no effect without cache_dir, store or cache_host_memory"

/* Pages are to be read ahead, and there is no store to read them from. */
static bool has_idle_prefetch(const serving *s)
{
    return s->args->prefetch_steps != 0 && !quire_serve_has_store(s->args);
}

static int print_checked(const serving *s, const quire_runtime_opts *plan)
{
    uint32_t n_admins = 0;
    char budget[16];

    for (uint32_t i = 0; i < s->keys.n; i++) {
        n_admins += s->keys.list[i].is_admin;
    }
    if (s->args->common.is_json) {
        return quire_stdout_json(json_pack(
            "{s:o, s:{s:o, s:s, s:i, s:o, s:I, s:s, s:i, s:i, s:o, s:i}}", "settings",
            quire_settings_json(&s->args->settings), "effective", "model_name", model_json(s), "kv",
            s->kv_name, "ctx_size", (int)plan->n_ctx, "page_tokens",
            quire_serve_page_size_json(s->args, s->page_curve), "kv_budget_bytes",
            (json_int_t)plan->kv_budget_bytes, "kv_overflow",
            quire_kv_overflows[quire_serve_overflow_is_on_any(s->args) ? QUIRE_KV_OVERFLOW_TIER
                                                                       : QUIRE_KV_OVERFLOW_REFUSE],
            "keys", (int)s->keys.n, "admin_keys", (int)n_admins, "classes", classes_json(s),
            "tenants", (int)s->tenants.n));
    }
    quire_settings_print(&s->args->settings, stdout);
    printf("# effective: model %s, KV %s, %u tokens of context, %s of KV pages, %u keys, %u of "
           "them for administration\n",
           s->opts.model_name, s->kv_name, plan->n_ctx,
           quire_format_bytes(plan->kv_budget_bytes, budget, sizeof(budget)), s->keys.n, n_admins);
    print_classes(s);
    quire_serve_page_size_print(s->args, s->page_curve);
    if (quire_serve_overflow_note(s->args) != NULL) {
        printf("# %s\n", quire_serve_overflow_note(s->args));
    }
    if (s->budget_note[0] != '\0') {
        printf("# %s\n", s->budget_note);
    }
    if (has_idle_prefetch(s)) {
        printf("# " NO_PREFETCH "\n");
    }
    return QUIRE_EXIT_OK;
}

/* ---- serving ---- */

static void log_request(void *ctx, const char *line)
{
    quire_serve_log_line(ctx, QUIRE_LOG_REQUESTS, "%s", line);
}

static void warn(const serving *s)
{
    quire_serve_template_warn(&s->log, s->session.model, s->opts.chat_template);
    quire_serve_page_curve_log(s->args, s->page_curve, &s->log);
    if (quire_serve_overflow_note(s->args) != NULL) {
        quire_serve_log_line(&s->log, QUIRE_LOG_ERRORS, "warning: %s",
                             quire_serve_overflow_note(s->args));
    }
    if (s->budget_note[0] != '\0') {
        quire_serve_log_line(&s->log, QUIRE_LOG_ERRORS, "warning: %s", s->budget_note);
    }
    if (has_idle_prefetch(s)) {
        quire_serve_log_line(&s->log, QUIRE_LOG_ERRORS, "warning: " NO_PREFETCH);
    }
}

static int start_tuner(serving *s, quire_error *err)
{
    const quire_engine_tune_opts opts = { .bounds = s->opts.tune_bounds,
                                          .is_applied = s->args->auto_tune };

    if (s->args->tune_interval_us == 0 || s->args->recent_bytes == 0) {
        return QUIRE_OK;
    }
    return quire_serve_tuner_start(&s->tuner, s->engine, &opts, s->args->tune_interval_us, err);
}

static void record_failed(void *ctx, const char *message)
{
    quire_serve_log_line(ctx, QUIRE_LOG_ERRORS, "warning: %s", message);
}

static int start_record(serving *s, quire_error *err)
{
    const quire_classes *classes = &s->tiers.classes;
    const char *names[QUIRE_CLASSES_MAX];
    const quire_record_opts opts = {
        .path = s->args->record,
        .model = s->opts.model_name,
        .is_plain = s->args->record_plain,
        .class_names = names,
        .n_classes = classes->n,
        .failed = record_failed,
        .failed_ctx = &s->log,
    };

    if (s->args->record == NULL || s->record != NULL) {
        return QUIRE_OK;
    }
    for (uint32_t i = 0; i < classes->n; i++) {
        names[i] = classes->items[i].name;
    }
    QUIRE_TRY(quire_record_open(&s->record, &opts, err));
    s->opts.record = s->record;
    return QUIRE_OK;
}

static int start(serving *s, quire_error *err)
{
    quire_serve_watchers watchers = { .n = n_devices(s) };
    quire_opened_want want = quire_serve_want(s->args);
    quire_engine_opts opts = quire_serve_engine_opts(s->args);

    want.n_ctx = s->n_ctx; /* as announced, even if other programs have taken memory since */
    want.beside_bytes = s->beside_bytes;
    quire_serve_retain_want(s->args, &s->opts, &want);
    want.kv_share = quire_serve_devices_share(&s->devices, 0, want.kv_share);
    if (s->args->log_level >= QUIRE_LOG_REQUESTS) {
        s->opts.log = log_request;
        s->opts.log_ctx = &s->log;
    }
    QUIRE_TRY(start_record(s, err));
    QUIRE_TRY(quire_serve_events_start(&s->events, s->args, &s->log, &watchers, err));
    s->opts.kv_events = s->events;
    QUIRE_TRY(quire_server_start(&s->server, &s->opts, err));
    QUIRE_TRY(quire_opened_open_model_for(&s->session, &s->args->common, &want, err));
    QUIRE_TRY(quire_serve_retain_learn(&s->session, s->args, &s->opts, &s->log, err));
    QUIRE_TRY(quire_opened_open_runtime(&s->session, &s->args->common, &want, err));
    warn(s);
    QUIRE_TRY(quire_serve_devices_open(
        &s->devices,
        &(quire_serve_devices_from){ &s->session, s->args, &want, &s->tenants, &s->log, &watchers },
        &opts, &s->store, err));
    QUIRE_TRY(quire_serve_state_read(&opts.saver, s->args, &s->log, err));
    opts.overflow =
        quire_serve_overflow(s->args, quire_runtime_opts_get(s->session.runtime)->kv_budget_bytes);
    opts.model = s->session.model;
    opts.runtime = s->session.runtime;
    opts.predictor = s->session.predictor;
    opts.classes = s->tiers.classes;
    opts.accounts = quire_serve_tenants_accounts(&s->tenants);
    QUIRE_TRY(quire_engine_create(&s->engine, &opts, err));
    s->store = NULL;
    quire_serve_devices_taken(&s->devices);
    QUIRE_TRY(quire_serve_engine_check(s->engine, s->args, &s->opts, err));
    QUIRE_TRY(start_tuner(s, err));
    QUIRE_TRY(quire_signals_catch(err));
    quire_server_ready(s->server, s->engine);
    return QUIRE_OK;
}

static bool print_ready(const serving *s)
{
    const char *host = s->args->host;
    const bool is_ipv6 = strchr(host, ':') != NULL;
    const unsigned port = quire_server_port(s->server);
    char url[160];

    (void)snprintf(url, sizeof(url), "%s://%s%.120s%s:%u",
                   s->args->tls_cert != NULL ? "https" : "http", is_ipv6 ? "[" : "", host,
                   is_ipv6 ? "]" : "", port);
    if (s->args->common.is_json) {
        return quire_stdout_json(json_pack("{s:s, s:i, s:o}", "url", url, "port", (int)port,
                                           "model", model_json(s))) == QUIRE_EXIT_OK;
    }
    printf("ready: %s\n", url);
    return quire_stdout_write("", 0);
}

/* Wait for a signal; 0: the device was lost. */
static int wait_for_end(serving *s)
{
    const bool has_device = quire_runtime_page_memory(s->session.runtime) != NULL ||
                            quire_serve_devices_can_end(&s->devices);
    int number = 0;

    while (number == 0 && !quire_engine_is_lost(s->engine)) {
        number = quire_signal_next(has_device ? DEVICE_LOOK_MS : -1);
        quire_serve_devices_watch(&s->devices, s->engine, s->session.runtime, &s->log);
    }
    if (number == 0) { /* the last device of several is named, too */
        quire_serve_devices_watch(&s->devices, s->engine, s->session.runtime, &s->log);
        quire_serve_devices_part_lost(&s->devices, s->engine);
    }
    return number;
}

/* Wait for the running generations. False if a signal interrupts the wait. */
static bool drain(const serving *s)
{
    quire_server_drain(s->server);
    while (!quire_server_is_idle(s->server) || !quire_engine_is_idle(s->engine)) {
        if (quire_signal_next(LOOK_MS) != 0) {
            return false;
        }
    }
    return true;
}

/* End all that start() has made, but for the record. */
static void stop(serving *s)
{
    quire_serve_tuner_stop(s->tuner);
    s->tuner = NULL;
    if (s->server != NULL) {
        quire_server_stop(s->server);
    }
    s->server = NULL;
    if (s->engine != NULL) {
        quire_engine_destroy(s->engine);
    }
    s->engine = NULL;
    quire_kv_events_stop(s->events);
    s->events = NULL;
    quire_serve_store_close(s->store);
    s->store = NULL;
    quire_serve_devices_close(&s->devices);
    quire_opened_close(&s->session);
    memset(&s->session, 0, sizeof(s->session));
}

/* The requests have failed; their answers go out. A supervisor starts the server again. */
static int end_lost(const serving *s)
{
    quire_serve_devices_say_lost(quire_serve_devices_lost(&s->devices, s->args), s->session.runtime,
                                 "ends. Start it again, or use --device cpu", &s->log);
    (void)drain(s);
    return QUIRE_EXIT_FAILED;
}

/* The same, and then the server begins anew on the CPU, at the same port. */
static int go_on_lost(serving *s)
{
    quire_runtime_opts plan = QUIRE_RUNTIME_OPTS_INIT;
    quire_error err = QUIRE_ERROR_INIT;
    const char *device = quire_serve_devices_lost(&s->devices, s->args);
    int rc;

    quire_serve_devices_say_lost(device, s->session.runtime,
                                 "goes on with --device cpu (on_device_lost)", &s->log);
    if (!drain(s)) {
        return QUIRE_EXIT_FAILED;
    }
    s->opts.port = quire_server_port(s->server);
    s->opts.lost_device = device;
    stop(s);
    if (quire_signal_next(0) != 0) {
        return QUIRE_EXIT_FAILED;
    }
    quire_signals_release(); /* start() catches them again: until then they end the program */
    quire_serve_device_leave(s->args);
    s->devices.n = 0; /* all are lost */
    s->opts.n_running_max = s->n_running_max;
    if ((rc = prepare(s, &plan, &err)) < 0 || (rc = start(s, &err)) < 0) {
        quire_serve_log_line(&s->log, QUIRE_LOG_ERRORS, "cannot go on without device %s: %s",
                             device, err.message);
        return quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    return QUIRE_EXIT_OK;
}

static void say_serving(const serving *s)
{
    quire_serve_log_line(&s->log, QUIRE_LOG_INFO,
                         "serving %s, KV %s, %u tokens of context, %u requests at once; /chat is a "
                         "page to talk on, / the dashboard",
                         s->opts.model_name, s->kv_name, s->session.n_ctx, s->opts.n_running_max);
}

static int serve(serving *s)
{
    quire_engine_stats stats;
    int number;

    if (!print_ready(s)) {
        return QUIRE_EXIT_FAILED;
    }
    say_serving(s);
    number = wait_for_end(s);
    if (number == 0 && s->args->on_device_lost == QUIRE_DEVICE_LOST_END) {
        return end_lost(s);
    }
    if (number == 0) {
        const int status = go_on_lost(s);

        if (status != QUIRE_EXIT_OK) {
            return status;
        }
        say_serving(s);
        number = wait_for_end(s);
    }
    quire_server_drain(s->server); /* before the line says so */
    quire_engine_stats_get(s->engine, &stats);
    quire_serve_log_line(
        &s->log, QUIRE_LOG_INFO,
        "%s: requests to finish: %u; new ones are refused, a second signal ends the server at once",
        number == SIGINT ? "SIGINT" : "SIGTERM",
        stats.requests_waiting + stats.requests_prefilling + stats.requests_decoding +
            stats.requests_parked);
    if (!drain(s)) {
        quire_serve_log_line(&s->log, QUIRE_LOG_INFO, "stopped before all requests had finished");
        return QUIRE_EXIT_FAILED;
    }
    quire_serve_log_line(&s->log, QUIRE_LOG_INFO, "all requests have finished");
    return QUIRE_EXIT_OK;
}

static void release(serving *s)
{
    stop(s);
    quire_record_close(s->record);
    quire_signals_release();
    quire_serve_keys_fini(&s->keys);
    quire_serve_tenants_fini(&s->tenants);
    quire_serve_devices_fini(&s->devices);
    quire_serve_log_close(&s->log);
    free(s->template_text);
    free(s->page_curve);
}

static int run(serving *s)
{
    const quire_serve_args *args = s->args;
    quire_error err = QUIRE_ERROR_INIT;
    quire_runtime_opts plan = QUIRE_RUNTIME_OPTS_INIT;
    int rc = quire_serve_template_read(args, &s->template_text);

    if (rc != QUIRE_EXIT_OK) {
        return rc;
    }
    rc = quire_serve_page_curve_read(args, &s->page_curve, &err);
    rc = rc == QUIRE_OK ? check(s, &err) : rc;
    if (rc < 0) {
        return quire_say_error(&err, rc == QUIRE_NOMEM ? QUIRE_EXIT_FAILED : QUIRE_EXIT_USAGE);
    }
    rc = quire_serve_page_size_settle(s->args, &s->devices, &s->page_curve, &err);
    s->opts.page_tokens = (uint32_t)args->common.page_tokens;
    s->opts.page_curve = s->page_curve;
    rc = rc == QUIRE_OK ? prepare(s, &plan, &err) : rc;
    if (rc == QUIRE_OK && args->check_config) {
        rc = quire_serve_log_check("log_file", args->log_file, &err);
        if (rc == QUIRE_OK) {
            rc = quire_serve_log_check("record", args->record, &err);
        }
        if (rc == QUIRE_OK && args->record != NULL) {
            rc = quire_record_check(args->record, &err);
        }
        if (rc == QUIRE_OK) {
            rc = quire_serve_dir_check(args, &err);
        }
        return rc == QUIRE_OK ? print_checked(s, &plan) : quire_say_error(&err, QUIRE_EXIT_FAILED);
    }
    if (rc == QUIRE_OK) {
        rc = quire_serve_log_open(&s->log, args->log_file, (quire_log_level)args->log_level, &err);
    }
    if (rc == QUIRE_OK) {
        rc = start(s, &err);
    }
    return rc == QUIRE_OK ? serve(s) : quire_say_error(&err, QUIRE_EXIT_FAILED);
}

int quire_serve_run(void *opaque)
{
    quire_serve_args *args = opaque;
    serving s = { .args = args };
    const int exit_status = run(&s);

    release(&s);
    quire_settings_fini(&args->settings);
    return exit_status;
}
