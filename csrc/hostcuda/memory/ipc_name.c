/* Memory and events of other processes by 64-byte handles: a handle names a descriptor of a living process, which the
 * opener reaches through /proc. Nothing in a handle is trusted before it is compared with what that descriptor really
 * is. */
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

int hc_ipc_refuse(const struct hc_ipc_name *name, int code, const char *why)
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
        return hc_ipc_refuse(name, PSM_CUDA_INVALID_CONTEXT,
                             "it belongs to this process, and CUDA opens only handles of other processes");
    if (hc_start_time(name->pid) != name->start_time)
        return hc_ipc_refuse(name, PSM_CUDA_INVALID_HANDLE, "the process that made it is gone");
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", name->pid, name->fd);
    /* Check it before opening: opening a pipe or a device could block or have effects. */
    if (stat(path, &st) != 0) {
        if (errno == EACCES || errno == EPERM)
            return hc_ipc_refuse(name, PSM_CUDA_MAP_FAILED, "not allowed to open it; run both as one user");
        return hc_ipc_refuse(name, PSM_CUDA_INVALID_HANDLE, "the process has freed the memory");
    }
    if (st.st_ino != name->inode || !S_ISREG(st.st_mode))
        return hc_ipc_refuse(name, PSM_CUDA_INVALID_HANDLE,
                             "the process has freed the memory; its descriptor is now another file");
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0) return hc_ipc_refuse(name, PSM_CUDA_MAP_FAILED, strerror(errno));
    int rc = hc_memfd_check(*fd, kind, t);
    if (rc == PSM_CUDA_INVALID_VALUE) rc = PSM_CUDA_INVALID_HANDLE;
    if (rc == 0 && (t->id != name->id || name->offset > t->size || name->size > t->size - name->offset))
        rc = hc_ipc_refuse(name, PSM_CUDA_INVALID_HANDLE, "it does not match the memory that it names");
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
        return hc_ipc_refuse(name, PSM_CUDA_INVALID_HANDLE, "it is not one page");
    }
    return map_page(shared);
}

void hc_shared_page_end(struct hc_shared_page *shared)
{
    munmap(shared->page, HC_PAGE);
    close(shared->memfd);
}
