/* Page-locked host memory: allocated or registered. Nothing is really locked, but CUDA's state of it is kept. */
#define _GNU_SOURCE
#include "memory/hc_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    ALLOC_FLAGS = cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined,
    REGISTER_FLAGS = cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterIoMemory |
        cudaHostRegisterReadOnly
};

static int allocate_host(void **out, size_t size, unsigned flags)
{
    int rc = hc_capture_forbids(false);
    if (rc) return rc;
    uintptr_t address = 0;
    struct hc_request request = {
        .space = HC_PINNED, .origin = HC_FROM_HOST_ALLOC, .device = hc_current_device(), .flags = flags, .size = size};
    rc = size ? hc_allocate(&request, &address) : 0;
    if (rc == 0) *out = (void *)address;
    return rc;
}

cudaError_t hc_cudaHostAlloc(void **pHost, size_t size, unsigned int flags)
{
    if (!pHost || flags & ~(unsigned)ALLOC_FLAGS) return PSM_CUDA_INVALID_VALUE;
    return allocate_host(pHost, size, flags);
}

cudaError_t hc_cudaMallocHost(void **ptr, size_t size)
{
    return ptr ? allocate_host(ptr, size, cudaHostAllocDefault) : PSM_CUDA_INVALID_VALUE;
}

CUresult hc_cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags)
{
    int rc = hc_context_require();
    if (rc) return rc;
    if (!pp || !bytesize || Flags & ~(unsigned)ALLOC_FLAGS) return PSM_CUDA_INVALID_VALUE;
    return allocate_host(pp, bytesize, Flags);
}

CUresult hc_cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    return hc_cuMemHostAlloc(pp, bytesize, 0);
}

static bool frees_host(const struct hc_allocation *a)
{
    return a->origin == HC_FROM_HOST_ALLOC;
}

/* Like cudaFree, it waits for work that may still use the memory. */
cudaError_t hc_cudaFreeHost(void *ptr)
{
    struct hc_allocation a;
    if (!ptr) return PSM_CUDA_SUCCESS;
    int rc = hc_capture_forbids(false);
    if (rc) return rc;
    if (!hc_allocation_at((uintptr_t)ptr, &a) || !frees_host(&a)) return PSM_CUDA_INVALID_VALUE;
    rc = hc_device_drain(a.device);
    return hc_allocation_free((uintptr_t)ptr, frees_host) ? rc : PSM_CUDA_INVALID_VALUE;
}

CUresult hc_cuMemFreeHost(void *p)
{
    if (!p) return PSM_CUDA_INVALID_VALUE;
    int rc = hc_context_require();
    return rc ? rc : hc_cudaFreeHost(p);
}

/* ---- registered memory */

/* Whether all pages are mapped: CUDA cannot lock missing pages. */
static bool mapped(uintptr_t address, size_t size)
{
    unsigned char in_core[512];
    uintptr_t at = address / HC_PAGE * HC_PAGE, end = address + size;
    while (at < end) {
        size_t part = end - at < sizeof in_core * HC_PAGE ? end - at : sizeof in_core * HC_PAGE;
        if (mincore((void *)at, part, in_core) != 0 && errno == ENOMEM) return false;
        at += part;
    }
    return true;
}

cudaError_t hc_cudaHostRegister(void *ptr, size_t size, unsigned int flags)
{
    uintptr_t address = (uintptr_t)ptr;
    int rc = hc_capture_forbids(false);
    if (rc) return rc;
    if (!ptr || !size || address + size < address || flags & ~(unsigned)REGISTER_FLAGS) return PSM_CUDA_INVALID_VALUE;
    if (flags & cudaHostRegisterIoMemory) return PSM_CUDA_NOT_SUPPORTED; /* there is no I/O memory here */
    struct hc_place place;
    if (hc_place_of(address, &place, NULL) && place.space == HC_PINNED) return PSM_CUDA_HOST_MEMORY_ALREADY_REGISTERED;
    if (hc_in_region(address) || hc_in_region(address + size - 1) || !mapped(address, size))
        return PSM_CUDA_INVALID_VALUE;
    struct hc_range *range = calloc(1, sizeof *range);
    if (!range) return PSM_CUDA_OUT_OF_MEMORY;
    *range = (struct hc_range){.base = address,
                               .size = size,
                               .alias = ptr,
                               .state = HC_RANGE_LIVE,
                               .space = HC_PINNED,
                               .origin = HC_FROM_REGISTER,
                               .device = hc_current_device(),
                               .flags = flags,
                               .memfd = -1,
                               .id = hc_buffer_id()};
    pthread_rwlock_wrlock(&hc_ranges_lock);
    bool overlaps = hc_registered_overlaps(address, size), added = !overlaps && hc_registered_add(range);
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (!added) free(range);
    return added ? PSM_CUDA_SUCCESS : overlaps ? PSM_CUDA_HOST_MEMORY_ALREADY_REGISTERED : PSM_CUDA_OUT_OF_MEMORY;
}

cudaError_t hc_cudaHostUnregister(void *ptr)
{
    int rc = hc_capture_forbids(false);
    if (rc) return rc;
    if (!ptr) return PSM_CUDA_INVALID_VALUE;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    struct hc_range *range = hc_registered_at((uintptr_t)ptr);
    if (range && range->base != (uintptr_t)ptr) range = NULL;
    if (range) hc_registered_remove(range);
    pthread_rwlock_unlock(&hc_ranges_lock);
    free(range);
    return range ? PSM_CUDA_SUCCESS : PSM_CUDA_HOST_MEMORY_NOT_REGISTERED;
}

/* ---- queries */

/* With unified addressing every device sees all pinned memory at the host's address. */
cudaError_t hc_cudaHostGetDevicePointer(void **pDevice, void *pHost, unsigned int flags)
{
    struct hc_place place;
    if (!pDevice || flags || !hc_place_of((uintptr_t)pHost, &place, NULL) || place.space != HC_PINNED)
        return PSM_CUDA_INVALID_VALUE;
    *pDevice = pHost;
    return PSM_CUDA_SUCCESS;
}

CUresult hc_cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int Flags)
{
    void *at;
    int rc = pdptr ? hc_context_require() : PSM_CUDA_INVALID_VALUE;
    if (rc == 0) rc = hc_cudaHostGetDevicePointer(&at, p, Flags);
    if (rc == 0) *pdptr = (uintptr_t)at;
    return rc;
}

cudaError_t hc_cudaHostGetFlags(unsigned int *pFlags, void *pHost)
{
    struct hc_place place;
    if (!pFlags || !hc_place_of((uintptr_t)pHost, &place, NULL) || place.origin != HC_FROM_HOST_ALLOC)
        return PSM_CUDA_INVALID_VALUE;
    *pFlags = place.flags;
    return PSM_CUDA_SUCCESS;
}
