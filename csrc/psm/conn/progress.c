/* What sender and receiver do around their steps: one operation at a time per connection, copies and their events, dead
 * peers, stalls, errors that end the operation at both ends. */
#define _GNU_SOURCE
#include <inttypes.h>

#include "conn/conn.h"
#include "psm_lib_messages.h"
#include "shm/line.h"

enum { LOOK_NS = 1000000, SUSPECT_LOOKS = 2, FINISH_NS = 1000000000 };

const char *psm_conn_stage_name(enum psm_conn_stage stage)
{
    static const char *const names[] = {"idle", "offer", "fifo", "zero-copy", "ended"};
    return names[stage];
}

const char *psm_conn_what_name(enum psm_step_what what)
{
    static const char *const names[] = {"",        "begin",     "offered", "taken",   "declined",
                                        "copying", "published", "ended",   "stalled", "failed"};
    return names[what];
}

psm_status psm_conn_copy(struct psm_conn *conn, struct psm_site *site, void *to, const void *from, uint64_t bytes,
                         int event)
{
    struct psm_fault fault;
    PSM_TRY(psm_fault_before(site, &(struct psm_fault_args){.rank = conn->rank, .peer = conn->peer}, "copy", &fault));
    const struct psm_cuda *cuda = conn->cuda;
    if (!conn->used) {
        conn->used = true;
        psm_msg_libpsm_p2p_stream_used((uint64_t)(uintptr_t)conn->stream, conn->connection, conn->rank, conn->peer);
    }
    PSM_CUDA(cuda, "copy", conn->rank, conn->peer, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, conn->stream));
    if (event != PSM_NO_EVENT)
        PSM_CUDA(cuda, "copy", conn->rank, conn->peer, cudaEventRecord(conn->events[event], conn->stream));
    psm_fault_act_after(&fault);
    return PSM_OK;
}

int psm_conn_copied(struct psm_conn *conn, int event, psm_status *status)
{
    const struct psm_cuda *cuda = conn->cuda;
    int code =
        (int)(event == PSM_NO_EVENT ? cuda->cudaStreamQuery(conn->stream) : cuda->cudaEventQuery(conn->events[event]));
    if (code == 0) return 1;
    if (code == PSM_CUDA_NOT_READY) return 0;
    *status = event == PSM_NO_EVENT
                  ? psm_cuda_fail(code, "copy", conn->rank, conn->peer, "cudaStreamQuery")
                  : psm_cuda_fail(code, "copy", conn->rank, conn->peer, "cudaEventQuery of slot %d", event);
    return -1;
}

/* ---- waiting ---- */

static bool copying(const struct psm_conn *conn, const struct psmProxySubArgs *sub)
{
    return sub->transmitted > conn->ops->copied(conn, sub);
}

psm_status psm_conn_peer_dead(const struct psm_conn *conn)
{
    return psm_fail(PSM_ERR_PEER_DEAD, psm_conn_role(conn), conn->rank, conn->peer, 0,
                    "rank %d, the %s, died or closed its connections in operation %" PRIu64 ", stage %s", conn->peer,
                    psm_conn_peer_role(conn), conn->seq, psm_conn_stage_name(conn->stage));
}

psm_status psm_conn_peer_failed(const struct psm_conn *conn, psm_status theirs, unsigned cuda)
{
    return psm_because(psm_fail(PSM_ERR_PEER_CLOSED, psm_conn_role(conn), conn->rank, conn->peer, 0,
                                "rank %d, the %s, ended operation %" PRIu64 " with %s (CUDA %u): see its log",
                                conn->peer, psm_conn_peer_role(conn), conn->seq, psm_status_name(theirs), cuda),
                       PSM_CAUSE_PEER_FAILED, conn->peer);
}

