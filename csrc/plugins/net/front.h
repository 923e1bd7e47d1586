/* Between the front and the part of it that keeps comms and requests. */
#ifndef PSM_NET_FRONT_H
#define PSM_NET_FRONT_H

#include "net.h"

#define NET_SENDER   0x53544e50u /* "PNTS" */
#define NET_RECEIVER 0x52544e50u
#define NET_LISTENER 0x4c544e50u
#define NET_CONTEXT  0x43544e50u

/* How the net plugin names its events to a profiler, and what they carry: the descriptor of version 1. */
enum { NET_PROFILER_ID = 0x5053 << 16 | 1 };
struct net_profiler_event_v1 {
    uint8_t sends;
    int32_t dev, peer, tag; /* peer -1: not known */
    uint64_t connection, number, size;
};

const char *net_role(const struct net_comm *comm);
struct net_request *net_request_take(struct net_comm *comm); /* NULL: all are open */
void net_request_untake(struct net_request *request);        /* the last one that was taken */
void net_request_give_back(struct net_request *request);

#endif
