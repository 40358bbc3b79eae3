/* chat_fixture.c - see chat_fixture.h.
 *
 * SPDX-License-Identifier: MIT */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "chat_fixture.h"
#include "model_fixture.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_MAX 256

#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"description\":\"Weather of " \
    "a city\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}," \
    "\"days\":{\"type\":\"integer\"}},\"required\":[\"city\"]}}},"                                 \
    "{\"type\":\"function\",\"function\":{\"name\":\"add\",\"description\":\"Adds two numbers\","  \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"number\"},\"b\":"       \
    "{\"type\":\"number\"}},\"required\":[\"a\",\"b\"]}}}]"

char *chat_fixture_template(const char *name)
{
    char path[512];
    char *text;
    FILE *file;
    long n;

    (void)snprintf(path, sizeof path, "%s/%s.jinja", QUIRE_TEMPLATES_DIR, name);
    file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    n = ftell(file);
    assert_true(n > 0);
    rewind(file);
    text = malloc((size_t)n + 1);
    assert_non_null(text);
    assert_int_equal(fread(text, 1, (size_t)n, file), n);
    text[n] = '\0';
    (void)fclose(file);
    return text;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *const *chat_fixture_names(size_t *n)
{
    static char texts[NAMES_MAX][96];
    static const char *names[NAMES_MAX];
    static size_t n_names;
    DIR *dir;

    if (n_names == 0) {
        dir = opendir(QUIRE_TEMPLATES_DIR);
        assert_non_null(dir);
        for (struct dirent *e = readdir(dir); e != NULL; e = readdir(dir)) {
            const char *end = strstr(e->d_name, ".jinja");

            if (end != NULL && n_names < NAMES_MAX && (size_t)(end - e->d_name) < 96) {
                memcpy(texts[n_names], e->d_name, (size_t)(end - e->d_name));
                names[n_names] = texts[n_names];
                n_names++;
            }
        }
        (void)closedir(dir);
        qsort(names, n_names, sizeof names[0], by_name);
    }
    *n = n_names;
    return names;
}

quire_model *chat_fixture_model(void)
{
    return fixture_open(fixture_model_path(FIXTURE_STORIES));
}

quire_chat_format *chat_fixture_format(const quire_model *model, const char *text)
{
    quire_chat_format *format;
    quire_error err = QUIRE_ERROR_INIT;

    if (quire_chat_format_create(&format, model, text, &err) != QUIRE_OK) {
        fail_msg("%s", err.message);
    }
    return format;
}

const chat_case *chat_fixture_cases(size_t *n)
{
    static const quire_chat_message plain[] = {
        { "system", "Be brief.", NULL },
        { "user", "Hello", NULL },
        { "assistant", "Hi.", NULL },
        { "user", "What is 2 + 3?", NULL },
    };
    static const quire_chat_message called[] = {
        { "user", "What is 2 + 3?", NULL },
        { "assistant", "",
          "{\"tool_calls\":[{\"id\":\"call00001\",\"type\":\"function\",\"function\":{\"name\":"
          "\"add\",\"arguments\":\"{\\\"a\\\": 2, \\\"b\\\": 3}\"}}]}" },
        { "tool", "5", "{\"tool_call_id\":\"call00001\",\"name\":\"add\"}" },
    };
    static const quire_chat_message thought[] = {
        { "user", "What is 2 + 3?", NULL },
        { "assistant", "5", "{\"reasoning_content\":\"Two and three make five.\"}" },
        { "user", "And 4 + 4?", NULL },
    };
    static const chat_case cases[] = {
        { "plain", { .messages = plain, .n_messages = 4 } },
        { "tools", { .messages = plain, .n_messages = 4, .tools = TOOLS } },
        { "called", { .messages = called, .n_messages = 3, .tools = TOOLS } },
        { "thought", { .messages = thought, .n_messages = 3 } },
        { "unthinking", { .messages = plain, .n_messages = 4, .thinking = QUIRE_CHAT_OFF } },
    };

    *n = sizeof cases / sizeof cases[0];
    return cases;
}
