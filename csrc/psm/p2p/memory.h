/* Memory that one process makes and others use: device memory and pinned host memory, by every kind of share. A
 * psm_memory is local: pointers of this process. What a peer needs is a psm_share; its use of it is a psm_memory of
 * its own. */
#ifndef PSM_P2P_MEMORY_H
#define PSM_P2P_MEMORY_H

#include "core/internal.h"
#include "psm/psm_p2p.h"
#include "shm/segment.h"

struct psm_memory {
    void *ptr;       /* what copies use: the start of the shared part */
    void *base;      /* what is unmapped, closed or freed */
    uint64_t size;   /* from ptr */
    uint64_t mapped; /* of a VMM mapping: bytes from base */
    uint64_t id;
    int kind, device; /* enum psm_share_kind; -1: host memory */
    bool owner;
    bool pinned;
    int fd;                     /* CUMEM, owner: the exported descriptor; -1 else */
    struct psm_segment segment; /* host memory */
    struct psm_direct *direct;  /* SAME_PROCESS: the entry that counts users */
    uint32_t owner_pid;
    uint8_t blob[64];
};

/* Make memory for a FIFO on the current device, of zeros for host memory. label: for the log. PSM_ERR_CUDA,
 * NO_RESOURCE, UNSUPPORTED. */
psm_status psm_memory_make(const struct psm_host *host, int kind, uint64_t size, const char *label,
                           struct psm_memory *memory);
/* What a peer needs to map it. The owner offers memory->fd, or segment.fd, under share->id. */
void psm_memory_share(const struct psm_memory *memory, struct psm_share *share);
/* The descriptor to offer; -1: the share needs none. */
int psm_memory_fd(const struct psm_memory *memory);
/* Whether a peer in another process needs a descriptor for such a share. */
bool psm_share_needs_fd(int kind);
/* Map what a peer shares, for copies by the current device. fd is not taken over. */
psm_status psm_memory_map(const struct psm_host *host, const struct psm_share *share, int fd, int owner_rank,
                          struct psm_memory *memory);
/* Share memory of the application that lies at `ptr`: SAME_PROCESS, MEMFD, CUMEM or CUDA_IPC, the first that `allowed`
 * (PSM_CAN_...) and the memory admit. memory->ptr and size are what is shared: all of it for host memory. The memory
 * stays the application's. PSM_ERR_UNSUPPORTED: no kind does. */
psm_status psm_memory_export(const struct psm_host *host, void *ptr, uint64_t size, uint32_t allowed,
                             struct psm_memory *memory, struct psm_share *share);
/* Host memory of psmP2pMemAlloc that these bytes lie in: its share, its begin and a descriptor for the caller to close.
 * False: in none. */
bool psm_alloc_find(const void *ptr, uint64_t size, struct psm_share *share, void **begin, int *fd);
/* Give it up: unmap, close, free. Zeroes it. The first failure is returned, all is tried. A zeroed one is fine. */
psm_status psm_memory_close(const struct psm_host *host, struct psm_memory *memory);
const char *psm_share_kind_name(int kind);

#endif
