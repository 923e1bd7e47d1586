/* Virtual memory management: allocations with handles, reservations of addresses, and mappings between them.
 *
 * An allocation lives as long as its handle has references or a mapping of it exists. Reservations are ranges; a
 * mapping is a range laid over granules of a reservation. Workers access the bytes through the alias of the allocation,
 * so the host's view of the device address depends only on access rights. */
#define _GNU_SOURCE
#include "memory/hc_memory.h"
#include "stream/hc_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* All fields except constant ones are protected by the write lock. */
struct hc_memory {
    uint64_t handle;
    unsigned
        references; /* references of the handle; 0: released, but the number stays taken while a mapping needs it */
    unsigned mappings;
    uint64_t size;
    int memfd;
    int device; /* -1: host, or a device that is not visible to this process */
    bool host;
    uint64_t accounted;
    unsigned char *alias; /* NULL until the first mapping */
    CUmemAllocationProp properties;
};

static bool host_location(CUmemLocation location)
{
    return location.type == cudaMemLocationTypeHost || location.type == cudaMemLocationTypeHostNuma;
}

static void memory_end(struct hc_memory *memory)
{
    if (memory->alias) munmap(memory->alias, memory->size);
    close(memory->memfd);
    if (memory->accounted) hc_device_account(memory->device, -(int64_t)memory->accounted);
    free(memory);
}

/* Under the write lock: whether the last holder is gone. If so, the handle is freed, too. */
static bool is_last(struct hc_memory *memory)
{
    if (memory->references || memory->mappings) return false;
    hc_handle_end(HC_MEM, memory->handle);
    return true;
}

/* Under the lock: the memory of a handle that was not released. */
static struct hc_memory *memory_of(CUmemGenericAllocationHandle handle)
{
    struct hc_memory *memory = hc_handle_get(HC_MEM, handle);
    return memory && memory->references ? memory : NULL;
}

static void unmapped(struct hc_range *mapping)
{
    struct hc_memory *memory = mapping->memory;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    memory->mappings--;
    bool last = is_last(memory);
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (last) memory_end(memory);
}

/* ---- allocations */

static int check_properties(const CUmemAllocationProp *prop)
{
    if (!prop || prop->type != cudaMemAllocationTypePinned) return PSM_CUDA_INVALID_VALUE;
    unsigned types = prop->requestedHandleTypes;
    const unsigned known = cudaMemHandleTypePosixFileDescriptor | cudaMemHandleTypeWin32 | cudaMemHandleTypeWin32Kmt |
                           cudaMemHandleTypeFabric;
    if (types & ~known) return PSM_CUDA_INVALID_VALUE;
    if (prop->location.type == cudaMemLocationTypeDevice) {
        if (!hc_device_valid(prop->location.id)) return PSM_CUDA_INVALID_DEVICE;
    } else if (prop->location.type == cudaMemLocationTypeHost) {
        if (types) return PSM_CUDA_INVALID_VALUE;
    } else if (prop->location.type != cudaMemLocationTypeHostNuma || prop->location.id < 0) {
        return PSM_CUDA_INVALID_VALUE;
    }
    return types & ~(unsigned)cudaMemHandleTypePosixFileDescriptor ? PSM_CUDA_NOT_SUPPORTED : 0;
}

CUresult hc_cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                          CUmemAllocationGranularity_flags option)
{
    int rc = check_properties(prop);
    if (rc) return rc;
    if (!granularity || (unsigned)option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) return PSM_CUDA_INVALID_VALUE;
    *granularity = HC_GRANULE;
    return PSM_CUDA_SUCCESS;
}

