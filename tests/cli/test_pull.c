/* test_pull.c - quire pull, list and rm, and -m with names, against a hub on loopback.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gguf_edit.h"
#include "pull_kit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int start(void **state)
{
    pull_kit *kit = malloc(sizeof(*kit));

    assert_non_null(kit);
    pull_kit_start(kit);
    *state = kit;
    return 0;
}

static int stop(void **state)
{
    pull_kit_stop(*state);
    free(*state);
    return 0;
}

static void expect(int status, const char *said, program_args args)
{
    program_result result = program_expect(status, args);

    assert_says(result.err, said);
    program_free(&result);
}

/* ---- the whole way ---- */

static void a_model_is_pulled_listed_used_and_removed(void **state)
{
    const pull_kit *kit = *state;
    json_t *pulled = program_json(PULL("--json", KIT_NAME));
    json_t *list;
    json_t *info;
    json_t *run;

    pull_kit_has(kit, "some/stories-GGUF/stories-Q4_K_M.gguf");
    assert_string_equal(json_string_value(json_object_get(pulled, "sha256")), kit->sha256);
    assert_int_equal(json_integer_value(json_object_get(pulled, "fetched_bytes")), kit->n_body);
    assert_false(json_is_true(json_object_get(pulled, "was_here")));
    assert_int_equal(pull_kit_partial(kit), 0);
    list = program_json(PROGRAM("list", "--json"));
    assert_int_equal(json_array_size(json_object_get(list, "models")), 1);
    assert_string_equal(json_string_value(json_object_get(
                            json_array_get(json_object_get(list, "models"), 0), "name")),
                        KIT_NAME ":stories-Q4_K_M.gguf");
    info = program_json(PROGRAM("info", "-m", KIT_NAME, "--json"));
    assert_string_equal(json_string_value(json_object_get(info, "file")),
                        json_string_value(json_object_get(pulled, "path")));
    run = program_json(PROGRAM("run", "some/stories-GGUF:q4_k_m", "-p", "a", "-n", "2", "--json"));
    expect(0, "removed", PROGRAM("rm", KIT_NAME));
    pull_kit_has_not(kit, "some");
    expect(1, "is not here yet: 'quire pull " KIT_NAME "' fetches it", PROGRAM("info", KIT_NAME));
    expect(1, "is not here ('quire list' shows what is)", PROGRAM("rm", KIT_NAME));
    expect(0, "no models in", PROGRAM("list"));
    json_decref(run);
    json_decref(info);
    json_decref(list);
    json_decref(pulled);
}

/* A name and a path mean the same to each command that takes a model. */
static void commands_take_names_and_paths_alike(void **state)
{
    const pull_kit *kit = *state;
    char path[300];
    const program_args by_name[] = {
        PROGRAM("run", "-m", KIT_NAME, "-p", "a", "-n", "1"),
        PROGRAM("chat", "-m", KIT_NAME, "--chat-template", "chatml", "-n", "1"),
        PROGRAM("serve", "-m", KIT_NAME, "--check-config"),
        PROGRAM("bench", "-m", KIT_NAME, "-p", "2", "-n", "1", "-r", "1"),
        PROGRAM("info", "-m", KIT_NAME),
    };
    const program_args by_path[] = {
        PROGRAM("run", "-m", path, "-p", "a", "-n", "1"),
        PROGRAM("chat", "-m", path, "--chat-template", "chatml", "-n", "1"),
        PROGRAM("serve", "-m", path, "--check-config"),
        PROGRAM("bench", "-m", path, "-p", "2", "-n", "1", "-r", "1"),
        PROGRAM("info", "-m", path),
    };

    (void)snprintf(path, sizeof(path), "%s/some/stories-GGUF/stories-Q4_K_M.gguf", kit->folder);
    for (size_t i = 0; i < sizeof(by_name) / sizeof(by_name[0]); i++) {
        expect(1, "is not here yet: 'quire pull " KIT_NAME "' fetches it", by_name[i]);
    }
    expect(0, "verified", PULL(KIT_NAME));
    for (size_t i = 0; i < sizeof(by_name) / sizeof(by_name[0]); i++) {
        expect(0, "", by_name[i]);
        expect(0, "", by_path[i]);
    }
}

