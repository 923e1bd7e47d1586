/* What the plugin has given to its caller: contexts, listeners, comms, requests, registrations. A pointer that comes
 * back is looked up here before it is followed; one that was never given, or was closed since, is a mistake of the
 * caller that is worth a line and no crash. */
#ifndef PSM_NET_GIVEN_H
#define PSM_NET_GIVEN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum net_given {
    NET_GIVEN_CONTEXT = 1,
    NET_GIVEN_LISTENER,
    NET_GIVEN_COMM,
    NET_GIVEN_REQUEST,
    NET_GIVEN_REGISTRATION,
    NET_GIVEN_COLL_LISTENER,
    NET_GIVEN_COLL_COMM,
    NET_GIVEN_COLL_REQUEST,
    NET_GIVEN_COLL_REGISTRATION,
    NET_GIVEN_RMA_LISTENER,
    NET_GIVEN_RMA_COMM,
    NET_GIVEN_RMA_CONTEXT,
    NET_GIVEN_RMA_REGION,
    NET_GIVEN_RMA_REQUEST
};

/* A hash table with linear probing. A slot is an address with its kind above it, 0, or NET_GIVEN_GONE. */
struct net_given_table {
    struct net_given_table *older; /* others may still read it */
    unsigned shift;                /* 64 less the logarithm of the size */
    uint64_t mask;
    _Atomic uint64_t slot[];
};
#define NET_GIVEN_GONE UINT64_MAX
extern struct net_given_table *_Atomic net_given_table;

static inline uint64_t net_given_key(const void *what, enum net_given kind)
{
    uint64_t address = (uintptr_t)what;
    return address >> 60 ? 0 : address | (uint64_t)kind << 60;
}

static inline uint64_t net_given_place(const struct net_given_table *table, uint64_t key)
{
    return key * UINT64_C(0x9e3779b97f4a7c15) >> table->shift;
}

/* Whether this is one that the caller has. Does not follow it. NULL is none. */
static inline bool net_is_given(const void *what, enum net_given kind)
{
    const struct net_given_table *table = atomic_load_explicit(&net_given_table, memory_order_acquire);
    uint64_t key = net_given_key(what, kind), seen;
    if (!table || !what || !key) return false;
    for (uint64_t i = net_given_place(table, key);; i++) {
        seen = atomic_load_explicit(&table->slot[i & table->mask], memory_order_relaxed);
        if (seen == key) return true;
        if (seen == 0) return false;
    }
}

/* n of them, `step` bytes apart. False: no memory, and none is there. */
bool net_give(const void *what, size_t n, size_t step, enum net_given kind);
void net_take_back(const void *what, size_t n, size_t step, enum net_given kind);

#endif
