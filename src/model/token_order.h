/* token_order.h - a vocabulary in the order of its texts.
 *
 * A grammar is tested on tokens in this order, so that tokens which begin alike share the work on
 * their common beginning. Not in the order: control tokens, tokens without text or with more than
 * QUIRE_GRAMMAR_TEXT_MAX bytes, and tokens that end the text.
 *
 * Thread: any; an order does not change.
 *
 * SPDX-License-Identifier: MIT */
#ifndef QUIRE_MODEL_TOKEN_ORDER_H
#define QUIRE_MODEL_TOKEN_ORDER_H

#include <stddef.h>
#include <stdint.h>

struct llama_vocab;

#define QUIRE_TOKEN_ENDS     UINT32_MAX       /* the rank of a token that ends the text */
#define QUIRE_TOKEN_UNRANKED (UINT32_MAX - 1) /* of the others that are not in the order */

typedef struct quire_token_order {
    uint32_t *ranks;  /* [n_vocab]: places in the order */
    int32_t *tokens;  /* [n] */
    uint16_t *shared; /* [n]: bytes at the beginning that the text before has, too */
    size_t *begins;   /* [n + 1]: of the texts */
    char *texts;
    uint32_t n_vocab, n;
} quire_token_order;

/* Memory: quire_token_order_destroy(). Cost: some 40 ms for 128K tokens. Errors: QUIRE_NOMEM. */
int quire_token_order_create(quire_token_order **out, const struct llama_vocab *vocab);
void quire_token_order_destroy(quire_token_order *order);

static inline size_t quire_token_order_bytes(const quire_token_order *order, uint32_t rank)
{
    return order->begins[rank + 1] - order->begins[rank];
}

static inline const char *quire_token_order_text(const quire_token_order *order, uint32_t rank)
{
    return order->texts + order->begins[rank];
}

#endif /* QUIRE_MODEL_TOKEN_ORDER_H */
