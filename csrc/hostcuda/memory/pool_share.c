/* Queries and sharing of pools. A pool is exported as a memfd without data; an allocation of it is named by a
 * descriptor of the owner, as in IPC handles. */
#define _GNU_SOURCE
#include "memory/hc_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* ---- attributes */

static int get_attribute(struct hc_pool *pool, enum cudaMemPoolAttr attribute, void *value)
{
    switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
    case cudaMemPoolReuseAllowOpportunistic:
    case cudaMemPoolReuseAllowInternalDependencies:
        *(int *)value = atomic_load(&pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies]);
        return 0;
    case cudaMemPoolAttrReleaseThreshold:
        *(uint64_t *)value = atomic_load(&pool->threshold);
        return 0;
    case cudaMemPoolAttrReservedMemCurrent:
        *(uint64_t *)value = atomic_load(&pool->reserved);
        return 0;
    case cudaMemPoolAttrReservedMemHigh:
        *(uint64_t *)value = atomic_load(&pool->reserved_high);
        return 0;
    case cudaMemPoolAttrUsedMemCurrent:
        *(uint64_t *)value = atomic_load(&pool->used);
        return 0;
    case cudaMemPoolAttrUsedMemHigh:
        *(uint64_t *)value = atomic_load(&pool->used_high);
        return 0;
    case cudaMemPoolAttrAllocationType:
        *(int *)value = (int)pool->properties.allocType;
        return 0;
    case cudaMemPoolAttrExportHandleTypes:
        *(int *)value = pool->imported ? 0 : (int)pool->properties.handleTypes;
        return 0;
    case cudaMemPoolAttrLocationId:
        *(int *)value = pool->properties.location.id;
        return 0;
    case cudaMemPoolAttrLocationType:
        *(int *)value = (int)pool->properties.location.type;
        return 0;
    case cudaMemPoolAttrMaxPoolSize:
        *(uint64_t *)value = pool->properties.maxSize;
        return 0;
    case cudaMemPoolAttrHwDecompressEnabled:
        *(int *)value = 0;
        return 0;
    }
    return PSM_CUDA_INVALID_VALUE;
}

static int set_attribute(struct hc_pool *pool, enum cudaMemPoolAttr attribute, const void *value)
{
    switch (attribute) {
    case cudaMemPoolReuseFollowEventDependencies:
    case cudaMemPoolReuseAllowOpportunistic:
    case cudaMemPoolReuseAllowInternalDependencies:
        atomic_store(&pool->reuse[attribute - cudaMemPoolReuseFollowEventDependencies], *(const int *)value != 0);
        return 0;
    case cudaMemPoolAttrReleaseThreshold:
        atomic_store(&pool->threshold, *(const uint64_t *)value);
        return 0;
    case cudaMemPoolAttrReservedMemHigh: /* reset to the current use */
        if (*(const uint64_t *)value) return PSM_CUDA_INVALID_VALUE;
        atomic_store(&pool->reserved_high, atomic_load(&pool->reserved));
        return 0;
    case cudaMemPoolAttrUsedMemHigh:
        if (*(const uint64_t *)value) return PSM_CUDA_INVALID_VALUE;
        atomic_store(&pool->used_high, atomic_load(&pool->used));
        return 0;
    default:
        return PSM_CUDA_INVALID_VALUE;
    }
}

cudaError_t hc_cudaMemPoolGetAttribute(cudaMemPool_t memPool, enum cudaMemPoolAttr attr, void *value)
{
    struct hc_pool *pool = value ? hc_pool_get(memPool) : NULL;
    if (!pool) return PSM_CUDA_INVALID_VALUE;
    int rc = get_attribute(pool, attr, value);
    hc_pool_put(pool);
    return rc;
}

cudaError_t hc_cudaMemPoolSetAttribute(cudaMemPool_t memPool, enum cudaMemPoolAttr attr, void *value)
{
    struct hc_pool *pool = value ? hc_pool_get(memPool) : NULL;
    if (!pool) return PSM_CUDA_INVALID_VALUE;
    int rc = set_attribute(pool, attr, value);
    hc_pool_put(pool);
    return rc;
}

cudaError_t hc_cudaMemPoolTrimTo(cudaMemPool_t memPool, size_t minBytesToKeep)
{
    struct hc_pool *pool = hc_pool_get(memPool);
    if (!pool) return PSM_CUDA_INVALID_VALUE;
    hc_pool_trim(pool, minBytesToKeep);
    hc_pool_put(pool);
    return PSM_CUDA_SUCCESS;
}

