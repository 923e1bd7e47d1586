/* The proxy's side of a connection. Setup listens; Connect connects both ways without waiting, creates stream and
 * events that never leave this process, and registers the slots with the network. Runs on the service thread. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "net/net.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_setup, "net.proxy.setup", "the proxy opens the network and listens");
PSM_FAULT_SITE(site_connect, "net.proxy.connect", "the proxy connects to the peer's proxy, and creates the slots");

/* How long one call of Connect polls for the peer. The caller has other ends to connect, which the peer may be waiting
 * for. */
#define CALL_NS UINT64_C(2000000)

static psm_status begin(psmProxyConnection *connection, const char *stage, int peer)
{
    const struct psm_host *host = connection->host;
    if (!host) return psm_fail(PSM_ERR_INTERNAL, stage, -1, peer, 0, "the proxy passed no psm_host to its handler");
    const struct psm_cuda *cuda = host->ops->cuda(host->self);
    int rank = host->ops->rank(host->self);
    if (!cuda) return psm_fail_at(stage, rank, peer, 0);
    /* A service thread may serve several ranks. */
    PSM_CUDA(cuda, stage, rank, peer, cudaSetDevice(host->ops->device(host->self)));
    return PSM_OK;
}

static psm_status strike(struct psm_site *site, const char *stage, int rank, int peer, struct psm_fault *fault)
{
    return psm_fault_before(site, &(struct psm_fault_args){.rank = rank, .peer = peer}, stage, fault);
}

static psm_status wrong_size(const char *stage, int rank, int got, size_t meant, int answer, size_t answer_meant)
{
    return psm_fail(PSM_ERR_PROTOCOL, stage, rank, -1, 0,
                    "%s: bad sizes of request and answer, %d and %d bytes, expected %zu and %zu", stage, got, answer,
                    meant, answer_meant);
}

/* ---- setup ---- */

static psm_status check_setup(const struct psm_net_setup *want, int rank)
{
    if (want->magic != PSM_NET_MAGIC)
        return psm_fail(PSM_ERR_PROTOCOL, "setup", rank, -1, 0, "setup: bad magic 0x%08x, expected 0x%08x", want->magic,
                        PSM_NET_MAGIC);
    if (want->version != PSM_WIRE_VERSION)
        return psm_fail(PSM_ERR_VERSION, "setup", rank, want->peer, 0, "setup: bad version %u, expected %d",
                        want->version, PSM_WIRE_VERSION);
    if (want->steps == 0 || want->steps > PSM_NET_MAX_STEPS || want->chunk == 0 ||
        (uint64_t)want->steps * want->chunk != want->buffer_size || want->buffer_size > PSM_NET_MAX_BUFFER)
        return psm_fail(PSM_ERR_INVALID, "setup", rank, want->peer, 0,
                        "setup: bad buffer of %u steps of %u bytes, %" PRIu64 " bytes in all, expected 1 to %d steps "
                        "that fill at most %" PRIu64 " bytes",
                        want->steps, want->chunk, want->buffer_size, PSM_NET_MAX_STEPS, PSM_NET_MAX_BUFFER);
    return PSM_OK;
}

static psm_status listen_there(struct psmNetLocalInfo *local, struct psmNetShareInfo *info)
{
    const struct psm_net *net = local->net;
    struct psm_net_device device;
    int devices = 0;
    ncclResult_t result = net->devices(&devices);
    if (result != ncclSuccess) return psm_net_fail(net, result, "devices", "setup", local->rank, local->peer);
    const char *wanted = getenv("PSM_NET_DEVICE");
    local->dev = wanted && *wanted ? atoi(wanted) : local->host->ops->device(local->host->self) % devices;
    if (local->dev < 0 || local->dev >= devices)
        return psm_fail(PSM_ERR_INVALID, "setup", local->rank, local->peer, 0,
                        "PSM_NET_DEVICE is \"%.20s\"; network %.40s has devices 0 to %d", wanted, net->name,
                        devices - 1);
    result = psm_net_properties(net, local->dev, &device);
    if (result != ncclSuccess) return psm_net_fail(net, result, "getProperties", "setup", local->rank, local->peer);
    if (!(device.types & NCCL_PTR_HOST) || device.unpacks)
        return psm_fail(PSM_ERR_UNSUPPORTED, "setup", local->rank, local->peer, 0,
                        "device %d of network %.40s does not move plain host memory (ptrSupport 0x%x%s)", local->dev,
                        net->name, device.types, device.unpacks ? ", a kernel must unpack" : "");
    if (local->stride > device.most)
        return psm_fail(PSM_ERR_INVALID, "setup", local->rank, local->peer, 0,
                        "a slot has %" PRIu64
                        " bytes, but a message of network %.40s holds at most %zu: reduce PSM_BUFFER_SIZE / PSM_STEPS",
                        local->stride, net->name, device.most);
    result = psm_net_listen(net, local->dev, info->handle, &local->listener);
    if (result != ncclSuccess) return psm_net_fail(net, result, "listen", "setup", local->rank, local->peer);
    info->device = (uint32_t)local->dev;
    memcpy(info->net, net->name, strnlen(net->name, sizeof info->net));
    psm_msg_libpsm_net_listening(local->connection, local->role ? "send" : "recv", local->rank, local->peer, net->name,
                                 local->dev, device.name);
    return PSM_OK;
}

