/* An engine for plans: CUDA's streams and libpsm's proxy. */
#ifndef PSM_PLAN_CUDA_H
#define PSM_PLAN_CUDA_H

#include "psm_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the engine finds connectors that are connected, on any thread; NULL: there is none. connIndex 0: of rings, from
 * each rank to the next and from the one before, channels 0 to n; 1: of p2p. */
struct psmPlanConnectors {
    psmP2pConnector *(*find)(void *context, int channel, int peer, int send, int connIndex);
    void *context;
};
/* A table of them, for find: [((channel * nRanks + peer) * 2 + send) * 2 + connIndex]. */
struct psmPlanConnectorTable {
    uint32_t size;
    int32_t nChannels, nRanks;
    psmP2pConnector *const *connectors;
};
PSM_API psmP2pConnector *psmPlanFindConnector(void *table, int channel, int peer, int send, int connIndex);

/* An engine over a rank's proxy. Streams and graphs are those of the CUDA table; a kernel is a host function, which
 * waits until the proxy has carried out its operations. Collectives are rings over memory that the host can reach, of
 * integers, float32 and float64. An operation that fails, and an abort of the proxy, abort the communicator, and the
 * other way round. The caller's thread has the rank's device current. The engine copies the struct; what its context
 * points to, connectors and state have to stay. One communicator uses an engine; free it after that. INVALID, CUDA,
 * NO_MEMORY. */
PSM_API psm_status psmPlanCudaEngine(psmProxyState *state, const struct psmPlanConnectors *connectors,
                                     const struct psmPlanEngine **engine);
PSM_API void psmPlanCudaEngineFree(const struct psmPlanEngine *engine);

#ifdef __cplusplus
}
#endif
#endif
