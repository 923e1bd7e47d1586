/* The proxy's side of a connection, where p2p and net do the same: checks of a handler's caller, stream and events, the
 * recorder. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "conn/conn.h"
#include "psm_lib_messages.h"

const struct psm_step_recorder *_Atomic psm_step_recorder;

psm_status psm_conn_enter(psmProxyConnection *connection, const char *stage, int peer)
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

psm_status psm_conn_strike_at(const psmProxyConnection *connection, struct psm_site *site, const char *stage, int peer,
                              struct psm_fault *fault)
{
    return psm_fault_before(site, &(struct psm_fault_args){.rank = psm_conn_rank(connection), .peer = peer}, stage,
                            fault);
}

psm_status psm_conn_read(const psmProxyConnection *connection, const char *stage, void *want, size_t size,
                         const void *req, int reqSize, size_t answer, int respSize)
{
    if (reqSize != (int)size || respSize != (int)answer)
        return psm_fail(PSM_ERR_PROTOCOL, stage, psm_conn_rank(connection), -1, 0,
                        "%s: bad sizes of request and answer, %d and %d bytes, expected %zu and %zu", stage, reqSize,
                        respSize, size, answer);
    memcpy(want, req, size);
    return PSM_OK;
}

static psm_status check_setup(const psmProxyConnection *connection, const struct psm_conn_setup *want, uint32_t magic,
                              struct psm_site *site, struct psm_fault *fault)
{
    int rank = psm_conn_rank(connection);
    if (want->magic != magic)
        return psm_fail(PSM_ERR_PROTOCOL, "setup", rank, -1, 0, "setup: bad magic 0x%08x, expected 0x%08x", want->magic,
                        magic);
    if (want->version != PSM_WIRE_VERSION)
        return psm_fail(PSM_ERR_VERSION, "setup", rank, want->peer, 0, "setup: bad version %u, expected %d",
                        want->version, PSM_WIRE_VERSION);
    if (want->steps == 0 || want->steps > PSM_CONN_MAX_STEPS || want->chunk == 0 ||
        (uint64_t)want->steps * want->chunk != want->buffer_size || want->buffer_size > PSM_CONN_MAX_BUFFER)
        return psm_fail(PSM_ERR_INVALID, "setup", rank, want->peer, 0,
                        "setup: bad buffer of %u steps of %u bytes, %" PRIu64 " bytes in all, expected 1 to %d steps "
                        "that fill at most %" PRIu64 " bytes",
                        want->steps, want->chunk, want->buffer_size, PSM_CONN_MAX_STEPS, PSM_CONN_MAX_BUFFER);
    PSM_TRY(psm_conn_strike_at(connection, site, "setup", want->peer, fault));
    if (!connection->transportResources) return PSM_OK;
    return psm_fail(PSM_ERR_INVALID, "setup", rank, want->peer, 0, "setup of a connection that is already set up");
}

psm_status psm_conn_new(psmProxyConnection *connection, const struct psm_conn_setup *want, uint32_t magic, int mode,
                        size_t size, const struct psm_conn_ops *ops, struct psm_site *site, struct psm_fault *fault,
                        void *local)
{
    const struct psm_host *host = connection->host;
    PSM_TRY(check_setup(connection, want, magic, site, fault));
    struct psm_conn *conn = calloc(1, size);
    if (!conn)
        return psm_fail(PSM_ERR_NO_MEMORY, "setup", psm_conn_rank(connection), want->peer, 0,
                        "no memory for a connection");
    *conn = (struct psm_conn){.host = host,
                              .cuda = host->ops->cuda(host->self),
                              .ops = ops,
                              .connection = connection->id,
                              .rank = psm_conn_rank(connection),
                              .peer = want->peer,
                              .channel = want->channel,
                              .connIndex = want->connIndex,
                              .mode = mode,
                              .role = want->role,
                              .steps = want->steps,
                              .chunk = want->chunk,
                              .stall_ms = host->ops->settings(host->self)->stall_report_ms};
    *(void **)local = connection->transportResources = conn;
    return PSM_OK;
}

psm_status psm_conn_abandon(psmProxyConnection *connection, psmProxyState *state, psm_conn_free *free_it)
{
    struct psm_error kept = *psm_last_error();
    int peer = ((const struct psm_conn *)connection->transportResources)->peer;
    free_it(connection, state);
    psm_fail_again(&kept);
    return psm_fail_at("setup", psm_conn_rank(connection), peer, 0);
}

psm_status psm_conn_check_connect(const psmProxyConnection *connection, uint32_t magic, uint16_t version, int peer,
                                  uint32_t expected_magic)
{
    const struct psm_conn *conn = connection->transportResources;
    int rank = psm_conn_rank(connection);
    if (magic != expected_magic || version != PSM_WIRE_VERSION)
        return psm_fail(magic != expected_magic ? PSM_ERR_PROTOCOL : PSM_ERR_VERSION, "connect", rank, -1, 0,
                        "connect: bad magic 0x%08x or version %u, expected 0x%08x and %d", magic, version,
                        expected_magic, PSM_WIRE_VERSION);
    if (!conn || conn->connected)
        return psm_fail(PSM_ERR_INVALID, "connect", rank, peer, 0, "connect of a connection that is %s",
                        conn ? "already connected" : "not set up");
    return PSM_OK;
}

psm_status psm_conn_make_stream(struct psm_conn *conn)
{
    if (conn->stream) return PSM_OK;
    /* Non-blocking: the application may wait in a callback on the legacy stream until this stream's copies are done. */
    cudaStream_t stream; /* a failing cudaStreamCreate leaves a value that is not a stream */
    PSM_CUDA(conn->cuda, "connect", conn->rank, conn->peer, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    conn->stream = stream;
    for (; conn->made < conn->steps; conn->made++)
        PSM_CUDA(conn->cuda, "connect", conn->rank, conn->peer,
                 cudaEventCreateWithFlags(&conn->events[conn->made], cudaEventDisableTiming));
    psm_msg_libpsm_p2p_stream_created((uint64_t)(uintptr_t)conn->stream, conn->made, conn->connection,
                                      psm_conn_role(conn), conn->rank, conn->peer);
    return PSM_OK;
}

