/* What a peer needs to attach shared memory: shareable, fixed width, no pointer, no handle, no descriptor. */
#ifndef PSM_SHARE_H
#define PSM_SHARE_H

#include "psm.h"

#ifdef __cplusplus
extern "C" {
#endif

enum psm_share_kind {
    PSM_SHARE_NONE = 0,
    PSM_SHARE_SAME_PROCESS = 1, /* id names a segment of this process */
    PSM_SHARE_MEMFD = 2,        /* host memory; the fd is fetched over the UDS by id */
    PSM_SHARE_POSIX = 3,        /* host memory; `name` in /dev/shm, unlinked as soon as the peer has attached */
    PSM_SHARE_CUMEM = 4,        /* device memory; the fd is fetched over the UDS by id */
    PSM_SHARE_CUDA_IPC = 5      /* device memory; `blob` is a cudaIpcMemHandle_t */
};

/* 96 bytes. id: random 64 bits, unique in the owner. The owner checks it when a peer requests the fd. */
struct psm_share {
    uint16_t kind;
    int16_t device; /* of device memory; -1: host memory */
    uint32_t owner_pid;
    uint64_t id;
    uint64_t size;    /* usable bytes from offset */
    uint64_t offset;  /* in the allocation */
    uint8_t blob[64]; /* CUDA IPC handle, or the name, NUL-ended */
};
PSM_SHAREABLE(psm_share, 96);

#ifdef __cplusplus
}
#endif
#endif
