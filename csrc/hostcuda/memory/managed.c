/* Managed memory: one copy, which host and devices see at one address; nothing migrates. Advice is stored per
 * allocation, not per page: advice for a part applies to the whole. */
#define _GNU_SOURCE
#include "memory/hc_memory.h"

#include <stdlib.h>
#include <string.h>

enum { CPU = -1, INVALID = -2 }; /* cudaCpuDeviceId, cudaInvalidDeviceId */

/* Under the write lock. */
struct hc_advice {
    bool read_mostly;
    uint64_t accessed_by; /* devices */
    bool accessed_by_host;
    struct cudaMemLocation preferred, prefetched; /* type 0: none */
    unsigned attached;
};

/* ---- allocation */

cudaError_t hc_cudaMallocManaged(void **devPtr, size_t size, unsigned int flags)
{
    struct hc_range *range;
    int rc = hc_capture_forbids(false);
    if (rc) return rc;
    if (!devPtr || !size || (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost)) return PSM_CUDA_INVALID_VALUE;
    struct hc_advice *advice = calloc(1, sizeof *advice);
    if (!advice) return PSM_CUDA_OUT_OF_MEMORY;
    advice->attached = flags;
    struct hc_request request = {
        .space = HC_MANAGED, .origin = HC_FROM_MANAGED, .device = hc_current_device(), .flags = flags, .size = size};
    rc = hc_range_allocate(&request, size, &range);
    if (rc) {
        free(advice);
        return rc;
    }
    range->advice = advice;
    *devPtr = (void *)range->base;
    hc_range_publish(range);
    return PSM_CUDA_SUCCESS;
}

CUresult hc_cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    void *at;
    int rc = dptr ? hc_context_require() : PSM_CUDA_INVALID_VALUE;
    if (rc == 0) rc = hc_cudaMallocManaged(&at, bytesize, flags);
    if (rc == 0) *dptr = (uintptr_t)at;
    return rc;
}

/* Under the lock: the advice of the managed allocation that contains the whole span. */
static struct hc_advice *advice_of(uintptr_t address, size_t count)
{
    const struct hc_range *range = hc_range_at(address);
    if (!range || !range->advice || !count) return NULL;
    size_t at = address - range->base;
    return at < range->size && count <= range->size - at ? range->advice : NULL;
}

/* ---- advice */

static int check_location(const struct cudaMemLocation *location, bool numa)
{
    switch ((int)location->type) {
    case cudaMemLocationTypeDevice:
        return hc_device_valid(location->id) ? 0 : PSM_CUDA_INVALID_DEVICE;
    case cudaMemLocationTypeHost:
        return 0;
    case cudaMemLocationTypeHostNuma:
        return numa && location->id >= 0 ? 0 : PSM_CUDA_INVALID_VALUE;
    case cudaMemLocationTypeHostNumaCurrent:
        return numa ? 0 : PSM_CUDA_INVALID_VALUE;
    default:
        return PSM_CUDA_INVALID_VALUE;
    }
}

static void apply(struct hc_advice *advice, enum cudaMemoryAdvise what, struct cudaMemLocation location)
{
    uint64_t bit = location.type == cudaMemLocationTypeDevice ? UINT64_C(1) << location.id : 0;
    switch (what) {
    case cudaMemAdviseSetReadMostly:
    case cudaMemAdviseUnsetReadMostly:
        advice->read_mostly = what == cudaMemAdviseSetReadMostly;
        return;
    case cudaMemAdviseSetPreferredLocation:
        advice->preferred = location;
        return;
    case cudaMemAdviseUnsetPreferredLocation:
        advice->preferred = (struct cudaMemLocation){0};
        return;
    case cudaMemAdviseSetAccessedBy:
        advice->accessed_by |= bit;
        if (!bit) advice->accessed_by_host = true;
        return;
    case cudaMemAdviseUnsetAccessedBy:
        advice->accessed_by &= ~bit;
        if (!bit) advice->accessed_by_host = false;
        return;
    }
}

static int advise(uintptr_t address, size_t count, enum cudaMemoryAdvise what, struct cudaMemLocation location)
{
    int rc = 0;
    switch (what) {
    case cudaMemAdviseSetReadMostly: /* these ignore the location */
    case cudaMemAdviseUnsetReadMostly:
    case cudaMemAdviseUnsetPreferredLocation:
        location = (struct cudaMemLocation){0};
        break;
    case cudaMemAdviseSetPreferredLocation:
        rc = check_location(&location, true);
        break;
    case cudaMemAdviseSetAccessedBy:
    case cudaMemAdviseUnsetAccessedBy:
        rc = check_location(&location, false);
        break;
    default:
        rc = PSM_CUDA_INVALID_VALUE;
    }
    if (rc) return rc;
    if (location.type == cudaMemLocationTypeHostNumaCurrent)
        location = (struct cudaMemLocation){cudaMemLocationTypeHostNuma, 0};
    pthread_rwlock_wrlock(&hc_ranges_lock);
    struct hc_advice *advice = advice_of(address, count);
    if (advice) apply(advice, what, location);
    pthread_rwlock_unlock(&hc_ranges_lock);
    return advice ? PSM_CUDA_SUCCESS : PSM_CUDA_INVALID_VALUE;
}

