/* The proxy's side of a connection. Setup listens; Connect connects both ways without waiting, creates stream and
 * events that never leave this process, and registers the slots with the network. Runs on the service thread. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "net/net_conn.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_setup, "net.proxy.setup", "the proxy opens the network and listens");
PSM_FAULT_SITE(site_connect, "net.proxy.connect", "the proxy connects to the peer's proxy, and creates the slots");

/* How long one call of Connect polls for the peer. The caller has other ends to connect, which the peer may be waiting
 * for. */
#define CALL_NS UINT64_C(2000000)

/* ---- setup ---- */

static psm_status listen_there(struct psmNetLocalInfo *local, struct psmNetShareInfo *info)
{
    const struct psm_net *net = local->net;
    struct psm_net_device device;
    int devices = 0;
    ncclResult_t result = net->devices(&devices);
    if (result != ncclSuccess) return psm_net_fail(net, result, "devices", "setup", local->conn.rank, local->conn.peer);
    const char *wanted = getenv("PSM_NET_DEVICE");
    local->dev = wanted && *wanted ? atoi(wanted) : local->conn.host->ops->device(local->conn.host->self) % devices;
    if (local->dev < 0 || local->dev >= devices)
        return psm_fail(PSM_ERR_INVALID, "setup", local->conn.rank, local->conn.peer, 0,
                        "PSM_NET_DEVICE is \"%.20s\"; network %.40s has devices 0 to %d", wanted, net->name,
                        devices - 1);
    result = psm_net_properties(net, local->dev, &device);
    if (result != ncclSuccess)
        return psm_net_fail(net, result, "getProperties", "setup", local->conn.rank, local->conn.peer);
    if (!(device.types & NCCL_PTR_HOST) || device.unpacks)
        return psm_fail(PSM_ERR_UNSUPPORTED, "setup", local->conn.rank, local->conn.peer, 0,
                        "device %d of network %.40s does not move plain host memory (ptrSupport 0x%x%s)", local->dev,
                        net->name, device.types, device.unpacks ? ", a kernel must unpack" : "");
    if (local->stride > device.most)
        return psm_fail(PSM_ERR_INVALID, "setup", local->conn.rank, local->conn.peer, 0,
                        "a slot has %" PRIu64
                        " bytes, but a message of network %.40s holds at most %zu: reduce PSM_BUFFER_SIZE / PSM_STEPS",
                        local->stride, net->name, device.most);
    result = psm_net_listen(net, local->dev, info->handle, &local->listener);
    if (result != ncclSuccess) return psm_net_fail(net, result, "listen", "setup", local->conn.rank, local->conn.peer);
    info->device = (uint32_t)local->dev;
    memcpy(info->net, net->name, strnlen(net->name, sizeof info->net));
    psm_msg_libpsm_net_listening(local->conn.connection, local->conn.role ? "send" : "recv", local->conn.rank,
                                 local->conn.peer, net->name, local->dev, device.name);
    return PSM_OK;
}

psm_status psm_net_proxy_setup(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                               void *resp, int respSize, int *done)
{
    struct psm_fault fault;
    struct psm_net_setup want;
    struct psmNetLocalInfo *local;
    PSM_TRY(psm_conn_enter(connection, "setup", -1));
    PSM_TRY(
        psm_conn_read(connection, "setup", &want, sizeof want, req, reqSize, sizeof(struct psmNetShareInfo), respSize));
    struct psm_conn_setup setup = PSM_CONN_SETUP(want);
    PSM_TRY(psm_conn_new(connection, &setup, PSM_NET_MAGIC, PSM_NET_MODE, sizeof *local, &psm_net_conn_ops, &site_setup,
                         &fault, &local));
    if (local->conn.steps > NCCL_NET_MAX_REQUESTS) local->conn.steps = NCCL_NET_MAX_REQUESTS;
    local->id = psm_random64();
    local->stride = sizeof(struct psm_net_head) + ((uint64_t)want.chunk + 63) / 64 * 64;
    struct psmNetShareInfo info = {PSM_CONN_SHARED(want), .id = local->id};
    psm_status status = psm_net_get(&local->net);
    if (status == PSM_OK) status = listen_there(local, &info);
    if (status != PSM_OK) return psm_conn_abandon(connection, state, psm_net_proxy_free);
    memcpy(resp, &info, sizeof info); /* what the peer may know: nothing of local is included */
    psm_fault_act_after(&fault);
    *done = 1;
    return PSM_OK;
}

