/* Between the calling side (client.c) and how it connects (dial.c). */
#ifndef PSM_PROXY_CLIENT_H
#define PSM_PROXY_CLIENT_H

#include "proxy/proxy.h"

/* A connection to the proxy of `address`, greeted. Waits until the host's deadline. */
psm_status psm_client_make(psmProxyState *state, const struct psmProxyAddress *address, struct psm_client **client);
/* Errors of a call of this type. id 0: none was made. */
psm_status psm_client_aborted(psmProxyState *state, int type, int peer, psmOpId id);
psm_status psm_client_timed_out(psmProxyState *state, int type, const struct psm_client *client, psmOpId id,
                                const char *what);
/* Sleep until the socket can do `events`, or is closed, or the proxy has to look around. */
void psm_client_sleep(psmProxyState *state, struct psm_client *client, short events, uint64_t ns);
/* How long to sleep at most: flags that nobody signals are looked at between. */
uint64_t psm_client_slice(struct psm_deadline deadline);

#endif
