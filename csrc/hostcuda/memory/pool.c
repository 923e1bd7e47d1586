/* Memory pools and stream-ordered allocation. Memory from cudaMallocAsync is usable at once; cudaFreeAsync takes effect
 * when its stream gets there, so any caller may reuse freed memory without dependencies. */
#define _GNU_SOURCE
#include "memory/hc_pool.h"

#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the tables here and the reference counts */
static struct hc_pool *defaults[HC_POOL_PLACES], *currents[HC_POOL_PLACES];

static void pool_end(struct hc_pool *pool)
{
    hc_pool_trim(pool, 0);
    if (pool->memfd >= 0) close(pool->memfd);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static void drop(struct hc_pool *pool)
{
    pthread_mutex_lock(&lock);
    bool last = --pool->references == 0;
    pthread_mutex_unlock(&lock);
    if (last) pool_end(pool);
}

struct hc_pool *hc_pool_get(cudaMemPool_t handle)
{
    pthread_mutex_lock(&lock);
    struct hc_pool *pool = hc_handle_get(HC_POOL, (uint64_t)(uintptr_t)handle);
    if (pool) pool->references++;
    pthread_mutex_unlock(&lock);
    return pool;
}

void hc_pool_put(struct hc_pool *pool)
{
    drop(pool);
}

struct hc_pool *hc_pool_new(const struct cudaMemPoolProps *properties, int device)
{
    struct hc_pool *pool = calloc(1, sizeof *pool);
    if (!pool) return NULL;
    pthread_mutex_init(&pool->lock, NULL);
    pool->references = 1;
    pool->properties = *properties;
    pool->device = device;
    pool->memfd = -1;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    pool->handle = hc_handle_new(HC_POOL, pool);
    if (!pool->handle) {
        pool_end(pool);
        return NULL;
    }
    return pool;
}

/* Locations with a default pool: devices, the host, its NUMA node. -1: none. */
static int place_of(const struct cudaMemLocation *location)
{
    if (location->type == cudaMemLocationTypeDevice) return hc_device_valid(location->id) ? location->id : -1;
    if (location->type == cudaMemLocationTypeHost) return HC_MAX_DEVICES;
    if (location->type == cudaMemLocationTypeHostNuma && location->id == 0) return HC_MAX_DEVICES + 1;
    return -1;
}

static struct cudaMemLocation location_of(int place)
{
    if (place < HC_MAX_DEVICES) return (struct cudaMemLocation){cudaMemLocationTypeDevice, place};
    return (struct cudaMemLocation){place == HC_MAX_DEVICES ? cudaMemLocationTypeHost : cudaMemLocationTypeHostNuma, 0};
}

/* Under the lock. */
static struct hc_pool *default_of(int place)
{
    if (!defaults[place]) {
        struct cudaMemPoolProps properties = {.allocType = cudaMemAllocationTypePinned, .location = location_of(place)};
        defaults[place] = hc_pool_new(&properties, place < HC_MAX_DEVICES ? place : -1);
        if (defaults[place]) defaults[place]->is_default = true;
    }
    return defaults[place];
}

static struct hc_pool *current_of(int place)
{
    return currents[place] ? currents[place] : default_of(place);
}

static int hand_out(int place, bool current, cudaMemPool_t *out)
{
    pthread_mutex_lock(&lock);
    struct hc_pool *pool = current ? current_of(place) : default_of(place);
    if (pool) *out = (cudaMemPool_t)(uintptr_t)pool->handle;
    pthread_mutex_unlock(&lock);
    return pool ? 0 : PSM_CUDA_OUT_OF_MEMORY;
}

/* ---- accounting of allocations */

static void raise_to(_Atomic uint64_t *high, uint64_t now)
{
    uint64_t seen = atomic_load(high);
    while (seen < now && !atomic_compare_exchange_weak(high, &seen, now)) {
    }
}

void hc_pool_reserved(struct hc_pool *pool, int64_t bytes)
{
    raise_to(&pool->reserved_high, atomic_fetch_add(&pool->reserved, (uint64_t)bytes) + (uint64_t)bytes);
}

void hc_pool_used(struct hc_pool *pool, size_t size)
{
    pthread_mutex_lock(&lock);
    pool->references++;
    pthread_mutex_unlock(&lock);
    raise_to(&pool->used_high, atomic_fetch_add(&pool->used, size) + size);
}

void hc_pool_freed(struct hc_pool *pool, size_t size)
{
    atomic_fetch_sub(&pool->used, size);
    drop(pool);
}

bool hc_pool_keep(struct hc_pool *pool, struct hc_range *range)
{
    if (pool->imported || atomic_load(&pool->reserved) > atomic_load(&pool->threshold)) return false;
    if (range->slab) free(range->slab->blocks);
    free(range->slab);
    range->slab = NULL;
    range->freeing = false;
    range->state = HC_RANGE_NEW;
    pthread_mutex_lock(&pool->lock);
    range->kept = pool->kept;
    pool->kept = range;
    pthread_mutex_unlock(&pool->lock);
    return true;
}

struct hc_range *hc_pool_reuse(struct hc_pool *pool, size_t span)
{
    pthread_mutex_lock(&pool->lock);
    struct hc_range **at = &pool->kept;
    while (*at && (*at)->span != span) at = &(*at)->kept;
    struct hc_range *range = *at;
    if (range) *at = range->kept;
    pthread_mutex_unlock(&pool->lock);
    return range;
}

void hc_pool_trim(struct hc_pool *pool, uint64_t keep)
{
    for (;;) {
        pthread_mutex_lock(&pool->lock);
        struct hc_range *range = pool->kept;
        if (range && atomic_load(&pool->reserved) - range->span < keep) range = NULL;
        if (range) pool->kept = range->kept;
        pthread_mutex_unlock(&pool->lock);
        if (!range) return;
        hc_pool_reserved(pool, -(int64_t)range->span);
        pthread_rwlock_wrlock(&hc_ranges_lock);
        hc_range_retire(range);
        pthread_rwlock_unlock(&hc_ranges_lock);
        hc_range_release(range);
    }
}

bool hc_pool_room(const struct hc_pool *pool, uint64_t bytes)
{
    return !pool->properties.maxSize || atomic_load(&pool->reserved) + bytes <= pool->properties.maxSize;
}

struct ended {
    int device;
    struct hc_pool *pools[64];
    size_t count;
};

static void collect(uint64_t value, void *object, void *context)
{
    struct ended *ended = context;
    struct hc_pool *pool = object;
    if (pool->device == ended->device && !pool->is_default && ended->count < 64 && hc_handle_end(HC_POOL, value))
        ended->pools[ended->count++] = pool;
}

/* The allocations are already gone, with their references and their sizes. */
void hc_pools_reset(int device)
{
    struct ended ended;
    if (device < 0 || device >= HC_MAX_DEVICES) return;
    do {
        ended = (struct ended){.device = device};
        hc_handle_each(HC_POOL, collect, &ended);
        pthread_mutex_lock(&lock);
        currents[device] = NULL;
        struct hc_pool *mine = defaults[device];
        if (mine) mine->references = 1;
        pthread_mutex_unlock(&lock);
        if (mine) {
            hc_pool_trim(mine, 0);
            atomic_store(&mine->used, 0);
            atomic_store(&mine->reserved, 0);
        }
        for (size_t i = 0; i < ended.count; i++) pool_end(ended.pools[i]);
    } while (ended.count == 64);
}

/* ---- create, destroy, choose */

cudaError_t hc_cudaMemPoolCreate(cudaMemPool_t *memPool, const struct cudaMemPoolProps *poolProps)
{
    if (!memPool || !poolProps) return PSM_CUDA_INVALID_VALUE;
    unsigned types = poolProps->handleTypes;
    int place = place_of(&poolProps->location);
    if (poolProps->allocType == cudaMemAllocationTypeManaged) return PSM_CUDA_NOT_SUPPORTED;
    if (poolProps->allocType != cudaMemAllocationTypePinned) return PSM_CUDA_INVALID_VALUE;
    if (place < 0)
        return poolProps->location.type == cudaMemLocationTypeDevice ? PSM_CUDA_INVALID_DEVICE : PSM_CUDA_INVALID_VALUE;
    if (types & ~15u || (types && poolProps->location.type == cudaMemLocationTypeHost)) return PSM_CUDA_INVALID_VALUE;
    if (types & ~(unsigned)cudaMemHandleTypePosixFileDescriptor || (types && place >= HC_MAX_DEVICES))
        return PSM_CUDA_NOT_SUPPORTED;
    struct hc_pool *pool = hc_pool_new(poolProps, place < HC_MAX_DEVICES ? place : -1);
    if (!pool) return PSM_CUDA_OUT_OF_MEMORY;
    pool->properties.maxSize = hc_round_up(poolProps->maxSize, HC_GRANULE);
    *memPool = (cudaMemPool_t)(uintptr_t)pool->handle;
    return PSM_CUDA_SUCCESS;
}

cudaError_t hc_cudaMemPoolDestroy(cudaMemPool_t memPool)
{
    pthread_mutex_lock(&lock);
    struct hc_pool *pool = hc_handle_get(HC_POOL, (uint64_t)(uintptr_t)memPool);
    if (pool && pool->is_default) pool = NULL;
    if (pool) {
        hc_handle_end(HC_POOL, pool->handle);
        for (int place = 0; place < HC_POOL_PLACES; place++)
            if (currents[place] == pool) currents[place] = NULL;
    }
    pthread_mutex_unlock(&lock);
    if (!pool) return PSM_CUDA_INVALID_VALUE;
    atomic_store(&pool->threshold, 0); /* from now on freed memory is released at once */
    drop(pool);
    return PSM_CUDA_SUCCESS;
}

cudaError_t hc_cudaDeviceGetDefaultMemPool(cudaMemPool_t *memPool, int device)
{
    if (!memPool) return PSM_CUDA_INVALID_VALUE;
    return hc_device_valid(device) ? hand_out(device, false, memPool) : PSM_CUDA_INVALID_DEVICE;
}

cudaError_t hc_cudaDeviceGetMemPool(cudaMemPool_t *memPool, int device)
{
    if (!memPool) return PSM_CUDA_INVALID_VALUE;
    return hc_device_valid(device) ? hand_out(device, true, memPool) : PSM_CUDA_INVALID_DEVICE;
}

static int choose(int place, cudaMemPool_t handle)
{
    struct cudaMemLocation location = location_of(place);
    pthread_mutex_lock(&lock);
    struct hc_pool *pool = hc_handle_get(HC_POOL, (uint64_t)(uintptr_t)handle);
    bool fits = pool && !pool->imported && pool->properties.location.type == location.type &&
                (location.type != cudaMemLocationTypeDevice || pool->properties.location.id == location.id);
    if (fits) currents[place] = pool;
    pthread_mutex_unlock(&lock);
    return fits ? PSM_CUDA_SUCCESS : PSM_CUDA_INVALID_VALUE;
}

cudaError_t hc_cudaDeviceSetMemPool(int device, cudaMemPool_t memPool)
{
    return hc_device_valid(device) ? choose(device, memPool) : PSM_CUDA_INVALID_DEVICE;
}

/* The forms of CUDA 13, by location. */
static int check_place(const struct cudaMemLocation *location, enum cudaMemAllocationType type, int *place)
{
    if (!location) return PSM_CUDA_INVALID_VALUE;
    if (type == cudaMemAllocationTypeManaged) return PSM_CUDA_NOT_SUPPORTED;
    *place = place_of(location);
    if (type != cudaMemAllocationTypePinned) return PSM_CUDA_INVALID_VALUE;
    if (*place >= 0) return 0;
    return location->type == cudaMemLocationTypeDevice ? PSM_CUDA_INVALID_DEVICE : PSM_CUDA_INVALID_VALUE;
}

cudaError_t hc_cudaMemGetDefaultMemPool(cudaMemPool_t *memPool, struct cudaMemLocation *location,
                                        enum cudaMemAllocationType type)
{
    int place, rc = memPool ? check_place(location, type, &place) : PSM_CUDA_INVALID_VALUE;
    return rc ? rc : hand_out(place, false, memPool);
}

cudaError_t hc_cudaMemGetMemPool(cudaMemPool_t *memPool, struct cudaMemLocation *location,
                                 enum cudaMemAllocationType type)
{
    int place, rc = memPool ? check_place(location, type, &place) : PSM_CUDA_INVALID_VALUE;
    return rc ? rc : hand_out(place, true, memPool);
}

cudaError_t hc_cudaMemSetMemPool(struct cudaMemLocation *location, enum cudaMemAllocationType type,
                                 cudaMemPool_t memPool)
{
    int place, rc = check_place(location, type, &place);
    return rc ? rc : choose(place, memPool);
}

/* ---- allocate and free */

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
    rc = hc_capture_work(stream, &work);
    if (rc) hc_allocation_free(node.address, NULL);
    if (rc == HC_NOT_CAPTURED) return PSM_CUDA_STREAM_CAPTURE_INVALIDATED; /* the capture ended meanwhile */
    if (rc == 0) *address = node.address;
    return rc;
}