static void what_is_here_is_not_fetched_again(void **state)
{
    pull_kit *kit = *state;

    expect(0, "verified", PULL(KIT_NAME));
    expect(0, "it is here already", PULL(KIT_NAME));
    pull_kit_asked(kit, "GET " KIT_Q4, 1);
    /* Another content under the same name is fetched; until it is verified the old one stays. */
    pull_kit_list(kit, "stories-Q4_K_M.gguf", kit->n_body, WRONG);
    expect(1, ", and " WRONG " was promised: nothing is kept", PULL(KIT_NAME));
    pull_kit_asked(kit, "GET " KIT_Q4, 2);
    pull_kit_has(kit, "some/stories-GGUF/stories-Q4_K_M.gguf");
}

/* The repository's file has this model's bytes from now on. */
static void change_to(pull_kit *kit, const char *path)
{
    free(kit->body);
    pull_kit_read(kit, path);
    pull_kit_list(kit, "stories-Q4_K_M.gguf", kit->n_body, kit->sha256);
    hub_double_change(kit->hub, KIT_Q4, pull_kit_file(kit));
}

static void a_model_with_a_chat_template_is_for_chats(void **state)
{
    const gguf_edit_key change = { "tokenizer.chat_template", EDIT_STR, 0, "{{ messages }}", 0 };
    const gguf_gen_opts opts = gguf_edit_small("tiny-qwen2");
    const char *path = program_path("template.gguf");
    gguf_edit edit;

    gguf_edit_open(&edit, &opts);
    gguf_edit_apply(&edit, &change);
    gguf_edit_save(&edit, path);
    gguf_edit_close(&edit);
    change_to(*state, path);
    expect(0, "try: quire chat -m " KIT_NAME, PULL(KIT_NAME));
}

static void quantisations_are_chosen_by_name(void **state)
{
    const pull_kit *kit = *state;

    expect(0, "verified", PULL(KIT_NAME ":q8_0"));
    pull_kit_has(kit, "some/stories-GGUF/stories-Q8_0.gguf");
    pull_kit_has_not(kit, "some/stories-GGUF/stories-Q4_K_M.gguf");
    /* The only one that is here is meant without a name. */
    expect(0, "", PROGRAM("info", KIT_NAME));
    expect(0, "verified", PULL(KIT_NAME ":stories-Q4_K_M.gguf"));
    expect(1, "has no model Q5_K_M; it has", PULL(KIT_NAME ":Q5_K_M"));
    expect(1, "is not here yet", PROGRAM("info", KIT_NAME ":Q5_K_M"));
    expect(1, "has no model mmproj-stories-Q4_K_M.gguf",
           PULL(KIT_NAME ":mmproj-stories-Q4_K_M.gguf"));
    expect(0, "removed", PROGRAM("rm", KIT_NAME ":Q8_0"));
    pull_kit_has(kit, "some/stories-GGUF/stories-Q4_K_M.gguf");
}

