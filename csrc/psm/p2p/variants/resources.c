/* Variants that lose what a connection needs, or do not release it. */
#include <stddef.h>

#include "p2p/variants/p2p_variants.h"

/* ---- directptr: transportResources is a buffer; no local info holds a stream ---- */

static psm_status connect_direct(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                 void *resp, int respSize, int *done)
{
    struct psmP2pLocalInfo *local = connection->transportResources;
    PSM_TRY(psm_p2p_proxy_connect(connection, state, req, reqSize, resp, respSize, done));
    if (!*done) return PSM_OK;
    cudaStream_t none = local->conn.stream;
    local->conn.stream = 0;
    PSM_CUDA(local->conn.cuda, "connect", local->conn.rank, local->conn.peer, cudaStreamDestroy(none));
    return PSM_OK;
}

static psm_status free_direct(psmProxyConnection *connection, psmProxyState *state)
{
    struct psmP2pLocalInfo *local = connection->transportResources;
    if (local && !local->conn.stream)
        while (local->conn.made > 0) local->conn.cuda->cudaEventDestroy(local->conn.events[--local->conn.made]);
    return psm_p2p_proxy_free(connection, state);
}

PSM_COMMS(direct, psm_p2p_proxy_setup, connect_direct, free_direct);
PSM_COMMS(leaks, psm_p2p_proxy_setup, psm_p2p_proxy_connect, psm_conn_free_nothing);

static const struct psmP2pVariant variants[] = {
    {.size = sizeof(struct psmP2pVariant),
     .name = "directptr",
     .summary = "the connection's resources are used as a buffer: it has no stream, so copies go to the legacy stream",
     .outcome = "PSM307: hangs where the application's stream is legacy or blocking; else passes",
     .declared = PSM_DECLARED(.verdict = PSM_VERDICT_HUNG, .codes = "PSM307", .shows = PSM_SHOWS_SYNC_STREAM),
     .wrong = 1,
     .send = &direct_send,
     .recv = &direct_recv},
    {.size = sizeof(struct psmP2pVariant), PSM_WRONG_NO_FREE, .send = &leaks_send, .recv = &leaks_recv},
};
PSM_VARIANTS(variants)
