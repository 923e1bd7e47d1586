/* The proxy's side of a connection: Setup makes what the peer attaches, Connect attaches what the peer made, and makes
 * stream and events that never leave this process. On the service thread. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "p2p/p2p.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_setup, "p2p.proxy.setup", "the proxy makes the control segment or the FIFO");
PSM_FAULT_SITE(site_connect, "p2p.proxy.connect", "the proxy attaches what the peer made");
PSM_FAULT_SITE(site_register, "p2p.proxy.register", "the proxy maps a peer's registered buffer");

const struct psm_step_recorder *_Atomic psm_step_recorder;

static psm_status begin(psmProxyConnection *connection, const char *stage, int peer)
{
    const struct psm_host *host = connection->host;
    if (!host) return psm_fail(PSM_ERR_INTERNAL, stage, -1, peer, 0, "the proxy passed no psm_host to its handler");
    const struct psm_cuda *cuda = host->ops->cuda(host->self);
    int rank = host->ops->rank(host->self);
    if (!cuda) return psm_fail_at(stage, rank, peer, 0);
    /* A service thread may serve more than one rank. */
    PSM_CUDA(cuda, stage, rank, peer, cudaSetDevice(host->ops->device(host->self)));
    return PSM_OK;
}

static psm_status strike(const psmProxyConnection *connection, struct psm_site *site, const char *stage, int peer,
                         struct psm_fault *fault)
{
    int rank = connection->host->ops->rank(connection->host->self);
    return psm_fault_before(site, &(struct psm_fault_args){.rank = rank, .peer = peer}, stage, fault);
}

static psm_status wrong_size(const char *stage, int rank, int got, size_t meant, int answer, size_t answer_meant)
{
    return psm_fail(PSM_ERR_PROTOCOL, stage, rank, -1, 0,
                    "%s: bad sizes of request and answer, %d and %d bytes, expected %zu and %zu", stage, got, answer,
                    meant, answer_meant);
}

/* ---- setup ---- */

static psm_status check_setup(const struct psm_p2p_setup *want, int rank)
{
    if (want->magic != PSM_P2P_MAGIC)
        return psm_fail(PSM_ERR_PROTOCOL, "setup", rank, -1, 0, "setup: bad magic 0x%08x, expected 0x%08x", want->magic,
                        PSM_P2P_MAGIC);
    if (want->version != PSM_WIRE_VERSION)
        return psm_fail(PSM_ERR_VERSION, "setup", rank, want->peer, 0, "setup: bad version %u, expected %d",
                        want->version, PSM_WIRE_VERSION);
    if (want->steps == 0 || want->steps > PSM_P2P_MAX_STEPS || want->chunk == 0 ||
        (uint64_t)want->steps * want->chunk != want->buffer_size || want->buffer_size > PSM_P2P_MAX_BUFFER)
        return psm_fail(PSM_ERR_INVALID, "setup", rank, want->peer, 0,
                        "setup: bad buffer of %u steps of %u bytes, %" PRIu64 " bytes in all, expected 1 to %d steps "
                        "that fill at most %" PRIu64 " bytes",
                        want->steps, want->chunk, want->buffer_size, PSM_P2P_MAX_STEPS, PSM_P2P_MAX_BUFFER);
    return PSM_OK;
}

static psm_status make_shared(struct psmP2pLocalInfo *local, const struct psm_p2p_setup *want, struct psm_share *share)
{
    const struct psm_host *host = local->host;
    int fd;
    if (local->role == 0 && want->fifo_kind == PSM_SHARE_NONE) return PSM_OK;
    if (local->role == 1) {
        PSM_TRY(psm_segment_create(&local->control, want->control_kind, sizeof(struct psm_p2p_control), "control"));
        local->shared = local->control.data;
        psm_segment_share(&local->control, share);
        fd = local->control.fd;
    } else {
        PSM_TRY(psm_memory_make(host, want->fifo_kind, want->buffer_size, "fifo", &local->fifo));
        psm_memory_share(&local->fifo, share);
        fd = psm_memory_fd(&local->fifo);
    }
    return fd < 0 ? PSM_OK : host->ops->offer_fd(host->self, share->id, fd);
}