/* Takes the memory over; ends it on failure. */
static int give_handle(struct hc_memory *memory, CUmemGenericAllocationHandle *handle)
{
    memory->references = 1;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    uint64_t value = memory->handle = hc_handle_new(HC_MEM, memory);
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (!value) {
        memory_end(memory);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    *handle = value;
    return 0;
}

CUresult hc_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                        unsigned long long flags)
{
    int rc = check_properties(prop);
    if (rc) return rc;
    if (!handle || flags || !size || size % HC_GRANULE) return PSM_CUDA_INVALID_VALUE;
    struct hc_memory *memory = calloc(1, sizeof *memory);
    if (!memory) return PSM_CUDA_OUT_OF_MEMORY;
    memory->host = prop->location.type != cudaMemLocationTypeDevice;
    memory->device = memory->host ? -1 : prop->location.id;
    memory->size = size;
    memory->properties = *prop;
    memory->properties.win32HandleMetaData = NULL;
    memory->properties.allocFlags.compressionType = 0; /* only a hint; this memory is not compressed */
    if (!memory->host && (rc = hc_device_account(memory->device, (int64_t)size)) != 0) {
        free(memory);
        return rc;
    }
    memory->accounted = memory->host ? 0 : size;
    struct hc_trailer t = {.size = size,
                           .kind = HC_MEMFD_VMM,
                           .handle_types = prop->requestedHandleTypes,
                           .location_type = prop->location.type,
                           .location_id = prop->location.id,
                           .rdma_capable = prop->allocFlags.gpuDirectRDMACapable,
                           .usage = prop->allocFlags.usage};
    memory->memfd = hc_memfd_new(&t, memory->device);
    if (memory->memfd < 0) {
        hc_say_no_memory(size, errno);
        if (memory->accounted) hc_device_account(memory->device, -(int64_t)memory->accounted);
        free(memory);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    return give_handle(memory, handle);
}

CUresult hc_cuMemRelease(CUmemGenericAllocationHandle handle)
{
    pthread_rwlock_wrlock(&hc_ranges_lock);
    struct hc_memory *memory = memory_of(handle);
    if (memory) memory->references--;
    bool last = memory && is_last(memory);
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (last) memory_end(memory);
    return memory ? PSM_CUDA_SUCCESS : PSM_CUDA_INVALID_VALUE;
}

CUresult hc_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    if (!handle) return PSM_CUDA_INVALID_VALUE;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    struct hc_range *range = hc_range_at((uintptr_t)addr);
    struct hc_memory *memory = range ? range->memory : NULL;
    if (memory) {
        memory->references++;
        *handle = memory->handle;
    }
    pthread_rwlock_unlock(&hc_ranges_lock);
    return memory ? PSM_CUDA_SUCCESS : PSM_CUDA_INVALID_VALUE;
}

CUresult hc_cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    if (!prop) return PSM_CUDA_INVALID_VALUE;
    pthread_rwlock_rdlock(&hc_ranges_lock);
    const struct hc_memory *memory = memory_of(handle);
    if (memory) *prop = memory->properties;
    pthread_rwlock_unlock(&hc_ranges_lock);
    return memory ? PSM_CUDA_SUCCESS : PSM_CUDA_INVALID_VALUE;
}

/* ---- other processes */

CUresult hc_cuMemExportToShareableHandle(void *shareableHandle, CUmemGenericAllocationHandle handle,
                                         CUmemAllocationHandleType handleType, unsigned long long flags)
{
    if (handleType == cudaMemHandleTypeFabric || handleType == cudaMemHandleTypeWin32 ||
        handleType == cudaMemHandleTypeWin32Kmt)
        return PSM_CUDA_NOT_SUPPORTED;
    if (!shareableHandle || flags || handleType != cudaMemHandleTypePosixFileDescriptor) return PSM_CUDA_INVALID_VALUE;
    int fd = -1, rc = PSM_CUDA_INVALID_VALUE;
    pthread_rwlock_rdlock(&hc_ranges_lock);
    const struct hc_memory *memory = memory_of(handle);
    if (memory && memory->properties.requestedHandleTypes & cudaMemHandleTypePosixFileDescriptor) {
        fd = fcntl(memory->memfd, F_DUPFD_CLOEXEC, 0);
        rc = fd < 0 ? PSM_CUDA_OUT_OF_MEMORY : 0;
        if (rc) hc_say_no_descriptor(errno);
    }
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (rc == 0) *(int *)shareableHandle = fd;
    return rc;
}

