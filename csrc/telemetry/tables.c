/* Tables that are searched by key and taken all at once. Room for all keys is reserved at the start: the kernel
 * provides pages as they are used, items do not move, and no event costs an allocation. */
#include <stdlib.h>
#include <string.h>

#include "consumer.h"

bool tel_table_make(struct tel_table *t, size_t size, uint32_t limit)
{
    uint32_t slots = 64;
    while (slots < 2 * limit) slots *= 2;
    *t = (struct tel_table){.size = size, .limit = limit, .mask = slots - 1};
    t->index = calloc(slots, sizeof *t->index);
    t->keys = calloc(limit, sizeof *t->keys);
    t->items = calloc(limit, size);
    if (t->index && t->keys && t->items) return true;
    tel_table_free(t);
    return false;
}

void tel_table_free(struct tel_table *t)
{
    free(t->index);
    free(t->keys);
    free(t->items);
    *t = (struct tel_table){0};
}

void tel_table_clear(struct tel_table *t)
{
    if (!t->n) return;
    memset(t->index, 0, ((size_t)t->mask + 1) * sizeof *t->index);
    memset(t->items, 0, t->n * t->size);
    t->n = 0;
}

uint32_t tel_table_place(struct tel_table *t, struct tel_key key, bool *fresh)
{
    uint32_t at = (uint32_t)tel_mix(key.a ^ tel_mix(key.b)) & t->mask;
    *fresh = false;
    for (; t->index[at]; at = (at + 1) & t->mask) {
        const struct tel_key *k = &t->keys[t->index[at] - 1];
        if (k->a == key.a && k->b == key.b) return t->index[at] - 1;
    }
    if (t->n == t->limit) return TEL_NONE;
    t->keys[t->n] = key;
    t->index[at] = ++t->n;
    *fresh = true;
    return t->n - 1;
}

void tel_stat_merge(struct psm_tel_stat *to, const struct psm_tel_stat *from)
{
    if (!from->count) return;
    if (!to->count || from->least < to->least) to->least = from->least;
    if (from->most > to->most) to->most = from->most;
    to->count += from->count;
    to->sum += from->sum;
    to->squares += from->squares;
    for (size_t i = 0; i < sizeof to->bucket / sizeof *to->bucket; i++) to->bucket[i] += from->bucket[i];
}