psm_status psm_p2p_proxy_setup(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                               void *resp, int respSize, int *done)
{
    (void)state;
    struct psm_fault fault;
    PSM_TRY(begin(connection, "setup", -1));
    const struct psm_host *host = connection->host;
    int rank = host->ops->rank(host->self);
    struct psm_p2p_setup want;
    struct psmP2pShareInfo info = {.magic = PSM_P2P_MAGIC, .version = PSM_WIRE_VERSION};
    if (reqSize != (int)sizeof want || respSize != (int)sizeof info)
        return wrong_size("setup", rank, reqSize, sizeof want, respSize, sizeof info);
    memcpy(&want, req, sizeof want);
    PSM_TRY(check_setup(&want, rank));
    PSM_TRY(strike(connection, &site_setup, "setup", want.peer, &fault));
    if (connection->transportResources)
        return psm_fail(PSM_ERR_INVALID, "setup", rank, want.peer, 0, "setup of a connection that is set up already");
    struct psmP2pLocalInfo *local = calloc(1, sizeof *local);
    if (!local) return psm_fail(PSM_ERR_NO_MEMORY, "setup", rank, want.peer, 0, "no memory for a connection");
    *local = (struct psmP2pLocalInfo){.host = host,
                                      .cuda = host->ops->cuda(host->self),
                                      .connection = connection->id,
                                      .rank = rank,
                                      .peer = want.peer,
                                      .channel = want.channel,
                                      .connIndex = want.connIndex,
                                      .mode = want.mode,
                                      .role = want.role,
                                      .steps = want.steps,
                                      .chunk = want.chunk,
                                      .zero_copy = want.zero_copy,
                                      .stall_ms = host->ops->settings(host->self)->stall_report_ms,
                                      .fifo = {.fd = -1, .segment = {.fd = -1}},
                                      .control = {.fd = -1}};
    connection->transportResources = local;
    psm_status status = make_shared(local, &want, &info.share);
    if (status != PSM_OK) {
        struct psm_error kept = *psm_last_error();
        psm_p2p_proxy_free(connection, state);
        psm_fail_again(&kept);
        return psm_fail_at("setup", rank, want.peer, 0);
    }
    info.role = want.role;
    info.steps = want.steps;
    info.mode = want.mode;
    info.buffer_size = want.buffer_size;
    memcpy(resp, &info, sizeof info); /* what the peer may know, and not a byte of local */
    psm_fault_act_after(&fault);
    *done = 1;
    return PSM_OK;
}

/* ---- connect ---- */

