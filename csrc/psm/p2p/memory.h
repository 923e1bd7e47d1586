/* Memory that one process creates and others use: device memory and pinned host memory, with every kind of share. A
 * psm_memory is local: pointers of this process. A peer receives a psm_share, and uses it through a psm_memory of its
 * own. */
#ifndef PSM_P2P_MEMORY_H
#define PSM_P2P_MEMORY_H

#include "core/internal.h"
#include "psm/psm_p2p.h"
#include "shm/segment.h"

struct psm_memory {
    void *ptr;       /* what copies use: start of the shared part */
    void *base;      /* what is unmapped, closed or freed */
    uint64_t size;   /* from ptr */
    uint64_t mapped; /* of a VMM mapping: bytes from base */
    uint64_t id;
    int kind, device; /* enum psm_share_kind; -1: host memory */
    bool owner;
    bool pinned;
    int fd;                     /* CUMEM, owner: the exported descriptor; otherwise -1 */
    struct psm_segment segment; /* host memory */
    struct psm_direct *direct;  /* SAME_PROCESS: the entry that counts users */
    uint32_t owner_pid;
    uint8_t blob[64];
};

/* Create memory for a FIFO on the current device; host memory is zeroed. label: for the log. PSM_ERR_CUDA, NO_RESOURCE,
 * UNSUPPORTED. */
psm_status psm_memory_make(const struct psm_host *host, int kind, uint64_t size, const char *label,
                           struct psm_memory *memory);
/* Returns what a peer needs to map it. The owner offers memory->fd, or segment.fd, under share->id. */
void psm_memory_share(const struct psm_memory *memory, struct psm_share *share);
/* The descriptor to offer; -1: the share needs none. */
int psm_memory_fd(const struct psm_memory *memory);
/* Whether a peer in another process needs a descriptor for such a share. */
bool psm_share_needs_fd(int kind);
/* Map a peer's share, for copies by the current device. The caller keeps fd. */
psm_status psm_memory_map(const struct psm_host *host, const struct psm_share *share, int fd, int owner_rank,
                          struct psm_memory *memory);
/* Share memory of the application at `ptr`: as SAME_PROCESS, MEMFD, CUMEM or CUDA_IPC, the first that both `allowed`
 * (PSM_CAN_...) and the memory support. memory->ptr and size are the shared part: all of it for host memory. The
 * application keeps the memory. PSM_ERR_UNSUPPORTED: no kind works. */
psm_status psm_memory_export(const struct psm_host *host, void *ptr, uint64_t size, uint32_t allowed,
                             struct psm_memory *memory, struct psm_share *share);
/* Finds the host memory of psmP2pMemAlloc that contains these bytes: its share, its start and a descriptor that the
 * caller closes. False: none. */
bool psm_alloc_find(const void *ptr, uint64_t size, struct psm_share *share, void **begin, int *fd);
/* Release it: unmap, close, free. Zeroes it. Tries every step and returns the first failure. Accepts a zeroed one. */
psm_status psm_memory_close(const struct psm_host *host, struct psm_memory *memory);
/* Keep a CUDA IPC mapping open until the connection `owner` is freed, for the next share of the same allocation; close
 * any other memory. Zeroes it. */
psm_status psm_memory_keep(const struct psm_host *host, const void *owner, struct psm_memory *memory);
/* Sets memory->base to such a mapping of what is shared. False: none is kept. */
bool psm_memory_take_kept(const struct psm_host *host, const struct psm_share *share, struct psm_memory *memory);
psm_status psm_memory_drop_kept(const struct psm_host *host, const void *owner);
const char *psm_share_kind_name(int kind);

#endif