CUresult hc_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *osHandle,
                                           CUmemAllocationHandleType shHandleType)
{
    if (shHandleType == cudaMemHandleTypeFabric || shHandleType == cudaMemHandleTypeWin32 ||
        shHandleType == cudaMemHandleTypeWin32Kmt)
        return PSM_CUDA_NOT_SUPPORTED;
    if (!handle || shHandleType != cudaMemHandleTypePosixFileDescriptor) return PSM_CUDA_INVALID_VALUE;
    /* The descriptor itself is passed in place of a pointer. */
    int fd = (intptr_t)osHandle < 0 || (intptr_t)osHandle > INT32_MAX ? -1 : (int)(intptr_t)osHandle;
    struct hc_trailer t;
    int rc = hc_memfd_check(fd, HC_MEMFD_VMM, &t);
    if (rc) return rc == PSM_CUDA_INVALID_DEVICE ? PSM_CUDA_NOT_SUPPORTED : rc;
    bool host = t.location_type == cudaMemLocationTypeHostNuma;
    if (!t.size || t.size % HC_GRANULE || (!host && t.location_type != cudaMemLocationTypeDevice) ||
        t.handle_types != cudaMemHandleTypePosixFileDescriptor) {
        hc_say_import(fd, "its trailer is damaged (%llu bytes, location %u, handle types %u)",
                      (unsigned long long)t.size, t.location_type, t.handle_types);
        return PSM_CUDA_INVALID_VALUE;
    }
    struct hc_memory *memory = calloc(1, sizeof *memory);
    if (!memory) return PSM_CUDA_OUT_OF_MEMORY;
    memory->memfd = hc_descriptor_dup(fd);
    if (memory->memfd < 0) {
        hc_say_no_descriptor(errno);
        free(memory);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    memory->size = t.size;
    memory->host = host;
    memory->device = host ? -1 : hc_device_of_uuid(t.device);
    CUmemLocation location = {cudaMemLocationTypeHostNuma, t.location_id};
    if (!host && memory->device >= 0) location = (CUmemLocation){cudaMemLocationTypeDevice, memory->device};
    if (!host && memory->device < 0) location = (CUmemLocation){cudaMemLocationTypeInvisible, -2};
    memory->properties = (CUmemAllocationProp){
        .type = cudaMemAllocationTypePinned,
        .requestedHandleTypes = cudaMemHandleTypePosixFileDescriptor,
        .location = location,
        .allocFlags = {.gpuDirectRDMACapable = t.rdma_capable != 0, .usage = (unsigned short)t.usage},
    };
    return give_handle(memory, handle);
}

/* No dma-buf: no device could use one. */
CUresult hc_cuMemGetHandleForAddressRange(void *handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType handleType,
                                          unsigned long long flags)
{
    (void)dptr, (void)flags;
    if (!handle || !size || handleType != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) return PSM_CUDA_INVALID_VALUE;
    return PSM_CUDA_NOT_SUPPORTED;
}

/* ---- reservations */

CUresult hc_cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                unsigned long long flags)
{
    if (!ptr || flags || !size || size % HC_PAGE || addr % HC_PAGE || alignment & (alignment - 1))
        return PSM_CUDA_INVALID_VALUE;
    struct hc_range *range = hc_range_new(size, alignment, (uintptr_t)addr);
    if (!range) return PSM_CUDA_OUT_OF_MEMORY;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    range->size = size;
    range->space = HC_DEVICE;
    range->origin = HC_FROM_VMM;
    range->device = -1;
    range->state = HC_RANGE_RESERVED;
    *ptr = range->base;
    pthread_rwlock_unlock(&hc_ranges_lock);
    return PSM_CUDA_SUCCESS;
}

CUresult hc_cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    pthread_rwlock_wrlock(&hc_ranges_lock);
    struct hc_range *range = hc_range_at((uintptr_t)ptr);
    bool ends = range && range->state == HC_RANGE_RESERVED && range->base == ptr && range->size == size &&
                hc_range_is(range, range->start, range->span);
    if (ends) hc_range_retire(range);
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (ends) hc_range_release(range);
    return ends ? PSM_CUDA_SUCCESS : PSM_CUDA_INVALID_VALUE;
}

/* ---- mappings */

