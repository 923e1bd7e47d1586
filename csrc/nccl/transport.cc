/* NCCL's transport table over the p2p transport, in place of the tree's own psm_p2p, and zero-copy registration. On
 * NCCL's caller threads. */
#include "psm_nccl.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

extern int64_t ncclParamPassSm();

namespace psm
{

namespace
{

/* ---- which way ---- */

/* CUDA's number of a peer's device here; -1: this process does not see it. */
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
    if (a->busId == b->busId || from < 0 || to < 0) return true; /* CUDA lets devices be reached that are not seen */
    if (cudaDeviceCanAccessPeer(&can, from, to) == cudaSuccess) return can != 0;
    cudaGetLastError();
    return false;
}

/* What libpsm's canConnect looks at, from what NCCL's ranks have told each other. Both ends come to the same: the
 * lower rank is looked at first. */
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
        out[i]->device = infos[i]->nvmlDev; /* alike in all processes of a host */
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
    NCCLCHECK(ncclTopoCheckP2p(comm, comm->topo, first->rank, second->rank, &p2p, nullptr, &intermediate));
    bool direct = p2p && intermediate == -1 && reaches(first, second) && reaches(second, first);
    describe(comm, one, other, mine, theirs, direct);
    return ncclSuccess;
}

/* 1 for every pair of one host: where the devices do not reach each other, data goes through host memory. */
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
    connector->conn.flags |= NCCL_P2P_WRITE; /* so that NCCL asks for registrations */
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
    psmProxyConnector socket; /* also where no descriptor is fetched: it tells of the peer's death */
    psm_status status = end->caller.provider->connect_fds(info.fds.rank, &socket);
    if (status == PSM_OK)
        status = send ? psmP2pSendConnect(end->connector, &info.p2p) : psmP2pRecvConnect(end->connector, &info.p2p);
    if (status != PSM_OK) return refuse(send ? "send connect" : "recv connect", status);
    /* No kernel reads these; the LL ones have to be empty, so that operations are scheduled as SIMPLE. */
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

ncclResult_t send_free(struct ncclConnector *send)
{
    return free_end(send, true);
}
ncclResult_t recv_free(struct ncclConnector *recv)
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

/* ---- zero-copy ---- */