psm_status psm_net_proxy_setup(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                               void *resp, int respSize, int *done)
{
    struct psm_fault fault;
    PSM_TRY(begin(connection, "setup", -1));
    const struct psm_host *host = connection->host;
    int rank = host->ops->rank(host->self);
    struct psm_net_setup want;
    struct psmNetShareInfo info = {.magic = PSM_NET_MAGIC, .version = PSM_WIRE_VERSION};
    if (reqSize != (int)sizeof want || respSize != (int)sizeof info)
        return wrong_size("setup", rank, reqSize, sizeof want, respSize, sizeof info);
    memcpy(&want, req, sizeof want);
    PSM_TRY(check_setup(&want, rank));
    PSM_TRY(strike(&site_setup, "setup", rank, want.peer, &fault));
    if (connection->transportResources)
        return psm_fail(PSM_ERR_INVALID, "setup", rank, want.peer, 0, "setup of a connection that is already set up");
    struct psmNetLocalInfo *local = calloc(1, sizeof *local);
    if (!local) return psm_fail(PSM_ERR_NO_MEMORY, "setup", rank, want.peer, 0, "no memory for a connection");
    *local = (struct psmNetLocalInfo){.host = host,
                                      .cuda = host->ops->cuda(host->self),
                                      .connection = connection->id,
                                      .id = psm_random64(),
                                      .rank = rank,
                                      .peer = want.peer,
                                      .channel = want.channel,
                                      .connIndex = want.connIndex,
                                      .role = want.role,
                                      .steps = want.steps < NCCL_NET_MAX_REQUESTS ? want.steps : NCCL_NET_MAX_REQUESTS,
                                      .chunk = want.chunk,
                                      .stride = sizeof(struct psm_net_head) + ((uint64_t)want.chunk + 63) / 64 * 64,
                                      .stall_ms = host->ops->settings(host->self)->stall_report_ms};
    connection->transportResources = local;
    psm_status status = psm_net_get(&local->net);
    if (status == PSM_OK) status = listen_there(local, &info);
    if (status != PSM_OK) {
        struct psm_error kept = *psm_last_error();
        psm_net_proxy_free(connection, state);
        psm_fail_again(&kept);
        return psm_fail_at("setup", rank, want.peer, 0);
    }
    info.role = want.role;
    info.steps = want.steps;
    info.buffer_size = want.buffer_size;
    info.id = local->id;
    memcpy(resp, &info, sizeof info); /* what the peer may know: nothing of local is included */
    psm_fault_act_after(&fault);
    *done = 1;
    return PSM_OK;
}

/* ---- connect ---- */

