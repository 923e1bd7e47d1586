/* Allocations, and cudaMalloc and cudaFree. */
#define _GNU_SOURCE
#include "core/hc_life.h"
#include "memory/hc_memory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static bool map(struct hc_range *range)
{
    /* Shared, because several processes map the memory of a slab or an IPC handle; a device address that the host must
     * not access needs no mapping at all, it stays reserved. */
    if (range->space == HC_DEVICE && hc_options.strict) {
        void *alias = mmap(NULL, range->map_size, PROT_READ | PROT_WRITE, MAP_SHARED, range->memfd, 0);
        if (alias == MAP_FAILED) return false;
        range->map = alias;
        range->alias = alias;
        return true;
    }
    if (!hc_region_map(range->start, range->map_size, PROT_READ | PROT_WRITE, range->memfd, 0)) return false;
    range->map = (void *)range->start;
    range->alias = (void *)range->start;
    return true;
}

static void give_up(struct hc_range *range)
{
    pthread_rwlock_wrlock(&hc_ranges_lock);
    hc_range_retire(range);
    pthread_rwlock_unlock(&hc_ranges_lock);
    hc_range_release(range);
}

int hc_range_allocate(const struct hc_request *request, uint64_t bytes, struct hc_range **out)
{
    struct hc_range *range = hc_range_new(bytes, 0, 0);
    if (!range) return PSM_CUDA_OUT_OF_MEMORY;
    range->size = bytes;
    range->space = request->space;
    range->origin = request->origin;
    range->device = request->device;
    range->flags = request->flags;
    range->pool = request->pool;
    range->id = hc_buffer_id();
    int rc = request->space == HC_DEVICE ? hc_device_account(request->device, (int64_t)range->span) : 0;
    if (rc == 0) {
        if (request->space == HC_DEVICE) range->accounted = range->span;
        struct hc_trailer t = {.size = range->span,
                               .kind = request->space == HC_DEVICE ? HC_MEMFD_ALLOCATION : HC_MEMFD_PRIVATE,
                               .location_type =
                                   request->space == HC_DEVICE ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost,
                               .location_id = request->device};
        range->map_size = range->span;
        range->memfd = hc_memfd_new(&t, request->device);
        range->memfd_id = t.id;
        if (range->memfd < 0 || !map(range)) {
            hc_say_no_memory(bytes, errno);
            rc = PSM_CUDA_OUT_OF_MEMORY;
        }
    }
    if (rc) {
        give_up(range);
        return rc;
    }
    if (request->space != HC_DEVICE) { /* host and managed memory is never shared: the mapping is enough */
        close(range->memfd);
        range->memfd = -1;
    }
    *out = range;
    return 0;
}

/* A new range, or one that the pool kept. */
static int obtain(const struct hc_request *request, uint64_t bytes, struct hc_range **range)
{
    struct hc_pool *pool = request->pool;
    if (!pool) return hc_range_allocate(request, bytes, range);
    uint64_t span = hc_round_up(bytes, HC_GRANULE);
    *range = hc_pool_reuse(pool, span);
    if (*range) {
        (*range)->size = bytes;
        (*range)->flags = request->flags;
        (*range)->id = hc_buffer_id();
        return 0;
    }
    if (!hc_pool_room(pool, span)) return PSM_CUDA_OUT_OF_MEMORY;
    int rc = hc_range_allocate(request, bytes, range);
    if (rc == 0) hc_pool_reserved(pool, (int64_t)span);
    return rc;
}

int hc_allocate(const struct hc_request *request, uintptr_t *address)
{
    struct hc_range *range;
    bool small = request->size <= HC_SMALL, found = false;
    if (small) {
        pthread_rwlock_wrlock(&hc_ranges_lock);
        found = hc_slab_take(request, address);
        pthread_rwlock_unlock(&hc_ranges_lock);
        if (found) return 0;
    }
    int rc = obtain(request, small ? HC_GRANULE : request->size, &range);
    if (rc) return rc;
    if (!small) {
        *address = range->base;
        hc_range_publish(range);
        return 0;
    }
    pthread_rwlock_wrlock(&hc_ranges_lock);
    found = hc_slab_start(range);
    if (found) {
        range->state = HC_RANGE_LIVE;
        found = hc_slab_take(request, address);
        if (!found) hc_slab_unlink(range->slab);
    }
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (found) return 0;
    if (request->pool) hc_pool_reserved(request->pool, -(int64_t)range->span);
    give_up(range);
    return PSM_CUDA_OUT_OF_MEMORY;
}

