/* chat_guard.cpp - see chat_guard.h.
 *
 * SPDX-License-Identifier: MIT */
#include "model/chat_guard.h"

#include <malloc.h>
#include <pthread.h>
#include <time.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

namespace
{

/* Steps between two looks at the clock. */
constexpr unsigned STEPS_PER_LOOK = 256;
/* The least allocation that throws at the limit of memory. */
constexpr size_t LARGE_BYTES = (size_t)1 << 20;
/* The part of the stack beyond which operator new throws. */
constexpr size_t STACK_BYTES_END = QUIRE_CHAT_STACK_BYTES / 4 * 3;

struct guard {
    const char *what;
    void (*work)(const void *ctx);
    const void *ctx;
    quire_error *err;
    int status;
    int64_t live_bytes;
    uint64_t begun_ns;
    unsigned n_steps;
    const char *stack_base;
    const char *limit; /* the text of the limit that was reached; NULL = none */
};

thread_local guard *active = nullptr;

uint64_t thread_ns()
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

size_t stack_used(const guard *g)
{
    const char here = 0;
    const char *at = &here;

    return at < g->stack_base ? (size_t)(g->stack_base - at) : 0;
}

void check(guard *g)
{
    if (g->limit == nullptr) {
        if (g->live_bytes > (int64_t)QUIRE_CHAT_MEMORY_MAX) {
            g->limit = "takes more memory than QUIRE_CHAT_MEMORY_MAX";
        } else if (stack_used(g) > QUIRE_CHAT_STACK_BYTES_MAX) {
            g->limit = "recurses deeper than QUIRE_CHAT_STACK_BYTES_MAX";
        } else if (++g->n_steps % STEPS_PER_LOOK == 0 &&
                   thread_ns() - g->begun_ns > QUIRE_CHAT_TIME_MAX_S * (uint64_t)1000000000) {
            g->limit = "takes longer than QUIRE_CHAT_TIME_MAX_S";
        }
    }
    if (g->limit != nullptr) {
        throw std::runtime_error(g->limit);
    }
}

/* Whether an allocation must fail. */
bool is_refused(guard *g, size_t n)
{
    if (g->limit != nullptr) {
        return false; /* the exception is on its way, and needs memory */
    }
    if (n > LARGE_BYTES && g->live_bytes + (int64_t)n > (int64_t)QUIRE_CHAT_MEMORY_MAX) {
        g->limit = "takes more memory than QUIRE_CHAT_MEMORY_MAX";
    } else if (stack_used(g) > STACK_BYTES_END) {
        g->limit = "is nested too deeply";
    }
    return g->limit != nullptr;
}

/* The text of an exception as one line: Jinja's has the place in its first lines and the reason in
 * its last one. */
std::string one_line(const char *text)
{
    std::string all = text;
    const size_t place = all.find("While executing ");
    const size_t reason = all.rfind("Error: ");
    std::string line;

    if (place != std::string::npos && reason != std::string::npos && place < reason) {
        const size_t end = all.find(" in source", place);

        line = all.substr(reason + 7);
        line += " (" + all.substr(place + 6, end - place - 6) + ")";
    } else {
        line = all;
    }
    for (char &c : line) {
        c = (unsigned char)c < ' ' ? ' ' : c;
    }
    return line;
}

void fail(guard *g, int status, const char *text)
{
    g->status = quire_error_set(g->err, status, "%s: %s", g->what, text);
}

void *run(void *opaque)
{
    guard *g = static_cast<guard *>(opaque);
    const char base = 0;

    g->stack_base = &base;
    g->begun_ns = thread_ns();
    active = g;
    try {
        g->work(g->ctx);
    } catch (const quire::failure &e) {
        fail(g, e.status, e.text);
    } catch (const std::bad_alloc &) {
        fail(g, QUIRE_NOMEM, "no memory");
    } catch (const std::exception &e) {
        try {
            fail(g, QUIRE_INVAL, one_line(e.what()).c_str());
        } catch (...) {
            fail(g, QUIRE_NOMEM, "no memory");
        }
    } catch (...) {
        fail(g, QUIRE_INVAL, "it cannot be run");
    }
    if (g->limit != nullptr) {
        fail(g, QUIRE_LIMIT, g->limit);
    }
    active = nullptr;
    return nullptr;
}

} // namespace

extern "C" void quire_jinja_step(void)
{
    if (active != nullptr) {
        check(active);
    }
}

/* ---- memory ---- */

void *operator new(size_t n)
{
    guard *g = active;
    void *p;

    if (g != nullptr && is_refused(g, n)) {
        throw std::bad_alloc();
    }
    /* The same memory as malloc()'s; a test that lets malloc() fail means the C code. */
    if (posix_memalign(&p, alignof(std::max_align_t), n > 0 ? n : 1) != 0) {
        throw std::bad_alloc();
    }
    if (g != nullptr) {
        g->live_bytes += (int64_t)malloc_usable_size(p);
    }
    return p;
}

/* A sanitizer has its own, which would not go with the operator delete below. */
void *operator new(size_t n, const std::nothrow_t &) noexcept
{
    try {
        return operator new(n);
    } catch (...) {
        return nullptr;
    }
}

void operator delete(void *p) noexcept
{
    if (active != nullptr && p != nullptr) {
        active->live_bytes -= (int64_t)malloc_usable_size(p);
    }
    std::free(p);
}

void operator delete(void *p, size_t) noexcept
{
    operator delete(p);
}

/* ---- running ---- */

int quire::guard_call(const char *what, void (*work)(const void *ctx), const void *ctx,
                      quire_error *err)
{
    guard g = { what, work, ctx, err, QUIRE_OK, 0, 0, 0, nullptr, nullptr };
    pthread_attr_t attr;
    pthread_t thread;
    int rc = pthread_attr_init(&attr);

    if (rc == 0) {
        rc = pthread_attr_setstacksize(&attr, QUIRE_CHAT_STACK_BYTES);
        rc = rc == 0 ? pthread_create(&thread, &attr, run, &g) : rc;
        pthread_attr_destroy(&attr);
    }
    if (rc != 0) {
        return quire_error_set(err, QUIRE_NOMEM, "%s: no thread to run it: %s", what,
                               std::strerror(rc));
    }
    pthread_join(thread, nullptr);
    return g.status;
}