static void report_stall(const struct psm_conn *conn, const struct psmProxySubArgs *sub, uint64_t now)
{
    char side[256];
    uint64_t step = sub->base + sub->transmitted;
    struct psm_step seen = psm_conn_step_now(conn, sub, PSM_STEP_STALLED, step);
    conn->ops->words(conn, sub, &seen);
    conn->ops->describe_wait(conn, sub, side, sizeof side);
    conn->ops->stalled(psm_conn_role(conn), conn->rank, conn->peer, (uint64_t)conn->channel,
                       (now - conn->moved_ns) / 1000000u, psm_conn_stage_name(conn->stage), step, seen.recvTail,
                       seen.sendHead, sub->transmitted, sub->done, sub->nsteps,
                       psm_conn_can_send(conn, sub, seen.recvTail), side);
    psm_conn_record(conn, &seen);
}

static psm_status look(struct psm_conn *conn, struct psmProxySubArgs *sub)
{
    uint64_t now = conn->now_ns;
    if (now - conn->looked_ns < LOOK_NS) return PSM_OK;
    conn->looked_ns = now;
    const struct psm_host *host = conn->host;
    if (host->ops->aborted(host->self))
        return psm_fail(PSM_ERR_ABORTED, psm_conn_role(conn), conn->rank, conn->peer, 0,
                        "aborted in operation %" PRIu64 ", stage %s", conn->seq, psm_conn_stage_name(conn->stage));
    if (conn->ops->gone(conn, sub) && !copying(conn, sub)) {
        /* Not at the first look: first find what the peer delivered just before it went. */
        if (++conn->suspect >= SUSPECT_LOOKS) return conn->ops->gone_error(conn);
    } else {
        conn->suspect = 0;
    }
    uint64_t stall = (uint64_t)conn->stall_ms * 1000000u;
    if (stall && now - conn->moved_ns >= stall && now - conn->stalled_ns >= stall) {
        conn->stalled_ns = now;
        report_stall(conn, sub, now);
    }
    return PSM_OK;
}

/* ---- operations ---- */

/* A peer that receives the end may free its buffers: first finish what is on the stream. Do not wait long for a stream
 * that hangs. */
static void finish_copies(const struct psm_conn *conn)
{
    uint64_t end = psm_clock_ns() + FINISH_NS;
    while ((int)conn->cuda->cudaStreamQuery(conn->stream) == PSM_CUDA_NOT_READY && psm_clock_ns() < end)
        psm_cpu_relax();
}

static void leave(struct psm_conn *conn)
{
    conn->active = NULL;
    conn->stage = PSM_STAGE_IDLE;
}

/* The reason goes to the peer by the transport, to all ranks by async_error, to the caller by sync. */
static void fail_operation(struct psm_conn *conn, struct psmProxySubArgs *sub, psm_status status)
{
    const struct psm_error error = *psm_last_error();
    if (copying(conn, sub)) finish_copies(conn);
    conn->ops->moved(conn, sub, PSM_STEP_FAILED, sub->base + sub->transmitted);
    conn->ops->failed(psm_conn_role(conn), conn->rank, conn->peer, (uint64_t)conn->channel, conn->seq,
                      sub->base + sub->transmitted, psm_status_name(error.status),
                      psm_cause_name(psm_error_cause(&error)), psm_error_names(&error), error.text);
    conn->ops->say_end(conn, status, error.cuda);
    if (status != PSM_ERR_ABORTED) conn->host->ops->async_error(conn->host->self, status, error.text);
    leave(conn);
    psm_fail_again(&error);
}

static psm_status begin(struct psm_conn *conn, struct psmProxySubArgs *sub)
{
    conn->seq++;
    conn->stage = PSM_STAGE_OFFER;
    conn->suspect = 0;
    conn->moved_ns = conn->now_ns;
    sub->base = conn->step;
    sub->chunkSize = conn->chunk;
    sub->offset = sub->posted = sub->transmitted = sub->done = 0;
    sub->nsteps = psm_conn_nsteps(sub->nbytes, conn->chunk);
    conn->active = sub;
    psm_status status = conn->ops->begin(conn, sub);
    if (status == PSM_OK) return PSM_OK;
    conn->seq--;
    leave(conn);
    return status;
}

