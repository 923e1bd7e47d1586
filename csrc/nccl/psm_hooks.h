/* Functions that a plain NCCL tree calls so that its p2p operations use the proxy thread and the copy engine instead of
 * a kernel. docs/linking.md shows where. A tree with its own PassSM hooks does not need this file. */
#ifndef PSM_NCCL_HOOKS_H
#define PSM_NCCL_HOOKS_H

#include <atomic>

#include "comm.h"
#include "proxy.h"
#include "register.h"
#include "transport.h"

#define TRANSPORT_PSM_P2P 5 /* index of psmP2pTransport in ncclTransports */
extern struct ncclTransport psmP2pTransport;

/* The operations of a plan, and the host function on the application's stream that waits for them. */
struct psmSyncCondition {
    std::atomic<int> proxyOpCount, proxyReadyEvent;
};

/* NCCL_PASS_SM=1. */
bool psmOn();

/* selectTransport: sets *taken if psmP2pTransport serves these two ranks. */
ncclResult_t psmSelect(struct ncclComm *comm, struct ncclTopoGraph *graph, struct ncclConnect *connect,
                       struct ncclConnector *connector, int channelId, int peer, int connIndex, bool send, bool *taken);

/* addP2pToPlan, for each part: sets *taken if both operations are PSM's, or a copy to self. If so, proxyOps are filled
 * in (nsteps 0: none), and nothing is left for a kernel. */
ncclResult_t psmTakePart(struct ncclComm *comm, struct ncclKernelPlan *plan, int channelId, int part,
                         struct ncclDevWorkP2p *work, struct ncclProxyOp *proxyOps, bool *taken);

/* ncclLaunchKernel: enqueues copies to self and the host function on the stream. Sets *done if the plan has nothing
 * else. */
ncclResult_t psmLaunch(struct ncclComm *comm, struct ncclKernelPlan *plan, cudaStream_t stream, bool *done);

/* ncclRegisterP2pIpcBuffer, and the end of a registration. */
ncclResult_t psmRegister(struct ncclComm *comm, void *buffer, size_t size, int peer, int *registered, void **address);
void psmDeregister(struct ncclComm *comm, struct ncclReg *record);

#endif
