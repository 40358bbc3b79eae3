/* tokenize.c - text to tokens through libllama, on a stack that its regular expressions fit into.
 *
 * For most BPE vocabularies libllama splits text with std::regex (unicode.cpp at ggml 0.25.1),
 * which recurses once per character of a match: 30,000 letters in a row overflow a stack of 8 MiB.
 * So all but short texts go to a thread of their own, with a stack as large as the text can need.
 * Only what is used of it becomes memory: 12 KiB for ordinary text.
 *
 * SPDX-License-Identifier: MIT */
#include "model/model_internal.h"
#include "model/text.h"

#include "base/check.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Stack per character, measured with gcc 12's libstdc++ for runs of letters, digits, spaces and
 * marks under the patterns of 27 pre-tokenizers: 320 bytes at -O2 and -O3, at most 416 at -O0 and
 * -O1; clang 14 takes 192. A character has at least one byte. */
#define STACK_BYTES_PER_BYTE 1024
/* For everything else: 12 KiB measured. */
#define STACK_BYTES_BASE ((size_t)1 << 20)
/* Unmapped below the stack; a whole number of pages wherever pages have at most 64 KiB. */
#define STACK_GUARD_BYTES ((size_t)1 << 16)
/* Texts up to here need about 40 KiB, which every thread's stack has: musl's default, the smallest
 * in use, is 128 KiB, and of a stack of that size glibc takes 66 KiB for ggml's thread-local
 * variables where it is compiled for AMX. */
#define PLAIN_BYTES_MAX 64

typedef struct tokenize_call {
    const struct llama_vocab *vocab;
    const char *text;
    int32_t text_bytes;
    bool add_special;
    bool parse_special;
    int32_t *tokens;
    int32_t cap;
    int32_t n; /* what libllama answers */
} tokenize_call;

static void *call_run(void *arg)
{
    tokenize_call *call = arg;

    call->n = llama_tokenize(call->vocab, call->text, call->text_bytes, call->tokens, call->cap,
                             call->add_special, call->parse_special);
    return NULL;
}

static int call_run_on_thread(tokenize_call *call, char *stack, size_t stack_bytes)
{
    pthread_attr_t attr;
    pthread_t thread;
    int failed;

    QUIRE_FAIL_IF(pthread_attr_init(&attr) != 0, QUIRE_NOMEM);
    failed = pthread_attr_setstack(&attr, stack, stack_bytes);
    if (failed == 0) {
        failed = pthread_create(&thread, &attr, call_run, call);
    }
    (void)pthread_attr_destroy(&attr);
    QUIRE_FAIL_IF(failed != 0, QUIRE_NOMEM);
    (void)pthread_join(thread, NULL);
    return QUIRE_OK;
}

/* The stack is mapped here, not by the thread library, whose stacks count as memory in full: Linux
 * refuses one beyond the machine's memory, which is one for a text of 24 MiB where there are 24
 * GiB.
 */
static int call_run_on_large_stack(tokenize_call *call)
{
    const size_t text_bytes = (size_t)call->text_bytes;
    size_t stack_bytes, map_bytes;
    char *map;
    int rc;

    QUIRE_FAIL_IF(text_bytes > (SIZE_MAX >> 1) / STACK_BYTES_PER_BYTE, QUIRE_NOMEM);
    stack_bytes = STACK_BYTES_BASE + text_bytes * STACK_BYTES_PER_BYTE;
    stack_bytes += (STACK_GUARD_BYTES - stack_bytes % STACK_GUARD_BYTES) % STACK_GUARD_BYTES;
    map_bytes = STACK_GUARD_BYTES + stack_bytes;
    map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    QUIRE_FAIL_IF(map == MAP_FAILED, QUIRE_NOMEM);
    rc = mprotect(map, STACK_GUARD_BYTES, PROT_NONE) == 0 ? QUIRE_OK : QUIRE_NOMEM;
    if (rc == QUIRE_OK) {
        rc = call_run_on_thread(call, map + STACK_GUARD_BYTES, stack_bytes);
    }
    (void)munmap(map, map_bytes);
    return rc;
}

/* Whether a character beyond U+10FFFF may begin with p[0]: F4 90 .. F4 BF and F5 .. F7 do so. */
static bool is_beyond_unicode(const char *p, size_t n)
{
    const unsigned char lead = (unsigned char)p[0];

    return n >= 2 && (lead > 0xf4 || (lead == 0xf4 && (unsigned char)p[1] >= 0x90));
}

/* libllama's byte-level tokenizers decode such bytes to a character that they throw on when they
 * encode it (unicode.cpp at ggml 0.25.1); any other bytes that are no UTF-8 count as U+FFFD each.
 * FF begins nothing, so in its place they do too. *copy is NULL when the text may stay. */
static int text_mend(const char *text, size_t text_bytes, char **copy)
{
    *copy = NULL;
    for (size_t i = 0; i < text_bytes; i++) {
        if (!is_beyond_unicode(text + i, text_bytes - i)) {
            continue;
        }
        if (*copy == NULL) {
            *copy = malloc(text_bytes);
            QUIRE_FAIL_IF(*copy == NULL, QUIRE_NOMEM);
            memcpy(*copy, text, text_bytes);
        }
        (*copy)[i] = (char)0xff;
    }
    return QUIRE_OK;
}

int64_t quire_model_tokenize(const quire_model *model, const char *text, size_t text_bytes,
                             bool add_special, bool parse_special, int32_t *tokens, size_t cap)
{
    /* SPM takes bytes as they are, and uses no regular expressions. */
    const bool is_spm = llama_vocab_type(model->vocab) == LLAMA_VOCAB_TYPE_SPM;
    tokenize_call call = { .vocab = model->vocab,
                           .text = text,
                           .text_bytes = (int32_t)text_bytes,
                           .add_special = add_special,
                           .parse_special = parse_special,
                           .tokens = tokens,
                           .cap = cap > INT32_MAX ? INT32_MAX : (int32_t)cap };
    char *copy = NULL;
    int rc = QUIRE_OK;

    QUIRE_FAIL_IF(text_bytes > INT32_MAX, QUIRE_LIMIT);
    if (!is_spm) {
        QUIRE_TRY(text_mend(text, text_bytes, &copy));
        call.text = copy != NULL ? copy : text;
    }
    if (is_spm || text_bytes <= PLAIN_BYTES_MAX) {
        (void)call_run(&call);
    } else {
        rc = call_run_on_large_stack(&call);
    }
    free(copy);
    if (rc != QUIRE_OK) {
        return rc;
    }
    QUIRE_FAIL_IF(call.n == INT32_MIN, QUIRE_LIMIT);
    /* Minus the needed length when the buffer is too small. */
    return call.n >= 0 ? call.n : -(int64_t)call.n;
}
