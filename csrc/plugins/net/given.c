/* Writers have a lock. Readers have none: a slot changes in one store, and a table that is too small stays for them. */
#define _GNU_SOURCE
#include "given.h"

#include <pthread.h>
#include <stdlib.h>

enum { FIRST_BITS = 10 };

struct net_given_table *_Atomic net_given_table;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t used; /* slots that are not 0 */

static void put(struct net_given_table *table, uint64_t key)
{
    for (uint64_t i = net_given_place(table, key);; i++) {
        _Atomic uint64_t *slot = &table->slot[i & table->mask];
        uint64_t seen = atomic_load_explicit(slot, memory_order_relaxed);
        if (seen != 0 && seen != NET_GIVEN_GONE) continue;
        used += seen == 0;
        atomic_store_explicit(slot, key, memory_order_release);
        return;
    }
}

/* At least half of the slots stay empty, so that a search is short. */
static bool make_room(size_t n)
{
    struct net_given_table *old = atomic_load(&net_given_table);
    uint64_t size = old ? old->mask + 1 : 0;
    unsigned bits = old ? 64 - old->shift : FIRST_BITS;
    if (size >= 2 * (used + n)) return true;
    while (UINT64_C(1) << bits < 4 * (used + n)) bits++;
    struct net_given_table *table = calloc(1, sizeof *table + (sizeof *table->slot << bits));
    if (!table) return false;
    table->older = old;
    table->shift = 64 - bits;
    table->mask = (UINT64_C(1) << bits) - 1;
    used = 0;
    for (uint64_t i = 0; i < size; i++) {
        uint64_t key = atomic_load_explicit(&old->slot[i], memory_order_relaxed);
        if (key != 0 && key != NET_GIVEN_GONE) put(table, key);
    }
    atomic_store_explicit(&net_given_table, table, memory_order_release);
    return true;
}

bool net_give(const void *what, size_t n, size_t step, enum net_given kind)
{
    pthread_mutex_lock(&lock);
    bool room = make_room(n);
    for (size_t i = 0; room && i < n; i++)
        put(atomic_load_explicit(&net_given_table, memory_order_relaxed),
            net_given_key((const char *)what + i * step, kind));
    pthread_mutex_unlock(&lock);
    return room;
}

static void drop(struct net_given_table *table, uint64_t key)
{
    uint64_t i = net_given_place(table, key), seen;
    for (; (seen = atomic_load_explicit(&table->slot[i & table->mask], memory_order_relaxed)) != key; i++)
        if (seen == 0) return;
    atomic_store_explicit(&table->slot[i & table->mask], NET_GIVEN_GONE, memory_order_relaxed);
    /* Nothing is behind an empty slot: those that are gone before it need not be passed any more. */
    if (atomic_load_explicit(&table->slot[(i + 1) & table->mask], memory_order_relaxed) != 0) return;
    for (; atomic_load_explicit(&table->slot[i & table->mask], memory_order_relaxed) == NET_GIVEN_GONE; i--) {
        atomic_store_explicit(&table->slot[i & table->mask], 0, memory_order_relaxed);
        used--;
    }
}

void net_take_back(const void *what, size_t n, size_t step, enum net_given kind)
{
    pthread_mutex_lock(&lock);
    struct net_given_table *table = atomic_load_explicit(&net_given_table, memory_order_relaxed);
    for (size_t i = 0; table && i < n; i++) drop(table, net_given_key((const char *)what + i * step, kind));
    pthread_mutex_unlock(&lock);
}

/* The library is unloaded. */
__attribute__((destructor)) static void forget(void)
{
    struct net_given_table *table = atomic_exchange(&net_given_table, NULL);
    while (table) {
        struct net_given_table *older = table->older;
        free(table);
        table = older;
    }
}