psm_status psm_net_make_stream(struct psmNetLocalInfo *local)
{
    if (local->stream) return PSM_OK;
    /* Non-blocking: the application may wait in a callback on the legacy stream until this stream's copies are done. */
    cudaStream_t stream; /* a failing cudaStreamCreate leaves a value that is not a stream */
    PSM_CUDA(local->cuda, "connect", local->rank, local->peer,
             cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    local->stream = stream;
    for (; local->made < local->steps; local->made++)
        PSM_CUDA(local->cuda, "connect", local->rank, local->peer,
                 cudaEventCreateWithFlags(&local->events[local->made], cudaEventDisableTiming));
    psm_msg_libpsm_p2p_stream_created((uint64_t)(uintptr_t)local->stream, local->made, local->connection,
                                      local->role ? "send" : "recv", local->rank, local->peer);
    return PSM_OK;
}

static psm_status make_slots(struct psmNetLocalInfo *local)
{
    const struct psm_net *net = local->net;
    int rank = local->rank, peer = local->peer;
    if (!local->memory) {
        void *memory = NULL;
        size_t size = local->steps * local->stride + (PSM_NET_CREDITS + 1) * sizeof(struct psm_net_credit);
        PSM_CUDA(local->cuda, "connect", rank, peer, cudaHostAlloc(&memory, size, 0));
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

static void open_recorder(struct psmNetLocalInfo *local)
{
    const struct psm_step_recorder *recorder = atomic_load_explicit(&psm_step_recorder, memory_order_acquire);
    if (!recorder || local->recorder) return;
    struct psm_step_connection about = {.connection = local->connection,
                                        .rank = local->rank,
                                        .peer = local->peer,
                                        .channel = local->channel,
                                        .connIndex = local->connIndex,
                                        .mode = PSM_NET_MODE,
                                        .role = local->role,
                                        .steps = local->steps,
                                        .chunk = local->chunk,
                                        .stream = (uint64_t)(uintptr_t)local->stream,
                                        .pair = local->pair};
    local->recorder = recorder->open(&about);
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
        if (result != ncclSuccess) return psm_net_fail(net, result, "connect", "connect", local->rank, local->peer);
    }
    if (!local->from) {
        ncclResult_t result = net->accept(local->listener, &local->from, &device);
        if (result != ncclSuccess) return psm_net_fail(net, result, "accept", "connect", local->rank, local->peer);
    }
    *meets = local->to && local->from;
    if (*meets) return PSM_OK;
    const struct psm_host *host = local->host;
    if (host->ops->aborted(host->self))
        return psm_fail(PSM_ERR_ABORTED, "connect", local->rank, local->peer, 0,
                        "aborted while waiting for rank %d in network %.40s", local->peer, net->name);
    if (psm_clock_ns() < local->until_ns) return PSM_OK;
    return psm_fail(PSM_ERR_TIMEOUT, "connect", local->rank, local->peer, 0,
                    "rank %d did not connect through network %.40s within %u ms (PSM_TIMEOUT): %s", local->peer,
                    net->name, host->ops->settings(host->self)->timeout_ms,
                    local->to ? "nothing connected to this end; check whether that rank called Connect"
                              : "its end does not answer; check whether that rank runs and whether its network device "
                                "can be reached from here");
}

static psm_status check_connect(const struct psmNetLocalInfo *local, const struct psm_net_connect *peer, int rank)
{
    if (peer->magic != PSM_NET_MAGIC || peer->version != PSM_WIRE_VERSION)
        return psm_fail(peer->magic != PSM_NET_MAGIC ? PSM_ERR_PROTOCOL : PSM_ERR_VERSION, "connect", rank, -1, 0,
                        "connect: bad magic 0x%08x or version %u, expected 0x%08x and %d", peer->magic, peer->version,
                        PSM_NET_MAGIC, PSM_WIRE_VERSION);
    if (!local || local->connected)
        return psm_fail(PSM_ERR_INVALID, "connect", rank, peer->rank, 0, "connect of a connection that is %s",
                        local ? "already connected" : "not set up");
    return PSM_OK;
}

static psm_status complete(struct psmNetLocalInfo *local, const struct psm_net_connect *peer)
{
    PSM_TRY(make_slots(local));
    PSM_TRY(psm_net_make_stream(local));
    local->net->close_listen(local->listener);
    local->listener = NULL;
    local->pair = local->role ? local->id : peer->id;
    open_recorder(local);
    local->connected = true;
    psm_msg_libpsm_net_connected(local->connection, local->role ? "send" : "recv", local->rank, local->peer,
                                 local->net->name, local->pair, local->steps, local->stride);
    psm_fault_act_after(&local->late);
    return PSM_OK;
}

psm_status psm_net_proxy_connect(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                 void *resp, int respSize, int *done)
{
    (void)state;
    struct psmNetLocalInfo *local = connection->transportResources;
    struct psm_net_connected answer = {0};
    PSM_TRY(begin(connection, "connect", local ? local->peer : -1));
    const struct psm_host *host = connection->host;
    int rank = host->ops->rank(host->self);
    struct psm_net_connect peer;
    if (reqSize != (int)sizeof peer || respSize != (int)sizeof answer)
        return wrong_size("connect", rank, reqSize, sizeof peer, respSize, sizeof answer);
    memcpy(&peer, req, sizeof peer);
    PSM_TRY(check_connect(local, &peer, rank));
    uint64_t now = psm_clock_ns();
    if (local->until_ns == 0) {
        local->until_ns = now + host->ops->settings(host->self)->timeout_ms * UINT64_C(1000000);
        PSM_TRY(strike(&site_connect, "connect", rank, local->peer, &local->late));
    }
    if (local->call_until_ns == 0) local->call_until_ns = now + CALL_NS;
    bool meets;
    psm_status status = meet(local, &peer, &meets);
    if (status == PSM_OK && meets) status = complete(local, &peer);
    if (status != PSM_OK) return psm_fail_at("connect", rank, local->peer, 0);
    answer.connected = meets;
    *done = meets || psm_clock_ns() >= local->call_until_ns;
    if (*done) local->call_until_ns = 0;
    memcpy(resp, &answer, sizeof answer);
    return PSM_OK;
}

/* ---- free ---- */

/* Copies on the stream still use the slots. */
static void drain(const struct psmNetLocalInfo *local)
{
    struct psm_deadline deadline = psm_deadline_in(local->host->ops->settings(local->host->self)->timeout_ms);
    while ((int)local->cuda->cudaStreamQuery(local->stream) == PSM_CUDA_NOT_READY && !psm_deadline_passed(deadline))
        sched_yield();
}

static void note(psm_status *first, psm_status status)
{
    if (*first == PSM_OK) *first = status;
}

static void destroy_stream(struct psmNetLocalInfo *local, psm_status *first)
{
    if (!local->stream) return;
    drain(local);
    psm_msg_libpsm_p2p_stream_destroyed((uint64_t)(uintptr_t)local->stream, local->connection, local->rank,
                                        local->peer);
    int code = (int)local->cuda->cudaStreamDestroy(local->stream);
    if (code != 0) note(first, psm_cuda_fail(code, "free", local->rank, local->peer, "cudaStreamDestroy"));
    while (local->made > 0) {
        code = (int)local->cuda->cudaEventDestroy(local->events[--local->made]);
        if (code != 0) note(first, psm_cuda_fail(code, "free", local->rank, local->peer, "cudaEventDestroy"));
    }
}

static void close_one(const struct psmNetLocalInfo *local, ncclResult_t result, const char *call, psm_status *first)
{
    if (result != ncclSuccess) note(first, psm_net_fail(local->net, result, call, "free", local->rank, local->peer));
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
    struct psmNetLocalInfo *local = connection->transportResources;
    if (!local) return first;
    connection->transportResources = NULL;
    const struct psm_host *host = local->host;
    local->cuda->cudaSetDevice(host->ops->device(host->self));
    if (local->recorder) {
        const struct psm_step_recorder *recorder = atomic_load_explicit(&psm_step_recorder, memory_order_acquire);
        if (recorder) recorder->close(local->recorder);
    }
    destroy_stream(local, &first);
    if (local->net) {
        leave_network(local, &first);
        if (local->connected) psm_msg_libpsm_net_closed(local->connection, local->rank, local->peer, local->seq);
        psm_net_put(local->net);
    }
    if (local->memory) {
        int code = (int)local->cuda->cudaFreeHost(local->memory);
        if (code != 0) note(&first, psm_cuda_fail(code, "free", local->rank, local->peer, "cudaFreeHost"));
    }
    free(local->variant);
    free(local);
    return first;
}

const struct psmTransportComm psm_net_split_send = {
    .proxySetup = psm_net_proxy_setup,
    .proxyConnect = psm_net_proxy_connect,
    .proxyFree = psm_net_proxy_free,
    .proxyProgress = psm_net_send_progress,
    .proxyAbort = psm_net_proxy_abort,
};
const struct psmTransportComm psm_net_split_recv = {
    .proxySetup = psm_net_proxy_setup,
    .proxyConnect = psm_net_proxy_connect,
    .proxyFree = psm_net_proxy_free,
    .proxyProgress = psm_net_recv_progress,
    .proxyAbort = psm_net_proxy_abort,
};
