/* A byte FIFO in host memory between two processes or threads. One end sends, the other receives; neither makes a
 * system call. A short message costs the transfer of one cache line. Each end must be used by one thread at a time. */
#ifndef PSM_FIFO_H
#define PSM_FIFO_H

#include "psm_share.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct psmFifo psmFifo;

/* Creates a FIFO of `slots` slots (1 to 65536) of at most `slot_bytes` bytes each (1 to 1 GiB). Slots of more than
 * 64 KiB become slots of 64 KiB, 16 at least: larger ones are slower. kind: PSM_SHARE_MEMFD or PSM_SHARE_POSIX. The
 * creator may send or receive. PSM_ERR_INVALID, NO_RESOURCE, NO_MEMORY. */
PSM_API psm_status psmFifoCreate(int kind, uint32_t slots, uint32_t slot_bytes, psmFifo **fifo);
/* What the other end needs: the share, and for PSM_SHARE_MEMFD the descriptor, which the FIFO keeps owning (otherwise
 * -1). */
PSM_API psm_status psmFifoShare(const psmFifo *fifo, struct psm_share *share, int *fd);
/* Attaches the other end. fd: the caller keeps it; -1 for PSM_SHARE_POSIX. PSM_ERR_MISMATCH, with both values in the
 * text, if slots or slot_bytes differ from the creator's. */
PSM_API psm_status psmFifoAttach(const struct psm_share *share, int fd, uint32_t slots, uint32_t slot_bytes,
                                 psmFifo **fifo);
/* Sends up to one slot of `bytes` bytes. Returns how many; 0: all slots are full, or bytes is 0. Never waits. */
PSM_API size_t psmFifoTrySend(psmFifo *fifo, const void *data, size_t bytes);
/* Copies the next slot out, up to `capacity` bytes; the next call returns the rest. Returns how many bytes; 0: the FIFO
 * is empty. Never waits. SIZE_MAX: the other end wrote invalid data (PSM_ERR_PROTOCOL in psm_last_error()). */
PSM_API size_t psmFifoTryReceive(psmFifo *fifo, void *buffer, size_t capacity);
PSM_API void psmFifoClose(psmFifo *fifo); /* accepts NULL */

#ifdef __cplusplus
}
#endif
#endif