static void short_names_are_resolved_by_the_table(void **state)
{
    pull_kit *kit = *state;
    program_result known = program_expect(0, PROGRAM("list", "--known"));
    program_result list;
    static const char from[] = "/api/models/Qwen/Qwen3-0.6B-GGUF/tree/main?recursive=true";

    assert_says(known.out, "qwen3-0.6b");
    assert_says(known.out, "hf:Qwen/Qwen3-0.6B-GGUF");
    (void)snprintf(kit->list, sizeof(kit->list),
                   "[{\"type\": \"file\", \"path\": \"Qwen3-0.6B-Q8_0.gguf\", \"size\": %zu, "
                   "\"oid\": \"0\", \"lfs\": {\"oid\": \"%s\", \"size\": %zu}}]",
                   kit->n_body, kit->sha256, kit->n_body);
    hub_double_change(kit->hub, from,
                      (hub_entry){ .body = kit->list, .n_body = strlen(kit->list) });
    hub_double_change(kit->hub, "/Qwen/Qwen3-0.6B-GGUF/resolve/main/Qwen3-0.6B-Q8_0.gguf",
                      pull_kit_file(kit));
    expect(0, "it has no chat template; try: quire run -m Qwen3-0.6B -p TEXT", PULL("Qwen3-0.6B"));
    list = program_expect(0, PROGRAM("list"));
    assert_says(list.out, "hf:Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf  = qwen3-0.6b");
    expect(2, "did you mean qwen3-4b?", PULL("qwen3-4bb"));
    expect(1, "there is no file qwen3-9999, and 'qwen3-9999' is not the name of a model",
           PROGRAM("info", "qwen3-9999"));
    expect(1, "no-such.gguf", PROGRAM("info", "no-such.gguf"));
    program_free(&known);
    program_free(&list);
}

/* ---- sets ---- */

#define SET(i) KIT_FILES "big/stories-Q8_0-0000" i "-of-00003.gguf"

static void change_to_set(pull_kit *kit)
{
    size_t n = 0;

    n += (size_t)snprintf(kit->list, sizeof(kit->list), "[");
    for (int i = 3; i >= 1; i--) {
        n += (size_t)snprintf(
            kit->list + n, sizeof(kit->list) - n,
            "{\"type\": \"file\", \"path\": \"big/stories-Q8_0-0000%d-of-00003.gguf\""
            ", \"size\": %zu, \"oid\": \"0\", \"lfs\": {\"oid\": \"%s\", "
            "\"size\": %zu}}%s",
            i, kit->n_body, kit->sha256, kit->n_body, i > 1 ? ", " : "]");
    }
    hub_double_change(kit->hub, KIT_LIST,
                      (hub_entry){ .body = kit->list, .n_body = strlen(kit->list) });
    hub_double_change(kit->hub, SET("1"), pull_kit_file(kit));
    hub_double_change(kit->hub, SET("2"), pull_kit_file(kit));
    hub_double_change(kit->hub, SET("3"), pull_kit_file(kit));
}

static void a_set_is_there_as_a_whole_or_not_at_all(void **state)
{
    pull_kit *kit = *state;
    hub_entry second = pull_kit_file(kit);
    json_t *list;

    change_to_set(kit);
    second.n_cut = 1;
    second.cut_bytes = 1000;
    hub_double_change(kit->hub, SET("2"), second);
    expect(1, "127.0.0.1", PULL(KIT_NAME, "--retries", "0"));
    pull_kit_has_not(kit, "some/stories-GGUF/big/stories-Q8_0-00001-of-00003.gguf");
    assert_int_equal(pull_kit_partial(kit), kit->n_body + 1000);
    expect(1, "is not here yet", PROGRAM("info", KIT_NAME));
    hub_double_log_clear(kit->hub);
    expect(0, "verified", PULL(KIT_NAME));
    pull_kit_asked(kit, "GET " SET("1"), 0);
    pull_kit_asked(kit, "GET " SET("2") " range=1000-", 1);
    pull_kit_has(kit, "some/stories-GGUF/big/stories-Q8_0-00001-of-00003.gguf");
    pull_kit_has(kit, "some/stories-GGUF/big/stories-Q8_0-00003-of-00003.gguf");
    list = program_json(PROGRAM("list", "--json"));
    assert_int_equal(json_array_size(json_object_get(list, "models")), 1);
    assert_int_equal(json_integer_value(json_object_get(
                         json_array_get(json_object_get(list, "models"), 0), "bytes")),
                     3 * kit->n_body);
    json_decref(list);
    expect(0, "it is here already", PULL(KIT_NAME));
    expect(1, "this model has 3 files", PULL(KIT_NAME, "--sha256", kit->sha256));
    expect(0, "removed", PROGRAM("rm", KIT_NAME ":Q8_0"));
    pull_kit_has_not(kit, "some");
}