/* Under the lock: the allocation that starts at an address. */
static struct hc_range *beginning_at(uintptr_t address, struct hc_block **block, struct hc_allocation *a)
{
    struct hc_range *range = hc_range_at(address);
    if (!range || range->state != HC_RANGE_LIVE || range->origin == HC_FROM_REGISTER) return NULL;
    *block = range->slab ? hc_slab_block(range->slab, address) : NULL;
    if (range->slab && !*block) return NULL;
    uintptr_t base = range->base + (*block ? (uintptr_t)(*block)->offset * HC_UNIT : 0);
    if (base != address) return NULL;
    *a = (struct hc_allocation){.space = range->space,
                                .origin = range->origin,
                                .device = range->device,
                                .flags = range->flags,
                                .size = *block ? (*block)->size : range->size,
                                .freeing = *block ? (*block)->freeing : range->freeing,
                                .pool = range->pool};
    return range;
}

bool hc_allocation_at(uintptr_t address, struct hc_allocation *allocation)
{
    struct hc_block *block;
    pthread_rwlock_rdlock(&hc_ranges_lock);
    bool found = beginning_at(address, &block, allocation) != NULL;
    pthread_rwlock_unlock(&hc_ranges_lock);
    return found;
}

bool hc_allocation_mark(uintptr_t address, bool (*allowed)(const struct hc_allocation *), bool freeing)
{
    struct hc_block *block;
    struct hc_allocation a;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    struct hc_range *range = beginning_at(address, &block, &a);
    bool marked = range && a.freeing != freeing && (!allowed || allowed(&a));
    if (marked && block) block->freeing = freeing;
    if (marked && !block) range->freeing = freeing;
    pthread_rwlock_unlock(&hc_ranges_lock);
    return marked;
}

bool hc_allocation_free(uintptr_t address, bool (*allowed)(const struct hc_allocation *))
{
    struct hc_block *block;
    struct hc_allocation a;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    struct hc_range *range = beginning_at(address, &block, &a);
    if (range && allowed && !allowed(&a)) range = NULL;
    bool gone = range && (!block || hc_slab_free(range->slab, block));
    if (gone && a.pool && hc_pool_keep(a.pool, range)) gone = false;
    if (gone) hc_range_retire(range);
    size_t span = gone ? range->span : 0;
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (gone && a.pool) hc_pool_reserved(a.pool, -(int64_t)span);
    if (gone) hc_range_release(range);
    if (range && a.pool) hc_pool_freed(a.pool, a.size);
    return range != NULL;
}

/* ---- cudaMalloc and its variants */

static int allocate_device(size_t size, uintptr_t *address)
{
    int rc = hc_capture_forbids(false);
    if (rc) return rc;
    struct hc_request request = {
        .space = HC_DEVICE, .origin = HC_FROM_MALLOC, .device = hc_current_device(), .size = size};
    return hc_allocate(&request, address);
}

/* Rows at multiples of 512 bytes, the most that cudaDeviceProp::texturePitchAlignment and coalescing require. */
static int allocate_pitch(size_t width, size_t rows, size_t *pitch, uintptr_t *address)
{
    size_t row, bytes;
    *address = 0;
    if (__builtin_add_overflow(width, (size_t)HC_UNIT - 1, &row)) return PSM_CUDA_OUT_OF_MEMORY;
    row = row / HC_UNIT * HC_UNIT;
    if (__builtin_mul_overflow(row, rows, &bytes)) return PSM_CUDA_OUT_OF_MEMORY;
    int rc = bytes ? allocate_device(bytes, address) : 0;
    if (rc == 0) *pitch = row;
    return rc;
}

cudaError_t hc_cudaMalloc(void **devPtr, size_t size)
{
    if (!devPtr) return PSM_CUDA_INVALID_VALUE;
    uintptr_t address = 0;
    int rc = size ? allocate_device(size, &address) : hc_capture_forbids(false);
    if (rc == 0) *devPtr = (void *)address;
    return rc;
}

CUresult hc_cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    uintptr_t address;
    int rc = hc_context_require();
    if (rc) return rc;
    if (!dptr || !bytesize) return PSM_CUDA_INVALID_VALUE;
    rc = allocate_device(bytesize, &address);
    if (rc == 0) *dptr = address;
    return rc;
}

cudaError_t hc_cudaMallocPitch(void **devPtr, size_t *pitch, size_t width, size_t height)
{
    uintptr_t address;
    if (!devPtr || !pitch) return PSM_CUDA_INVALID_VALUE;
    int rc = allocate_pitch(width, height, pitch, &address);
    if (rc == 0) *devPtr = (void *)address;
    return rc;
}