/* The older functions take a device, or -1 for the host. */
static struct cudaMemLocation location_of(int device)
{
    if (device == CPU) return (struct cudaMemLocation){cudaMemLocationTypeHost, 0};
    return (struct cudaMemLocation){cudaMemLocationTypeDevice, device};
}

cudaError_t hc_cudaMemAdvise__12(const void *devPtr, size_t count, enum cudaMemoryAdvise advice, int device)
{
    return advise((uintptr_t)devPtr, count, advice, location_of(device));
}

cudaError_t hc_cudaMemAdvise_v2(const void *devPtr, size_t count, enum cudaMemoryAdvise advice,
                                struct cudaMemLocation location)
{
    return advise((uintptr_t)devPtr, count, advice, location);
}

CUresult hc_cuMemAdvise(CUdeviceptr devPtr, size_t count, CUmem_advise advice, CUdevice device)
{
    return advise((uintptr_t)devPtr, count, advice, location_of(device));
}

/* ---- work in stream order: prefetching, discarding and attaching move no bytes here */

static int nothing(void *argument, int device)
{
    (void)argument, (void)device;
    return 0;
}

static int submit(cudaStream_t handle)
{
    struct hc_stream *stream;
    char none = 0;
    int rc = hc_stream_get(handle, &stream);
    if (rc) return rc;
    struct hc_work work = {.run = nothing, .size = sizeof none, .argument = &none, .flags = HC_WORK_QUICK};
    rc = hc_submit(stream, &work, NULL);
    hc_stream_put(stream);
    return rc;
}

static int note_prefetch(uintptr_t address, size_t count, struct cudaMemLocation location)
{
    int rc = check_location(&location, true);
    if (rc) return rc;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    struct hc_advice *advice = advice_of(address, count);
    if (advice) advice->prefetched = location; /* CUDA returns what was requested, not what has happened */
    pthread_rwlock_unlock(&hc_ranges_lock);
    return advice ? 0 : PSM_CUDA_INVALID_VALUE;
}

static int prefetch(uintptr_t address, size_t count, struct cudaMemLocation location, unsigned flags,
                    cudaStream_t stream)
{
    int rc = flags ? PSM_CUDA_INVALID_VALUE : note_prefetch(address, count, location);
    return rc ? rc : submit(stream);
}

cudaError_t hc_cudaMemPrefetchAsync__12(const void *devPtr, size_t count, int dstDevice, cudaStream_t stream)
{
    return prefetch((uintptr_t)devPtr, count, location_of(dstDevice), 0, stream);
}

cudaError_t hc_cudaMemPrefetchAsync_v2(const void *devPtr, size_t count, struct cudaMemLocation location,
                                       unsigned int flags, cudaStream_t stream)
{
    return prefetch((uintptr_t)devPtr, count, location, flags, stream);
}

CUresult hc_cuMemPrefetchAsync(CUdeviceptr devPtr, size_t count, CUdevice dstDevice, CUstream hStream)
{
    return prefetch((uintptr_t)devPtr, count, location_of(dstDevice), 0, hStream);
}

/* Batches: locations[i] applies to the spans from indices[i] up to the next index. Everything is checked before
 * anything is stored. `locations` NULL: a discard only. */
static int batch(void *const *addresses, const size_t *sizes, size_t count, const struct cudaMemLocation *locations,
                 const size_t *indices, size_t n, unsigned long long flags, cudaStream_t stream)
{
    if (!addresses || !sizes || !count || flags) return PSM_CUDA_INVALID_VALUE;
    if (locations && (!indices || !n || n > count || indices[0] != 0)) return PSM_CUDA_INVALID_VALUE;
    for (size_t i = 0; locations && i < n; i++) {
        if (i && (indices[i] <= indices[i - 1] || indices[i] >= count)) return PSM_CUDA_INVALID_VALUE;
        int rc = check_location(&locations[i], true);
        if (rc) return rc;
    }
    bool all = true;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    for (size_t i = 0; all && i < count; i++) all = advice_of((uintptr_t)addresses[i], sizes[i]) != NULL;
    for (size_t i = 0, l = 0; all && locations && i < count; i++) {
        while (l + 1 < n && indices[l + 1] <= i) l++;
        advice_of((uintptr_t)addresses[i], sizes[i])->prefetched = locations[l];
    }
    pthread_rwlock_unlock(&hc_ranges_lock);
    return all ? submit(stream) : PSM_CUDA_INVALID_VALUE;
}

cudaError_t hc_cudaMemPrefetchBatchAsync(void **dptrs, size_t *sizes, size_t count,
                                         struct cudaMemLocation *prefetchLocs, size_t *prefetchLocIdxs,
                                         size_t numPrefetchLocs, unsigned long long flags, cudaStream_t stream)
{
    if (!prefetchLocs) return PSM_CUDA_INVALID_VALUE;
    return batch(dptrs, sizes, count, prefetchLocs, prefetchLocIdxs, numPrefetchLocs, flags, stream);
}

