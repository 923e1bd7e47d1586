/* What lies at an address: the living allocations and mappings in order, and those that were freed last.
 *
 * Locks: that of a shard of the ledger may be held; none is taken here. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

enum { FREED_MOST = 4096 };

struct list {
    struct san_span *span; /* by base, without overlap */
    uint64_t *age;         /* freed ones only */
    size_t n, size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct list living, freed;
static uint64_t ages;

/* The first span that ends beyond the address. */
static size_t place(const struct list *list, uint64_t address)
{
    size_t low = 0, high = list->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (list->span[middle].end > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool insert(struct list *list, size_t at, const struct san_span *span, bool aged)
{
    if (list->n == list->size) {
        size_t size = list->size ? 2 * list->size : 64;
        struct san_span *grown = realloc(list->span, size * sizeof *grown);
        if (!grown) return false;
        list->span = grown;
        if (aged) {
            uint64_t *ages_grown = realloc(list->age, size * sizeof *ages_grown);
            if (!ages_grown) return false;
            list->age = ages_grown;
        }
        list->size = size;
    }
    memmove(&list->span[at + 1], &list->span[at], (list->n - at) * sizeof *list->span);
    list->span[at] = *span;
    if (aged) {
        memmove(&list->age[at + 1], &list->age[at], (list->n - at) * sizeof *list->age);
        list->age[at] = ages++;
    }
    list->n++;
    return true;
}

static void erase(struct list *list, size_t at, size_t n)
{
    size_t rest = list->n - at - n;
    if (!n) return;
    memmove(&list->span[at], &list->span[at + n], rest * sizeof *list->span);
    if (list->age) memmove(&list->age[at], &list->age[at + n], rest * sizeof *list->age);
    list->n -= n;
}

static void erase_overlapping(struct list *list, uint64_t base, uint64_t end)
{
    size_t from = place(list, base), to = from;
    while (to < list->n && list->span[to].base < end) to++;
    erase(list, from, to - from);
}

void san_span_add(const struct san_span *span)
{
    pthread_mutex_lock(&lock);
    erase_overlapping(&freed, span->base, span->end);
    /* A living one that overlaps ended in a way that was not seen. */
    erase_overlapping(&living, span->base, span->end);
    insert(&living, place(&living, span->base), span, false);
    pthread_mutex_unlock(&lock);
}

void san_span_remove(uint64_t base, uint32_t generation, bool keep)
{
    pthread_mutex_lock(&lock);
    size_t at = place(&living, base);
    if (at < living.n && living.span[at].base == base && living.span[at].generation == generation) {
        struct san_span span = living.span[at];
        erase(&living, at, 1);
        if (keep) {
            if (freed.n >= FREED_MOST) {
                size_t oldest = 0;
                for (size_t i = 1; i < freed.n; i++)
                    if (freed.age[i] < freed.age[oldest]) oldest = i;
                erase(&freed, oldest, 1);
            }
            insert(&freed, place(&freed, span.base), &span, true);
        }
    }
    pthread_mutex_unlock(&lock);
}

static enum san_hit find(uint64_t address, struct san_span *first, uint64_t *end)
{
    size_t at = place(&living, address);
    if (at < living.n && living.span[at].base <= address) {
        *first = living.span[at];
        *end = first->end;
        /* One copy may go over several mappings, not over several allocations. */
        while (first->kind == PSM_SAN_MAP && at + 1 < living.n && living.span[at + 1].kind == PSM_SAN_MAP &&
               living.span[at + 1].base == *end)
            *end = living.span[++at].end;
        return SAN_HIT_LIVE;
    }
    at = place(&freed, address);
    if (at < freed.n && freed.span[at].base <= address) {
        *first = freed.span[at];
        *end = first->end;
        return SAN_HIT_FREED;
    }
    return SAN_HIT_NONE;
}

enum san_hit san_span_find(uint64_t address, struct san_span *first, uint64_t *end)
{
    pthread_mutex_lock(&lock);
    enum san_hit hit = find(address, first, end);
    pthread_mutex_unlock(&lock);
    return hit;
}

bool san_span_try_find(uint64_t address, struct san_span *first)
{
    uint64_t end;
    if (pthread_mutex_trylock(&lock) != 0) return false;
    enum san_hit hit = find(address, first, &end);
    pthread_mutex_unlock(&lock);
    return hit == SAN_HIT_LIVE;
}

bool san_span_first(enum psm_san_kind kind, uint64_t from, uint64_t to, struct san_span *span)
{
    pthread_mutex_lock(&lock);
    size_t at = place(&living, from);
    while (at < living.n && (living.span[at].base < from || living.span[at].kind != kind)) at++;
    bool found = at < living.n && living.span[at].base < to;
    if (found) *span = living.span[at];
    pthread_mutex_unlock(&lock);
    return found;
}
