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

#define KEYS   (LETTERS * LETTERS * LETTERS) /* 2^3 13^3 */
#define VALUES 1000u

/* Pairs of a text of recall, by their index. */
typedef struct pairs {
    uint32_t first;  /* key of pair 0 */
    uint32_t stride; /* from key to key */
    uint64_t seed;   /* of the values */
} pairs;

static pairs pairs_draw(quire_rng *rng)
{
    pairs p = { .first = quire_rng_below(rng, KEYS) };

    do {
        p.stride = quire_rng_below(rng, KEYS);
    } while (p.stride % 2 == 0 || p.stride % 13 == 0);
    p.seed = quire_rng_next(rng);
    return p;
}

static void write_key(const pairs *p, uint32_t i, quire_bytes *out)
{
    char key[4];

    key_text((uint32_t)((p->first + (uint64_t)i * p->stride) % KEYS), key);
    (void)quire_bytes_addf(out, "%s=", key);
}

static void write_value(const pairs *p, uint32_t i, quire_bytes *out)
{
    quire_rng rng = { p->seed + i };

    (void)quire_bytes_addf(out, "%03u", quire_rng_below(&rng, VALUES));
}

/* One of n pairs that no earlier question asks for. */
static uint32_t draw_other(quire_rng *rng, uint32_t n, const uint32_t *asked, uint32_t n_asked)
{
    uint32_t index, i;

    do {
        index = quire_rng_below(rng, n);
        for (i = 0; i < n_asked && asked[i] != index; i++) {
        }
    } while (i < n_asked);
    return index;
}

static void begin_answer(quire_task_answers *answers, const quire_bytes *out)
{
    answers->at[answers->n] = out->n;
}

static void end_answer(quire_task_answers *answers, const quire_bytes *out)
{
    answers->end[answers->n++] = out->n;
}

/* Half of the lines of a short text are questions: a model learns from each of them, and learns
 * sooner. */
static void write_recall(size_t n_bytes, quire_rng *rng, quire_bytes *out,
                         quire_task_answers *answers)
{
    uint32_t n_lines = (uint32_t)(n_bytes / LINE_BYTES);
    uint32_t n_asked = n_lines / 2, n, asked[QUIRE_TASK_ANSWERS_MAX];
    pairs p = pairs_draw(rng);

    n_asked = n_asked < 1 ? 1 : n_asked > QUIRE_TASK_ANSWERS_MAX ? QUIRE_TASK_ANSWERS_MAX : n_asked;
    n = n_lines <= n_asked ? n_asked : n_lines - n_asked;
    n = n > KEYS ? KEYS : n;
    for (uint32_t i = 0; i < n; i++) {
        write_key(&p, i, out);
        write_value(&p, i, out);
        (void)quire_bytes_add(out, "\n", 1);
    }
    for (uint32_t i = 0; i < n_asked; i++) {
        asked[i] = draw_other(rng, n, asked, i);
        write_key(&p, asked[i], out);
        begin_answer(answers, out);
        write_value(&p, asked[i], out);
        end_answer(answers, out);
        if (i + 1 < n_asked) {
            (void)quire_bytes_add(out, "\n", 1);
        }
    }
}

/* Sentences of filler in a text that has n_other bytes besides. */
static uint32_t n_fillers(size_t n_bytes, size_t n_other)
{
    return n_bytes > n_other ? (uint32_t)((n_bytes - n_other) / (sizeof(FILLER) - 1)) : 0;
}

#define KEY_SENTENCE "The pass key is %05u. Remember it. "
#define KEY_QUESTION "What is the pass key? The pass key is "
#define KEY_OTHER    80u /* bytes of both, and of the answer */

static void write_passkey(size_t n_bytes, quire_rng *rng, quire_bytes *out,
                          quire_task_answers *answers)
{
    uint32_t n = n_fillers(n_bytes, KEY_OTHER), number = quire_rng_below(rng, 100000);
    uint32_t at = quire_rng_below(rng, n + 1);

    for (uint32_t i = 0; i <= n; i++) {
        if (i == at) {
            (void)quire_bytes_addf(out, KEY_SENTENCE, number);
        }
        if (i < n) {
            (void)quire_bytes_add(out, FILLER, sizeof(FILLER) - 1);
        }
    }
    (void)quire_bytes_addf(out, KEY_QUESTION);
    begin_answer(answers, out);
    (void)quire_bytes_addf(out, "%05u", number);
    end_answer(answers, out);
}

static void write_copy(size_t n_bytes, quire_rng *rng, quire_bytes *out,
                       quire_task_answers *answers)
{
    size_t n = n_bytes / 2;

    for (size_t i = 0; i < n; i++) {
        char letter = (char)('a' + quire_rng_below(rng, LETTERS));

        (void)quire_bytes_add(out, &letter, 1);
    }
    (void)quire_bytes_addf(out, "|");
    begin_answer(answers, out);
    for (size_t i = 0; i < n && out->status == QUIRE_OK; i++) {
        char letter = out->data[i]; /* the buffer may move */

        (void)quire_bytes_add(out, &letter, 1);
    }
    end_answer(answers, out);
}

/* Kinds of things, each with words. No word stands in the filler. */
#define KINDS             4u
#define WORDS             8u
#define INSTRUCTION_OTHER 159u /* bytes besides the filler, at most */
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
 * word. The answer names the asked kind first: small models find one thing at a time. */
static void write_instruction(size_t n_bytes, quire_rng *rng, quire_bytes *out,
                              quire_task_answers *answers)
{
    uint32_t asked = quire_rng_below(rng, KINDS), first = quire_rng_below(rng, KINDS);
    uint32_t n = n_fillers(n_bytes, INSTRUCTION_OTHER);
    const char *answer = NULL;

    (void)quire_bytes_addf(out, "At the end, say the %s. ", things[asked].kind);
    for (uint32_t i = 0; i < n; i++) {
        (void)quire_bytes_add(out, FILLER, sizeof(FILLER) - 1);
    }
    for (uint32_t i = 0; i < KINDS; i++) {
        uint32_t kind = (first + i) % KINDS;
        const char *word = things[kind].words[quire_rng_below(rng, WORDS)];

        (void)quire_bytes_addf(out, "The %s is %s. ", things[kind].kind, word);
        answer = kind == asked ? word : answer;
    }
    (void)quire_bytes_addf(out, "Do as I said at first: say the");
    begin_answer(answers, out);
    (void)quire_bytes_addf(out, " %s is %s", things[asked].kind, answer);
    end_answer(answers, out);
}

int quire_task_write(quire_task task, size_t n_bytes, uint64_t seed, quire_bytes *out,
                     quire_task_answers *answers)
{
    quire_rng rng = { seed };

    quire_bytes_clear(out);
    answers->n = 0;
    switch (task) {
    case QUIRE_TASK_RECALL:
        write_recall(n_bytes, &rng, out, answers);
        break;
    case QUIRE_TASK_PASSKEY:
        write_passkey(n_bytes, &rng, out, answers);
        break;
    case QUIRE_TASK_INSTRUCTION:
        write_instruction(n_bytes, &rng, out, answers);
        break;
    default:
        write_copy(n_bytes, &rng, out, answers);
        break;
    }
    return out->status;
}
