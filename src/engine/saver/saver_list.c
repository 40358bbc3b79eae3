/* saver_list.c - the items of a kind that are on disk; see saver_object.h.
 *
 * SPDX-License-Identifier: MIT */
#include "engine/saver/saver_object.h"

#include "base/check.h"

#include <stdlib.h>

int quire_saved_list_add(quire_saved_list *list, const quire_saved_item *item)
{
    if (list->n == list->capacity) {
        const uint32_t capacity = list->capacity > 0 ? 2 * list->capacity : 64;
        quire_saved_item *items = realloc(list->items, capacity * sizeof *items);

        QUIRE_FAIL_IF(items == NULL, QUIRE_NOMEM);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = *item;
    return QUIRE_OK;
}

static int by_name(const void *a, const void *b)
{
    const quire_saved_item *x = a, *y = b;
    const int order = quire_state_name_compare(&x->name, &y->name);

    return order != 0 ? order : (x->identity > y->identity) - (x->identity < y->identity);
}

void quire_saved_list_sort(quire_saved_list *list)
{
    if (list->n > 1) {
        qsort(list->items, list->n, sizeof list->items[0], by_name);
    }
}

quire_saved_item *quire_saved_list_find(const quire_saved_list *list, const quire_state_name *name,
                                        uint32_t identity)
{
    const quire_saved_item key = { .name = *name, .identity = identity };

    return list->n > 0 ? bsearch(&key, list->items, list->n, sizeof key, by_name) : NULL;
}

uint64_t quire_saved_list_bytes(const quire_saved_list *list)
{
    uint64_t n_bytes = 0;

    for (uint32_t i = 0; i < list->n; i++) {
        n_bytes += list->items[i].charge_bytes;
    }
    return n_bytes;
}

void quire_saved_list_fini(quire_saved_list *list)
{
    for (uint32_t i = 0; i < list->n; i++) {
        free(list->items[i].bytes);
    }
    free(list->items);
    *list = (quire_saved_list){ 0 };
}
