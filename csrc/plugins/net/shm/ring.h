/* The shm backend: processes of one host and one user, over a segment of shared memory per connection.
 *
 * The sender creates the segment and passes its descriptor over a Unix socket, which stays open: its end is the death
 * of the peer. The segment contains a ring of slots that the sender fills and the receiver empties; a message takes one
 * slot, or several if it is larger. A short one costs the transfer of one cache line. The posted receives are stored
 * next to the ring, for tags. */
#ifndef PSM_NET_SHM_RING_H
#define PSM_NET_SHM_RING_H

#include "net_plugin.h"
#include "psm/psm_share.h"
#include "shm/line.h"
#include "shm/segment.h"

enum { SHM_VERSION = 2 };
#define SHM_HANDLE_MAGIC 0x484d5350u
#define SHM_HELLO_MAGIC  0x4c4d5350u
#define SHM_RING_MAGIC   0x474e4952u

/* The handle of listen. */
struct shm_handle {
    uint32_t magic;
    uint16_t version;
    uint16_t max_recvs;
    uint64_t name; /* of the Unix socket, in the abstract namespace */
    uint64_t boot; /* identifies the host */
    uint8_t secret[NET_SECRET];
    int32_t rank, dev;
};
PSM_SHAREABLE(shm_handle, 48);
_Static_assert(sizeof(struct shm_handle) <= NET_HANDLE, "NCCL up to 2.11 has 64 bytes");

/* The only message on the Unix socket, with the descriptor of the segment. */
struct shm_hello {
    uint32_t magic;
    uint16_t version, size;
    uint8_t secret[NET_SECRET];
    uint64_t connection;
    int32_t rank, dev;
    uint32_t slots, slot_bytes;
    struct psm_share share;
};
PSM_SHAREABLE(shm_hello, 144);

/* ---- in the segment ---- */

struct shm_posted_slot {
    uint64_t size;
    int32_t tag;
    uint32_t unused;
};
PSM_SHAREABLE(shm_posted_slot, 16);

/* The first receives share a line with the number that publishes them. */
struct shm_posted {
    PSM_ALIGNED(64) _Atomic uint64_t number; /* of the group, from 1: written last */
    uint64_t n;
    struct shm_posted_slot slot[NET_RECVS];
    uint64_t unused[6];
};
PSM_SHAREABLE(shm_posted, 192);

struct shm_head {
    uint32_t magic;
    uint32_t version, slots, slot_bytes;
    struct psm_line freed;   /* slots that the receiver has emptied */
    struct psm_line refused; /* 1: a message was too large; these identify it */
    uint64_t refused_size, refused_room;
    int64_t refused_tag;
    uint64_t unused[5];
    struct shm_posted group[NET_REQUESTS]; /* its posted receives: group g is at g % NET_REQUESTS */
};
PSM_SHAREABLE(shm_head, 6400);

/* The first slot of a message describes all of it; the others hold more bytes. */
struct shm_slot {
    _Atomic uint64_t step; /* number of this slot, from 1: written last */
    uint64_t size;         /* of the message */
    uint32_t group;        /* its low half */
    int32_t tag;
    uint32_t bytes; /* here */
    uint16_t part;
    uint16_t too_large; /* an error that the sender knows: no data follows */
    char data[];
};
PSM_SHAREABLE(shm_slot, 32);

#endif
