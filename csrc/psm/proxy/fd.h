/* Shared by the UDS thread (uds.c) and this rank's requests for descriptors (fetch.c). */
#ifndef PSM_PROXY_FD_H
#define PSM_PROXY_FD_H

#include <stddef.h>

#include "proxy/proxy.h"

/* 0, or an errno. fd -1: sends no descriptor. */
int psm_datagram_send(int socket, const char *name, const void *bytes, size_t size, int fd);
/* Sends a datagram that was held back, and drops it. uds.lock is held. */
void psm_datagram_held(psmProxyState *state, struct psm_held **held);
/* Takes *fd over (and sets it to -1) if a request waits for it. */
void psm_fetch_answered(psmProxyState *state, const char *from, const struct psm_wire_fd_answer *answer, int *fd,
                        bool cut);
/* Sends what is due, ends what is too old. Returns the nanoseconds until the next call is due. */
uint64_t psm_fetch_work(psmProxyState *state);
void psm_fetch_end_all(psmProxyState *state);

#endif
