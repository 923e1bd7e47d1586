/* Numbers of NCCL that are the same in the releases whose facts are written down, but for PSM_FACT_*, which each
 * release defines. */
#ifndef PSM_NCCL_FACTS_NUMBERS_H
#define PSM_NCCL_FACTS_NUMBERS_H

/* X(name, value) */
#define PSM_FACT_NUMBERS(X)                                                                                            \
    X(NCCL_STEPS, 8)                                                                                                   \
    X(NCCL_MODE_NORMAL, 0)                                                                                             \
    X(NCCL_MODE_OFFSET, 1)                                                                                             \
    X(NCCL_LL_CLEAN_MASK, 0x7ffffff8)                                                                                  \
    X(NCCL_NVLS_MIN_POLL, PSM_FACT_NCCL_NVLS_MIN_POLL)                                                                 \
    X(NCCL_NET_DEVICE_HOST, 0)                                                                                         \
    X(NCCL_PROTO_LL, 0)                                                                                                \
    X(NCCL_PROTO_LL128, 1)                                                                                             \
    X(NCCL_PROTO_SIMPLE, 2)                                                                                            \
    X(MAXCHANNELS, PSM_FACT_MAXCHANNELS)                                                                               \
    X(ALLREDUCE_CHUNKSTEPS, 4)                                                                                         \
    X(ALLREDUCE_SLICESTEPS, 2)                                                                                         \
    X(ALLGATHER_CHUNKSTEPS, 4)                                                                                         \
    X(ALLGATHER_SLICESTEPS, 2)                                                                                         \
    X(REDUCESCATTER_CHUNKSTEPS, 4)                                                                                     \
    X(REDUCESCATTER_SLICESTEPS, 2)                                                                                     \
    X(BROADCAST_CHUNKSTEPS, 1)                                                                                         \
    X(BROADCAST_SLICESTEPS, 1)                                                                                         \
    X(REDUCE_CHUNKSTEPS, 1)                                                                                            \
    X(REDUCE_SLICESTEPS, 1)

#endif
