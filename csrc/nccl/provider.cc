/* NCCL's proxy as the host of the p2p transport: calls through NCCL's proxy, descriptors through a libpsm
 * proxy next to it. */
#include "psm_nccl.h"

#include <cstdio>
#include <cstring>
#include <sched.h>
#include <unistd.h>

#include "psm/psm_host_ops.h"

namespace psm
{

namespace
{

psm_status fail(psm_status status, const char *stage, int rank, int peer, const char *text)
{
    struct psm_error error = {};
    error.status = status;
    error.rank = rank;
    error.peer = peer;
    snprintf(error.stage, sizeof error.stage, "%s", stage);
    snprintf(error.text, sizeof error.text, "%s", text);
    return psm_set_last_error(&error);
}

/* What the libpsm proxy serves besides descriptors: registrations. NCCL's own proxy cannot: a process that first talks
 * to a peer's proxy after init finds that the file of its op pool is unlinked. The handlers of NCCL's proxy find what
 * is registered here, because they share its host. */
psmProxyConnection *registered_by(psmProxyConnection *connection, psmProxyState *fds)
{
    if (!connection->transportResources) {
        Provider *provider = static_cast<Provider *>(psmProxyHost(fds));
        const struct psmP2pVariant *variant = variant_in_use();
        if (!variant) return nullptr;
        psmProxyConnection *mine = new psmProxyConnection(*connection);
        mine->host = &provider->host;
        mine->tcomm = variant->send;
        connection->transportResources = mine;
    }
    return static_cast<psmProxyConnection *>(connection->transportResources);
}
psm_status do_register(psmProxyConnection *connection, psmProxyState *fds, const void *req, int reqSize, void *resp,
                       int respSize, int *done)
{
    psmProxyConnection *mine = registered_by(connection, fds);
    if (!mine) return psm_last_error()->status;
    return mine->tcomm->proxyRegister(mine, nullptr, req, reqSize, resp, respSize, done);
}
psm_status do_deregister(psmProxyConnection *connection, psmProxyState *fds, const void *req, int reqSize, int *done)
{
    psmProxyConnection *mine = registered_by(connection, fds);
    if (!mine) return psm_last_error()->status;
    return mine->tcomm->proxyDeregister(mine, nullptr, req, reqSize, done);
}
psm_status do_free(psmProxyConnection *connection, psmProxyState *)
{
    psmProxyConnection *mine = static_cast<psmProxyConnection *>(connection->transportResources);
    if (!mine) return PSM_OK;
    connection->transportResources = nullptr;
    psm_status status = mine->tcomm->proxyFree(mine, nullptr);
    delete mine;
    return status;
}
const struct psmTransportComm *beside()
{
    static const struct psmTransportComm comm = [] {
        struct psmTransportComm made = {};
        made.proxyRegister = do_register;
        made.proxyDeregister = do_deregister;
        made.proxyFree = do_free;
        return made;
    }();
    return &comm;
}

std::mutex providers_lock;
std::map<struct ncclProxyState *, Provider *> providers;

} // namespace

const struct psmP2pVariant *variant_in_use()
{
    return psmP2pFindVariant(getenv("PSM_VARIANT"));
}

ncclResult_t result_of(psm_status status)
{
    switch (status) {
    case PSM_OK:
    case PSM_IN_PROGRESS:
        return ncclSuccess;
    case PSM_ERR_INVALID:
    case PSM_ERR_MISMATCH:
        return ncclInvalidUsage;
    case PSM_ERR_CUDA:
        return ncclUnhandledCudaError;
    case PSM_ERR_PEER_DEAD:
    case PSM_ERR_PEER_CLOSED:
    case PSM_ERR_TIMEOUT:
        return ncclRemoteError;
    case PSM_ERR_NO_MEMORY:
    case PSM_ERR_NO_RESOURCE:
    case PSM_ERR_SYSTEM:
    case PSM_ERR_DENIED:
        return ncclSystemError;
    default:
        return ncclInternalError;
    }
}

ncclResult_t refuse(const char *what, psm_status status)
{
    const struct psm_error *error = psm_last_error();
    WARN("PSM_P2P %s: %s: %s", what, psm_status_name(status), error->text);
    return result_of(status);
}

/* ---- the provider ---- */

Provider::Provider(struct ncclProxyState *nccl) : state(nccl)
{
    host = host_of(this);
}

Provider *Provider::of(struct ncclProxyState *state)
{
    std::lock_guard<std::mutex> hold(providers_lock);
    Provider *&found = providers[state];
    if (!found) {
        std::unique_ptr<Provider, void (*)(Provider *)> made(new Provider(state), [](Provider *p) { delete p; });
        if (made->open() != PSM_OK) {
            providers.erase(state);
            return nullptr;
        }
        found = made.release();
    }
    found->references_++;
    return found;
}

void Provider::give_back()
{
    {
        std::lock_guard<std::mutex> hold(providers_lock);
        if (--references_ > 0) return;
        providers.erase(state);
    }
    delete this;
}

/* The tree's own setting has priority over libpsm's. */
NCCL_PARAM(PsmBufferSize, "PSM_BUFFER_SIZE", 0);

psm_status Provider::open()
{
    settings.size = sizeof settings;
    psm_status status = psm_settings_read(&settings);
    if (status != PSM_OK) return status;
    uint64_t wanted = (uint64_t)ncclParamPsmBufferSize();
    if (wanted) settings.buffer_size = wanted - wanted % settings.steps;
    struct psmProxyOptions options = {};
    options.size = sizeof options;
    options.rank = state->tpRank;
    options.nranks = state->tpnRanks;
    options.device = state->cudaDev;
    options.settings = &settings;
    options.transports[PSM_TRANSPORT_P2P][0] = options.transports[PSM_TRANSPORT_P2P][1] = beside();
    options.host = this;
    status = psmProxyInit(&fds_, &options);
    if (status == PSM_OK) status = psmProxyCreate(fds_);
    if (status == PSM_OK) status = psmProxyAddress(fds_, &address);
    return status;
}

Provider::~Provider()
{
    {
        std::lock_guard<std::mutex> hold(lock_);
        closing_ = true;
    }
    wake_.notify_all();
    if (watcher_.joinable()) watcher_.join();
    if (fds_) {
        psmProxyStop(fds_);
        psmProxyDestroy(fds_);
    }
    for (Operation *operation : operations_) delete operation;
}

void Provider::learn(const struct psmProxyAddress &theirs)
{
    std::lock_guard<std::mutex> hold(lock_);
    addresses_[theirs.rank] = theirs;
}

psm_status Provider::connect_to(int rank, psmProxyConnector *connector)
{
    struct psmProxyAddress theirs;
    {
        std::lock_guard<std::mutex> hold(lock_);
        if (rank == state->tpRank)
            theirs = address;
        else if (addresses_.count(rank))
            theirs = addresses_[rank];
        else
            return fail(PSM_ERR_INVALID, "init", state->tpRank, rank, "that rank's connect info has not arrived yet");
    }
    return psmProxyConnect(fds_, PSM_TRANSPORT_P2P, 1, &theirs, connector);
}

psm_status Provider::connect_fds(int rank, psmProxyConnector *connector)
{
    {
        std::lock_guard<std::mutex> hold(lock_);
        auto socket = sockets_.find(rank);
        if (socket != sockets_.end()) {
            *connector = socket->second;
            return PSM_OK;
        }
    }
    psmProxyConnector made = {};
    psm_status status = connect_to(rank, &made);
    if (status != PSM_OK) return status;
    std::lock_guard<std::mutex> hold(lock_);
    *connector = sockets_.emplace(rank, made).first->second;
    return PSM_OK;
}

bool Provider::alive(int rank)
{
    return psmProxyPeerAlive(fds_, rank) != 0;
}

/* ---- operations ---- */

void Provider::begin(Operation *operation)
{
    std::lock_guard<std::mutex> hold(lock_);
    operations_.push_back(operation);
    if (!watcher_.joinable()) watcher_ = std::thread(&Provider::watch, this);
    wake_.notify_all();
}

bool Provider::ready(Operation *operation)
{
    if (operation->begun) return !operation->counted;
    std::lock_guard<std::mutex> hold(lock_);
    if (operation->counted || released_) return false;
    operation->begun = __atomic_load_n(cell_of(operation->sync->proxyReadyEvent), __ATOMIC_ACQUIRE) != 0;
    return operation->begun;
}

void Provider::end(Operation *operation)
{
    std::lock_guard<std::mutex> hold(lock_);
    operations_.remove(operation);
    /* The last one lets the host function return, which frees sync. */
    if (!operation->counted)
        __atomic_fetch_sub(cell_of(operation->sync->proxyOpCount), operation->nsubs, __ATOMIC_ACQ_REL);
    operation->counted = true;
    delete operation;
}

/* After an abort NCCL's progress thread ends with what it has. The application's stream still waits in the host
 * function, and ncclCommAbort waits for the stream: so somebody must release it. */
void Provider::watch()
{
    std::unique_lock<std::mutex> hold(lock_);
    while (!closing_) {
        if (operations_.empty()) {
            wake_.wait(hold);
            continue;
        }
        wake_.wait_for(hold, std::chrono::milliseconds(20));
        if (!aborted() || released_) continue;
        released_ = true;
        std::vector<struct psmSyncCondition *> waiting;
        for (Operation *operation : operations_) {
            if (operation->counted) continue;
            operation->counted = true;
            bool known = false;
            for (struct psmSyncCondition *sync : waiting) known = known || sync == operation->sync;
            if (!known) waiting.push_back(operation->sync);
        }
        /* The whole plan at once: some of its operations may never have started. */
        for (struct psmSyncCondition *sync : waiting)
            __atomic_store_n(cell_of(sync->proxyOpCount), 0, __ATOMIC_RELEASE);
        if (!waiting.empty())
            WARN("PSM_P2P aborted: %zu operations of %zu groups end here; their host functions are released",
                 operations_.size(), waiting.size());
    }
}

/* ---- registrations ---- */

void Provider::add(const std::shared_ptr<Registration> &registration)
{
    std::lock_guard<std::mutex> hold(lock_);
    registrations_.push_back(registration);
}

std::shared_ptr<Registration> Provider::take(const struct ncclReg *record, int peer)
{
    std::lock_guard<std::mutex> hold(lock_);
    for (auto at = registrations_.begin(); at != registrations_.end(); ++at) {
        std::shared_ptr<Registration> entry = *at;
        if (entry->record != record || (peer != -1 && entry->peer != peer)) continue;
        registrations_.erase(at);
        return entry;
    }
    return nullptr;
}

bool Provider::has(const struct ncclReg *record, int peer)
{
    std::lock_guard<std::mutex> hold(lock_);
    for (const std::shared_ptr<Registration> &entry : registrations_)
        if (entry->record == record && entry->peer == peer) return true;
    return false;
}

std::shared_ptr<Registration> Provider::find(int peer, uintptr_t at, size_t size)
{
    std::lock_guard<std::mutex> hold(lock_);
    for (const std::shared_ptr<Registration> &entry : registrations_)
        if (entry->peer == peer && entry->begin <= at && at - entry->begin <= entry->size &&
            size <= entry->size - (at - entry->begin))
            return entry;
    return nullptr;
}

/* ---- psm_host_ops ---- */

namespace
{

/* To the own proxy, which is NCCL's, or to a peer's libpsm proxy. */
struct Link {
    int rank;                       /* of the top parent */
    struct ncclProxyConnector *own; /* NULL: a peer's */
    bool open;
    psmProxyConnector peer;
};

Caller *caller_of(void *host)
{
    return static_cast<Caller *>(host);
}

psm_status nccl_fail(Caller *caller, const char *what, ncclResult_t result)
{
    char text[128];
    Provider *provider = caller->provider;
    int rank = provider->state->tpRank;
    if (provider->aborted()) return fail(PSM_ERR_ABORTED, what, rank, rank, "aborted");
    snprintf(text, sizeof text, "NCCL's proxy answered %s with %s (%d): the lines before have the reason", what,
             ncclGetErrorString(result), (int)result);
    return fail(PSM_ERR_REFUSED, what, rank, rank, text);
}

psm_status do_connect(void *host, int transport, int send, int rank, void **connector)
{
    (void)transport;
    Caller *caller = caller_of(host);
    std::unique_ptr<Link> link(new Link());
    link->rank = rank;
    if (rank == caller->provider->state->tpRank) {
        link->own = caller->own;
        ncclResult_t result = ncclProxyConnect(caller->comm, TRANSPORT_PSM_P2P, send, caller->comm->rank, caller->own);
        if (result != ncclSuccess) return nccl_fail(caller, "init", result);
    }
    *connector = link.release();
    return PSM_OK;
}

const char *name_of(int type)
{
    switch (type) {
    case psmProxyMsgSetup:
        return "setup";
    case psmProxyMsgConnect:
        return "connect";
    default:
        return "call";
    }
}

/* ncclProxyCallBlocking polls the socket of its proxy without a pause. Where ranks share processors, the thread that
 * serves the call then waits until the poller's time slice ends: of 8 ranks on 2 processors each call took
 * milliseconds. */
ncclResult_t call_own(Caller *caller, struct ncclProxyConnector *own, int type, void *req, int reqSize, void *resp,
                      int respSize)
{
    std::unique_ptr<char> opId(new char); /* an address that no other call has */
    NCCLCHECK(ncclProxyCallAsync(caller->comm, own, type, req, reqSize, respSize, opId.get()));
    ncclResult_t result;
    while ((result = ncclPollProxyResponse(caller->comm, own, resp, opId.get())) == ncclInProgress) sched_yield();
    return result;
}

psm_status do_call(void *host, void *connector, int type, const void *req, int reqSize, void *resp, int respSize)
{
    Caller *caller = caller_of(host);
    Link *link = static_cast<Link *>(connector);
    Provider *provider = caller->provider;
    if (provider->stopped())
        return fail(PSM_ERR_PEER_CLOSED, "call", provider->state->tpRank, link->rank, "the proxy has stopped");
    if (link->own) {
        ncclResult_t result = call_own(caller, link->own, type, const_cast<void *>(req), reqSize, resp, respSize);
        return result == ncclSuccess ? PSM_OK : nccl_fail(caller, name_of(type), result);
    }
    if (!link->open) {
        psm_status status = provider->connect_to(link->rank, &link->peer);
        if (status != PSM_OK) return status;
        link->open = true;
    }
    return psmProxyCallBlocking(&link->peer, type, req, reqSize, resp, respSize);
}

psm_status do_get_fd(void *host, void *connector, uint64_t id, int *fd)
{
    psmProxyConnector to;
    psm_status status = caller_of(host)->provider->connect_fds(static_cast<Link *>(connector)->rank, &to);
    return status == PSM_OK ? psmProxyClientGetFdBlocking(&to, id, fd) : status;
}

psm_status do_query_fd(void *host, void *connector, int fd, int *remote)
{
    psmProxyConnector to;
    psm_status status = caller_of(host)->provider->connect_fds(static_cast<Link *>(connector)->rank, &to);
    return status == PSM_OK ? psmProxyClientQueryFdBlocking(&to, fd, remote) : status;
}

/* NCCL frees all its connections when the proxy ends. */
psm_status do_disconnect(void *, void *connector)
{
    std::unique_ptr<Link> link(static_cast<Link *>(connector));
    if (!link->open) return PSM_OK;
    psm_status status = psmProxyDisconnect(&link->peer);
    return status == PSM_ERR_PEER_DEAD || status == PSM_ERR_PEER_CLOSED ? PSM_OK : status;
}

uint64_t do_connection(void *, void *connector)
{
    const Link *link = static_cast<const Link *>(connector);
    return link->own ? (uint64_t)(uintptr_t)link->own->connection : link->peer.connection;
}

/* Both kinds of host start with the provider's pointer, or are it: these select which. */
template <Provider *(*of)(void *)> struct Both {
    static psm_status offer_fd(void *host, uint64_t id, int fd) { return psmProxyOfferFd(of(host)->fds(), id, fd); }
    static psm_status withdraw_fd(void *host, uint64_t id) { return psmProxyWithdrawFd(of(host)->fds(), id); }
    static psm_status take_fd(void *host, int number, int *fd) { return psmProxyTakeFd(of(host)->fds(), number, fd); }
    static int aborted(void *host) { return of(host)->aborted(); }
    static int peer_alive(void *host, int rank) { return of(host)->alive(rank); }
    /* ncclCommGetAsyncError returns it; the peer learns it through the control segment. */
    static void async_error(void *host, psm_status status, const char *text)
    {
        Provider *provider = of(host);
        ncclResult_t none = ncclSuccess;
        WARN("PSM_P2P rank %d: %s: %s", provider->state->tpRank, psm_status_name(status), text);
        __atomic_compare_exchange_n(&provider->state->asyncResult, &none, result_of(status), false, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE);
    }
    static int rank(void *host) { return of(host)->state->tpRank; }
    static int device(void *host) { return of(host)->state->cudaDev; }
    static const struct psm_settings *settings(void *host) { return &of(host)->settings; }
    static const struct psm_cuda *cuda(void *) { return psmCuda(); }
    static void fill(struct psm_host_ops *ops)
    {
        ops->size = sizeof *ops;
        ops->offer_fd = offer_fd;
        ops->withdraw_fd = withdraw_fd;
        ops->take_fd = take_fd;
        ops->aborted = aborted;
        ops->peer_alive = peer_alive;
        ops->async_error = async_error;
        ops->rank = rank;
        ops->device = device;
        ops->settings = settings;
        ops->cuda = cuda;
    }
};

Provider *provider_of_caller(void *host)
{
    return caller_of(host)->provider;
}
Provider *provider_itself(void *host)
{
    return static_cast<Provider *>(host);
}

} // namespace

struct psm_host host_of(Caller *caller)
{
    static const struct psm_host_ops ops = [] {
        struct psm_host_ops made = {};
        Both<provider_of_caller>::fill(&made);
        made.connect = do_connect;
        made.call = do_call;
        made.get_fd = do_get_fd;
        made.query_fd = do_query_fd;
        made.disconnect = do_disconnect;
        made.connection = do_connection;
        return made;
    }();
    struct psm_host host = {&ops, caller};
    return host;
}

struct psm_host host_of(Provider *provider)
{
    static const struct psm_host_ops ops = [] {
        struct psm_host_ops made = {};
        Both<provider_itself>::fill(&made);
        return made;
    }();
    struct psm_host host = {&ops, provider};
    return host;
}

} // namespace psm
