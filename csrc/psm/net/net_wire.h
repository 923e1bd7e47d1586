/* What is sent through the network, and what the caller requests from its own proxy.
 *
 * A connection has two comms: data from the sender to the receiver, credits back. A data message is a slot: a header,
 * then the chunk's bytes. The first credit of an operation says how many bytes the receiver expects, and that the
 * receives of its first lap of slots are posted; after that there is one credit per receive that is posted again. So
 * both ends agree before a byte moves, a message always finds a receive, both ends know how many messages an operation
 * has, and no message is pending between two operations. */
#ifndef PSM_NET_WIRE_H
#define PSM_NET_WIRE_H

#include "psm/psm_net.h"

#define PSM_NET_MAGIC 0x50534d4eu /* "PSMN" */
enum { PSM_NET_CREDITS = 8 };

enum psm_net_kind { PSM_NET_DATA = 1, PSM_NET_CREDIT = 2, PSM_NET_ENDED = 3 };

/* Before the bytes of each message. */
struct psm_net_head {
    uint32_t magic;
    uint16_t version, kind;
    uint64_t seq;    /* operation, from 1 */
    uint64_t step;   /* of the connection */
    uint64_t nbytes; /* of the operation */
    uint64_t bytes;  /* after the header */
    uint32_t status; /* PSM_NET_ENDED: a negated psm_status */
    uint32_t cuda;   /* its CUDA code */
    uint64_t unused[2];
};
PSM_SHAREABLE(psm_net_head, 64);

struct psm_net_credit {
    uint32_t magic;
    uint16_t version, kind;
    uint64_t seq;
    uint64_t nbytes;   /* bytes that the receiver expects */
    uint64_t recvTail; /* steps below it have a receive */
    uint32_t status, cuda;
    uint64_t unused[3];
};
PSM_SHAREABLE(psm_net_credit, 64);

/* Request of Setup, from the caller to its own proxy. */
struct psm_net_setup {
    uint32_t magic;
    uint16_t version;
    uint8_t role, unused;
    int32_t peer;
    uint16_t channel, connIndex;
    uint32_t steps, chunk;
    uint64_t buffer_size;
};
PSM_SHAREABLE(psm_net_setup, 32);

/* Response of Connect, whose request is the peer's psm_net_connect. Not connected: the peer has not connected yet. */
struct psm_net_connected {
    uint32_t connected, unused;
};
PSM_SHAREABLE(psm_net_connected, 8);

#endif
