/* NCCL's transport table for the p2p transport, which replaces the tree's own psm_p2p. Runs on NCCL's caller
 * threads. */
#include "psm_nccl.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace psm
{

namespace
{

/* ---- path ---- */

/* CUDA's number of a peer's device here; -1: not visible to this process. */
int device_of(int64_t busId)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return -1;
    for (int device = 0; device < count; device++) {
        char text[32];
        int64_t id;
        if (cudaDeviceGetPCIBusId(text, sizeof text, device) != cudaSuccess) return -1;
        if (busIdToInt64(text, &id) == ncclSuccess && id == busId) return device;
    }
    return -1;
}

bool reaches(const struct ncclPeerInfo *a, const struct ncclPeerInfo *b)
{
    int from = device_of(a->busId), to = device_of(b->busId), can = 0;
    if (a->busId == b->busId || from < 0 || to < 0) return true; /* CUDA can also reach devices that are not visible */
    if (cudaDeviceCanAccessPeer(&can, from, to) == cudaSuccess) return can != 0;
    cudaGetLastError();
    return false;
}

/* The input of libpsm's canConnect, from what NCCL's ranks have exchanged. Both ends get the same result: they start
 * with the lower rank. */
void describe(struct ncclComm *comm, const struct ncclPeerInfo *one, const struct ncclPeerInfo *other,
              struct psm_peer_info *mine, struct psm_peer_info *theirs, bool direct)
{
    const struct ncclPeerInfo *infos[2] = {one, other};
    struct psm_peer_info *out[2] = {mine, theirs};
    uint32_t can = PSM_CAN_MEMFD | PSM_CAN_POSIX_SHM | PSM_CAN_DIRECT | PSM_CAN_PEER_ACCESS;
    can |= ncclCuMemEnable() ? PSM_CAN_CUMEM_FD : PSM_CAN_CUDA_IPC;
    const char *zero_copy = getenv("PSM_ZERO_COPY");
    if (!zero_copy || strcmp(zero_copy, "never") != 0) can |= PSM_CAN_ZERO_COPY;
    for (int i = 0; i < 2; i++) {
        *out[i] = psm_peer_info();
        out[i]->size = sizeof *out[i];
        out[i]->version = PSM_WIRE_VERSION;
        out[i]->rank = comm->topParentRanks[infos[i]->rank];
        out[i]->device = infos[i]->nvmlDev; /* the same in all processes of a host */
        out[i]->host_hash = infos[i]->hostHash;
        out[i]->process_hash = infos[i]->pidHash;
        out[i]->capabilities = can;
        int64ToBusId(infos[i]->busId, out[i]->bus_id);
        const struct ncclPeerInfo *peer = infos[1 - i];
        if (direct && peer->nvmlDev >= 0 && peer->nvmlDev < 32) out[i]->peer_access = UINT32_C(1) << peer->nvmlDev;
    }
}

ncclResult_t find_way(struct ncclComm *comm, struct ncclPeerInfo *one, struct ncclPeerInfo *other,
                      struct psm_peer_info *mine, struct psm_peer_info *theirs)
{
    struct ncclPeerInfo *first = one->rank < other->rank ? one : other, *second = first == one ? other : one;
    int p2p = 0, intermediate = -1;
    NCCLCHECK(check_p2p(comm, first->rank, second->rank, &p2p, &intermediate));
    bool direct = p2p && intermediate == -1 && reaches(first, second) && reaches(second, first);
    describe(comm, one, other, mine, theirs, direct);
    return ncclSuccess;
}

/* 1 for every pair on one host: if the devices do not reach each other, data goes through host memory. */
ncclResult_t can_connect(int *ret, struct ncclComm *comm, struct ncclTopoGraph *, struct ncclPeerInfo *one,
                         struct ncclPeerInfo *other)
{
    int net = 0, mode = PSM_P2P_NONE;
    *ret = 0;
    if (one->hostHash != other->hostHash) return ncclSuccess;
    NCCLCHECK(ncclTopoCheckNet(comm->topo, one->rank, other->rank, &net));
    if (net) return ncclSuccess;
    struct psm_peer_info mine, theirs;
    NCCLCHECK(find_way(comm, one, other, &mine, &theirs));
    psm_status status = psmP2pCanConnect(&mine, &theirs, &mode);
    if (status != PSM_OK) return refuse("canConnect", status);
    *ret = mode != PSM_P2P_NONE;
    return ncclSuccess;
}

/* ---- connectors ---- */

void forget(End *end)
{
    if (end->caller.provider) end->caller.provider->give_back();
    delete end;
}

ncclResult_t setup(struct ncclComm *comm, struct ncclPeerInfo *me, struct ncclPeerInfo *peer,
                   struct ncclConnect *connect, struct ncclConnector *connector, int channel, int connIndex, bool send)
{
    struct psm_peer_info mine, theirs;
    NCCLCHECK(find_way(comm, me, peer, &mine, &theirs));
    End *end = new End();
    end->caller.comm = comm;
    end->caller.own = &connector->proxyConn;
    end->caller.provider = Provider::of(comm->proxyState);
    if (!end->caller.provider) {
        forget(end);
        return refuse("setup", psm_last_error()->status);
    }
    end->host = host_of(&end->caller);
    ConnectInfo info = {};
    info.fds = end->caller.provider->address;
    psm_status status = (send ? psmP2pSendSetup : psmP2pRecvSetup)(&end->host, &mine, &theirs, channel, connIndex,
                                                                   &info.p2p, &end->connector);
    if (status != PSM_OK) {
        ncclResult_t result = refuse(send ? "send setup" : "recv setup", status);
        forget(end);
        return result;
    }
    memset(connect, 0, sizeof *connect);
    memcpy(connect, &info, sizeof info);
    connector->transportResources = end;
    connector->conn.flags |= NCCL_P2P_WRITE; /* so that NCCL requests registrations, and uses our addresses */
    return ncclSuccess;
}

ncclResult_t send_setup(struct ncclComm *comm, struct ncclTopoGraph *, struct ncclPeerInfo *me,
                        struct ncclPeerInfo *peer, struct ncclConnect *connect, struct ncclConnector *send, int channel,
                        int connIndex)
{
    return setup(comm, me, peer, connect, send, channel, connIndex, true);
}
ncclResult_t recv_setup(struct ncclComm *comm, struct ncclTopoGraph *, struct ncclPeerInfo *me,
                        struct ncclPeerInfo *peer, struct ncclConnect *connect, struct ncclConnector *recv, int channel,
                        int connIndex)
{
    return setup(comm, me, peer, connect, recv, channel, connIndex, false);
}

ncclResult_t connect_end(struct ncclComm *comm, struct ncclConnect *connect, struct ncclConnector *connector, bool send)
{
    End *end = static_cast<End *>(connector->transportResources);
    ConnectInfo info;
    memcpy(&info, connect, sizeof info);
    end->caller.provider->learn(info.fds);
    psmProxyConnector socket; /* also if no descriptor is fetched: it reports the peer's death */
    psm_status status = end->caller.provider->connect_fds(info.fds.rank, &socket);
    if (status == PSM_OK)
        status = send ? psmP2pSendConnect(end->connector, &info.p2p) : psmP2pRecvConnect(end->connector, &info.p2p);
    if (status != PSM_OK) return refuse(send ? "send connect" : "recv connect", status);
    /* No kernel reads these; the LL ones must be empty, so that operations are scheduled as SIMPLE. */
    for (int p = 0; p < NCCL_NUM_PROTOCOLS; p++) connector->conn.buffs[p] = nullptr;
    connector->conn.head = connector->conn.tail = nullptr;
    connector->conn.stepSize = comm->buffSizes[NCCL_PROTO_SIMPLE] / NCCL_STEPS;
    connector->proxyConn.proxyProgress = proxy_progress;
    return ncclSuccess;
}

ncclResult_t send_connect(struct ncclComm *comm, struct ncclConnect *connect, int, int, struct ncclConnector *send)
{
    return connect_end(comm, connect, send, true);
}
ncclResult_t recv_connect(struct ncclComm *comm, struct ncclConnect *connect, int, int, struct ncclConnector *recv)
{
    return connect_end(comm, connect, recv, false);
}

ncclResult_t free_end(struct ncclConnector *connector, bool send)
{
    End *end = static_cast<End *>(connector->transportResources);
    if (!end) return ncclSuccess;
    connector->transportResources = nullptr;
    psm_status status = send ? psmP2pSendFree(end->connector) : psmP2pRecvFree(end->connector);
    ncclResult_t result = status == PSM_OK ? ncclSuccess : refuse(send ? "send free" : "recv free", status);
    forget(end);
    return result;
}

/* The table takes the ones of its tree: since 2.29 they get the communicator. */
[[maybe_unused]] ncclResult_t send_free(struct ncclConnector *send)
{
    return free_end(send, true);
}
[[maybe_unused]] ncclResult_t send_free(struct ncclComm *, struct ncclConnector *send)
{
    return free_end(send, true);
}
[[maybe_unused]] ncclResult_t recv_free(struct ncclConnector *recv)
{
    return free_end(recv, false);
}
[[maybe_unused]] ncclResult_t recv_free(struct ncclComm *, struct ncclConnector *recv)
{
    return free_end(recv, false);
}

} // namespace

} // namespace psm

struct ncclTransport psmP2pTransport = {
    "PSM_P2P",
    psm::can_connect,
    {psm::send_setup, psm::send_connect, psm::send_free, nullptr, psm::proxy_setup, psm::proxy_connect, psm::proxy_free,
     psm::proxy_progress, psm::proxy_register, psm::proxy_deregister},
    {psm::recv_setup, psm::recv_connect, psm::recv_free, nullptr, psm::proxy_setup, psm::proxy_connect, psm::proxy_free,
     psm::proxy_progress, psm::proxy_register, psm::proxy_deregister}};