static psm_status run(struct psmProxySubArgs *sub, psm_conn_step *step, bool *moved, bool *ended)
{
    struct psm_conn *conn = sub->connection->transportResources;
    if (!conn || !conn->connected)
        return psm_fail(PSM_ERR_INVALID, "progress", -1, sub->peer, 0, "an operation on a connection that is not %s",
                        conn ? "connected" : "set up");
    bool begins = !conn->active;
    conn->now_ns = psm_tick_ns();
    if (begins) PSM_TRY(begin(conn, sub));
    if (conn->active != sub) return PSM_OK; /* it starts when the other one has ended */
    psm_status status = step(conn, sub, moved, ended);
    if (status == PSM_OK && !*moved && !*ended) {
        if (begins && conn->ops->waits) conn->ops->waits(conn, sub);
        status = look(conn, sub);
    }
    if (status == PSM_OK && *moved) {
        conn->moved_ns = psm_tick_ns();
        conn->suspect = 0;
    }
    if (status != PSM_OK) {
        fail_operation(conn, sub, status);
        return status;
    }
    if (*ended) {
        conn->stage = PSM_STAGE_ENDED;
        conn->ops->moved(conn, sub, PSM_STEP_ENDED, sub->base + sub->done);
        conn->step = sub->base + sub->nsteps;
        leave(conn);
    }
    return PSM_OK;
}

/* The proxy reads it the same way, and lets the next operation on the connection start. */
static bool has_ended(const struct psmProxySubArgs *sub)
{
    return sub->nsteps > 0 && sub->done >= sub->nsteps;
}

/* Another part of the operation has failed: the peers of the other parts must not wait for them. */
static void end_all(struct psmProxyArgs *args, psm_status status)
{
    for (int s = 0; s < args->nsubs; s++) {
        struct psmProxySubArgs *sub = &args->subs[s];
        struct psm_conn *conn = sub->connection->transportResources;
        if (!conn || conn->active != sub) continue;
        if (copying(conn, sub)) finish_copies(conn);
        conn->ops->say_end(conn, status, 0);
        leave(conn);
    }
    args->state = psmProxyOpNone;
}

psm_status psm_conn_progress(struct psmProxyArgs *args, psm_conn_step *step)
{
    args->idle = 1;
    if (args->state == psmProxyOpNone) return PSM_OK;
    if (args->sync && !__atomic_load_n(&args->sync->proxyReadyEvent, __ATOMIC_ACQUIRE)) {
        struct psm_conn *conn = args->subs[0].connection->transportResources;
        if (!conn || !conn->host->ops->aborted(conn->host->self)) return PSM_OK;
        end_all(args, PSM_ERR_ABORTED);
        return psm_fail(PSM_ERR_ABORTED, "progress", conn->rank, conn->peer, 0,
                        "aborted before the application's stream reached the operation");
    }
    if (args->state == psmProxyOpReady) {
        for (int s = 0; s < args->nsubs; s++) args->subs[s].nsteps = args->subs[s].done = 0;
        args->done = 0;
        args->state = psmProxyOpProgress;
    }
    for (int s = 0; s < args->nsubs; s++) {
        struct psmProxySubArgs *sub = &args->subs[s];
        if (has_ended(sub)) continue;
        bool moved = false, ended = false;
        psm_status status = run(sub, step, &moved, &ended);
        if (status != PSM_OK) {
            struct psm_error kept = *psm_last_error();
            end_all(args, status);
            return psm_fail_again(&kept);
        }
        if (moved || ended) args->idle = 0;
        if (ended) args->done++;
    }
    if (args->done == args->nsubs) args->state = psmProxyOpNone;
    return PSM_OK;
}
