/* task_text.c - made-up tasks as text; see text_docs.h.
 *
 * SPDX-License-Identifier: MIT */
#include "base/bytes.h"
#include "base/check.h"
#include "base/rng.h"
#include "train/text_docs.h"

#include <string.h>

#define LETTERS    26u
#define LINE_BYTES 8u /* of a pair of recall: "abc=123\n" */
#define FILLER     "The grass is green. The sky is blue. The sun is yellow. Here we go. "

const char *const *quire_task_names(void)
{
    static const char *const names[] = { "recall", "passkey", "copy", "instruction", NULL };

    return names;
}

/* Keys are numbers in letters. They go up by a stride that has no divisor in common with the number
 * of keys, so all keys of a task differ. */
static void key_text(uint32_t number, char key[4])
{
    key[0] = (char)('a' + number / (LETTERS * LETTERS) % LETTERS);
    key[1] = (char)('a' + number / LETTERS % LETTERS);
    key[2] = (char)('a' + number % LETTERS);
    key[3] = '\0';
}

#define KEYS       (LETTERS * LETTERS * LETTERS)
#define KEY_STRIDE 7919u /* a prime: neighbours in the list differ in all letters */

static void write_recall(size_t n_bytes, quire_rng *rng, quire_bytes *out, size_t *answer_at)
{
    uint32_t n = (uint32_t)(n_bytes / LINE_BYTES), first = quire_rng_below(rng, KEYS);
    uint32_t asked, value = 0;
    char key[4];

    n = n < 1 ? 1 : n > KEYS ? KEYS : n;
    asked = quire_rng_below(rng, n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t number = quire_rng_below(rng, 1000);

        key_text((first + i * KEY_STRIDE) % KEYS, key);
        value = i == asked ? number : value;
        (void)quire_bytes_addf(out, "%s=%03u\n", key, number);
    }
    key_text((first + asked * KEY_STRIDE) % KEYS, key);
    (void)quire_bytes_addf(out, "%s?", key);
    *answer_at = out->n;
    (void)quire_bytes_addf(out, "%03u", value);
}

static void write_passkey(size_t n_bytes, quire_rng *rng, quire_bytes *out, size_t *answer_at)
{
    uint32_t n = (uint32_t)(n_bytes / (sizeof(FILLER) - 1)), number = quire_rng_below(rng, 100000);
    uint32_t at = quire_rng_below(rng, n + 1);

    for (uint32_t i = 0; i <= n; i++) {
        if (i == at) {
            (void)quire_bytes_addf(out, "The pass key is %05u. Remember it. ", number);
        }
        if (i < n) {
            (void)quire_bytes_add(out, FILLER, sizeof(FILLER) - 1);
        }
    }
    (void)quire_bytes_addf(out, "What is the pass key? ");
    *answer_at = out->n;
    (void)quire_bytes_addf(out, "%05u", number);
}

static void write_copy(size_t n_bytes, quire_rng *rng, quire_bytes *out, size_t *answer_at)
{
    size_t n = n_bytes / 2;

    for (size_t i = 0; i < n; i++) {
        char letter = (char)('a' + quire_rng_below(rng, LETTERS));

        (void)quire_bytes_add(out, &letter, 1);
    }
    (void)quire_bytes_addf(out, "|");
    *answer_at = out->n;
    for (size_t i = 0; i < n && out->status == QUIRE_OK; i++) {
        char letter = out->data[i]; /* the buffer may move */

        (void)quire_bytes_add(out, &letter, 1);
    }
}

/* Kinds of things, each with words. No word stands in the filler. */
#define KINDS 4u
#define WORDS 8u
static const struct {
    const char *kind;
    const char *words[WORDS];
} things[KINDS] = {
    { "colour", { "red", "pink", "black", "white", "brown", "gold", "grey", "purple" } },
    { "animal", { "cow", "horse", "mouse", "lion", "duck", "whale", "snake", "goat" } },
    { "fruit", { "plum", "pear", "lemon", "grape", "melon", "cherry", "fig", "lime" } },
    { "tool", { "saw", "hammer", "spade", "needle", "rope", "brush", "knife", "wheel" } },
};

/* The words at the end do not tell which of them is asked for, and the beginning does not tell the
 * word. */
static void write_instruction(size_t n_bytes, quire_rng *rng, quire_bytes *out, size_t *answer_at)
{
    uint32_t asked = quire_rng_below(rng, KINDS), first = quire_rng_below(rng, KINDS);
    uint32_t n = (uint32_t)(n_bytes / (sizeof(FILLER) - 1));
    const char *answer = NULL;

    (void)quire_bytes_addf(out, "At the end, say the %s. ", things[asked].kind);
    for (uint32_t i = 1; i < n; i++) {
        (void)quire_bytes_add(out, FILLER, sizeof(FILLER) - 1);
    }
    for (uint32_t i = 0; i < KINDS; i++) {
        uint32_t kind = (first + i) % KINDS;
        const char *word = things[kind].words[quire_rng_below(rng, WORDS)];

        (void)quire_bytes_addf(out, "The %s is %s. ", things[kind].kind, word);
        answer = kind == asked ? word : answer;
    }
    (void)quire_bytes_addf(out, "Do as I said at first:");
    *answer_at = out->n;
    (void)quire_bytes_addf(out, " %s", answer);
}

int quire_task_write(quire_task task, size_t n_bytes, uint64_t seed, quire_bytes *out,
                     size_t *answer_at)
{
    quire_rng rng = { seed };

    quire_bytes_clear(out);
    switch (task) {
    case QUIRE_TASK_RECALL:
        write_recall(n_bytes, &rng, out, answer_at);
        break;
    case QUIRE_TASK_PASSKEY:
        write_passkey(n_bytes, &rng, out, answer_at);
        break;
    case QUIRE_TASK_INSTRUCTION:
        write_instruction(n_bytes, &rng, out, answer_at);
        break;
    default:
        write_copy(n_bytes, &rng, out, answer_at);
        break;
    }
    return out->status;
}
