/* served.c - see served.h.
 *
 * SPDX-License-Identifier: MIT */
#include "served.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define REPLY_MAX 262144u

uint16_t served_port(const program_running *running)
{
    char *line = program_line_with(running->out, "ready: ");
    const char *colon = strrchr(line, ':');
    uint16_t port;

    assert_non_null(colon);
    port = (uint16_t)strtoul(colon + 1, NULL, 10);
    free(line);
    return port;
}

const char *served_exchange(const served_at *at, const char *method, const char *path,
                            const char *body)
{
    static char reply[REPLY_MAX];
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(at->port) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char request[8192];
    size_t n = 0;
    ssize_t got;

    assert_int_equal(inet_pton(AF_INET, at->address, &to.sin_addr), 1);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof to), 0);
    (void)snprintf(request, sizeof request,
                   "%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s"
                   "Connection: close\r\nContent-Length: %zu\r\n\r\n%s",
                   method, path, at->address, at->headers, strlen(body), body);
    assert_int_equal(write(fd, request, strlen(request)), (ssize_t)strlen(request));
    while (n + 1 < sizeof reply && (got = read(fd, reply + n, sizeof reply - 1 - n)) > 0) {
        n += (size_t)got;
    }
    reply[n] = '\0';
    (void)close(fd);
    return reply;
}

const char *served_body(const char *reply)
{
    const char *begin = strstr(reply, "\r\n\r\n");

    assert_non_null(begin);
    return begin + 4;
}

/* The server on this machine at a port. */
static served_at here(uint16_t port)
{
    return (served_at){ .address = "127.0.0.1", .port = port, .headers = "" };
}

const char *served_ask(uint16_t port, const char *method, const char *path, const char *body)
{
    const served_at at = here(port);

    return served_body(served_exchange(&at, method, path, body));
}

double served_metric_at(const served_at *at, const char *name)
{
    const char *text = served_body(served_exchange(at, "GET", "/metrics", ""));
    char line[256];
    const char *found;

    (void)snprintf(line, sizeof line, "\n%s ", name);
    found = strstr(text, line);
    if (found == NULL) {
        fail_msg("no metric %s", name);
    }
    return strtod(found + strlen(line), NULL);
}

double served_metric(uint16_t port, const char *name)
{
    const served_at at = here(port);

    return served_metric_at(&at, name);
}

const char served_story[] =
    "{\"max_tokens\": 4, \"temperature\": 0, \"ignore_eos\": true, \"prompt\": \"the river ran to "
    "the sea and the tree saw it all the long day, and a dog and a cat ran by the old house, and "
    "nobody knew why they did, and so it was for all of the years\"}";

json_int_t served_complete(uint16_t port, char *text, size_t text_bytes)
{
    return served_complete_of(port, served_story, text, text_bytes);
}

json_int_t served_complete_of(uint16_t port, const char *body, char *text, size_t text_bytes)
{
    json_t *document = json_loads(served_ask(port, "POST", "/v1/completions", body), 0, NULL);
    const json_t *usage = json_object_get(document, "usage");
    const json_t *choice = json_array_get(json_object_get(document, "choices"), 0);
    json_int_t n;

    assert_non_null(usage);
    (void)snprintf(text, text_bytes, "%s", json_string_value(json_object_get(choice, "text")));
    n = json_integer_value(
        json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens"));
    json_decref(document);
    return n;
}

void served_doze(void)
{
    const struct timespec wait = { .tv_nsec = 20000000 };

    (void)nanosleep(&wait, NULL);
}

void served_end(program_running *running, int number)
{
    assert_int_equal(kill(running->pid, number), 0);
    assert_int_equal(program_end(running), number == SIGTERM ? 0 : 128 + number);
}

uint32_t served_remove_dir(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    uint32_t n = 0;

    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        char path[1024];

        (void)snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        n += strncmp(e->d_name, "segment-", 8) == 0;
        (void)unlink(path);
    }
    (void)closedir(d);
    assert_int_equal(rmdir(dir), 0);
    return n;
}