static bool is_captured(struct hc_stream *stream)
{
    return __atomic_load_n(hc_stream_capture(stream), __ATOMIC_ACQUIRE) != NULL;
}

static int allocate_async(struct hc_pool *pool, size_t size, cudaStream_t handle, uintptr_t *address)
{
    struct hc_stream *stream;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    struct hc_pool *held = NULL;
    if (!pool) {
        pthread_mutex_lock(&lock);
        held = current_of(hc_stream_device(stream));
        if (held) held->references++;
        pthread_mutex_unlock(&lock);
        pool = held;
    }
    *address = 0;
    if (!pool)
        rc = PSM_CUDA_OUT_OF_MEMORY;
    else if (pool->imported)
        rc = PSM_CUDA_INVALID_VALUE;
    else if (size && is_captured(stream))
        rc = capture_allocation(stream, pool, size, address);
    else if (size)
        rc = allocate(pool, size, 0, address);
    if (rc == PSM_CUDA_OUT_OF_MEMORY && pool && !is_captured(stream)) { /* frees that the stream has not reached yet */
        hc_stream_drain(stream);
        hc_pool_trim(pool, 0);
        rc = allocate(pool, size, 0, address);
    }
    if (held) drop(held);
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
    drop(pool);
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
    int rc = hc_capture_work(stream, &work);
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
    } else if (is_captured(stream)) {
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