static bool aligned_span(uintptr_t at, size_t size)
{
    return size && at % HC_GRANULE == 0 && size % HC_GRANULE == 0 && at + size > at;
}

CUresult hc_cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                     unsigned long long flags)
{
    uintptr_t at = (uintptr_t)ptr;
    /* CUDA documents that the offset must be zero for now. */
    if (flags || offset || !aligned_span(at, size)) return PSM_CUDA_INVALID_VALUE;
    struct hc_range *mapping = calloc(1, sizeof *mapping);
    if (!mapping) return PSM_CUDA_OUT_OF_MEMORY;
    int rc = PSM_CUDA_INVALID_VALUE, device = hc_current_device();
    pthread_rwlock_wrlock(&hc_ranges_lock);
    struct hc_memory *memory = memory_of(handle);
    struct hc_range *reserved = hc_range_at(at);
    bool fits = memory && size <= memory->size && reserved && reserved->state == HC_RANGE_RESERVED &&
                at - reserved->base <= reserved->size && size <= reserved->size - (at - reserved->base) &&
                hc_range_is(reserved, at, size);
    if (fits && !memory->alias) {
        void *alias = mmap(NULL, memory->size, PROT_READ | PROT_WRITE, MAP_SHARED, memory->memfd, 0);
        if (alias != MAP_FAILED) memory->alias = alias;
    }
    if (fits) rc = memory->alias ? 0 : PSM_CUDA_OUT_OF_MEMORY;
    if (rc == 0) {
        mapping->base = mapping->start = at;
        mapping->size = mapping->span = size;
        mapping->alias = memory->alias;
        mapping->state = HC_RANGE_LIVE;
        mapping->space = memory->host ? HC_PINNED : HC_DEVICE;
        mapping->origin = HC_FROM_VMM;
        mapping->device = memory->device < 0 ? device : memory->device;
        mapping->memfd = memory->memfd;
        mapping->id = hc_buffer_id();
        mapping->memory = memory;
        mapping->unmapped = unmapped;
        mapping->reserved = reserved;
        atomic_init(&mapping->holds, 1);
        memory->mappings++;
        hc_range_overlay(mapping);
    }
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (rc) free(mapping);
    return rc;
}

/* Under the lock: whether the span consists of whole, contiguous mappings. */
static bool whole_mappings(uintptr_t at, size_t size)
{
    if (!aligned_span(at, size)) return false;
    for (uintptr_t end = at + size; at < end;) {
        const struct hc_range *range = hc_range_at(at);
        if (!range || !range->memory || range->start != at || range->span > end - at) return false;
        at += range->span;
    }
    return true;
}

CUresult hc_cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    uintptr_t at = (uintptr_t)ptr;
    struct hc_range *gone = NULL;
    struct hc_use use;
    bool used = hc_queued_use(at, size, &use);
    pthread_rwlock_wrlock(&hc_ranges_lock);
    bool whole = whole_mappings(at, size);
    for (uintptr_t end = at + size; whole && at < end;) {
        struct hc_range *mapping = hc_range_at(at);
        at += mapping->span;
        if (mapping->host_protection != PROT_NONE) hc_region_clear(mapping->start, mapping->span);
        hc_range_overlay_end(mapping);
        mapping->next = gone;
        gone = mapping;
    }
    pthread_rwlock_unlock(&hc_ranges_lock);
    if (whole && used) hc_say_unmapped_in_use((uintptr_t)ptr, size, &use);
    while (gone) {
        struct hc_range *next = gone->next;
        hc_range_release(gone);
        gone = next;
    }
    return whole ? PSM_CUDA_SUCCESS : PSM_CUDA_INVALID_VALUE;
}

/* ---- access */