/* ---- access. Kernels would need it; copies between devices do not, they are staged. */

static int check_access(const struct hc_pool *pool, const struct cudaMemAccessDesc *desc)
{
    int device = desc->location.id;
    if (desc->flags != cudaMemAccessFlagsProtNone && desc->flags != cudaMemAccessFlagsProtRead &&
        desc->flags != cudaMemAccessFlagsProtReadWrite)
        return PSM_CUDA_INVALID_VALUE;
    if (desc->location.type != cudaMemLocationTypeDevice) return PSM_CUDA_INVALID_VALUE;
    if (!hc_device_valid(device)) return PSM_CUDA_INVALID_DEVICE;
    if (device == pool->device) /* the owner keeps its own */
        return desc->flags == cudaMemAccessFlagsProtReadWrite ? 0 : PSM_CUDA_INVALID_VALUE;
    return pool->device < 0 || hc_peer_possible(device, pool->device) ? 0 : PSM_CUDA_INVALID_DEVICE;
}

cudaError_t hc_cudaMemPoolSetAccess(cudaMemPool_t memPool, const struct cudaMemAccessDesc *descList, size_t count)
{
    if (count && !descList) return PSM_CUDA_INVALID_VALUE;
    struct hc_pool *pool = hc_pool_get(memPool);
    int rc = pool ? 0 : PSM_CUDA_INVALID_VALUE;
    for (size_t i = 0; rc == 0 && i < count; i++) rc = check_access(pool, &descList[i]);
    for (size_t i = 0; rc == 0 && i < count; i++)
        atomic_store(&pool->access[descList[i].location.id], (int)descList[i].flags);
    if (pool) hc_pool_put(pool);
    return rc;
}

cudaError_t hc_cudaMemPoolGetAccess(enum cudaMemAccessFlags *flags, cudaMemPool_t memPool,
                                    struct cudaMemLocation *location)
{
    if (!flags || !location) return PSM_CUDA_INVALID_VALUE;
    struct hc_pool *pool = hc_pool_get(memPool);
    if (!pool) return PSM_CUDA_INVALID_VALUE;
    int rc = 0;
    if (location->type == cudaMemLocationTypeHost || location->type == cudaMemLocationTypeHostNuma)
        *flags = pool->device < 0 ? cudaMemAccessFlagsProtReadWrite : cudaMemAccessFlagsProtNone;
    else if (location->type != cudaMemLocationTypeDevice)
        rc = PSM_CUDA_INVALID_VALUE;
    else if (!hc_device_valid(location->id))
        rc = PSM_CUDA_INVALID_DEVICE;
    else
        *flags = location->id == pool->device ? cudaMemAccessFlagsProtReadWrite
                                              : (enum cudaMemAccessFlags)atomic_load(&pool->access[location->id]);
    hc_pool_put(pool);
    return rc;
}

/* ---- other processes */

static int check_handle_type(enum cudaMemAllocationHandleType type, unsigned flags)
{
    if (flags) return PSM_CUDA_INVALID_VALUE;
    if (type == cudaMemHandleTypeFabric || type == cudaMemHandleTypeWin32 || type == cudaMemHandleTypeWin32Kmt)
        return PSM_CUDA_NOT_SUPPORTED;
    return type == cudaMemHandleTypePosixFileDescriptor ? 0 : PSM_CUDA_INVALID_VALUE;
}

/* The memfd that represents a pool, created when it is first needed. */
static int share(struct hc_pool *pool)
{
    if (pool->imported || !(pool->properties.handleTypes & cudaMemHandleTypePosixFileDescriptor))
        return PSM_CUDA_INVALID_VALUE;
    pthread_mutex_lock(&pool->lock);
    if (pool->memfd < 0) {
        struct hc_trailer t = {.kind = HC_MEMFD_POOL,
                               .handle_types = pool->properties.handleTypes,
                               .location_type = pool->properties.location.type,
                               .location_id = pool->properties.location.id};
        pool->memfd = hc_memfd_new(&t, pool->device);
        pool->shared_id = t.id;
        if (pool->memfd < 0) hc_say_no_descriptor(errno);
    }
    int rc = pool->memfd < 0 ? PSM_CUDA_OUT_OF_MEMORY : 0;
    pthread_mutex_unlock(&pool->lock);
    return rc;
}