cudaError_t hc_cudaMemDiscardBatchAsync(void **dptrs, size_t *sizes, size_t count, unsigned long long flags,
                                        cudaStream_t stream)
{
    return batch(dptrs, sizes, count, NULL, NULL, 0, flags, stream);
}

CUresult hc_cuMemPrefetchBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count, CUmemLocation *prefetchLocs,
                                    size_t *prefetchLocIdxs, size_t numPrefetchLocs, unsigned long long flags,
                                    CUstream hStream)
{
    return hc_cudaMemPrefetchBatchAsync((void **)(void *)dptrs, sizes, count, prefetchLocs, prefetchLocIdxs,
                                        numPrefetchLocs, flags, hStream);
}

CUresult hc_cuMemDiscardBatchAsync(CUdeviceptr *dptrs, size_t *sizes, size_t count, unsigned long long flags,
                                   CUstream hStream)
{
    return batch((void *const *)(const void *)dptrs, sizes, count, NULL, NULL, 0, flags, hStream);
}

cudaError_t hc_cudaStreamAttachMemAsync(cudaStream_t stream, void *devPtr, size_t length, unsigned int flags)
{
    if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost && flags != cudaMemAttachSingle)
        return PSM_CUDA_INVALID_VALUE;
    bool null_stream = (uintptr_t)stream <= PSM_CUDA_STREAM_LEGACY;
    if (flags == cudaMemAttachSingle && null_stream) return PSM_CUDA_INVALID_VALUE;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    const struct hc_range *range = hc_range_at((uintptr_t)devPtr);
    bool whole = range && range->advice && range->base == (uintptr_t)devPtr && (!length || length == range->size);
    if (whole) range->advice->attached = flags;
    pthread_rwlock_unlock(&hc_ranges_lock);
    return whole ? submit(stream) : PSM_CUDA_INVALID_VALUE;
}

/* ---- attributes of a span */

static int as_device(struct cudaMemLocation location)
{
    if (location.type == cudaMemLocationTypeDevice) return location.id;
    return location.type == cudaMemLocationTypeInvalid ? INVALID : CPU;
}

static void list_accessed_by(const struct hc_advice *advice, int *out, size_t n)
{
    size_t used = 0;
    if (advice->accessed_by_host && used < n) out[used++] = CPU;
    for (int device = 0; device < HC_MAX_DEVICES && used < n; device++)
        if (advice->accessed_by >> device & 1) out[used++] = device;
    while (used < n) out[used++] = INVALID;
}

static int get_attribute(const struct hc_advice *advice, enum cudaMemRangeAttribute attribute, int *out, size_t size)
{
    if (attribute == cudaMemRangeAttributeAccessedBy) {
        if (!size || size % sizeof *out) return PSM_CUDA_INVALID_VALUE;
        list_accessed_by(advice, out, size / sizeof *out);
        return 0;
    }
    if (size != sizeof *out) return PSM_CUDA_INVALID_VALUE;
    switch (attribute) {
    case cudaMemRangeAttributeReadMostly:
        *out = advice->read_mostly;
        return 0;
    case cudaMemRangeAttributePreferredLocation:
        *out = as_device(advice->preferred);
        return 0;
    case cudaMemRangeAttributeLastPrefetchLocation:
        *out = as_device(advice->prefetched);
        return 0;
    case cudaMemRangeAttributePreferredLocationType:
        *out = (int)advice->preferred.type;
        return 0;
    case cudaMemRangeAttributePreferredLocationId:
        *out = advice->preferred.id;
        return 0;
    case cudaMemRangeAttributeLastPrefetchLocationType:
        *out = (int)advice->prefetched.type;
        return 0;
    case cudaMemRangeAttributeLastPrefetchLocationId:
        *out = advice->prefetched.id;
        return 0;
    default:
        return PSM_CUDA_INVALID_VALUE;
    }
}

cudaError_t hc_cudaMemRangeGetAttribute(void *data, size_t dataSize, enum cudaMemRangeAttribute attribute,
                                        const void *devPtr, size_t count)
{
    if (!data) return PSM_CUDA_INVALID_VALUE;
    pthread_rwlock_rdlock(&hc_ranges_lock);
    const struct hc_advice *advice = advice_of((uintptr_t)devPtr, count);
    int rc = advice ? get_attribute(advice, attribute, data, dataSize) : PSM_CUDA_INVALID_VALUE;
    pthread_rwlock_unlock(&hc_ranges_lock);
    return rc;
}

cudaError_t hc_cudaMemRangeGetAttributes(void **data, size_t *dataSizes, enum cudaMemRangeAttribute *attributes,
                                         size_t numAttributes, const void *devPtr, size_t count)
{
    if (!data || !dataSizes || !attributes || !numAttributes) return PSM_CUDA_INVALID_VALUE;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < numAttributes; i++)
        rc = hc_cudaMemRangeGetAttribute(data[i], dataSizes[i], attributes[i], devPtr, count);
    return rc;
}