static void a_set_with_a_hole_is_refused(void **state)
{
    pull_kit *kit = *state;
    char path[400];

    change_to_set(kit);
    expect(0, "verified", PULL(KIT_NAME));
    (void)snprintf(path, sizeof(path), "%s/some/stories-GGUF/big/stories-Q8_0-00002-of-00003.gguf",
                   kit->folder);
    assert_int_equal(unlink(path), 0);
    expect(1, "part 2 of 3", PROGRAM("info", KIT_NAME));
    expect(0, "verified", PULL(KIT_NAME));
    pull_kit_list(kit, "stories-Q8_0-00001-of-00002.gguf", kit->n_body, kit->sha256);
    expect(1, "part 2 of 2", PULL(KIT_NAME));
}

static void a_set_that_is_no_model_is_not_kept(void **state)
{
    pull_kit *kit = *state;

    memcpy(kit->body, "HTML", 4);
    change_to_set(kit);
    for (char *at = strstr(kit->list, kit->sha256); at != NULL; at = strstr(at, kit->sha256)) {
        memset(at, '-', strlen(kit->sha256)); /* no hash */
    }
    hub_double_change(kit->hub, KIT_LIST,
                      (hub_entry){ .body = kit->list, .n_body = strlen(kit->list) });
    expect(1, "is no GGUF file: nothing is kept", PULL(KIT_NAME));
    assert_int_equal(pull_kit_partial(kit), 0);
}

static void a_begun_set_is_removed(void **state)
{
    pull_kit *kit = *state;
    hub_entry first = pull_kit_file(kit);

    change_to_set(kit);
    first.n_cut = 1;
    first.cut_bytes = 500;
    hub_double_change(kit->hub, SET("1"), first);
    expect(1, "127.0.0.1", PULL(KIT_NAME, "--retries", "0"));
    expect(0, "1 unfinished downloads take 500 B", PROGRAM("list"));
    expect(0, "removed", PROGRAM("rm", KIT_NAME));
    pull_kit_has_not(kit, "some");
}

/* rm removes the named model only: another quantisation's download and another URL's file stay. */
static void what_another_pull_has_left_stays(void **state)
{
    pull_kit *kit = *state;
    hub_entry file = pull_kit_file(kit);
    char url[200];
    char mine[80];

    file.n_cut = 1;
    file.cut_bytes = 500;
    hub_double_change(kit->hub, KIT_Q4, file);
    expect(1, "127.0.0.1", PULL(KIT_NAME, "--retries", "0"));
    expect(1, "is not here", PROGRAM("rm", KIT_NAME ":Q8_0"));
    assert_int_equal(pull_kit_partial(kit), 500);
    expect(0, "removed", PROGRAM("rm", KIT_NAME ":Q4_K_M"));
    assert_int_equal(pull_kit_partial(kit), 0);
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u/x/a.gguf", hub_double_port(kit->hub));
    (void)snprintf(mine, sizeof(mine), "@url/127.0.0.1_%u/x/a.gguf", hub_double_port(kit->hub));
    file.n_cut = 0;
    file.headers = "ETag: \"one\"\r\n";
    hub_double_change(kit->hub, "/x/a.gguf", file);
    expect(0, "verified", PULL(url));
    file.n_cut = 1;
    file.headers = "ETag: \"two\"\r\n";
    hub_double_change(kit->hub, "/x/a.gguf", file);
    expect(1, "127.0.0.1", PULL(url, "--retries", "0"));
    *strrchr(url, 'a') = 'b';
    expect(1, "is not here", PROGRAM("rm", url));
    pull_kit_has(kit, mine);
    assert_int_equal(pull_kit_partial(kit), 500);
    *strrchr(url, 'b') = 'a';
    expect(0, "removed", PROGRAM("rm", url));
    pull_kit_has_not(kit, "@url");
}

