/* libpsm's own proxy as the p2p transport's host. */
#include <stdlib.h>

#include "proxy/proxy.h"
#include "psm_cuda.h"

static psm_status address_of(psmProxyState *state, int rank, const char *stage, struct psmProxyAddress *address)
{
    pthread_mutex_lock(&state->lock);
    bool found = rank >= 0 && rank < state->naddresses;
    if (found) *address = state->addresses[rank];
    pthread_mutex_unlock(&state->lock);
    /* its own address is known from the start */
    if (!found && rank == state->rank) return psmProxyAddress(state, address);
    if (found) return PSM_OK;
    return psm_fail(PSM_ERR_INVALID, stage, state->rank, rank, 0,
                    "the address of the proxy of rank %d is unknown: psmProxySetAddresses has set %d", rank,
                    state->naddresses);
}

static psm_status host_connect(void *host, int transport, int send, int rank, void **connector)
{
    psmProxyState *state = host;
    struct psmProxyAddress address;
    PSM_TRY(address_of(state, rank, "init", &address));
    psmProxyConnector *made = calloc(1, sizeof *made);
    if (!made) return psm_fail(PSM_ERR_NO_MEMORY, "init", state->rank, rank, 0, "no memory for a connector");
    psm_status status = psmProxyConnect(state, transport, send, &address, made);
    if (status < 0) {
        free(made);
        return status;
    }
    *connector = made;
    return PSM_OK;
}

static psm_status host_call(void *host, void *connector, int type, const void *req, int reqSize, void *resp,
                            int respSize)
{
    (void)host;
    return psmProxyCallBlocking(connector, type, req, reqSize, resp, respSize);
}

static psm_status host_get_fd(void *host, void *connector, uint64_t id, int *fd)
{
    (void)host;
    return psmProxyClientGetFdBlocking(connector, id, fd);
}

static psm_status host_query_fd(void *host, void *connector, int fd, int *remote)
{
    (void)host;
    return psmProxyClientQueryFdBlocking(connector, fd, remote);
}

static psm_status host_disconnect(void *host, void *connector)
{
    (void)host;
    psm_status status = psmProxyDisconnect(connector);
    free(connector);
    return status;
}

/* The connector to a rank's proxy that only fetches descriptors. It is dropped with the state: the peer frees its end
 * when it loses this process. */
static psm_status fetcher_of(psmProxyState *state, int transport, int rank, psmProxyConnector **out)
{
    pthread_mutex_lock(&state->fetch_lock);
    psmProxyConnector *kept = state->fetchers[rank];
    pthread_mutex_unlock(&state->fetch_lock);
    if (!kept) {
        void *made;
        PSM_TRY(host_connect(state, transport, 1, rank, &made));
        pthread_mutex_lock(&state->fetch_lock);
        kept = state->fetchers[rank];
        if (!kept) state->fetchers[rank] = made;
        pthread_mutex_unlock(&state->fetch_lock);
        if (kept) host_disconnect(state, made); /* another thread was first */
        if (!kept) kept = made;
    }
    *out = kept;
    return PSM_OK;
}

static psm_status host_fetch_fd(void *host, int transport, int rank, uint64_t id, int *fd)
{
    psmProxyState *state = host;
    struct psmProxyAddress address;
    psmProxyConnector *connector;
    PSM_TRY(address_of(state, rank, "init", &address)); /* also checks the rank */
    PSM_TRY(fetcher_of(state, transport, rank, &connector));
    return psmProxyClientGetFdBlocking(connector, id, fd);
}

static psm_status host_offer_fd(void *host, uint64_t id, int fd)
{
    return psmProxyOfferFd(host, id, fd);
}

static psm_status host_withdraw_fd(void *host, uint64_t id)
{
    return psmProxyWithdrawFd(host, id);
}

static psm_status host_take_fd(void *host, int number, int *fd)
{
    return psmProxyTakeFd(host, number, fd);
}

static int host_aborted(void *host)
{
    return psmProxyAborted(host);
}

static int host_peer_alive(void *host, int rank)
{
    return psmProxyPeerAlive(host, rank);
}

static void host_async_error(void *host, psm_status status, const char *text)
{
    psmProxyFail(host, status, text);
}

static int host_rank(void *host)
{
    return psmProxyRank(host);
}

static int host_device(void *host)
{
    return psmProxyDevice(host);
}

static const struct psm_settings *host_settings(void *host)
{
    return psmProxySettings(host);
}

static const struct psm_cuda *host_cuda(void *host)
{
    (void)host;
    return psm_cuda_get();
}

static uint64_t host_connection(void *host, void *connector)
{
    (void)host;
    return ((const psmProxyConnector *)connector)->connection;
}

static psm_status host_fetch_start(void *host, int rank, uint64_t id, void **fetch)
{
    struct psmProxyAddress address;
    psmProxyFetch *made = NULL;
    PSM_TRY(address_of(host, rank, "getfd", &address));
    PSM_TRY(psmProxyFetchFd(host, &address, id, &made));
    *fetch = made;
    return PSM_OK;
}

static psm_status host_fetch_poll(void *host, void *fetch, int *fd)
{
    (void)host;
    return psmProxyFetchPoll(fetch, fd);
}

static void host_fetch_cancel(void *host, void *fetch)
{
    (void)host;
    psmProxyFetchCancel(fetch);
}

static const struct psm_host_ops ops = {
    .size = sizeof ops,
    .connect = host_connect,
    .call = host_call,
    .get_fd = host_get_fd,
    .query_fd = host_query_fd,
    .disconnect = host_disconnect,
    .offer_fd = host_offer_fd,
    .withdraw_fd = host_withdraw_fd,
    .take_fd = host_take_fd,
    .aborted = host_aborted,
    .peer_alive = host_peer_alive,
    .async_error = host_async_error,
    .rank = host_rank,
    .device = host_device,
    .settings = host_settings,
    .cuda = host_cuda,
    .connection = host_connection,
    .fetch_start = host_fetch_start,
    .fetch_poll = host_fetch_poll,
    .fetch_cancel = host_fetch_cancel,
    .fetch_fd = host_fetch_fd,
};

struct psm_host psm_host_of(psmProxyState *state)
{
    return (struct psm_host){&ops, state};
}

const struct psm_cuda *psmCuda(void)
{
    return psm_cuda_get();
}
