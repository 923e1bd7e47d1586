/* The proxy's side of a connection, where p2p and net do the same: checks of a handler's caller, stream and events, the
 * recorder. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <sched.h>

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
    int rank = connection->host->ops->rank(connection->host->self);
    return psm_fault_before(site, &(struct psm_fault_args){.rank = rank, .peer = peer}, stage, fault);
}

psm_status psm_conn_wrong_size(const char *stage, int rank, int got, size_t expected, int answer,
                               size_t answer_expected)
{
    return psm_fail(PSM_ERR_PROTOCOL, stage, rank, -1, 0,
                    "%s: bad sizes of request and answer, %d and %d bytes, expected %zu and %zu", stage, got, answer,
                    expected, answer_expected);
}

psm_status psm_conn_check_setup(const psmProxyConnection *connection, const struct psm_conn_setup *want, uint32_t magic,
                                struct psm_site *site, struct psm_fault *fault)
{
    int rank = connection->host->ops->rank(connection->host->self);
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

void psm_conn_init(struct psm_conn *conn, const psmProxyConnection *connection, const struct psm_conn_setup *want,
                   const struct psm_conn_ops *ops)
{
    const struct psm_host *host = connection->host;
    *conn = (struct psm_conn){.host = host,
                              .cuda = host->ops->cuda(host->self),
                              .ops = ops,
                              .connection = connection->id,
                              .rank = host->ops->rank(host->self),
                              .peer = want->peer,
                              .channel = want->channel,
                              .connIndex = want->connIndex,
                              .role = want->role,
                              .steps = want->steps,
                              .chunk = want->chunk,
                              .stall_ms = host->ops->settings(host->self)->stall_report_ms};
}

psm_status psm_conn_check_connect(const psmProxyConnection *connection, const struct psm_conn *conn, uint32_t magic,
                                  uint16_t version, int peer, uint32_t expected_magic)
{
    int rank = connection->host->ops->rank(connection->host->self);
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