void psm_conn_open_recorder(struct psm_conn *conn)
{
    const struct psm_step_recorder *recorder = atomic_load_explicit(&psm_step_recorder, memory_order_acquire);
    if (!recorder || conn->recorder) return;
    struct psm_step_connection about = {.connection = conn->connection,
                                        .rank = conn->rank,
                                        .peer = conn->peer,
                                        .channel = conn->channel,
                                        .connIndex = conn->connIndex,
                                        .mode = conn->mode,
                                        .role = conn->role,
                                        .steps = conn->steps,
                                        .chunk = conn->chunk,
                                        .stream = (uint64_t)(uintptr_t)conn->stream,
                                        .pair = conn->pair};
    conn->recorder = recorder->open(&about);
}

/* What is on the stream still uses the memory that goes next. */
static void drain(const struct psm_conn *conn)
{
    struct psm_deadline deadline = psm_deadline_in(conn->host->ops->settings(conn->host->self)->timeout_ms);
    while ((int)conn->cuda->cudaStreamQuery(conn->stream) == PSM_CUDA_NOT_READY && !psm_deadline_passed(deadline))
        sched_yield();
}

void *psm_conn_take(psmProxyConnection *connection)
{
    struct psm_conn *conn = connection->transportResources;
    if (!conn) return NULL;
    connection->transportResources = NULL;
    conn->cuda->cudaSetDevice(conn->host->ops->device(conn->host->self));
    return conn;
}

void psm_conn_end(struct psm_conn *conn, psm_status *first)
{
    if (conn->recorder) {
        const struct psm_step_recorder *recorder = atomic_load_explicit(&psm_step_recorder, memory_order_acquire);
        if (recorder) recorder->close(conn->recorder);
    }
    if (!conn->stream) return;
    drain(conn);
    psm_msg_libpsm_p2p_stream_destroyed((uint64_t)(uintptr_t)conn->stream, conn->connection, conn->rank, conn->peer);
    int code = (int)conn->cuda->cudaStreamDestroy(conn->stream);
    if (code != 0) psm_conn_note(first, psm_cuda_fail(code, "free", conn->rank, conn->peer, "cudaStreamDestroy"));
    while (conn->made > 0) {
        code = (int)conn->cuda->cudaEventDestroy(conn->events[--conn->made]);
        if (code != 0) psm_conn_note(first, psm_cuda_fail(code, "free", conn->rank, conn->peer, "cudaEventDestroy"));
    }
}
