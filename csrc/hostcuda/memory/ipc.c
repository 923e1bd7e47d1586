/* Device memory of other processes: cudaIpcGetMemHandle and the other way round. */
#define _GNU_SOURCE
#include "memory/hc_memory.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int get_handle(uintptr_t address, struct hc_ipc_name *name)
{
    struct hc_place place;
    /* Memory of pools, of cuMemCreate and of other processes has its own functions. */
    if (!hc_place_of(address, &place, NULL) || place.origin != HC_FROM_MALLOC) return PSM_CUDA_INVALID_VALUE;
    return hc_ipc_name_of(place.memfd, place.offset, place.size, place.id, name);
}

static struct hc_range *opened(uintptr_t address)
{
    struct hc_range *range = hc_range_at(address);
    return range && range->origin == HC_FROM_IPC && range->base == address ? range : NULL;
}

struct wanted {
    uint64_t id, offset;
    struct hc_range *found;
};

static void look_for(struct hc_range *range, void *context)
{
    struct wanted *wanted = context;
    if (range->origin == HC_FROM_IPC && !range->pool && range->memfd_id == wanted->id &&
        range->offset == wanted->offset)
        wanted->found = range;
}

/* Under the write lock. One handle has one address in a process, however often it is opened. */
static bool open_again(uint64_t id, uint64_t offset, uintptr_t *address)
{
    struct wanted wanted = {.id = id, .offset = offset};
    hc_ranges_each(look_for, &wanted);
    if (!wanted.found) return false;
    wanted.found->opens++;
    *address = wanted.found->base;
    return true;
}

int hc_map_named(const struct hc_ipc_name *name, int fd, int device, struct hc_range **out)
{
    uint64_t within = name->offset % HC_PAGE, first = name->offset - within;
    size_t bytes = hc_round_up(within + name->size, HC_PAGE);
    struct hc_range *range = hc_range_new(bytes, 0, 0);
    if (!range) return PSM_CUDA_OUT_OF_MEMORY;
    range->space = HC_DEVICE;
    range->origin = HC_FROM_IPC;
    range->device = device;
    range->offset = name->offset;
    range->memfd_id = name->id;
    range->id = hc_buffer_id();
    range->opens = 1;
    range->base = range->start + within;
    range->size = name->size;
    void *at = (void *)range->start;
    if (hc_options.strict)
        at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)first);
    else if (!hc_region_map(range->start, bytes, PROT_READ | PROT_WRITE, fd, first))
        at = MAP_FAILED;
    if (at == MAP_FAILED) {
        hc_range_release(range);
        return PSM_CUDA_MAP_FAILED;
    }
    range->map = at;
    range->map_size = bytes;
    range->alias = (unsigned char *)at + within;
    *out = range;
    return 0;
}

static int open_handle(const struct hc_ipc_name *name, unsigned flags, uintptr_t *address)
{
    int rc = hc_capture_forbids(false);
    if (rc) return rc;
    if (flags != cudaIpcMemLazyEnablePeerAccess) return PSM_CUDA_INVALID_VALUE;
    struct hc_trailer t;
    int fd, here = hc_current_device();
    rc = hc_ipc_open(name, HC_MEMFD_ALLOCATION, &fd, &t);
    if (rc) return rc;
    int device = hc_device_of_uuid(t.device);
    if (device >= 0 && device != here && !hc_peer_possible(here, device)) {
        close(fd);
        return hc_ipc_refuse(name, PSM_CUDA_PEER_ACCESS_UNSUPPORTED, "its GPU is not a peer of the current device");
    }
    struct hc_range *range = NULL;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    bool known = open_again(name->id, name->offset, address);
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (!known && name->size) rc = hc_map_named(name, fd, device < 0 ? here : device, &range);
    if (!known && !name->size) rc = PSM_CUDA_INVALID_HANDLE;
    close(fd);
    if (rc || known) return rc;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    known = open_again(name->id, name->offset, address); /* by another thread meanwhile */
    if (known) {
        hc_range_retire(range);
    } else {
        range->state = HC_RANGE_LIVE;
        *address = range->base;
    }
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (known) hc_range_release(range);
    return 0;
}

static int close_handle(uintptr_t address)
{
    int rc = hc_capture_forbids(false), device = -1;
    if (rc) return rc;
    pthread_rwlock_rdlock(&hc_ranges_lock);
    struct hc_range *range = opened(address);
    if (range) device = range->device;
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (!range) return PSM_CUDA_INVALID_VALUE;
    rc = hc_device_drain(device); /* as in cudaFree: work in flight must not access unmapped memory */
    pthread_rwlock_wrlock(&hc_ranges_lock);
    range = opened(address);
    bool last = range && --range->opens == 0;
    if (last) hc_range_retire(range);
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (last) hc_range_release(range);
    return range ? rc : PSM_CUDA_INVALID_VALUE;
}

cudaError_t hc_cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *devPtr)
{
    return handle ? get_handle((uintptr_t)devPtr, (struct hc_ipc_name *)(void *)handle) : PSM_CUDA_INVALID_VALUE;
}

cudaError_t hc_cudaIpcOpenMemHandle(void **devPtr, cudaIpcMemHandle_t handle, unsigned int flags)
{
    struct hc_ipc_name name;
    uintptr_t address = 0;
    if (!devPtr) return PSM_CUDA_INVALID_VALUE;
    memcpy(&name, &handle, sizeof name);
    int rc = open_handle(&name, flags, &address);
    if (rc == 0) *devPtr = (void *)address;
    return rc;
}

CUresult hc_cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    void *at;
    int rc = pdptr ? hc_context_require() : PSM_CUDA_INVALID_VALUE;
    if (rc == 0) rc = hc_cudaIpcOpenMemHandle(&at, handle, Flags);
    if (rc == 0) *pdptr = (uintptr_t)at;
    return rc;
}

cudaError_t hc_cudaIpcCloseMemHandle(void *devPtr)
{
    return close_handle((uintptr_t)devPtr);
}
