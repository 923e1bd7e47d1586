/* Between the UDS thread (uds.c) and the questions this rank asks (fetch.c). */
#ifndef PSM_PROXY_FD_H
#define PSM_PROXY_FD_H

#include <stddef.h>

#include "proxy/proxy.h"

/* 0, or an errno. fd -1: none goes with it. */
int psm_datagram_send(int socket, const char *name, const void *bytes, size_t size, int fd);
/* Sends a datagram that was held back, and forgets it. uds.lock is held. */
void psm_datagram_held(psmProxyState *state, struct psm_held **held);
/* *fd is taken over (and set to -1) when a question waits for it. */
void psm_fetch_answered(psmProxyState *state, const char *from, const struct psm_wire_fd_answer *answer, int *fd,
                        bool cut);
/* Sends what is due, ends what is too old. Nanoseconds until it wants to be called again. */
uint64_t psm_fetch_work(psmProxyState *state);
void psm_fetch_end_all(psmProxyState *state);

#endif
