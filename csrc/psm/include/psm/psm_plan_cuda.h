/* An engine for plans: CUDA's streams and libpsm's proxy. */
#ifndef PSM_PLAN_CUDA_H
#define PSM_PLAN_CUDA_H

#include "psm_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Finds the connected connectors for the engine; may be called on any thread; NULL: there is none. connIndex 0: rings,
 * from each rank to the next and from the previous, channels 0 to n; 1: p2p. */
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

/* An engine on a rank's proxy. Streams and graphs come from the CUDA table; a kernel is a host function that waits
 * until the proxy has done its operations. Collectives are rings over memory that the host can access, of integers,
 * float32 and float64. A failed operation or an abort of the proxy aborts the communicator, and vice versa. The
 * caller's thread has the rank's device current. The engine copies the struct; its context, the connectors and the
 * state must stay valid. One communicator uses an engine; free the engine after the communicator. INVALID, CUDA,
 * NO_MEMORY. */
PSM_API psm_status psmPlanCudaEngine(psmProxyState *state, const struct psmPlanConnectors *connectors,
                                     const struct psmPlanEngine **engine);
PSM_API void psmPlanCudaEngineFree(const struct psmPlanEngine *engine);

#ifdef __cplusplus
}
#endif
#endif