namespace psm
{

/* The connector to or from a peer by which a buffer is registered: any channel's serves all of them. */
static psmP2pConnector *connector_to(struct ncclComm *comm, int peer, bool send)
{
    for (int c = 0; c < MAXCHANNELS; c++) {
        struct ncclChannelPeer **peers = comm->channels[c].peers;
        if (!peers || !peers[peer]) continue;
        struct ncclConnector *connector = send ? &peers[peer]->send[1] : &peers[peer]->recv[1];
        struct ncclTransportComm *mine = send ? &psmP2pTransport.send : &psmP2pTransport.recv;
        if (connector->connected && connector->transportComm == mine && connector->transportResources)
            return static_cast<End *>(connector->transportResources)->connector;
    }
    return nullptr;
}

static psm_status register_at(Registration *entry)
{
    psm_status status = PSM_OK;
    if (entry->recv) status = psmP2pRegister(entry->recv, (void *)entry->begin, entry->size, &entry->recvHandle);
    if (status == PSM_OK && entry->send)
        status = psmP2pRegister(entry->send, (void *)entry->begin, entry->size, &entry->sendHandle);
    return status;
}

static psm_status deregister(Registration *entry)
{
    psm_status first = PSM_OK;
    if (entry->recvHandle) first = psmP2pDeregister(entry->recv, entry->recvHandle);
    if (entry->sendHandle) {
        psm_status status = psmP2pDeregister(entry->send, entry->sendHandle);
        if (first == PSM_OK) first = status;
    }
    entry->recvHandle = entry->sendHandle = 0;
    return first == PSM_ERR_NOT_FOUND ? PSM_OK : first; /* the connector was freed, and they with it */
}

/* NCCL's record is of whole pages, which may hold more than the buffer's allocation. */
static bool clip(const struct ncclReg *record, uintptr_t buffer, Registration *entry, const struct ncclComm *comm)
{
    CUdeviceptr base;
    size_t size;
    if (CUPFN(cuMemGetAddressRange(&base, &size, (CUdeviceptr)buffer)) != CUDA_SUCCESS) return false;
    uintptr_t begin = std::max<uintptr_t>(base, record->addr);
    uintptr_t end = std::min<uintptr_t>(base + size, record->addr + record->pages * comm->regCache.pageSize);
    entry->begin = begin;
    entry->size = end - begin;
    return end > begin;
}

static ncclResult_t register_for(struct ncclComm *comm, struct ncclReg *record, int peer, const void *buffer,
                                 bool *registered)
{
    int local = comm->rankToLocalRank[peer];
    *registered = record->psmIpcInfos[local] != nullptr;
    if (*registered) return ncclSuccess;
    std::shared_ptr<Registration> entry(new Registration());
    entry->peer = peer;
    if (!clip(record, (uintptr_t)buffer, entry.get(), comm)) return ncclSuccess;
    entry->send = connector_to(comm, peer, true);
    entry->recv = connector_to(comm, peer, false);
    if (!entry->send && !entry->recv) return ncclSuccess;
    psm_status status = register_at(entry.get());
    if (status != PSM_OK) {
        struct psm_error error = *psm_last_error();
        deregister(entry.get());
        psm_set_last_error(&error);
        if (status == PSM_ERR_UNSUPPORTED) { /* such memory goes through the FIFO */
            INFO(NCCL_REG, "PSM_P2P cannot register %p for peer %d: %s", (void *)entry->begin, peer, error.text);
            return ncclSuccess;
        }
        return refuse("register", status);
    }
    struct ncclIpcRegInfo *info;
    NCCLCHECK(ncclCalloc(&info, 1)); /* NCCL frees it */
    info->peerRank = peer;
    info->baseAddr = (void *)entry->begin;
    info->impInfo.rmtRegAddr = entry.get();
    record->psmIpcInfos[local] = info;
    record->state |= PSM_P2P_REG_COMPLETE;
    if (!record->psmRegIpcAddrs.hostPeerRmtAddrs)
        NCCLCHECK(ncclCalloc(&record->psmRegIpcAddrs.hostPeerRmtAddrs, comm->localRanks));
    /* Operations name buffers by this process's addresses: a peer's mean nothing here. */
    record->psmRegIpcAddrs.hostPeerRmtAddrs[local] = record->addr;
    Provider *provider = Provider::of(comm->proxyState);
    provider->add(entry);
    provider->give_back();
    *registered = true;
    return ncclSuccess;
}

} // namespace psm

ncclResult_t psmIpcLocalRegisterBuffer(ncclComm *comm, const void *userbuff, size_t buffSize, int *peerRanks,
                                       int nPeers, ncclIpcRegType type, int *regBufFlag, uintptr_t *offsetOut,
                                       uintptr_t **peerRmtAddrsOut)
{
    *regBufFlag = 0;
    *offsetOut = 0;
    *peerRmtAddrsOut = nullptr;
    if (!comm || !userbuff || buffSize == 0 || nPeers != 1 || type != NCCL_IPC_SENDRECV) return ncclSuccess;
    struct ncclReg *record = nullptr;
    bool valid = false, registered = false;
    NCCLCHECK(ncclRegFind(comm, userbuff, buffSize, &record));
    NCCLCHECK(ncclRegLocalIsValid(record, &valid));
    if (!valid) return ncclSuccess;
    NCCLCHECK(psm::register_for(comm, record, peerRanks[0], userbuff, &registered));
    if (!registered) return ncclSuccess;
    *regBufFlag = 1;
    *offsetOut = (uintptr_t)userbuff - record->addr;
    *peerRmtAddrsOut = (uintptr_t *)record->psmRegIpcAddrs.hostPeerRmtAddrs[comm->rankToLocalRank[peerRanks[0]]];
    return ncclSuccess;
}

ncclResult_t psmIpcDeregBuffer(struct ncclComm *comm, struct ncclIpcRegInfo *regInfo)
{
    psm::Registration *entry = static_cast<psm::Registration *>(regInfo->impInfo.rmtRegAddr);
    psm::Provider *provider = psm::Provider::of(comm->proxyState);
    if (!provider) return psm::refuse("deregister", psm_last_error()->status);
    psm_status status = psm::deregister(entry);
    provider->remove(entry);
    provider->give_back();
    return status == PSM_OK ? ncclSuccess : psm::refuse("deregister", status);
}
