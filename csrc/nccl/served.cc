/* The proxy's side: NCCL's handlers and progress, on top of those of the p2p transport. Runs on NCCL's service and
 * progress threads. */
#include "psm_nccl.h"

#include <cstring>

namespace psm
{

namespace
{

/* A connection with only an Init has none: NCCL creates such connections to pass descriptors. */
Served *served_of(struct ncclProxyConnection *connection, struct ncclProxyState *state)
{
    if (connection->transportResources) return static_cast<Served *>(connection->transportResources);
    Provider *provider = Provider::of(state);
    if (!provider) return nullptr;
    const struct psmP2pVariant *variant = variant_in_use();
    if (!variant) {
        provider->give_back();
        return nullptr;
    }
    Served *served = new Served();
    served->provider = provider;
    served->connection.transport = connection->transport;
    served->connection.send = connection->send;
    served->connection.rank = -1; /* NCCL's service knows only the caller's local rank */
    served->connection.sameProcess = connection->sameProcess;
    served->connection.id = (uint64_t)(uintptr_t)connection; /* as NCCL's log names it */
    served->connection.tcomm = connection->send ? variant->send : variant->recv;
    served->connection.host = &provider->host;
    connection->transportResources = served;
    return served;
}

/* libpsm's handlers set done explicitly; NCCL assumes done by default. */
ncclResult_t answer(const char *what, psm_status status, int finished, int *done)
{
    *done = status != PSM_OK || finished;
    return status == PSM_OK ? ncclSuccess : refuse(what, status);
}

} // namespace

ncclResult_t proxy_setup(struct ncclProxyConnection *connection, struct ncclProxyState *state, void *req, int reqSize,
                         void *resp, int respSize, int *done)
{
    int finished = 0;
    Served *served = served_of(connection, state);
    if (!served) return answer("setup", psm_last_error()->status, 0, done);
    psm_status status =
        served->connection.tcomm->proxySetup(&served->connection, nullptr, req, reqSize, resp, respSize, &finished);
    return answer("setup", status, finished, done);
}

ncclResult_t proxy_connect(struct ncclProxyConnection *connection, struct ncclProxyState *state, void *req, int reqSize,
                           void *resp, int respSize, int *done)
{
    int finished = 0;
    Served *served = served_of(connection, state);
    if (!served) return answer("connect", psm_last_error()->status, 0, done);
    psm_status status =
        served->connection.tcomm->proxyConnect(&served->connection, nullptr, req, reqSize, resp, respSize, &finished);
    if (status == PSM_OK && finished) connection->proxyAppendPtr = &connection->proxyAppend;
    return answer("connect", status, finished, done);
}

ncclResult_t proxy_register(struct ncclProxyConnection *connection, struct ncclProxyState *state, void *req,
                            int reqSize, void *resp, int respSize, int *done)
{
    return p2pTransport.send.proxyRegister(connection, state, req, reqSize, resp, respSize, done);
}

ncclResult_t proxy_deregister(struct ncclProxyConnection *connection, struct ncclProxyState *state, void *req,
                              int reqSize, int *done)
{
    return p2pTransport.send.proxyDeregister(connection, state, req, reqSize, done);
}

ncclResult_t proxy_free(struct ncclProxyConnection *connection, struct ncclProxyState *)
{
    Served *served = static_cast<Served *>(connection->transportResources);
    if (!served) return ncclSuccess;
    connection->transportResources = nullptr;
    psm_status status = served->connection.tcomm->proxyFree(&served->connection, nullptr);
    ncclResult_t result = status == PSM_OK ? ncclSuccess : refuse("free", status);
    served->provider->give_back();
    delete served;
    return result;
}

/* ---- progress ---- */

namespace
{

struct psmProxySubArgs sub_of(Provider *provider, const struct ncclProxyArgs *args, const struct ncclProxySubArgs *from)
{
    Served *served = static_cast<Served *>(from->connection->transportResources);
    struct psmProxySubArgs sub = {};
    sub.connection = &served->connection;
    sub.sendbuff = from->sendbuff;
    sub.recvbuff = from->recvbuff;
    sub.nbytes = from->nbytes > 0 ? (uint64_t)from->nbytes : 0;
    sub.peer = from->peer;
    sub.channel = from->channelId;
    if (!wants_zero_copy(args)) return sub;
    const uint8_t *buffer = from->connection->send ? from->sendbuff : from->recvbuff;
    std::shared_ptr<Registration> registration = provider->find(from->peer, (uintptr_t)buffer, sub.nbytes);
    if (!registration) return sub;
    sub.sendHandle = from->connection->send ? registration->sendHandle : 0;
    sub.recvHandle = from->connection->send ? 0 : registration->recvHandle;
    sub.reg = sub.sendHandle != 0 || sub.recvHandle != 0;
    return sub;
}

Operation *begin(struct ncclProxyArgs *args)
{
    Provider *provider = static_cast<Served *>(args->subs[0].connection->transportResources)->provider;
    Operation *operation = new Operation();
    operation->provider = provider;
    operation->sync = sync_of(args);
    operation->nsubs = args->nsubs;
    operation->parts.resize(((size_t)args->nsubs + PSM_MAX_SUBS - 1) / PSM_MAX_SUBS);
    for (int s = 0; s < args->nsubs; s++) {
        struct psmProxyArgs *part = &operation->parts[(size_t)s / PSM_MAX_SUBS];
        part->subs[part->nsubs++] = sub_of(provider, args, &args->subs[s]);
        part->state = psmProxyOpReady;
        part->opCount = args->opCount;
    }
    provider->begin(operation);
    return operation;
}

} // namespace

/* If progress fails, NCCL drops the operation, and with it the count that the host function waits for. So report only
 * its end; the reason goes to ncclCommGetAsyncError and to the peer. */
ncclResult_t proxy_progress(struct ncclProxyState *, struct ncclProxyArgs *args)
{
    void **place = &args->subs[0].requests[0]; /* the transport's own */
    if (args->state == ncclProxyOpReady) {
        Operation *begun = begin(args);
        *place = begun;
        profile_begin(args, begun);
        args->state = ncclProxyOpProgress;
    }
    args->idle = 1;
    Operation *operation = static_cast<Operation *>(*place);
    if (!operation->provider->ready(operation)) return ncclSuccess;
    bool ended = true;
    for (struct psmProxyArgs &part : operation->parts) {
        if (part.state == psmProxyOpNone) continue;
        const struct psmTransportComm *comm = part.subs[0].connection->tcomm;
        comm->proxyProgress(nullptr, &part); /* a failure ends it; async_error has reported it */
        if (!part.idle) args->idle = 0;
        if (part.state != psmProxyOpNone) ended = false;
    }
    if (!ended) profile_moved(args, operation);
    if (ended) {
        profile_end(args, operation);
        args->done = args->nsubs;
        args->state = ncclProxyOpNone;
        *place = nullptr;
        operation->provider->end(operation);
    }
    return ncclSuccess;
}

} // namespace psm
