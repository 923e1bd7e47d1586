/* Variants that do not keep what a connection needs, or do not give it back. */
#include <stddef.h>

#include "p2p/variants/variants.h"

/* ---- directptr: transportResources is a buffer; no local info holds a stream ---- */

static psm_status connect_direct(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                 void *resp, int respSize, int *done)
{
    struct psmP2pLocalInfo *local = connection->transportResources;
    PSM_TRY(psm_p2p_proxy_connect(connection, state, req, reqSize, resp, respSize, done));
    if (!*done) return PSM_OK;
    cudaStream_t none = local->stream;
    local->stream = 0;
    PSM_CUDA(local->cuda, "connect", local->rank, local->peer, cudaStreamDestroy(none));
    return PSM_OK;
}

static psm_status free_direct(psmProxyConnection *connection, psmProxyState *state)
{
    struct psmP2pLocalInfo *local = connection->transportResources;
    if (local && !local->stream)
        while (local->made > 0) local->cuda->cudaEventDestroy(local->events[--local->made]);
    return psm_p2p_proxy_free(connection, state);
}

/* ---- no-free ---- */

static psm_status free_nothing(psmProxyConnection *connection, psmProxyState *state)
{
    (void)state;
    connection->transportResources = NULL;
    return PSM_OK;
}

PSM_COMMS(direct, psm_p2p_proxy_setup, connect_direct, free_direct);
PSM_COMMS(leaks, psm_p2p_proxy_setup, psm_p2p_proxy_connect, free_nothing);

static const struct psmP2pVariant variants[] = {
    {.size = sizeof(struct psmP2pVariant),
     .name = "directptr",
     .summary = "the connection's resources are taken for a buffer: no stream of its own, copies go to the legacy one",
     .outcome = "PSM307: hangs where the application's stream is legacy or blocking; else passes",
     .wrong = 1,
     .send = &direct_send,
     .recv = &direct_recv},
    {.size = sizeof(struct psmP2pVariant),
     .name = "no-free",
     .summary = "Free forgets the connection and gives nothing back",
     .outcome = "PSM505: data is right; stream, events and memory are left to the end of the process",
     .wrong = 1,
     .send = &leaks_send,
     .recv = &leaks_recv},
};
PSM_VARIANTS(variants)
