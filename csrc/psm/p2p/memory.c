/* Shared memory: create, map, export, release. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "p2p/memory.h"
#include "psm_cuda.h"
#include "psm_lib_messages.h"

/* A CUDA IPC handle covers a whole block of the allocator: a smaller piece would expose its neighbours. */
#define IPC_BLOCK (UINT64_C(2) << 20)

PSM_FAULT_SITE(site_make, "p2p.memory.make", "memory for a FIFO is allocated and exported");
PSM_FAULT_SITE(site_map, "p2p.memory.map", "a peer's memory is imported and mapped");

/* Pointers that this process shares with itself, by id. Owner and user may release them in any order. */
struct psm_direct {
    struct psm_direct *next;
    uint64_t id, size;
    void *ptr;
    int device;
    int refs;
    bool made; /* by cudaMalloc: freed with the last reference */
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct psm_direct *directs;

const char *psm_share_kind_name(int kind)
{
    static const char *const names[] = {"none", "same-process", "memfd", "posix", "cumem", "cuda-ipc"};
    return kind >= 0 && kind < (int)(sizeof names / sizeof *names) ? names[kind] : "unknown";
}

bool psm_share_needs_fd(int kind)
{
    return kind == PSM_SHARE_MEMFD || kind == PSM_SHARE_CUMEM;
}

static bool is_host_kind(int kind)
{
    return kind == PSM_SHARE_MEMFD || kind == PSM_SHARE_POSIX;
}

static const struct psm_cuda *cuda_of(const struct psm_host *host)
{
    return host->ops->cuda(host->self);
}
static int rank_of(const struct psm_host *host)
{
    return host->ops->rank(host->self);
}

/* ---- pointers of this process ---- */

static psm_status direct_add(struct psm_memory *memory, bool made)
{
    struct psm_direct *direct = calloc(1, sizeof *direct);
    if (!direct) return psm_fail(PSM_ERR_NO_MEMORY, "share", -1, -1, 0, "no memory for the record of a shared pointer");
    *direct = (struct psm_direct){
        .id = memory->id, .size = memory->size, .ptr = memory->ptr, .device = memory->device, .refs = 1, .made = made};
    pthread_mutex_lock(&lock);
    direct->next = directs;
    directs = direct;
    pthread_mutex_unlock(&lock);
    memory->direct = direct;
    return PSM_OK;
}

static psm_status direct_use(const struct psm_share *share, struct psm_memory *memory)
{
    pthread_mutex_lock(&lock);
    struct psm_direct *direct = directs;
    while (direct && direct->id != share->id) direct = direct->next;
    if (direct && share->size <= direct->size && share->offset <= direct->size - share->size) {
        direct->refs++;
        memory->direct = direct;
        memory->ptr = memory->base = (char *)direct->ptr + share->offset;
        memory->device = direct->device;
    }
    pthread_mutex_unlock(&lock);
    if (!direct)
        return psm_fail(PSM_ERR_NOT_FOUND, "share", -1, -1, 0,
                        "using memory 0x%" PRIx64 " of process %" PRIu32
                        ": this process, %d, shares no memory with that id",
                        share->id, share->owner_pid, psm_proc_self()->pid);
    if (!memory->direct)
        return psm_fail(PSM_ERR_MISMATCH, "share", -1, -1, 0,
                        "using memory 0x%" PRIx64 ": %" PRIu64 " bytes from %" PRIu64
                        " were requested, but it has %" PRIu64,
                        share->id, share->size, share->offset, direct->size);
    return PSM_OK;
}

static psm_status direct_drop(const struct psm_host *host, struct psm_memory *memory)
{
    struct psm_direct *direct = memory->direct;
    pthread_mutex_lock(&lock);
    bool last = --direct->refs == 0;
    if (last) {
        struct psm_direct **at = &directs;
        while (*at != direct) at = &(*at)->next;
        *at = direct->next;
    }
    pthread_mutex_unlock(&lock);
    if (!last) return PSM_OK;
    void *made = direct->made ? direct->ptr : NULL;
    free(direct);
    if (made) PSM_CUDA(cuda_of(host), "free", rank_of(host), -1, cudaFree(made));
    return PSM_OK;
}

/* ---- device memory behind descriptors ---- */

static psm_status vmm_known(const struct psm_host *host)
{
    const struct psm_cuda *cuda = cuda_of(host);
    if (cuda->cuMemCreate && cuda->cuMemRelease && cuda->cuMemMap && cuda->cuMemUnmap && cuda->cuMemAddressReserve &&
        cuda->cuMemAddressFree && cuda->cuMemSetAccess && cuda->cuMemGetAllocationGranularity &&
        cuda->cuMemExportToShareableHandle && cuda->cuMemImportFromShareableHandle)
        return PSM_OK;
    return psm_fail(PSM_ERR_UNSUPPORTED, "share", rank_of(host), -1, 0,
                    "the driver behind %.80s has no virtual memory management: set PSM_SHARE=cuda-ipc instead",
                    cuda->path);
}

static CUmemAllocationProp property(int device)
{
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = cudaMemAllocationTypePinned;
    prop.requestedHandleTypes = cudaMemHandleTypePosixFileDescriptor;
    prop.location.type = cudaMemLocationTypeDevice;
    prop.location.id = device;
    return prop;
}

static psm_status round_up(const struct psm_host *host, int device, uint64_t size, uint64_t *rounded)
{
    CUmemAllocationProp prop = property(device);
    size_t granularity = 0;
    PSM_CUDA(cuda_of(host), "share", rank_of(host), -1,
             cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    if (granularity == 0) granularity = 1;
    if (size > UINT64_MAX / 2)
        return psm_fail(PSM_ERR_INVALID, "share", rank_of(host), -1, 0, "%" PRIu64 " bytes of memory", size);
    *rounded = (size + granularity - 1) / granularity * granularity;
    return PSM_OK;
}

/* Map the whole allocation for copies by this rank's device. On failure everything is undone. */
static psm_status vmm_map(const struct psm_host *host, CUmemGenericAllocationHandle handle, struct psm_memory *memory)
{
    const struct psm_cuda *cuda = cuda_of(host);
    int rank = rank_of(host);
    CUdeviceptr at = 0;
    PSM_CUDA(cuda, "share", rank, -1, cuMemAddressReserve(&at, memory->mapped, 0, 0, 0));
    int code = (int)cuda->cuMemMap(at, memory->mapped, 0, handle, 0);
    if (code != 0) {
        cuda->cuMemAddressFree(at, memory->mapped);
        return psm_cuda_fail(code, "share", rank, -1, "cuMemMap of %" PRIu64 " bytes of memory 0x%" PRIx64,
                             memory->mapped, memory->id);
    }
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = host->ops->device(host->self);
    access.flags = cudaMemAccessFlagsProtReadWrite;
    code = (int)cuda->cuMemSetAccess(at, memory->mapped, &access, 1);
    if (code != 0) {
        cuda->cuMemUnmap(at, memory->mapped);
        cuda->cuMemAddressFree(at, memory->mapped);
        return psm_cuda_fail(code, "share", rank, -1, "cuMemSetAccess for device %d to memory 0x%" PRIx64,
                             access.location.id, memory->id);
    }
    memory->base = (void *)(uintptr_t)at;
    return PSM_OK;
}

static psm_status vmm_make(const struct psm_host *host, struct psm_memory *memory)
{
    const struct psm_cuda *cuda = cuda_of(host);
    int rank = rank_of(host);
    PSM_TRY(vmm_known(host));
    PSM_TRY(round_up(host, memory->device, memory->size, &memory->mapped));
    CUmemAllocationProp prop = property(memory->device);
    CUmemGenericAllocationHandle handle;
    PSM_CUDA(cuda, "share", rank, -1, cuMemCreate(&handle, memory->mapped, &prop, 0));
    psm_status status = vmm_map(host, handle, memory);
    if (status == PSM_OK) {
        int code = (int)cuda->cuMemExportToShareableHandle(&memory->fd, handle, prop.requestedHandleTypes, 0);
        if (code != 0) {
            status = psm_cuda_fail(code, "share", rank, -1, "cuMemExportToShareableHandle");
            memory->fd = -1;
            cuda->cuMemUnmap((CUdeviceptr)(uintptr_t)memory->base, memory->mapped);
            cuda->cuMemAddressFree((CUdeviceptr)(uintptr_t)memory->base, memory->mapped);
        }
    }
    /* The mapping and the descriptor keep the memory alive. */
    int code = (int)cuda->cuMemRelease(handle);
    if (status == PSM_OK && code != 0) status = psm_cuda_fail(code, "share", rank, -1, "cuMemRelease");
    memory->ptr = memory->base;
    return status;
}

static psm_status vmm_import(const struct psm_host *host, const struct psm_share *share, int fd, int owner_rank,
                             struct psm_memory *memory)
{
    const struct psm_cuda *cuda = cuda_of(host);
    int rank = rank_of(host);
    PSM_TRY(vmm_known(host));
    PSM_TRY(round_up(host, host->ops->device(host->self), share->offset + share->size, &memory->mapped));
    CUmemGenericAllocationHandle handle;
    int code =
        (int)cuda->cuMemImportFromShareableHandle(&handle, (void *)(uintptr_t)fd, cudaMemHandleTypePosixFileDescriptor);
    if (code != 0)
        return psm_cuda_fail(code, "share", rank, owner_rank,
                             "importing memory 0x%" PRIx64 " of rank %d (process %" PRIu32 ") by its descriptor",
                             share->id, owner_rank, share->owner_pid);
    psm_status status = vmm_map(host, handle, memory);
    code = (int)cuda->cuMemRelease(handle);
    if (status == PSM_OK && code != 0) status = psm_cuda_fail(code, "share", rank, owner_rank, "cuMemRelease");
    memory->ptr = (char *)memory->base + share->offset;
    return status;
}

/* ---- create ---- */

static psm_status malloc_make(const struct psm_host *host, struct psm_memory *memory)
{
    const struct psm_cuda *cuda = cuda_of(host);
    bool ipc = memory->kind == PSM_SHARE_CUDA_IPC;
    uint64_t bytes = ipc ? (memory->size + IPC_BLOCK - 1) / IPC_BLOCK * IPC_BLOCK : memory->size;
    PSM_CUDA(cuda, "share", rank_of(host), -1, cudaMalloc(&memory->base, bytes));
    memory->ptr = memory->base;
    psm_status status = PSM_OK;
    if (ipc) {
        cudaIpcMemHandle_t handle;
        _Static_assert(sizeof handle == sizeof memory->blob, "the blob has room for a handle");
        int code = (int)cuda->cudaIpcGetMemHandle(&handle, memory->base);
        if (code != 0)
            status = psm_cuda_fail(code, "share", rank_of(host), -1, "cudaIpcGetMemHandle(%p)", memory->base);
        else
            memcpy(memory->blob, &handle, sizeof handle);
    } else {
        status = direct_add(memory, true);
    }
    if (status != PSM_OK) cuda->cudaFree(memory->base);
    return status;
}

/* Pin a segment of either end: this makes copies from it asynchronous. */
static psm_status pin(const struct psm_host *host, struct psm_memory *memory)
{
    const struct psm_cuda *cuda = cuda_of(host);
    memory->ptr = memory->base = memory->segment.data;
    int code = (int)cuda->cudaHostRegister(memory->base, memory->size, cudaHostRegisterPortable);
    /* The other end of a connection within this process has already pinned the same mapping. */
    if (code == PSM_CUDA_HOST_MEMORY_ALREADY_REGISTERED) {
        cuda->cudaGetLastError();
        return PSM_OK;
    }
    if (code != 0) {
        psm_status status =
            psm_cuda_fail(code, "share", rank_of(host), -1, "cudaHostRegister of %" PRIu64 " bytes", memory->size);
        psm_segment_close(&memory->segment);
        return status;
    }
    memory->pinned = true;
    return PSM_OK;
}

psm_status psm_memory_make(const struct psm_host *host, int kind, uint64_t size, const char *label,
                           struct psm_memory *memory)
{
    *memory = (struct psm_memory){.size = size,
                                  .kind = kind,
                                  .owner = true,
                                  .fd = -1,
                                  .id = psm_random64(),
                                  .device = is_host_kind(kind) ? -1 : host->ops->device(host->self),
                                  .owner_pid = (uint32_t)psm_proc_self()->pid,
                                  .segment = {.fd = -1}};
    struct psm_fault fault;
    psm_status status =
        psm_fault_before(&site_make, &(struct psm_fault_args){.rank = rank_of(host), .peer = -1}, "share", &fault);
    if (status == PSM_OK) switch (kind) {
        case PSM_SHARE_SAME_PROCESS:
        case PSM_SHARE_CUDA_IPC:
            status = malloc_make(host, memory);
            break;
        case PSM_SHARE_CUMEM:
            status = vmm_make(host, memory);
            break;
        case PSM_SHARE_MEMFD:
        case PSM_SHARE_POSIX:
            status = psm_segment_create(&memory->segment, kind, size, label);
            if (status == PSM_OK) {
                memory->id = memory->segment.id;
                status = pin(host, memory);
            }
            break;
        default:
            status = psm_fail(PSM_ERR_INVALID, "share", rank_of(host), -1, 0, "memory of kind %d for %s", kind, label);
        }
    if (status != PSM_OK) {
        *memory = (struct psm_memory){.fd = -1, .segment = {.fd = -1}};
        return status;
    }
    psm_msg_libpsm_memory_made(memory->id, psm_share_kind_name(kind), size, label, memory->device,
                               (uint64_t)(uintptr_t)memory->ptr);
    psm_fault_act_after(&fault);
    return PSM_OK;
}

void psm_memory_share(const struct psm_memory *memory, struct psm_share *share)
{
    if (is_host_kind(memory->kind)) {
        psm_segment_share(&memory->segment, share);
    } else {
        *share =
            (struct psm_share){.kind = (uint16_t)memory->kind,
                               .device = (int16_t)memory->device,
                               .owner_pid = memory->owner_pid,
                               .id = memory->id,
                               .size = memory->size,
                               .offset = memory->base ? (uint64_t)((char *)memory->ptr - (char *)memory->base) : 0};
        memcpy(share->blob, memory->blob, sizeof share->blob);
    }
    psm_msg_libpsm_memory_exported(share->id, psm_share_kind_name(share->kind), share->size, share->offset);
}

int psm_memory_fd(const struct psm_memory *memory)
{
    if (memory->kind == PSM_SHARE_CUMEM) return memory->fd;
    return memory->kind == PSM_SHARE_MEMFD ? memory->segment.fd : -1;
}

/* ---- map ---- */

static psm_status ipc_open(const struct psm_host *host, const struct psm_share *share, int owner_rank,
                           struct psm_memory *memory)
{
    memcpy(memory->blob, share->blob, sizeof memory->blob);
    cudaIpcMemHandle_t handle;
    memcpy(&handle, share->blob, sizeof handle);
    int code = psm_memory_take_kept(host, share, memory)
                   ? 0
                   : (int)cuda_of(host)->cudaIpcOpenMemHandle(&memory->base, handle, cudaIpcMemLazyEnablePeerAccess);
    if (code != 0)
        return psm_cuda_fail(code, "share", rank_of(host), owner_rank,
                             "opening the CUDA IPC handle of memory 0x%" PRIx64 " of rank %d (process %" PRIu32 ")",
                             share->id, owner_rank, share->owner_pid);
    memory->ptr = (char *)memory->base + share->offset;
    return PSM_OK;
}

static psm_status direct_map(const struct psm_host *host, const struct psm_share *share, struct psm_memory *memory)
{
    PSM_TRY(direct_use(share, memory));
    int mine = host->ops->device(host->self);
    if (memory->device < 0 || memory->device == mine) return PSM_OK;
    int code = (int)cuda_of(host)->cudaDeviceEnablePeerAccess(memory->device, 0);
    if (code == PSM_CUDA_PEER_ACCESS_ALREADY_ENABLED) {
        cuda_of(host)->cudaGetLastError();
        return PSM_OK;
    }
    if (code == 0) return PSM_OK;
    struct psm_error kept;
    psm_cuda_fail(code, "share", rank_of(host), -1, "cudaDeviceEnablePeerAccess of device %d to device %d", mine,
                  memory->device);
    kept = *psm_last_error();
    direct_drop(host, memory);
    return psm_fail_again(&kept);
}

psm_status psm_memory_map(const struct psm_host *host, const struct psm_share *share, int fd, int owner_rank,
                          struct psm_memory *memory)
{
    *memory = (struct psm_memory){.size = share->size,
                                  .kind = share->kind,
                                  .fd = -1,
                                  .id = share->id,
                                  .device = share->device,
                                  .owner_pid = share->owner_pid,
                                  .segment = {.fd = -1}};
    struct psm_fault fault;
    psm_status status = psm_fault_before(&site_map, &(struct psm_fault_args){.rank = rank_of(host), .peer = owner_rank},
                                         "share", &fault);
    if (status == PSM_OK && (share->size == 0 || share->offset > UINT64_MAX / 4 || share->size > UINT64_MAX / 4))
        status = psm_fail(PSM_ERR_PROTOCOL, "share", rank_of(host), owner_rank, 0,
                          "memory 0x%" PRIx64 " of rank %d has %" PRIu64 " bytes from %" PRIu64, share->id, owner_rank,
                          share->size, share->offset);
    if (status == PSM_OK) switch (share->kind) {
        case PSM_SHARE_SAME_PROCESS:
            status = direct_map(host, share, memory);
            break;
        case PSM_SHARE_CUMEM:
            status = vmm_import(host, share, fd, owner_rank, memory);
            break;
        case PSM_SHARE_CUDA_IPC:
            status = ipc_open(host, share, owner_rank, memory);
            break;
        case PSM_SHARE_MEMFD:
        case PSM_SHARE_POSIX:
            status = psm_segment_attach(&memory->segment, share, fd);
            if (status == PSM_OK) status = pin(host, memory);
            break;
        default:
            status = psm_fail(PSM_ERR_PROTOCOL, "share", rank_of(host), owner_rank, 0,
                              "rank %d shares memory of kind %u, which this library does not support", owner_rank,
                              share->kind);
        }
    if (status != PSM_OK) {
        *memory = (struct psm_memory){.fd = -1, .segment = {.fd = -1}};
        return psm_fail_at("share", rank_of(host), owner_rank, 0);
    }
    psm_msg_libpsm_memory_imported(memory->id, memory->owner_pid, psm_share_kind_name(share->kind), memory->size,
                                   (uint64_t)(uintptr_t)memory->ptr);
    psm_fault_act_after(&fault);
    return PSM_OK;
}

/* ---- the application's memory ---- */

static psm_status export_cumem(const struct psm_host *host, struct psm_memory *memory)
{
    const struct psm_cuda *cuda = cuda_of(host);
    CUmemGenericAllocationHandle handle;
    int code = (int)cuda->cuMemRetainAllocationHandle(&handle, memory->base);
    if (code != 0) return PSM_ERR_UNSUPPORTED; /* from cudaMalloc: CUDA IPC may work */
    code = (int)cuda->cuMemExportToShareableHandle(&memory->fd, handle, cudaMemHandleTypePosixFileDescriptor, 0);
    cuda->cuMemRelease(handle);
    if (code == 0) return PSM_OK;
    memory->fd = -1; /* it was created without that kind of handle */
    return PSM_ERR_UNSUPPORTED;
}

static psm_status export_host(const struct psm_host *host, struct psm_memory *memory, uint32_t allowed,
                              struct psm_share *share)
{
    void *begin;
    if (!(allowed & PSM_CAN_MEMFD) || !psm_alloc_find(memory->ptr, memory->size, share, &begin, &memory->fd))
        return psm_fail(PSM_ERR_UNSUPPORTED, "register", rank_of(host), -1, 0,
                        "registering %" PRIu64
                        " bytes at %p: this host memory cannot be shared with another process (memory of "
                        "psmP2pMemAlloc can, between ranks with memfds). It goes through the FIFO",
                        memory->size, memory->ptr);
    if (memory->fd < 0)
        return psm_fail_errno(errno, "register", rank_of(host), -1, "a descriptor of host memory for a peer");
    memory->kind = PSM_SHARE_MEMFD;
    memory->ptr = memory->base = begin;
    memory->size = share->size;
    psm_msg_libpsm_memory_exported(share->id, "memfd", share->size, share->offset);
    return PSM_OK;
}

static psm_status export_device(const struct psm_host *host, struct psm_memory *memory, uint32_t allowed);

psm_status psm_memory_export(const struct psm_host *host, void *ptr, uint64_t size, uint32_t allowed,
                             struct psm_memory *memory, struct psm_share *share)
{
    const struct psm_cuda *cuda = cuda_of(host);
    int rank = rank_of(host);
    *memory = (struct psm_memory){.size = size,
                                  .fd = -1,
                                  .id = psm_random64(),
                                  .ptr = ptr,
                                  .owner_pid = (uint32_t)psm_proc_self()->pid,
                                  .segment = {.fd = -1}};
    struct cudaPointerAttributes attributes;
    memset(&attributes, 0, sizeof attributes);
    PSM_CUDA(cuda, "register", rank, -1, cudaPointerGetAttributes(&attributes, ptr));
    bool on_device = attributes.type == cudaMemoryTypeDevice;
    memory->device = on_device ? attributes.device : -1;
    if (allowed & PSM_CAN_DIRECT) {
        memory->kind = PSM_SHARE_SAME_PROCESS;
        memory->base = ptr;
        PSM_TRY(direct_add(memory, false));
    } else if (on_device) {
        PSM_TRY(export_device(host, memory, allowed));
    } else {
        return export_host(host, memory, allowed, share);
    }
    psm_memory_share(memory, share);
    return PSM_OK;
}

static psm_status export_device(const struct psm_host *host, struct psm_memory *memory, uint32_t allowed)
{
    const struct psm_cuda *cuda = cuda_of(host);
    int rank = rank_of(host), code;
    void *ptr = memory->ptr;
    uint64_t size = memory->size;
    CUdeviceptr base = 0;
    size_t whole = 0;
    if (!cuda->cuMemGetAddressRange_v2)
        return psm_fail(PSM_ERR_UNSUPPORTED, "register", rank, -1, 0, "the driver has no cuMemGetAddressRange");
    code = (int)cuda->cuMemGetAddressRange_v2(&base, &whole, (CUdeviceptr)(uintptr_t)ptr);
    if (code != 0) return psm_cuda_fail(code, "register", rank, -1, "cuMemGetAddressRange(%p)", ptr);
    memory->base = (void *)(uintptr_t)base;
    uint64_t offset = (uint64_t)((char *)ptr - (char *)memory->base);
    if (size > whole || offset > whole - size)
        return psm_fail(PSM_ERR_INVALID, "register", rank, -1, 0,
                        "registering %" PRIu64 " bytes at %p: its allocation has %zu bytes from %p", size, ptr, whole,
                        memory->base);
    if ((allowed & PSM_CAN_CUMEM_FD) && cuda->cuMemRetainAllocationHandle && cuda->cuMemExportToShareableHandle &&
        export_cumem(host, memory) == PSM_OK) {
        memory->kind = PSM_SHARE_CUMEM;
        return PSM_OK;
    }
    if (allowed & PSM_CAN_CUDA_IPC) {
        cudaIpcMemHandle_t handle;
        code = (int)cuda->cudaIpcGetMemHandle(&handle, memory->base);
        if (code == 0) {
            memcpy(memory->blob, &handle, sizeof handle);
            memory->kind = PSM_SHARE_CUDA_IPC;
            return PSM_OK;
        }
        cuda->cudaGetLastError();
    }
    return psm_fail(PSM_ERR_UNSUPPORTED, "register", rank, -1, 0,
                    "registering %" PRIu64
                    " bytes at %p: it can be shared here neither by descriptor (which needs cuMemCreate with "
                    "POSIX_FILE_DESCRIPTOR) nor by CUDA IPC handle. It goes through the FIFO",
                    size, ptr);
}

/* ---- release ---- */

static int unmap(const struct psm_cuda *cuda, const struct psm_memory *memory)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)memory->base;
    int unmapped = (int)cuda->cuMemUnmap(at, memory->mapped);
    int freed = (int)cuda->cuMemAddressFree(at, memory->mapped);
    return unmapped ? unmapped : freed;
}

