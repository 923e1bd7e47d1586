/* Memory pools: their memory, their limits, and which one a device uses. */
#define _GNU_SOURCE
#include "core/hc_life.h"
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

void hc_pool_put(struct hc_pool *pool)
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

struct hc_pool *hc_pool_current(int place)
{
    pthread_mutex_lock(&lock);
    struct hc_pool *pool = current_of(place);
    if (pool) pool->references++;
    pthread_mutex_unlock(&lock);
    return pool;
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
    hc_pool_put(pool);
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
static void reset(int device)
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

HC_LIFE(HC_MODULE_POOLS, .reset = reset)

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
    hc_pool_put(pool);
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
