/* Shared by the front and its part that keeps comms and requests. */
#ifndef PSM_NET_FRONT_H
#define PSM_NET_FRONT_H

#include "given.h"
#include "net_plugin.h"

/* Id and descriptor (version 1) of the net plugin's events for a profiler. */
enum { NET_PROFILER_ID = 0x5053 << 16 | 1 };
struct net_profiler_event_v1 {
    uint8_t sends;
    int32_t dev, peer, tag; /* peer -1: unknown */
    uint64_t connection, number, size;
};

void net_request_forget_copy(struct net_request *request); /* bytes that a fault corrupted */

/* Whether it is an open comm of that end. */
static inline bool net_is_comm(const void *comm, bool sends)
{
    return net_is_given(comm, NET_GIVEN_COMM) && ((const struct net_comm *)comm)->sends == sends;
}

static inline const char *net_role(const struct net_comm *c)
{
    return c->sends ? "send" : "recv";
}

/* NULL: all are in use. */
static inline struct net_request *net_request_take(struct net_comm *c)
{
    if (c->nfree == 0) return NULL;
    /* The one that was freed first: the record then keeps as much of the past as there are requests. */
    struct net_request *r = c->free[c->taken++ & c->mask];
    c->nfree--;
    c->open++;
    r->number = r->message = c->next++;
    r->slot = 0;
    r->started = r->lost = false;
    r->inner = NULL;
    return r;
}

/* Returns the request that was taken last, as if it had never been taken. */
static inline void net_request_untake(struct net_request *r)
{
    struct net_comm *c = r->comm;
    r->kind = NET_FREE;
    if (r->copy) net_request_forget_copy(r);
    c->taken--;
    c->nfree++;
    c->open--;
    c->next--;
}

static inline void net_request_give_back(struct net_request *r)
{
    struct net_comm *c = r->comm;
    r->kind = NET_FREE;
    if (r->copy) net_request_forget_copy(r);
    c->free[(c->taken + c->nfree) & c->mask] = r;
    c->nfree++;
    c->open--;
}

#endif
