/* Application memory that can be registered in every mode. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "p2p/memory.h"
#include "psm_cuda.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct allocated {
    struct allocated *next;
    struct psm_memory memory;
} *allocated;

/* cuMemCreate if its descriptors can be exported, else cudaMalloc with an IPC handle; a rank that shares only by IPC
 * has no use for the first. */
static psm_status make_device(const struct psm_host *host, size_t size, struct psm_memory *memory)
{
    psm_status status = PSM_ERR_UNSUPPORTED;
    if (host->ops->settings(host->self)->share != PSM_SHARE_CUDA_IPC)
        status = psm_memory_make(host, PSM_SHARE_CUMEM, size, "application", memory);
    if (status == PSM_ERR_UNSUPPORTED || status == PSM_ERR_CUDA)
        status = psm_memory_make(host, PSM_SHARE_CUDA_IPC, size, "application", memory);
    return status;
}

psm_status psmP2pMemAlloc(const struct psm_host *host, int on_host, size_t size, void **ptr)
{
    if (!host || size == 0 || !ptr)
        return psm_fail(PSM_ERR_INVALID, "alloc", -1, -1, 0, "psmP2pMemAlloc of %zu bytes, or an argument is NULL",
                        size);
    struct allocated *one = calloc(1, sizeof *one);
    if (!one) return psm_fail(PSM_ERR_NO_MEMORY, "alloc", -1, -1, 0, "no memory for the record of an allocation");
    psm_status status = on_host ? psm_memory_make(host, PSM_SHARE_MEMFD, size, "application", &one->memory)
                                : make_device(host, size, &one->memory);
    if (status != PSM_OK) {
        free(one);
        return status;
    }
    pthread_mutex_lock(&lock);
    one->next = allocated;
    allocated = one;
    pthread_mutex_unlock(&lock);
    *ptr = one->memory.ptr;
    return PSM_OK;
}

psm_status psmP2pMemFree(const struct psm_host *host, void *ptr)
{
    if (!ptr) return PSM_OK;
    pthread_mutex_lock(&lock);
    struct allocated **at = &allocated;
    while (*at && (*at)->memory.ptr != ptr) at = &(*at)->next;
    struct allocated *one = *at;
    if (one) *at = one->next;
    pthread_mutex_unlock(&lock);
    if (!one)
        return psm_fail(PSM_ERR_INVALID, "free", -1, -1, 0,
                        "psmP2pMemFree(%p): not a result of psmP2pMemAlloc, or freed before", ptr);
    psm_status status = psm_memory_close(host, &one->memory);
    free(one);
    return status;
}

bool psm_alloc_find(const void *ptr, uint64_t size, struct psm_share *share, void **begin, int *fd)
{
    pthread_mutex_lock(&lock);
    const struct allocated *one = allocated;
    for (; one; one = one->next) {
        const struct psm_memory *m = &one->memory;
        uint64_t offset = (uint64_t)((uintptr_t)ptr - (uintptr_t)m->ptr);
        if (m->kind == PSM_SHARE_MEMFD && size <= m->size && offset <= m->size - size) break;
    }
    if (one) {
        psm_segment_share(&one->memory.segment, share);
        *begin = one->memory.ptr;
        *fd = fcntl(one->memory.segment.fd, F_DUPFD_CLOEXEC, 0);
    }
    pthread_mutex_unlock(&lock);
    return one != NULL;
}