cudaError_t hc_cudaMemPoolExportToShareableHandle(void *shareableHandle, cudaMemPool_t memPool,
                                                  enum cudaMemAllocationHandleType handleType, unsigned int flags)
{
    int rc = shareableHandle ? check_handle_type(handleType, flags) : PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    struct hc_pool *pool = hc_pool_get(memPool);
    if (!pool) return PSM_CUDA_INVALID_VALUE;
    rc = share(pool);
    if (rc == 0) {
        int fd = fcntl(pool->memfd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0) {
            hc_say_no_descriptor(errno);
            rc = PSM_CUDA_OUT_OF_MEMORY;
        } else {
            *(int *)shareableHandle = fd;
        }
    }
    hc_pool_put(pool);
    return rc;
}

cudaError_t hc_cudaMemPoolImportFromShareableHandle(cudaMemPool_t *memPool, void *shareableHandle,
                                                    enum cudaMemAllocationHandleType handleType, unsigned int flags)
{
    int rc = memPool ? check_handle_type(handleType, flags) : PSM_CUDA_INVALID_VALUE;
    if (rc) return rc;
    intptr_t number = (intptr_t)shareableHandle;
    struct hc_trailer t;
    rc = hc_memfd_check(number < 0 || number > INT32_MAX ? -1 : (int)number, HC_MEMFD_POOL, &t);
    if (rc) return rc;
    if (t.location_type != cudaMemLocationTypeDevice) return PSM_CUDA_INVALID_VALUE;
    int here = hc_device_of_uuid(t.device);
    struct cudaMemPoolProps properties = {.allocType = cudaMemAllocationTypePinned,
                                          .location = {cudaMemLocationTypeDevice, here}};
    if (here < 0) properties.location = (struct cudaMemLocation){cudaMemLocationTypeInvisible, -2};
    struct hc_pool *pool = hc_pool_new(&properties, here);
    if (!pool) return PSM_CUDA_OUT_OF_MEMORY;
    pool->imported = true;
    pool->shared_id = t.id;
    *memPool = (cudaMemPool_t)(uintptr_t)pool->handle;
    return PSM_CUDA_SUCCESS;
}

cudaError_t hc_cudaMemPoolExportPointer(struct cudaMemPoolPtrExportData *exportData, void *ptr)
{
    struct hc_allocation a;
    struct hc_place place;
    if (!exportData || !hc_allocation_at((uintptr_t)ptr, &a) || a.origin != HC_FROM_POOL || a.freeing ||
        !hc_place_of((uintptr_t)ptr, &place, NULL) || place.memfd < 0)
        return PSM_CUDA_INVALID_VALUE;
    int rc = share(a.pool);
    return rc ? rc
              : hc_ipc_name_of(place.memfd, place.offset, place.size, a.pool->shared_id,
                               (struct hc_ipc_name *)(void *)exportData);
}

cudaError_t hc_cudaMemPoolImportPointer(void **ptr, cudaMemPool_t memPool, struct cudaMemPoolPtrExportData *exportData)
{
    struct hc_ipc_name name;
    struct hc_trailer t;
    struct hc_range *range;
    int fd;
    if (!ptr || !exportData) return PSM_CUDA_INVALID_VALUE;
    memcpy(&name, exportData, sizeof name);
    struct hc_pool *pool = hc_pool_get(memPool);
    if (!pool) return PSM_CUDA_INVALID_VALUE;
    int rc = pool->imported && name.extra == pool->shared_id && name.size ? 0 : PSM_CUDA_INVALID_VALUE;
    if (rc == 0) rc = hc_ipc_open(&name, HC_MEMFD_ALLOCATION, &fd, &t);
    if (rc == 0) {
        rc = hc_map_named(&name, fd, pool->device < 0 ? hc_current_device() : pool->device, &range);
        close(fd);
        if (rc == 0) {
            range->origin = HC_FROM_POOL;
            range->pool = pool;
            hc_pool_used(pool, range->size);
            hc_pool_reserved(pool, (int64_t)range->span);
            hc_range_publish(range);
            *ptr = (void *)range->base;
        }
    }
    hc_pool_put(pool);
    return rc == PSM_CUDA_INVALID_HANDLE || rc == PSM_CUDA_INVALID_CONTEXT ? PSM_CUDA_INVALID_VALUE : rc;
}
