/* The functions that a plain NCCL tree calls: see psm_hooks.h. */
#include "psm_nccl.h"

#ifndef PSM_TREE_HOOKED

#include <sched.h>

#include "psm/plan_trace.h"

NCCL_PARAM(PassSm, "PASS_SM", 0);

bool psmOn()
{
    return ncclParamPassSm() == 1;
}

namespace
{

/* A plan's operations without a kernel. NCCL runs its callback when it reclaims the plan, which may be before the host
 * function has run: whichever comes last frees the condition. */
struct Plan {
    struct ncclCommCallback base;
    struct psmSyncCondition *sync;
    bool launched;
    struct Copy {
        void *to;
        const void *from;
        size_t bytes;
    };
    std::vector<Copy> copies;
};

ncclResult_t reclaim(struct ncclComm *, struct ncclCommCallback *callback)
{
    Plan *plan = reinterpret_cast<Plan *>(callback);
    if (!plan->launched) delete plan->sync;
    delete plan;
    return ncclSuccess;
}

Plan *plan_of(struct ncclKernelPlan *of, bool make)
{
    for (struct ncclCommCallback *c = ncclIntruQueueHead(&of->cleanupQueue); c; c = c->next)
        if (c->fn == reclaim) return reinterpret_cast<Plan *>(c);
    if (!make) return nullptr;
    Plan *plan = new Plan();
    plan->base.fn = reclaim;
    plan->sync = new psmSyncCondition();
    plan->sync->proxyOpCount = 0;
    plan->sync->proxyReadyEvent = 0;
    ncclIntruQueueEnqueue(&of->cleanupQueue, &plan->base);
    return plan;
}

/* 1 if the connection to that peer is PSM's; 0 if it is another transport's; -1: nothing to do. */
int is_psm(struct ncclComm *comm, int channelId, int peer, bool send, bool wanted)
{
    if (!wanted) return -1;
    struct ncclChannelPeer *ends = comm->channels[channelId].peers[peer];
    const struct ncclConnector *connector = send ? &ends->send[1] : &ends->recv[1];
    return connector->transportComm == (send ? &psmP2pTransport.send : &psmP2pTransport.recv);
}

void fill(struct ncclProxyOp *op, Plan *plan, bool send, int part, int parts, void *address, size_t bytes,
          int channelId)
{
    op->nsteps = 0;
    if (part >= parts) return;
    size_t begin = 0, end = 0;
    if (bytes > 0) ncclP2pPartBounds(parts, part, bytes, &begin, &end);
    op->sendbuff = send ? (uint8_t *)address + begin : nullptr;
    op->recvbuff = send ? nullptr : (uint8_t *)address + begin;
    op->sendMhandle = send ? plan->sync : nullptr;
    op->recvMhandle = send ? nullptr : plan->sync;
    op->nbytes = (ssize_t)(end - begin);
    op->reg = 0;
    op->nsteps = 1;
    op->channelId = (uint8_t)channelId;
    op->opCount = 1; /* p2p */
    plan->sync->proxyOpCount.fetch_add(1, std::memory_order_relaxed);
}

/* On the stream, after the application's work: from now on the operations may start. */
void CUDART_CB wait_for_proxy(void *user)
{
    struct psmSyncCondition *sync = static_cast<struct psmSyncCondition *>(user);
    sync->proxyReadyEvent.store(1, std::memory_order_release);
    while (sync->proxyOpCount.load(std::memory_order_acquire) > 0) sched_yield();
    delete sync;
}

} // namespace

ncclResult_t psmSelect(struct ncclComm *comm, struct ncclTopoGraph *graph, struct ncclConnect *connect,
                       struct ncclConnector *connector, int channelId, int peer, int connIndex, bool send, bool *taken)
{
    int can = 0;
    struct ncclPeerInfo *mine = comm->peerInfo + comm->rank, *theirs = comm->peerInfo + peer;
    *taken = false;
    /* Connections of p2p operations have index 1; collectives keep theirs. */
    if (!psmOn() || connIndex != 1 || graph) return ncclSuccess;
    NCCLCHECK(psmP2pTransport.canConnect(&can, comm, graph, mine, theirs));
    if (!can) return ncclSuccess;
    struct ncclTransportComm *transport = send ? &psmP2pTransport.send : &psmP2pTransport.recv;
    connector->transportComm = transport;
    NCCLCHECK(transport->setup(comm, graph, mine, theirs, connect, connector, channelId, connIndex));
    *taken = true;
    return ncclSuccess;
}

ncclResult_t psmTakePart(struct ncclComm *comm, struct ncclKernelPlan *plan, int channelId, int part,
                         struct ncclDevWorkP2p *work, struct ncclProxyOp *proxyOps, bool *taken)
{
    *taken = false;
    if (!psmOn()) return ncclSuccess;
    proxyOps[0].nsteps = proxyOps[1].nsteps = 0;
    if (work->sendRank == comm->rank) {
        Plan *mine = plan_of(plan, true);
        if (part == 0 && work->sendBytes > 0)
            mine->copies.push_back({work->recvAddr, work->sendAddr, (size_t)work->sendBytes});
        *taken = true;
        return ncclSuccess;
    }
    int send = is_psm(comm, channelId, work->sendRank, true, work->nSendChannels > 0);
    int recv = is_psm(comm, channelId, work->recvRank, false, work->nRecvChannels > 0);
    if (send != 1 && recv != 1) return ncclSuccess;
    if (send == 0 || recv == 0) {
        WARN("PSM_P2P: the send to rank %d and the recv from rank %d are one piece of work, but only one of the peers "
             "is on this host: without a kernel (NCCL_PASS_SM=1) this tree can send on one host only",
             work->sendRank, work->recvRank);
        return ncclInvalidUsage;
    }
    if (plan->persistent) {
        WARN("PSM_P2P: operations without a kernel cannot be captured into a graph");
        return ncclInvalidUsage;
    }
    Plan *mine = plan_of(plan, true);
    fill(&proxyOps[1], mine, true, part, work->nSendChannels, work->sendAddr, (size_t)work->sendBytes, channelId);
    fill(&proxyOps[0], mine, false, part, work->nRecvChannels, work->recvAddr, (size_t)work->recvBytes, channelId);
    *taken = true;
    return ncclSuccess;
}

ncclResult_t psmLaunch(struct ncclComm *comm, struct ncclKernelPlan *plan, cudaStream_t stream, bool *done)
{
    *done = false;
    Plan *mine = plan_of(plan, false);
    if (!mine) return ncclSuccess;
    for (const Plan::Copy &copy : mine->copies)
        if (copy.to != copy.from)
            CUDACHECK(cudaMemcpyAsync(copy.to, copy.from, copy.bytes, cudaMemcpyDeviceToDevice, stream));
    if (mine->sync->proxyOpCount.load(std::memory_order_relaxed) > 0) {
        CUDACHECK(cudaLaunchHostFunc(stream, wait_for_proxy, mine->sync));
        mine->launched = true;
    }
    *done = plan->channelMask == 0;
    /* Not as a host function: the condition that it waits for is not the plan's, which may be freed before it ends. */
    if (*done) PSM_TRACE_LAUNCHED(comm, plan, 4, plan->persistent, 0);
    return ncclSuccess;
}

#endif
