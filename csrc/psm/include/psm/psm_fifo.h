/* A FIFO of bytes in host memory between two processes, or threads: one sends, one receives, neither makes a system
   call. A short message is one cache line that changes hands. Each end is used by one thread at a time. */
#ifndef PSM_FIFO_H
#define PSM_FIFO_H

#include "psm_share.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct psmFifo psmFifo;

/* Makes one: `slots` (1 to 65536) of at most `slot_bytes` bytes (1 to 1 GiB). kind: PSM_SHARE_MEMFD or PSM_SHARE_POSIX.
   Who makes it may send or receive. PSM_ERR_INVALID, NO_RESOURCE, NO_MEMORY. */
PSM_API psm_status psmFifoCreate(int kind, uint32_t slots, uint32_t slot_bytes, psmFifo **fifo);
/* What the other end needs: the share, and for PSM_SHARE_MEMFD the descriptor, which stays the FIFO's (-1 else). */
PSM_API psm_status psmFifoShare(const psmFifo *fifo, struct psm_share *share, int *fd);
/* The other end. fd: not taken over, -1 for PSM_SHARE_POSIX. A number of slots or bytes that is not that of the maker
   is PSM_ERR_MISMATCH, with both. */
PSM_API psm_status psmFifoAttach(const struct psm_share *share, int fd, uint32_t slots, uint32_t slot_bytes,
                                 psmFifo **fifo);
/* Takes up to a slot of `bytes` bytes. Returns how many; 0: all slots are full, or bytes is 0. Never waits. */
PSM_API size_t psmFifoTrySend(psmFifo *fifo, const void *data, size_t bytes);
/* Copies the next slot out, or as much as `capacity` holds; the rest comes with the next call. Returns how many bytes;
   0: nothing is there. Never waits. SIZE_MAX: the other end wrote what no sender writes (PSM_ERR_PROTOCOL in
   psm_last_error()). */
PSM_API size_t psmFifoTryReceive(psmFifo *fifo, void *buffer, size_t capacity);
PSM_API void psmFifoClose(psmFifo *fifo); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