/* ---- the hub ---- */

static void long_lists_come_in_pages(void **state)
{
    pull_kit *kit = *state;
    static char link[300];
    static const char empty[] = "[]";

    (void)snprintf(link, sizeof(link), "Link: <http://127.0.0.1:%u/page2>; rel=\"next\"\r\n",
                   hub_double_port(kit->hub));
    hub_double_change(kit->hub, "/page2",
                      (hub_entry){ .body = kit->list, .n_body = strlen(kit->list) });
    hub_double_change(kit->hub, KIT_LIST,
                      (hub_entry){ .headers = link, .body = empty, .n_body = 2 });
    expect(0, "verified", PULL(KIT_NAME));
    hub_double_change(kit->hub, KIT_LIST,
                      (hub_entry){ .headers = "Link: <http://127.0.0.9/page2>; rel=\"next\"\r\n",
                                   .body = empty,
                                   .n_body = 2 });
    expect(1, "goes on at another address", PULL(KIT_NAME));
    hub_double_change(kit->hub, KIT_LIST,
                      (hub_entry){ .headers = link, .body = empty, .n_body = 2 });
    hub_double_change(kit->hub, "/page2",
                      (hub_entry){ .headers = link, .body = empty, .n_body = 2 });
    expect(1, "has more than 64 pages", PULL(KIT_NAME));
    hub_double_change(kit->hub, KIT_LIST, (hub_entry){ .body = empty, .n_body = 2 });
    expect(1, "there is no GGUF model", PULL(KIT_NAME));
    hub_double_change(kit->hub, KIT_LIST, (hub_entry){ .body = "<html>", .n_body = 6 });
    expect(1, "is QUIRE_HUB the address of a hub?", PULL(KIT_NAME));
}

static void the_token_goes_to_the_hub_alone(void **state)
{
    pull_kit *kit = *state;
    static char redirect[300];
    hub_double *other;
    hub_entry file = pull_kit_file(kit);
    const char *token = program_file("token", "hf_fromfile\n", 12);
    char *log;

    file.path = "/blob";
    other = hub_double_start(&file, 1);
    (void)snprintf(redirect, sizeof(redirect), "Location: http://127.0.0.1:%u/blob\r\n",
                   hub_double_port(other));
    hub_double_change(kit->hub, KIT_Q4, (hub_entry){ .status = 302, .headers = redirect });
    setenv("HF_TOKEN", "hf_secret", 1);
    expect(0, "verified", PULL(KIT_NAME));
    pull_kit_asked(kit, "GET " KIT_LIST " auth=Bearer hf_secret", 1);
    pull_kit_asked(kit, "GET " KIT_Q4 " auth=Bearer hf_secret", 1);
    log = hub_double_log(other);
    assert_string_equal(log, "GET /blob\n");
    free(log);
    expect(0, "it is here already", PULL(KIT_NAME, "--token-file", token));
    pull_kit_asked(kit, "GET " KIT_LIST " auth=Bearer hf_fromfile", 1);
    setenv("HF_TOKEN", "two words", 1);
    expect(1, "HF_TOKEN has no token", PULL(KIT_NAME));
    expect(1, "cannot read the token in", PULL(KIT_NAME, "--token-file", "/nowhere/token"));
    hub_double_stop(other);
}

