/* Memory of other processes by 64-byte handles: a handle names a descriptor of a living process, which the opener
 * reaches through /proc. Nothing in a handle is trusted before it is compared with what that descriptor really is. */
#define _GNU_SOURCE
#include "memory/hc_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint32_t MAGIC = 0x43697068;

int hc_ipc_name_of(int memfd, uint64_t offset, uint64_t size, uint64_t extra, struct hc_ipc_name *name)
{
    struct stat st;
    struct hc_trailer t;
    if (fstat(memfd, &st) != 0 || st.st_size < (off_t)HC_PAGE ||
        pread(memfd, &t, sizeof t, st.st_size - (off_t)HC_PAGE) != (ssize_t)sizeof t)
        return PSM_CUDA_INVALID_VALUE;
    *name = (struct hc_ipc_name){.magic = MAGIC,
                                 .kind = (uint16_t)t.kind,
                                 .pid = getpid(),
                                 .fd = memfd,
                                 .start_time = t.start_time,
                                 .inode = st.st_ino,
                                 .offset = offset,
                                 .size = size,
                                 .id = t.id,
                                 .extra = extra};
    return 0;
}

static int refuse(const struct hc_ipc_name *name, int code, const char *why)
{
    hc_say_ipc(name->pid, why);
    return code;
}

int hc_ipc_open(const struct hc_ipc_name *name, enum hc_memfd_kind kind, int *fd, struct hc_trailer *t)
{
    if (name->magic != MAGIC || name->kind != kind || name->pid <= 0 || name->fd < 0) {
        hc_say_ipc(0, "pass the handle that the Get function wrote");
        return PSM_CUDA_INVALID_HANDLE;
    }
    if (name->pid == getpid() && name->start_time == hc_start_time(getpid()))
        return refuse(name, PSM_CUDA_INVALID_CONTEXT,
                      "it belongs to this process, and CUDA opens only handles of other processes");
    if (hc_start_time(name->pid) != name->start_time)
        return refuse(name, PSM_CUDA_INVALID_HANDLE, "the process that made it is gone");
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name->pid, name->fd);
    /* Check it before opening: opening a pipe or a device could block or have effects. */
    if (stat(path, &st) != 0) {
        if (errno == EACCES || errno == EPERM)
            return refuse(name, PSM_CUDA_MAP_FAILED, "not allowed to open it; run both as one user");
        return refuse(name, PSM_CUDA_INVALID_HANDLE, "the process has freed the memory");
    }
    if (st.st_ino != name->inode || !S_ISREG(st.st_mode))
        return refuse(name, PSM_CUDA_INVALID_HANDLE,
                      "the process has freed the memory; its descriptor is now another file");
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0) return refuse(name, PSM_CUDA_MAP_FAILED, strerror(errno));
    int rc = hc_memfd_check(*fd, kind, t);
    if (rc == PSM_CUDA_INVALID_VALUE) rc = PSM_CUDA_INVALID_HANDLE;
    if (rc == 0 && (t->id != name->id || name->offset > t->size || name->size > t->size - name->offset))
        rc = refuse(name, PSM_CUDA_INVALID_HANDLE, "it does not match the memory that it names");
    if (rc) close(*fd);
    return rc;
}

/* ---- pages for interprocess events */

static int map_page(struct hc_shared_page *shared)
{
    void *page = mmap(NULL, HC_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, shared->memfd, 0);
    if (page == MAP_FAILED) {
        close(shared->memfd);
        return PSM_CUDA_OUT_OF_MEMORY;
    }
    shared->page = page;
    return 0;
}

int hc_shared_page_new(int device, struct hc_shared_page *shared)
{
    struct hc_trailer t = {.size = HC_PAGE, .kind = HC_MEMFD_SHARED_PAGE};
    shared->memfd = hc_memfd_new(&t, device);
    if (shared->memfd >= 0) return map_page(shared);
    hc_say_no_descriptor(errno);
    return PSM_CUDA_OUT_OF_MEMORY;
}

int hc_shared_page_open(const struct hc_ipc_name *name, struct hc_shared_page *shared, struct hc_trailer *t)
{
    int rc = hc_ipc_open(name, HC_MEMFD_SHARED_PAGE, &shared->memfd, t);
    if (rc) return rc;
    if (t->size != HC_PAGE) {
        close(shared->memfd);
        return refuse(name, PSM_CUDA_INVALID_HANDLE, "it is not one page");
    }
    return map_page(shared);
}

void hc_shared_page_end(struct hc_shared_page *shared)
{
    munmap(shared->page, HC_PAGE);
    close(shared->memfd);
}

/* ---- memory handles */

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
        return refuse(name, PSM_CUDA_PEER_ACCESS_UNSUPPORTED, "its GPU is not a peer of the current device");
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

CUresult hc_cuIpcGetMemHandle(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    int rc = hc_context_require();
    return rc ? rc : hc_cudaIpcGetMemHandle(pHandle, (void *)(uintptr_t)dptr);
}

cudaError_t hc_cudaIpcOpenMemHandle(void **devPtr, cudaIpcMemHandle_t handle, unsigned int flags)
{
    struct hc_ipc_name name;
    uintptr_t address;
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

/* The form from before CUDA 11; a static runtime of 11.0 still calls it. */
CUresult hc_cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    return hc_cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

cudaError_t hc_cudaIpcCloseMemHandle(void *devPtr)
{
    return close_handle((uintptr_t)devPtr);
}

CUresult hc_cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    int rc = hc_context_require();
    return rc ? rc : close_handle((uintptr_t)dptr);
}