psm_status psm_p2p_make_stream(struct psmP2pLocalInfo *local)
{
    if (local->stream) return PSM_OK;
    /* Non-blocking: the application may sit in a callback on the legacy stream until this stream's copies are done. */
    cudaStream_t stream; /* a runtime that fails leaves a number that is no stream here */
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

static psm_status map_fifo(struct psmP2pLocalInfo *local, const struct psm_share *share, int fd, int owner)
{
    uint64_t meant = (uint64_t)local->steps * local->chunk;
    if (share->size != meant)
        return psm_fail(PSM_ERR_MISMATCH, "connect", local->rank, owner, 0,
                        "rank %d shares a FIFO of %" PRIu64 " bytes, expected %" PRIu64, owner, share->size, meant);
    return psm_memory_map(local->host, share, fd, owner, &local->fifo);
}

static psm_status attach(struct psmP2pLocalInfo *local, const struct psm_p2p_attach *want, int fd, int fifo_fd)
{
    const struct psm_share *share = &want->peer.share;
    if (local->role) {
        PSM_TRY(map_fifo(local, share, fd, want->fifo_rank));
    } else {
        if (want->fifo.kind != PSM_SHARE_NONE) PSM_TRY(map_fifo(local, &want->fifo, fifo_fd, want->fifo_rank));
        if (share->size != sizeof(struct psm_p2p_control))
            return psm_fail(PSM_ERR_MISMATCH, "connect", local->rank, local->peer, 0,
                            "rank %d shares a control segment of %" PRIu64 " bytes, expected %zu", local->peer,
                            share->size, sizeof(struct psm_p2p_control));
        PSM_TRY(psm_segment_attach(&local->control, share, fd));
        local->shared = local->control.data;
    }
    return psm_p2p_make_stream(local);
}

static void open_recorder(struct psmP2pLocalInfo *local)
{
    const struct psm_step_recorder *recorder = atomic_load_explicit(&psm_step_recorder, memory_order_acquire);
    if (!recorder || local->recorder) return;
    struct psm_step_connection about = {.connection = local->connection,
                                        .rank = local->rank,
                                        .peer = local->peer,
                                        .channel = local->channel,
                                        .connIndex = local->connIndex,
                                        .mode = local->mode,
                                        .role = local->role,
                                        .steps = local->steps,
                                        .chunk = local->chunk,
                                        .stream = (uint64_t)(uintptr_t)local->stream,
                                        .pair = local->control.id};
    local->recorder = recorder->open(&about);
}

psm_status psm_p2p_proxy_connect(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                 void *resp, int respSize, int *done)
{
    (void)state;
    (void)resp;
    struct psmP2pLocalInfo *local = connection->transportResources;
    struct psm_fault fault;
    int peer = local ? local->peer : -1;
    PSM_TRY(begin(connection, "connect", peer));
    PSM_TRY(strike(connection, &site_connect, "connect", peer, &fault));
    int rank = connection->host->ops->rank(connection->host->self);
    struct psm_p2p_attach want;
    if (reqSize != (int)sizeof want || respSize != 0)
        return wrong_size("connect", rank, reqSize, sizeof want, respSize, 0);
    memcpy(&want, req, sizeof want);
    if (want.peer.magic != PSM_P2P_MAGIC || want.peer.version != PSM_WIRE_VERSION)
        return psm_fail(want.peer.magic != PSM_P2P_MAGIC ? PSM_ERR_PROTOCOL : PSM_ERR_VERSION, "connect", rank, -1, 0,
                        "connect: bad magic 0x%08x or version %u, expected 0x%08x and %d", want.peer.magic,
                        want.peer.version, PSM_P2P_MAGIC, PSM_WIRE_VERSION);
    if (!local || local->connected)
        return psm_fail(PSM_ERR_INVALID, "connect", rank, want.peer.rank, 0, "connect of a connection that is %s",
                        local ? "connected already" : "not set up");
    local->same_process = want.same_process != 0;
    if (local->role == PSM_P2P_LENDER || (!local->role && local->fifo.kind == 0 && want.fifo.kind == PSM_SHARE_NONE))
        return psm_fail(PSM_ERR_INVALID, "connect", rank, local->peer, 0, "connect of an end that %s",
                        local->role ? "lends a FIFO to others" : "has no FIFO");
    int fd = -1, fifo_fd = -1;
    const struct psm_host *host = local->host;
    psm_status status = want.given >= 0 ? host->ops->take_fd(host->self, want.given, &fd) : PSM_OK;
    if (status == PSM_OK && want.fifo_given >= 0) status = host->ops->take_fd(host->self, want.fifo_given, &fifo_fd);
    if (status == PSM_OK) status = attach(local, &want, fd, fifo_fd);
    if (fd >= 0) close(fd);
    if (fifo_fd >= 0) close(fifo_fd);
    if (status != PSM_OK) return psm_fail_at("connect", rank, local->peer, 0);
    open_recorder(local);
    local->connected = true;
    psm_fault_act_after(&fault);
    *done = 1;
    return PSM_OK;
}

/* ---- free ---- */

/* What is on the stream still uses the memory that goes next. */
static void drain(const struct psmP2pLocalInfo *local)
{
    struct psm_deadline deadline = psm_deadline_in(local->host->ops->settings(local->host->self)->timeout_ms);
    while ((int)local->cuda->cudaStreamQuery(local->stream) == PSM_CUDA_NOT_READY && !psm_deadline_passed(deadline))
        sched_yield();
}

static void note(psm_status *first, psm_status status)
{
    if (*first == PSM_OK) *first = status;
}

static void destroy_stream(struct psmP2pLocalInfo *local, psm_status *first)
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

/* Stream, events, device memory, host memory; then what was imported, the segment, the record. */
psm_status psm_p2p_proxy_free(psmProxyConnection *connection, psmProxyState *state)
{
    (void)state;
    psm_status first = PSM_OK;
    bool found;
    if (connection->host) note(&first, psm_import_remove(connection->host, connection, 0, false, &found));
    struct psmP2pLocalInfo *local = connection->transportResources;
    if (!local) {
        if (connection->host) note(&first, psm_memory_drop_kept(connection->host, connection));
        return first;
    }
    connection->transportResources = NULL;
    const struct psm_host *host = local->host;
    local->cuda->cudaSetDevice(host->ops->device(host->self));
    if (local->connected) {
        struct psm_line *ended = local->role ? &local->shared->sendEnded : &local->shared->recvEnded;
        if (psm_line_own(ended) == 0) psm_line_store(ended, (uint64_t)-PSM_ERR_PEER_CLOSED);
    }
    if (local->recorder) {
        const struct psm_step_recorder *recorder = atomic_load_explicit(&psm_step_recorder, memory_order_acquire);
        if (recorder) recorder->close(local->recorder);
    }
    destroy_stream(local, &first);
    if (local->import) note(&first, psm_import_release(host, local->import));
    note(&first, psm_memory_drop_kept(host, connection));
    if (local->fifo.owner && psm_memory_fd(&local->fifo) >= 0) host->ops->withdraw_fd(host->self, local->fifo.id);
    note(&first, psm_memory_close(host, &local->fifo)); /* recv: the FIFO itself; send: the import of it */
    if (local->control.fd >= 0) host->ops->withdraw_fd(host->self, local->control.id);
    psm_segment_close(&local->control);
    free(local);
    return first;
}

/* ---- registration: the peer's buffer, on the sender's proxy ---- */

static psm_status read_registration(psmProxyConnection *connection, const void *req, int reqSize, int respSize,
                                    struct psm_p2p_registration *want)
{
    int rank = connection->host->ops->rank(connection->host->self);
    if (reqSize != (int)sizeof *want || respSize != 0)
        return wrong_size("register", rank, reqSize, sizeof *want, respSize, 0);
    memcpy(want, req, sizeof *want);
    if (want->magic != PSM_P2P_MAGIC)
        return psm_fail(PSM_ERR_PROTOCOL, "register", rank, -1, 0, "register: bad magic 0x%08x, expected 0x%08x",
                        want->magic, PSM_P2P_MAGIC);
    if (want->version != PSM_WIRE_VERSION)
        return psm_fail(PSM_ERR_VERSION, "register", rank, want->rank, 0, "register: bad version %u, expected %d",
                        want->version, PSM_WIRE_VERSION);
    return PSM_OK;
}

psm_status psm_p2p_proxy_register(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                  void *resp, int respSize, int *done)
{
    (void)state;
    (void)resp;
    struct psm_fault fault;
    PSM_TRY(begin(connection, "register", connection->rank));
    PSM_TRY(strike(connection, &site_register, "register", connection->rank, &fault));
    const struct psm_host *host = connection->host;
    struct psm_p2p_registration want;
    PSM_TRY(read_registration(connection, req, reqSize, respSize, &want));
    int fd = -1;
    if (want.given >= 0) PSM_TRY(host->ops->take_fd(host->self, want.given, &fd));
    psm_status status = psm_import_add(host, connection, want.id, &want.share, fd, want.rank);
    if (fd >= 0) close(fd);
    if (status != PSM_OK) return psm_fail_at("register", host->ops->rank(host->self), want.rank, 0);
    psm_fault_act_after(&fault);
    *done = 1;
    return PSM_OK;
}

psm_status psm_p2p_proxy_deregister(psmProxyConnection *connection, psmProxyState *state, const void *req, int reqSize,
                                    int *done)
{
    (void)state;
    struct psm_fault fault;
    PSM_TRY(begin(connection, "register", connection->rank));
    PSM_TRY(strike(connection, &site_register, "register", connection->rank, &fault));
    struct psm_p2p_registration want;
    PSM_TRY(read_registration(connection, req, reqSize, 0, &want));
    bool found = false; /* id 0 would mean all */
    psm_status status =
        want.id ? psm_import_remove(connection->host, connection, want.id, want.keep != 0, &found) : PSM_OK;
    *done = 1;
    if (status == PSM_OK && !found)
        return psm_fail(PSM_ERR_NOT_FOUND, "register", -1, want.rank, 0,
                        "rank %d deregisters a buffer of id 0x%" PRIx64 ", which is not registered on this connection",
                        want.rank, want.id);
    return status;
}

const struct psmTransportComm psm_p2p_split_send = {
    .proxySetup = psm_p2p_proxy_setup,
    .proxyConnect = psm_p2p_proxy_connect,
    .proxyFree = psm_p2p_proxy_free,
    .proxyProgress = psm_p2p_send_progress,
    .proxyRegister = psm_p2p_proxy_register,
    .proxyDeregister = psm_p2p_proxy_deregister,
};
const struct psmTransportComm psm_p2p_split_recv = {
    .proxySetup = psm_p2p_proxy_setup,
    .proxyConnect = psm_p2p_proxy_connect,
    .proxyFree = psm_p2p_proxy_free,
    .proxyProgress = psm_p2p_recv_progress,
    .proxyRegister = psm_p2p_proxy_register,
    .proxyDeregister = psm_p2p_proxy_deregister,
};