static void a_mirror_and_a_proxy_are_used(void **state)
{
    pull_kit *kit = *state;
    char proxy[64];

    (void)snprintf(proxy, sizeof(proxy), "http://127.0.0.1:%u", hub_double_port(kit->hub));
    hub_double_change(kit->hub, "http://models.invalid/hub" KIT_LIST,
                      (hub_entry){ .body = kit->list, .n_body = strlen(kit->list) });
    hub_double_change(kit->hub, "http://models.invalid/hub" KIT_Q4, pull_kit_file(kit));
    setenv("http_proxy", proxy, 1);
    setenv("QUIRE_HUB", "http://models.invalid/hub/", 1);
    setenv("HF_TOKEN", "hf_secret", 1);
    expect(0, "verified", PULL(KIT_NAME));
    /* The hub is neither https nor on this machine: the token is not sent. */
    pull_kit_asked(kit, "GET http://models.invalid/hub" KIT_Q4, 1);
    setenv("QUIRE_HUB", "models.invalid", 1);
    expect(1, "QUIRE_HUB is 'models.invalid', which is no URL", PULL(KIT_NAME));
}

static void revisions_lie_beside_one_another(void **state)
{
    pull_kit *kit = *state;

    hub_double_change(kit->hub, "/api/models/some/stories-GGUF/tree/v2?recursive=true",
                      (hub_entry){ .body = kit->list, .n_body = strlen(kit->list) });
    hub_double_change(kit->hub, "/some/stories-GGUF/resolve/v2/stories-Q4_K_M.gguf",
                      pull_kit_file(kit));
    expect(0, "verified", PULL(KIT_NAME "@v2"));
    pull_kit_has(kit, "some/stories-GGUF@v2/stories-Q4_K_M.gguf");
    expect(1, "is not here yet", PROGRAM("info", KIT_NAME));
    expect(0, "", PROGRAM("info", KIT_NAME "@v2:Q4_K_M"));
}

/* ---- URLs ---- */

/* Servers and signed links that know GET alone: the hash is enough. */
static void head_is_not_needed(void **state)
{
    static const int statuses[] = { 403, 405, 501 };
    pull_kit *kit = *state;
    char url[200];

    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++) {
        hub_entry file = pull_kit_file(kit);

        file.n_busy = 1; /* HEAD comes first */
        file.busy_status = statuses[i];
        (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u/head.gguf",
                       hub_double_port(kit->hub));
        hub_double_change(kit->hub, "/head.gguf", file);
        expect(1, "--sha256", PULL(url));
        hub_double_change(kit->hub, "/head.gguf", file);
        expect(0, "verified", PULL(url, "--sha256", kit->sha256));
        hub_double_change(kit->hub, "/head.gguf", file);
        expect(0, "it is here already", PULL(url, "--sha256", kit->sha256));
        expect(0, "removed", PROGRAM("rm", url));
    }
    hub_double_change(kit->hub, "/head.gguf", (hub_entry){ .status = 403 });
    expect(1, "refuses (403)", PULL(url, "--sha256", kit->sha256));
}

static void an_url_is_pulled(void **state)
{
    pull_kit *kit = *state;
    hub_entry file = pull_kit_file(kit);
    char url[200];
    char mine[80];

    setenv("HF_TOKEN", "hf_secret", 1);
    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u/x/a.gguf?download=1",
                   hub_double_port(kit->hub));
    (void)snprintf(mine, sizeof(mine), "@url/127.0.0.1_%u/x/a.gguf", hub_double_port(kit->hub));
    file.headers = "ETag: \"one\"\r\n";
    hub_double_change(kit->hub, "/x/a.gguf?download=1", file);
    expect(0, "verified", PULL(url));
    pull_kit_has(kit, mine);
    pull_kit_asked(kit, "GET /x/a.gguf?download=1", 1); /* without the token */
    expect(0, "it is here already", PULL(url));
    expect(0, "", PROGRAM("info", "-m", url));
    file.headers = "ETag: \"two\"\r\n";
    hub_double_change(kit->hub, "/x/a.gguf?download=1", file);
    expect(0, "verified", PULL(url));
    pull_kit_asked(kit, "GET /x/a.gguf?download=1", 2);
    expect(0, "removed", PROGRAM("rm", url));
    pull_kit_has_not(kit, "@url");
    /* An URL of a file of the hub is the same as its name. */
    (void)snprintf(url, sizeof(url),
                   "http://127.0.0.1:%u/some/stories-GGUF/blob/main/stories-Q8_0.gguf",
                   hub_double_port(kit->hub));
    expect(0, "verified", PULL(url));
    pull_kit_has(kit, "some/stories-GGUF/stories-Q8_0.gguf");
}