static int check_access(const struct hc_memory *memory, const CUmemAccessDesc *desc)
{
    if (desc->flags != cudaMemAccessFlagsProtNone && desc->flags != cudaMemAccessFlagsProtRead &&
        desc->flags != cudaMemAccessFlagsProtReadWrite)
        return PSM_CUDA_INVALID_VALUE;
    if (host_location(desc->location)) return memory->host ? 0 : PSM_CUDA_INVALID_VALUE;
    if (desc->location.type != cudaMemLocationTypeDevice) return PSM_CUDA_INVALID_VALUE;
    int device = desc->location.id;
    if (!hc_device_valid(device)) return PSM_CUDA_INVALID_DEVICE;
    if (memory->device >= 0 && memory->device != device && !hc_peer_possible(device, memory->device)) {
        hc_say_no_peer(device, memory->device);
        return PSM_CUDA_INVALID_DEVICE;
    }
    return 0;
}

static void set_access(struct hc_range *mapping, const CUmemAccessDesc *desc)
{
    if (host_location(desc->location)) {
        mapping->host_access = desc->flags;
        return;
    }
    uint64_t bit = UINT64_C(1) << desc->location.id;
    mapping->readable = desc->flags & cudaMemAccessFlagsProtRead ? mapping->readable | bit : mapping->readable & ~bit;
    mapping->writable =
        desc->flags == cudaMemAccessFlagsProtReadWrite ? mapping->writable | bit : mapping->writable & ~bit;
}

/* What the host may do with the device address: host memory if access was set for the host; device memory never, but
 * outside strict mode as soon as a device may. */
static bool show_host(struct hc_range *mapping)
{
    unsigned access = mapping->host_access;
    if (!mapping->memory->host && !hc_options.strict && mapping->readable)
        access = mapping->writable ? cudaMemAccessFlagsProtReadWrite : cudaMemAccessFlagsProtRead;
    unsigned protection = access == cudaMemAccessFlagsProtReadWrite ? PROT_READ | PROT_WRITE
                          : access == cudaMemAccessFlagsProtRead    ? PROT_READ
                                                                    : PROT_NONE;
    if (protection == mapping->host_protection) return true;
    if (protection == PROT_NONE)
        hc_region_clear(mapping->start, mapping->span);
    else if (!hc_region_map(mapping->start, mapping->span, (int)protection, mapping->memfd, mapping->offset))
        return false;
    mapping->host_protection = protection;
    return true;
}

CUresult hc_cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    uintptr_t begin = (uintptr_t)ptr, end = begin + size;
    if (!desc || !count) return PSM_CUDA_INVALID_VALUE;
    pthread_rwlock_wrlock(&hc_ranges_lock);
    int rc = whole_mappings(begin, size) ? 0 : PSM_CUDA_INVALID_VALUE;
    for (uintptr_t at = begin; rc == 0 && at < end;) { /* all or nothing changes */
        const struct hc_range *mapping = hc_range_at(at);
        for (size_t i = 0; rc == 0 && i < count; i++) rc = check_access(mapping->memory, &desc[i]);
        at += mapping->span;
    }
    for (uintptr_t at = begin; rc == 0 && at < end;) {
        struct hc_range *mapping = hc_range_at(at);
        for (size_t i = 0; i < count; i++) set_access(mapping, &desc[i]);
        if (!show_host(mapping)) rc = PSM_CUDA_OUT_OF_MEMORY;
        at += mapping->span;
    }
    pthread_rwlock_unlock(&hc_ranges_lock);
    return rc;
}

CUresult hc_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    if (!flags || !location) return PSM_CUDA_INVALID_VALUE;
    bool host = host_location(*location);
    if (!host && location->type != cudaMemLocationTypeDevice) return PSM_CUDA_INVALID_VALUE;
    if (!host && !hc_device_valid(location->id)) return PSM_CUDA_INVALID_DEVICE;
    pthread_rwlock_rdlock(&hc_ranges_lock);
    const struct hc_range *mapping = hc_range_at((uintptr_t)ptr);
    int rc = mapping && mapping->memory ? 0 : PSM_CUDA_INVALID_VALUE;
    if (rc == 0 && host) *flags = mapping->host_access;
    if (rc == 0 && !host)
        *flags = mapping->writable >> location->id & 1   ? cudaMemAccessFlagsProtReadWrite
                 : mapping->readable >> location->id & 1 ? cudaMemAccessFlagsProtRead
                                                         : cudaMemAccessFlagsProtNone;
    pthread_rwlock_unlock(&hc_ranges_lock);
    return rc;
}
