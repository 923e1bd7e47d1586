/* Which primitive follows which: what each collective does on one channel, as functions of the number of the call. */
#ifndef PSM_NCCL_SCHEDULES_H
#define PSM_NCCL_SCHEDULES_H

#include "nccl_flow.h"

namespace psm
{

/* A channel's part of a collective. Counts and offsets are in elements. */
struct Part {
    size_t element;          /* bytes */
    size_t count;            /* of all channels, of one rank */
    size_t offset, n, chunk; /* of this channel */
    size_t last_chunk; /* of a sum around a ring, where less than a whole round is left; 0: as it divides evenly */
    const char *in;    /* aliases of the buffers' begin */
    char *out;
    bool in_place; /* what the rank gives lies where it belongs in its output */
    int rank, ranks, root;
    int index;       /* of this rank in the ring */
    const int *ring; /* ranks in order, this one first */
};

Schedule ring_all_reduce(const Part &part);
Schedule ring_all_gather(const Part &part);
Schedule ring_reduce_scatter(const Part &part);
Schedule ring_broadcast(const Part &part);
Schedule ring_reduce(const Part &part);
/* Towards the root, and from there; at the root both are one. */
Schedule tree_reduce(const Part &part, bool leaf);
Schedule tree_broadcast(const Part &part, bool leaf);
Schedule tree_root(const Part &part);
/* Bytes in chunks; one empty call where there are none. */
Schedule send(const char *from, size_t bytes, size_t chunk);
Schedule receive(char *to, size_t bytes, size_t chunk);

} // namespace psm
#endif