static void an_url_without_size_needs_a_hash(void **state)
{
    pull_kit *kit = *state;
    hub_entry file = pull_kit_file(kit);
    char url[200];

    (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u/a.gguf", hub_double_port(kit->hub));
    file.has_no_length = true;
    hub_double_change(kit->hub, "/a.gguf", file);
    expect(1, "--sha256 gives the hash", PULL(url));
    file.n_cut = 1;
    file.cut_bytes = 1000;
    hub_double_change(kit->hub, "/a.gguf", file);
    expect(1, "was promised: nothing is kept", PULL(url, "--sha256", kit->sha256));
    expect(0, "verified", PULL(url, "--sha256", kit->sha256));
    file.has_no_length = false;
    file.headers = "X-Linked-Etag: \"" WRONG "\"\r\n";
    file.n_cut = 0;
    hub_double_change(kit->hub, "/a.gguf", file);
    expect(1, "was promised: nothing is kept", PULL(url));
    file.headers = NULL;
    file.body = "<!doctype html>";
    file.n_body = strlen(file.body);
    hub_double_change(kit->hub, "/a.gguf", file);
    expect(1, "is no GGUF file: nothing is kept", PULL(url));
    assert_int_equal(pull_kit_partial(kit), 0);
    expect(2, "ends with .gguf", PULL("http://127.0.0.1/a.zip"));
    expect(2, "others would see it", PULL("http://me:pass@127.0.0.1/a.gguf"));
    expect(2, "it takes 64 hexadecimal digits", PULL(url, "--sha256", "12"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_model_is_pulled_listed_used_and_removed, start, stop),
        cmocka_unit_test_setup_teardown(commands_take_names_and_paths_alike, start, stop),
        cmocka_unit_test_setup_teardown(what_is_here_is_not_fetched_again, start, stop),
        cmocka_unit_test_setup_teardown(a_model_with_a_chat_template_is_for_chats, start, stop),
        cmocka_unit_test_setup_teardown(quantisations_are_chosen_by_name, start, stop),
        cmocka_unit_test_setup_teardown(short_names_are_resolved_by_the_table, start, stop),
        cmocka_unit_test_setup_teardown(a_set_is_there_as_a_whole_or_not_at_all, start, stop),
        cmocka_unit_test_setup_teardown(a_set_with_a_hole_is_refused, start, stop),
        cmocka_unit_test_setup_teardown(a_set_that_is_no_model_is_not_kept, start, stop),
        cmocka_unit_test_setup_teardown(a_begun_set_is_removed, start, stop),
        cmocka_unit_test_setup_teardown(what_another_pull_has_left_stays, start, stop),
        cmocka_unit_test_setup_teardown(long_lists_come_in_pages, start, stop),
        cmocka_unit_test_setup_teardown(the_token_goes_to_the_hub_alone, start, stop),
        cmocka_unit_test_setup_teardown(a_mirror_and_a_proxy_are_used, start, stop),
        cmocka_unit_test_setup_teardown(revisions_lie_beside_one_another, start, stop),
        cmocka_unit_test_setup_teardown(an_url_is_pulled, start, stop),
        cmocka_unit_test_setup_teardown(head_is_not_needed, start, stop),
        cmocka_unit_test_setup_teardown(an_url_without_size_needs_a_hash, start, stop),
    };

    return cmocka_run_group_tests(tests, NULL, program_clean);
}
