/* Internals of memory pools: pool.c creates them and allocates, pool_share.c answers queries and shares them. */
#ifndef HC_POOL_H
#define HC_POOL_H

#include "memory/hc_memory.h"

#include <unistd.h>

enum {
    HC_POOL_PLACES = HC_MAX_DEVICES + 2, /* devices, the host, its NUMA node */
    HC_GRAPH_ALLOCATION = 1 << 16,       /* among the flags of an allocation: belongs to a graph node */
    HC_NODE_ALLOCATION = 10,             /* cudaGraphNodeTypeMemAlloc */
    HC_NODE_FREE = 11,
};

struct hc_pool {
    uint64_t handle;
    unsigned references; /* of the handle, of each allocation, of each call; protected by the lock of pool.c */
    struct cudaMemPoolProps properties;
    int device; /* -1: host */
    bool is_default, imported;
    int memfd;             /* represents the pool in other processes; -1: never exported */
    uint64_t shared_id;    /* its trailer's */
    pthread_mutex_t lock;  /* of what follows */
    struct hc_range *kept; /* freed, but kept up to the release threshold */
    _Atomic uint64_t used, used_high, reserved, reserved_high, threshold;
    _Atomic int reuse[3]; /* cudaMemPoolReuse...: stored, without effect */
    _Atomic int access[HC_MAX_DEVICES];
};

struct hc_pool *hc_pool_get(cudaMemPool_t handle); /* held until hc_pool_put; NULL: none */
void hc_pool_put(struct hc_pool *pool);
struct hc_pool *hc_pool_current(int place); /* that cudaMallocAsync uses there: held as above; NULL: out of memory */
struct hc_pool *hc_pool_new(const struct cudaMemPoolProps *properties, int device);
void hc_pool_used(struct hc_pool *pool, size_t size);
void hc_pool_trim(struct hc_pool *pool, uint64_t keep);

#endif
