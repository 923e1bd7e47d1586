/* An engine for plans: CUDA's streams and libpsm's proxy. */
#ifndef PSM_PLAN_CUDA_H
#define PSM_PLAN_CUDA_H

#include "psm_plan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An engine over a rank's proxy and the connectors that `connector` gives (channel, peer, 1: send; connIndex 0 for
 * collectives, 1 for p2p). Collectives are rings over host memory. The engine copies the struct; free it after the
 * communicator. */
struct psmPlanConnectors {
    psmP2pConnector *(*find)(void *context, int channel, int peer, int send, int connIndex);
    void *context;
};
PSM_API psm_status psmPlanCudaEngine(psmProxyState *state, const struct psmPlanConnectors *connectors,
                                     const struct psmPlanEngine **engine);
PSM_API void psmPlanCudaEngineFree(const struct psmPlanEngine *engine);

#ifdef __cplusplus
}
#endif
#endif