CUresult hc_cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height,
                               unsigned int ElementSizeBytes)
{
    uintptr_t address;
    int rc = hc_context_require();
    if (rc) return rc;
    bool element = ElementSizeBytes == 4 || ElementSizeBytes == 8 || ElementSizeBytes == 16;
    if (!dptr || !pPitch || !WidthInBytes || !Height || !element) return PSM_CUDA_INVALID_VALUE;
    rc = allocate_pitch(WidthInBytes, Height, pPitch, &address);
    if (rc == 0) *dptr = address;
    return rc;
}

cudaError_t hc_cudaMalloc3D(struct cudaPitchedPtr *pitchedDevPtr, struct cudaExtent extent)
{
    uintptr_t address;
    size_t rows, pitch;
    if (!pitchedDevPtr) return PSM_CUDA_INVALID_VALUE;
    if (__builtin_mul_overflow(extent.height, extent.depth, &rows)) return PSM_CUDA_OUT_OF_MEMORY;
    int rc = allocate_pitch(extent.width, rows, &pitch, &address);
    if (rc == 0) *pitchedDevPtr = (struct cudaPitchedPtr){(void *)address, pitch, extent.width, extent.height};
    return rc;
}

static bool frees_device(const struct hc_allocation *a)
{
    return !a->freeing && (a->origin == HC_FROM_MALLOC || a->origin == HC_FROM_POOL || a->origin == HC_FROM_MANAGED);
}

/* CUDA waits for the device, so that work in flight does not access freed memory. */
static int free_device(uintptr_t address)
{
    struct hc_allocation a;
    int rc = hc_capture_forbids(false);
    if (rc) return rc;
    if (!hc_allocation_at(address, &a) || !frees_device(&a)) return PSM_CUDA_INVALID_VALUE;
    rc = hc_device_drain(a.device < 0 ? hc_current_device() : a.device);
    if (!hc_allocation_free(address, frees_device)) return PSM_CUDA_INVALID_VALUE;
    return rc;
}

cudaError_t hc_cudaFree(void *devPtr)
{
    return devPtr ? free_device((uintptr_t)devPtr) : PSM_CUDA_SUCCESS;
}

CUresult hc_cuMemFree_v2(CUdeviceptr dptr)
{
    int rc = hc_context_require();
    return rc || !dptr ? rc : free_device((uintptr_t)dptr);
}

CUresult hc_cuMemGetAddressRange_v2(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    struct hc_place place;
    int rc = hc_context_require();
    if (rc) return rc;
    if (!hc_place_of((uintptr_t)dptr, &place, NULL)) return PSM_CUDA_NOT_FOUND;
    if (pbase) *pbase = place.base;
    if (psize) *psize = place.size;
    return PSM_CUDA_SUCCESS;
}

/* ---- cudaDeviceReset */

struct ended {
    int device;
    struct hc_range **ranges;
    size_t count, room;
};

static void collect(struct hc_range *range, void *context)
{
    struct ended *ended = context;
    if (range->device != ended->device || range->origin == HC_FROM_VMM || range->state != HC_RANGE_LIVE) return;
    if (ended->count == ended->room) {
        size_t room = ended->room ? 2 * ended->room : 64;
        struct hc_range **more = realloc(ended->ranges, room * sizeof(*more));
        if (!more) return;
        ended->ranges = more;
        ended->room = room;
    }
    ended->ranges[ended->count++] = range;
}

/* VMM allocations belong to no context and stay. */
static void reset(int device)
{
    struct ended ended = {.device = device};
    pthread_rwlock_wrlock(&hc_ranges_lock);
    hc_ranges_each(collect, &ended);
    for (size_t i = 0; i < ended.count; i++) {
        struct hc_range *range = ended.ranges[i];
        if (range->origin == HC_FROM_REGISTER) {
            hc_registered_remove(range);
        } else {
            if (range->slab) hc_slab_unlink(range->slab);
            hc_range_retire(range);
        }
    }
    pthread_rwlock_unlock(&hc_ranges_lock);
    for (size_t i = 0; i < ended.count; i++) {
        if (ended.ranges[i]->origin == HC_FROM_REGISTER)
            free(ended.ranges[i]);
        else
            hc_range_release(ended.ranges[i]);
    }
    free(ended.ranges);
}

HC_LIFE(HC_MODULE_ALLOCATIONS, .reset = reset)
