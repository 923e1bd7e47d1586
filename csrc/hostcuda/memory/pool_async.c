/* Stream-ordered allocation. Memory from cudaMallocAsync is usable at once; cudaFreeAsync takes effect when its stream
 * gets there, so any caller may reuse freed memory without dependencies. */
#include "memory/hc_pool.h"

static int allocate(struct hc_pool *pool, size_t size, unsigned flags, uintptr_t *address)
{
    struct hc_request request = {.space = pool->device < 0 ? HC_PINNED : HC_DEVICE,
                                 .origin = HC_FROM_POOL,
                                 .device = pool->device < 0 ? hc_current_device() : pool->device,
                                 .flags = flags,
                                 .size = size,
                                 .pool = pool};
    int rc = hc_allocate(&request, address);
    if (rc == 0) hc_pool_used(pool, size);
    return rc;
}

struct node {
    uintptr_t address;
};

static int nothing(void *argument, int device)
{
    (void)argument, (void)device;
    return 0;
}

static void node_end(void *argument)
{
    hc_allocation_free(((struct node *)argument)->address, NULL);
}

/* In a capture the allocation belongs to the node: it exists from now on, and is freed with the last graph that holds
 * the node. */
static int capture_allocation(struct hc_stream *stream, struct hc_pool *pool, size_t size, uintptr_t *address)
{
    struct node node;
    int rc = allocate(pool, size, HC_GRAPH_ALLOCATION, &node.address);
    if (rc) return rc;
    struct hc_work work = {.run = nothing,
                           .end = node_end,
                           .size = sizeof node,
                           .argument = &node,
                           .flags = HC_WORK_QUICK,
                           .node_type = HC_NODE_ALLOCATION};
    rc = hc_captures->work(stream, &work);
    if (rc) hc_allocation_free(node.address, NULL);
    if (rc == HC_NOT_CAPTURED) return PSM_CUDA_STREAM_CAPTURE_INVALIDATED; /* the capture ended meanwhile */
    if (rc == 0) *address = node.address;
    return rc;
}

static int allocate_async(struct hc_pool *pool, size_t size, cudaStream_t handle, uintptr_t *address)
{
    struct hc_stream *stream;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    struct hc_pool *held = NULL;
    if (!pool) pool = held = hc_pool_current(hc_stream_device(stream));
    *address = 0;
    if (!pool)
        rc = PSM_CUDA_OUT_OF_MEMORY;
    else if (pool->imported)
        rc = PSM_CUDA_INVALID_VALUE;
    else if (size && hc_is_captured(stream))
        rc = capture_allocation(stream, pool, size, address);
    else if (size)
        rc = allocate(pool, size, 0, address);
    if (rc == PSM_CUDA_OUT_OF_MEMORY && pool &&
        !hc_is_captured(stream)) { /* frees that the stream has not reached yet */
        hc_stream_drain(stream);
        hc_pool_trim(pool, 0);
        rc = allocate(pool, size, 0, address);
    }
    if (held) hc_pool_put(held);
    hc_stream_put(stream);
    return rc;
}

cudaError_t hc_cudaMallocAsync(void **devPtr, size_t size, cudaStream_t hStream)
{
    uintptr_t address;
    int rc = devPtr ? allocate_async(NULL, size, hStream, &address) : PSM_CUDA_INVALID_VALUE;
    if (rc == 0) *devPtr = (void *)address;
    return rc;
}

cudaError_t hc_cudaMallocFromPoolAsync(void **ptr, size_t size, cudaMemPool_t memPool, cudaStream_t stream)
{
    uintptr_t address;
    struct hc_pool *pool = ptr ? hc_pool_get(memPool) : NULL;
    if (!pool) return PSM_CUDA_INVALID_VALUE;
    int rc = allocate_async(pool, size, stream, &address);
    hc_pool_put(pool);
    if (rc == 0) *ptr = (void *)address;
    return rc;
}

static bool frees_async(const struct hc_allocation *a)
{
    return a->origin == HC_FROM_POOL || a->origin == HC_FROM_MALLOC;
}

static int free_now(void *argument, int device)
{
    (void)device;
    hc_allocation_free(((struct node *)argument)->address, NULL);
    return 0;
}

static int capture_free(struct hc_stream *stream, uintptr_t address)
{
    struct hc_allocation a;
    struct node node = {address};
    if (!hc_allocation_at(address, &a) || !(a.flags & HC_GRAPH_ALLOCATION)) return PSM_CUDA_INVALID_VALUE;
    struct hc_work work = {
        .run = nothing, .size = sizeof node, .argument = &node, .flags = HC_WORK_QUICK, .node_type = HC_NODE_FREE};
    int rc = hc_captures->work(stream, &work);
    return rc == HC_NOT_CAPTURED ? PSM_CUDA_STREAM_CAPTURE_INVALIDATED : rc;
}

cudaError_t hc_cudaFreeAsync(void *devPtr, cudaStream_t hStream)
{
    struct hc_stream *stream;
    struct node node = {(uintptr_t)devPtr};
    int rc = hc_stream_get(hStream, &stream);
    if (rc) return rc;
    if (!devPtr) {
        rc = 0;
    } else if (hc_is_captured(stream)) {
        rc = capture_free(stream, node.address);
    } else if (!hc_allocation_mark(node.address, frees_async, true)) {
        rc = PSM_CUDA_INVALID_VALUE;
    } else {
        struct hc_allocation a;
        bool graph = hc_allocation_at(node.address, &a) && a.flags & HC_GRAPH_ALLOCATION;
        struct hc_work work = {
            .run = graph ? nothing : free_now, .size = sizeof node, .argument = &node, .flags = HC_WORK_QUICK};
        rc = hc_submit(stream, &work, NULL);
        if (rc || graph) hc_allocation_mark(node.address, NULL, false);
    }
    hc_stream_put(stream);
    return rc;
}
