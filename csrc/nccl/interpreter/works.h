/* PSM_KERNELS_WORKS: the works of the last launches, in the record of this process. docs/kernels.md describes them. */
#ifndef PSM_NCCL_WORKS_H
#define PSM_NCCL_WORKS_H

#include <cstddef>
#include <cstdint>

namespace psm
{

/* A work on a channel. A launch runs one plan. */
struct WorkRow {
    uint64_t comm, plan; /* address of the communicator on the device; number of the launch in it, from 1 */
    /* of a message: all bytes of it, and those of this channel */
    uint64_t send_all, send_bytes, recv_all, recv_bytes;
    int32_t rank, ranks, send_peer, recv_peer; /* ranks that the round of the work joins; -1: a collective */
    uint32_t storage;                          /* 0: arguments, 1: work FIFO, 2: memory of a graph */
    uint32_t channel, batch, offset; /* batch: of the channel in this launch, from 0; offset: in the storage */
    uint32_t extends;                /* the batch runs together with the one before */
    uint32_t base, part;             /* of a message: channel of its first part; this part */
    uint32_t send_parts, recv_parts; /* channels of each message; 0: there is none */
    uint32_t send_ll, recv_ll;       /* protocol LL */
    char function[48];
};

/* Whether works are recorded. */
bool works_wanted();
/* Begins a launch: its number in its communicator. */
uint64_t works_begin(uint64_t comm);
void works_add(const WorkRow &row);

} // namespace psm
#endif