/* ---- connect ---- */

static psm_status make_slots(struct psmNetLocalInfo *local)
{
    const struct psm_net *net = local->net;
    int rank = local->conn.rank, peer = local->conn.peer;
    if (!local->memory) {
        void *memory = NULL;
        size_t size = local->conn.steps * local->stride + (PSM_NET_CREDITS + 1) * sizeof(struct psm_net_credit);
        PSM_CUDA(local->conn.cuda, "connect", rank, peer, cudaHostAlloc(&memory, size, 0));
        memset(memory, 0, size);
        local->memory = memory;
        local->memory_size = size;
    }
    ncclResult_t result =
        net->reg(local->to, local->memory, local->memory_size, NCCL_PTR_HOST, &local->to_registration);
    local->to_registered = result == ncclSuccess;
    if (result == ncclSuccess) {
        result = net->reg(local->from, local->memory, local->memory_size, NCCL_PTR_HOST, &local->from_registration);
        local->from_registered = result == ncclSuccess;
    }
    return result == ncclSuccess ? PSM_OK : psm_net_fail(net, result, "regMr", "connect", rank, peer);
}

/* Connects both ways at once: a plugin may need its other end to act before it continues. *meets: both are connected.
 */
static psm_status meet(struct psmNetLocalInfo *local, const struct psm_net_connect *peer, bool *meets)
{
    const struct psm_net *net = local->net;
    ncclNetDeviceHandle_v12_t *device = NULL;
    *meets = false;
    if (!local->to) {
        /* A plugin may keep its progress in the handle between calls. */
        if (!local->connecting) memcpy(local->peer_handle, peer->handle, sizeof local->peer_handle);
        local->connecting = true;
        ncclResult_t result = psm_net_connect(net, local->dev, local->peer_handle, &local->to);
        if (result != ncclSuccess)
            return psm_net_fail(net, result, "connect", "connect", local->conn.rank, local->conn.peer);
    }
    if (!local->from) {
        ncclResult_t result = net->accept(local->listener, &local->from, &device);
        if (result != ncclSuccess)
            return psm_net_fail(net, result, "accept", "connect", local->conn.rank, local->conn.peer);
    }
    *meets = local->to && local->from;
    if (*meets) return PSM_OK;
    const struct psm_host *host = local->conn.host;
    if (host->ops->aborted(host->self))
        return psm_fail(PSM_ERR_ABORTED, "connect", local->conn.rank, local->conn.peer, 0,
                        "aborted while waiting for rank %d in network %.40s", local->conn.peer, net->name);
    if (psm_clock_ns() < local->until_ns) return PSM_OK;
    return psm_fail(PSM_ERR_TIMEOUT, "connect", local->conn.rank, local->conn.peer, 0,
                    "rank %d did not connect through network %.40s within %u ms (PSM_TIMEOUT): %s", local->conn.peer,
                    net->name, host->ops->settings(host->self)->timeout_ms,
                    local->to ? "nothing connected to this end; check whether that rank called Connect"
                              : "its end does not answer; check whether that rank runs and whether its network device "
                                "can be reached from here");
}

static psm_status complete(struct psmNetLocalInfo *local, const struct psm_net_connect *peer)
{
    PSM_TRY(make_slots(local));
    PSM_TRY(psm_conn_make_stream(&local->conn));
    local->net->close_listen(local->listener);
    local->listener = NULL;
    local->conn.pair = local->conn.role ? local->id : peer->id;
    psm_conn_open_recorder(&local->conn);
    local->conn.connected = true;
    psm_msg_libpsm_net_connected(local->conn.connection, local->conn.role ? "send" : "recv", local->conn.rank,
                                 local->conn.peer, local->net->name, local->conn.pair, local->conn.steps,
                                 local->stride);
    psm_fault_act_after(&local->late);
    return PSM_OK;
}