psm_status psm_memory_close(const struct psm_host *host, struct psm_memory *memory)
{
    if (memory->kind == PSM_SHARE_NONE) return PSM_OK;
    const struct psm_cuda *cuda = cuda_of(host);
    psm_msg_libpsm_memory_closed(memory->id,
                                 memory->owner ? "freed"
                                 : memory->mapped || memory->segment.mapping || memory->kind == PSM_SHARE_CUDA_IPC
                                     ? "unmapped"
                                     : "withdrawn",
                                 (uint64_t)(uintptr_t)memory->ptr);
    int code = 0;
    psm_status status = PSM_OK;
    const char *what = "cudaFree";
    bool exported = !memory->owner && memory->owner_pid == (uint32_t)psm_proc_self()->pid && !memory->mapped;
    switch (memory->kind) {
    case PSM_SHARE_SAME_PROCESS:
        status = direct_drop(host, memory);
        break;
    case PSM_SHARE_CUMEM:
        what = "cuMemUnmap";
        if (memory->mapped) code = unmap(cuda, memory);
        if (memory->fd >= 0) close(memory->fd);
        break;
    case PSM_SHARE_CUDA_IPC:
        if (memory->owner) {
            code = (int)cuda->cudaFree(memory->base);
        } else if (!exported) {
            what = "cudaIpcCloseMemHandle";
            code = (int)cuda->cudaIpcCloseMemHandle(memory->base);
        }
        break;
    default:
        what = "cudaHostUnregister";
        if (memory->pinned) code = (int)cuda->cudaHostUnregister(memory->base);
        if (memory->fd >= 0) close(memory->fd);
        psm_segment_close(&memory->segment);
    }
    if (code != 0)
        status = psm_cuda_fail(code, "free", rank_of(host), -1, "%s of memory 0x%" PRIx64 " at %p", what, memory->id,
                               memory->base);
    *memory = (struct psm_memory){.fd = -1, .segment = {.fd = -1}};
    return status;
}
