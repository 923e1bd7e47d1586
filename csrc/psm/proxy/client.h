/* Shared by the calling side (client.c) and the code that connects it (dial.c). */
#ifndef PSM_PROXY_CLIENT_H
#define PSM_PROXY_CLIENT_H

#include "proxy/proxy.h"

/* A connection to the proxy of `address`, after the exchange of hellos. Waits until the host's deadline. */
psm_status psm_client_make(psmProxyState *state, const struct psmProxyAddress *address, struct psm_client **client);
/* Builds the error of a call of this type. id 0: no call was made. */
psm_status psm_client_aborted(psmProxyState *state, int type, int peer, psmOpId id);
psm_status psm_client_timed_out(psmProxyState *state, int type, const struct psm_client *client, psmOpId id,
                                const char *what);
/* Sleep until the socket is ready for `events`, or is closed, or the proxy has other work. */
void psm_client_sleep(psmProxyState *state, struct psm_client *client, short events, uint64_t ns);
/* Longest sleep: flags without a wake-up are polled in between. */
uint64_t psm_client_slice(struct psm_deadline deadline);

#endif