psm_status psm_net_proxy_connect(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                 void *resp, int respSize, int *done)
{
    (void)state;
    struct psmNetLocalInfo *local = connection->transportResources;
    struct psm_net_connected answer = {0};
    PSM_TRY(psm_conn_enter(connection, "connect", local ? local->conn.peer : -1));
    struct psm_net_connect peer;
    PSM_TRY(psm_conn_read(connection, "connect", &peer, sizeof peer, req, reqSize, sizeof answer, respSize));
    PSM_TRY(psm_conn_check_connect(connection, peer.magic, peer.version, peer.rank, PSM_NET_MAGIC));
    uint64_t now = psm_clock_ns();
    if (local->until_ns == 0) {
        const struct psm_host *host = connection->host;
        local->until_ns = now + host->ops->settings(host->self)->timeout_ms * UINT64_C(1000000);
        PSM_TRY(psm_conn_strike_at(connection, &site_connect, "connect", local->conn.peer, &local->late));
    }
    if (local->call_until_ns == 0) local->call_until_ns = now + CALL_NS;
    bool meets;
    psm_status status = meet(local, &peer, &meets);
    if (status == PSM_OK && meets) status = complete(local, &peer);
    if (status != PSM_OK) return psm_fail_at("connect", local->conn.rank, local->conn.peer, 0);
    answer.connected = meets;
    *done = meets || psm_clock_ns() >= local->call_until_ns;
    if (*done) local->call_until_ns = 0;
    memcpy(resp, &answer, sizeof answer);
    return PSM_OK;
}

/* ---- free ---- */

static void close_one(const struct psmNetLocalInfo *local, ncclResult_t result, const char *call, psm_status *first)
{
    if (result != ncclSuccess)
        psm_conn_note(first, psm_net_fail(local->net, result, call, "free", local->conn.rank, local->conn.peer));
}

/* Deregister before closing a comm; close all comms before freeing the memory. */
static void leave_network(struct psmNetLocalInfo *local, psm_status *first)
{
    const struct psm_net *net = local->net;
    if (local->to_registered) close_one(local, net->dereg(local->to, local->to_registration), "deregMr", first);
    if (local->from_registered) close_one(local, net->dereg(local->from, local->from_registration), "deregMr", first);
    if (local->to) close_one(local, net->close_send(local->to), "closeSend", first);
    if (local->from) close_one(local, net->close_recv(local->from), "closeRecv", first);
    if (local->listener) close_one(local, net->close_listen(local->listener), "closeListen", first);
}

/* First stream and events, then what the network holds, then the memory that it used. */
psm_status psm_net_proxy_free(psmProxyConnection *connection, psmProxyState *state)
{
    (void)state;
    psm_status first = PSM_OK;
    struct psmNetLocalInfo *local = psm_conn_take(connection);
    if (!local) return first;
    psm_conn_end(&local->conn, &first);
    if (local->net) {
        leave_network(local, &first);
        if (local->conn.connected)
            psm_msg_libpsm_net_closed(local->conn.connection, local->conn.rank, local->conn.peer, local->conn.seq);
        psm_net_put(local->net);
    }
    if (local->memory) {
        int code = (int)local->conn.cuda->cudaFreeHost(local->memory);
        if (code != 0)
            psm_conn_note(&first, psm_cuda_fail(code, "free", local->conn.rank, local->conn.peer, "cudaFreeHost"));
    }
    free(local->variant);
    free(local);
    return first;
}

const struct psmTransportComm psm_net_split_send =
    PSM_NET_COMM(psm_net_proxy_setup, psm_net_proxy_connect, psm_net_proxy_free, psm_net_send_progress);
const struct psmTransportComm psm_net_split_recv =
    PSM_NET_COMM(psm_net_proxy_setup, psm_net_proxy_connect, psm_net_proxy_free, psm_net_recv_progress);
