/* Zero copy: buffers that the application has registered with NCCL are registered with libpsm, for each peer at the
 * first operation with it. Runs on NCCL's caller threads. */
#include "psm_nccl.h"

#include <algorithm>

namespace psm
{

namespace
{

/* The connector to or from a peer through which a buffer is registered: any channel's is valid for all of them. */
psmP2pConnector *connector_to(struct ncclComm *comm, int peer, bool send)
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

psm_status register_at(Registration *entry)
{
    psm_status status = PSM_OK;
    if (entry->recv) status = psmP2pRegister(entry->recv, (void *)entry->begin, entry->size, &entry->recvHandle);
    if (status == PSM_OK && entry->send)
        status = psmP2pRegister(entry->send, (void *)entry->begin, entry->size, &entry->sendHandle);
    return status;
}

psm_status deregister(Registration *entry)
{
    psm_status first = PSM_OK;
    if (entry->recvHandle) first = psmP2pDeregister(entry->recv, entry->recvHandle);
    if (entry->sendHandle) {
        psm_status status = psmP2pDeregister(entry->send, entry->sendHandle);
        if (first == PSM_OK) first = status;
    }
    entry->recvHandle = entry->sendHandle = 0;
    return first == PSM_ERR_NOT_FOUND ? PSM_OK : first; /* the connector was freed, and its registrations with it */
}

/* NCCL's pages may extend beyond the buffer's allocation. */
bool clip(const struct ncclComm *comm, uintptr_t buffer, Registration *entry)
{
    CUdeviceptr base;
    size_t size;
    if (CUPFN(cuMemGetAddressRange(&base, &size, (CUdeviceptr)buffer)) != CUDA_SUCCESS) return false;
    uintptr_t begin = std::max<uintptr_t>(base, begin_of(entry->record));
    uintptr_t end = std::min<uintptr_t>(base + size, end_of(comm, entry->record));
    entry->begin = begin;
    entry->size = end - begin;
    return end > begin;
}

ncclResult_t register_record(Provider *provider, struct ncclComm *comm, const struct ncclReg *record, int peer,
                             const void *buffer, bool *registered)
{
    *registered = provider->has(record, peer);
    if (*registered) return ncclSuccess;
    std::shared_ptr<Registration> entry(new Registration());
    entry->record = record;
    entry->peer = peer;
    entry->send = connector_to(comm, peer, true);
    entry->recv = connector_to(comm, peer, false);
    if ((!entry->send && !entry->recv) || !clip(comm, (uintptr_t)buffer, entry.get())) return ncclSuccess;
    psm_status status = register_at(entry.get());
    if (status != PSM_OK) {
        struct psm_error error = *psm_last_error();
        deregister(entry.get());
        psm_set_last_error(&error);
        if (status != PSM_ERR_UNSUPPORTED) return refuse("register", status);
        INFO(NCCL_REG, "PSM_P2P cannot register %p for peer %d, it goes through the FIFO: %s", buffer, peer,
             error.text);
        return ncclSuccess;
    }
    provider->add(entry);
    *registered = true;
    return ncclSuccess;
}

ncclResult_t give_up(struct ncclComm *comm, const struct ncclReg *record, int peer)
{
    Provider *provider = Provider::of(comm->proxyState);
    if (!provider) return refuse("deregister", psm_last_error()->status);
    psm_status first = PSM_OK;
    while (std::shared_ptr<Registration> entry = provider->take(record, peer)) {
        psm_status status = deregister(entry.get());
        if (first == PSM_OK) first = status;
    }
    provider->give_back();
    return first == PSM_OK ? ncclSuccess : refuse("deregister", first);
}

/* *record: NCCL's, if this buffer is registered and the peer can reach it. */
ncclResult_t register_for(struct ncclComm *comm, const void *buffer, size_t size, int peer, struct ncclReg **record,
                          bool *registered)
{
    bool valid = false;
    *registered = false;
    *record = nullptr;
    NCCLCHECK(ncclRegFind(comm, buffer, size, record));
    NCCLCHECK(ncclRegLocalIsValid(*record, &valid));
    if (!valid) return ncclSuccess;
    Provider *provider = Provider::of(comm->proxyState);
    if (!provider) return refuse("register", psm_last_error()->status);
    ncclResult_t result = register_record(provider, comm, *record, peer, buffer, registered);
    provider->give_back();
    return result;
}

} // namespace

#ifdef PSM_TREE_HOOKED

/* So that the fork calls psmIpcDeregBuffer when the record ends. NCCL frees what is allocated here. */
static ncclResult_t remember(struct ncclComm *comm, struct ncclReg *record, int peer)
{
    int local = comm->rankToLocalRank[peer];
    if (record->psmIpcInfos[local]) return ncclSuccess;
    struct ncclIpcRegInfo *info;
    if (!record->psmRegIpcAddrs.hostPeerRmtAddrs)
        NCCLCHECK(ncclCalloc(&record->psmRegIpcAddrs.hostPeerRmtAddrs, comm->localRanks));
    NCCLCHECK(ncclCalloc(&info, 1));
    info->peerRank = peer;
    info->baseAddr = (void *)begin_of(record);
    info->impInfo.rmtRegAddr = record;
    record->psmIpcInfos[local] = info;
    record->state |= PSM_P2P_REG_COMPLETE;
    return ncclSuccess;
}

#endif

} // namespace psm

#ifdef PSM_TREE_HOOKED

/* Returns an address of this process: the fork passes it to the operation, and a peer's address means nothing here. */
ncclResult_t psmIpcLocalRegisterBuffer(ncclComm *comm, const void *userbuff, size_t buffSize, int *peerRanks,
                                       int nPeers, ncclIpcRegType type, int *regBufFlag, uintptr_t *offsetOut,
                                       uintptr_t **peerRmtAddrsOut)
{
    *regBufFlag = 0;
    *offsetOut = 0;
    *peerRmtAddrsOut = nullptr;
    if (!comm || !userbuff || buffSize == 0 || nPeers != 1 || type != NCCL_IPC_SENDRECV) return ncclSuccess;
    struct ncclReg *record;
    bool registered;
    NCCLCHECK(psm::register_for(comm, userbuff, buffSize, peerRanks[0], &record, &registered));
    if (!registered) return ncclSuccess;
    NCCLCHECK(psm::remember(comm, record, peerRanks[0]));
    *regBufFlag = 1;
    *offsetOut = (uintptr_t)userbuff - psm::begin_of(record);
    *peerRmtAddrsOut = (uintptr_t *)psm::begin_of(record);
    return ncclSuccess;
}

ncclResult_t psmIpcDeregBuffer(struct ncclComm *comm, struct ncclIpcRegInfo *regInfo)
{
    return psm::give_up(comm, static_cast<struct ncclReg *>(regInfo->impInfo.rmtRegAddr), regInfo->peerRank);
}

#else

ncclResult_t psmRegister(struct ncclComm *comm, void *buffer, size_t size, int peer, int *registered, void **address)
{
    struct ncclReg *record;
    bool done;
    *registered = 0;
    NCCLCHECK(psm::register_for(comm, buffer, size, peer, &record, &done));
    if (!done) return ncclSuccess;
    *registered = 1;
    *address = buffer;
    return ncclSuccess;
}

void psmDeregister(struct ncclComm *comm, struct ncclReg *record)
{
    if (psmOn()) psm::give_up(comm, record, -1);
}

#endif
