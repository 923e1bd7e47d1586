/* What sender and receiver do around their steps: one operation at a time per connection, copies and their events, dead
 * peers, stalls, errors that end the operation at both ends. Runs on the progress thread. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "p2p/p2p.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_copy, "p2p.copy", "a copy and its event are enqueued on the stream");

enum { LOOK_NS = 1000000, SUSPECT_LOOKS = 2, FINISH_NS = 1000000000 };

/* Stalls and looks at the peer need milliseconds only, and the time is read in every turn of a wait: use the time of
 * the last tick, which costs one load, while the exact clock costs as much as noticing the peer's flag. Do not mix it
 * with psm_clock_ns, which is ahead of it. */
static uint64_t tick_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static const char *stage_name(enum psm_p2p_stage stage)
{
    static const char *const names[] = {"idle", "offer", "fifo", "zero-copy", "ended"};
    return names[stage];
}

static bool can_send(const struct psmP2pLocalInfo *local, const struct psmProxySubArgs *sub)
{
    if (local->stage != PSM_STAGE_FIFO) return false;
    return psm_line_load(&local->shared->recvTail) > sub->base + sub->transmitted;
}

static void record(struct psmP2pLocalInfo *local, const struct psmProxySubArgs *sub, enum psm_step_what what,
                   uint64_t step)
{
    const struct psm_step_recorder *recorder = atomic_load_explicit(&psm_step_recorder, memory_order_acquire);
    if (!recorder) return;
    const struct psm_p2p_control *shared = local->shared;
    struct psm_step now = {.at_ns = local->now_ns,
                           .seq = local->seq,
                           .nbytes = sub->nbytes,
                           .base = sub->base,
                           .step = step,
                           .nsteps = sub->nsteps,
                           .sendHead = psm_line_own(&shared->sendHead),
                           .recvTail = psm_line_own(&shared->recvTail),
                           .posted = sub->posted,
                           .transmitted = sub->transmitted,
                           .done = sub->done,
                           .offer = psm_line_own(&shared->offer),
                           .answer = psm_line_own(&shared->answer),
                           .stream = (uint64_t)(uintptr_t)local->stream,
                           .slot = (uint32_t)(step % local->steps),
                           .what = (uint8_t)what,
                           .stage = (uint8_t)local->stage,
                           .zero_copy = local->stage == PSM_STAGE_ZERO_COPY};
    recorder->step(local->recorder, &now);
}

void psm_p2p_passed(const struct psmP2pLocalInfo *local, const struct psmProxySubArgs *sub, enum psm_step_what what,
                    uint64_t step)
{
    static const char *const names[] = {"",        "begin",     "offered", "taken",   "declined",
                                        "copying", "published", "ended",   "stalled", "failed"};
    if (__builtin_expect(psm_log_on(PSM_LEVEL_TRACE, PSM_SUB_P2P | PSM_SUB_PROXY), 0))
        psm_msg_libpsm_p2p_step(local->role ? "send" : "recv", local->rank, local->peer, (uint64_t)local->channel,
                                names[what], step, step % local->steps, psm_line_load(&local->shared->recvTail),
                                psm_line_load(&local->shared->sendHead), sub->posted, sub->transmitted, sub->done,
                                can_send(local, sub) ? "YES" : "NO");
}

void psm_p2p_moved(struct psmP2pLocalInfo *local, const struct psmProxySubArgs *sub, enum psm_step_what what,
                   uint64_t step)
{
    if (__builtin_expect(local->recorder != NULL, 1)) record(local, sub, what, step);
    psm_p2p_passed(local, sub, what, step);
}

psm_status psm_p2p_copy(struct psmP2pLocalInfo *local, void *to, const void *from, uint64_t bytes, int event)
{
    struct psm_fault fault;
    PSM_TRY(psm_fault_before(&site_copy, &(struct psm_fault_args){.rank = local->rank, .peer = local->peer}, "copy",
                             &fault));
    const struct psm_cuda *cuda = local->cuda;
    if (!local->used) {
        local->used = true;
        psm_msg_libpsm_p2p_stream_used((uint64_t)(uintptr_t)local->stream, local->connection, local->rank, local->peer);
    }
    PSM_CUDA(cuda, "copy", local->rank, local->peer,
             cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, local->stream));
    if (event != PSM_NO_EVENT)
        PSM_CUDA(cuda, "copy", local->rank, local->peer, cudaEventRecord(local->events[event], local->stream));
    psm_fault_act_after(&fault);
    return PSM_OK;
}

int psm_p2p_copied(struct psmP2pLocalInfo *local, int event, psm_status *status)
{
    const struct psm_cuda *cuda = local->cuda;
    int code = (int)(event == PSM_NO_EVENT ? cuda->cudaStreamQuery(local->stream)
                                           : cuda->cudaEventQuery(local->events[event]));
    if (code == 0) return 1;
    if (code == PSM_CUDA_NOT_READY) return 0;
    *status = event == PSM_NO_EVENT
                  ? psm_cuda_fail(code, "copy", local->rank, local->peer, "cudaStreamQuery")
                  : psm_cuda_fail(code, "copy", local->rank, local->peer, "cudaEventQuery of slot %d", event);
    return -1;
}

/* ---- waiting ---- */

static void describe_wait(const struct psmP2pLocalInfo *local, const struct psmProxySubArgs *sub, char *text, size_t n)
{
    const struct psm_p2p_control *shared = local->shared;
    uint64_t offer = psm_line_load(&shared->offer);
    if (sub->transmitted > sub->done)
        snprintf(text, n, "this side: %" PRIu64 " copies on its stream are not done", sub->transmitted - sub->done);
    else if (local->stage == PSM_STAGE_OFFER && local->role && offer == 0 && shared->offered.seq == local->seq)
        snprintf(text, n,
                 "nothing that can come: rank %d, the receiver, has posted its recv, but its offer is no longer in "
                 "the control segment, and this side never took it: it was cleared, or never published",
                 local->peer);
    else if (local->stage == PSM_STAGE_OFFER && local->role)
        snprintf(text, n, "rank %d, the receiver, to post its recv", local->peer);
    else if (local->role)
        snprintf(text, n, "rank %d, the receiver, to empty a slot", local->peer);
    else if (offer != 0)
        snprintf(text, n, "rank %d, the sender, to take this side's offer: it has not started its send", local->peer);
    else if (local->stage == PSM_STAGE_ZERO_COPY)
        snprintf(text, n,
                 "rank %d, the sender, to answer the zero-copy offer, which is no longer in the control segment: that "
                 "rank took it and is copying, or it was cleared by mistake",
                 local->peer);
    else
        snprintf(text, n, "rank %d, the sender, to fill a slot", local->peer);
}

static void report_stall(struct psmP2pLocalInfo *local, struct psmProxySubArgs *sub, uint64_t now)
{
    char side[256];
    local->stalled_ns = now;
    describe_wait(local, sub, side, sizeof side);
    psm_msg_libpsm_p2p_stalled(local->role ? "send" : "recv", local->rank, local->peer, (uint64_t)local->channel,
                               (now - local->moved_ns) / 1000000u, stage_name(local->stage),
                               sub->base + sub->transmitted, psm_line_load(&local->shared->recvTail),
                               psm_line_load(&local->shared->sendHead), sub->transmitted, sub->done, sub->nsteps,
                               can_send(local, sub) ? "YES" : "NO", side);
    if (local->recorder) record(local, sub, PSM_STEP_STALLED, sub->base + sub->transmitted);
}

/* The peer has ended or is dead. Earlier looks have found what it had delivered. */
static psm_status peer_gone(struct psmP2pLocalInfo *local, uint64_t ended)
{
    const char *role = local->role ? "receiver" : "sender";
    if (ended == 0)
        return psm_fail(PSM_ERR_PEER_DEAD, local->role ? "send" : "recv", local->rank, local->peer, 0,
                        "rank %d, the %s, died or closed its connections in operation %" PRIu64 ", stage %s",
                        local->peer, role, local->seq, stage_name(local->stage));
    psm_status theirs = (psm_status) - (int)(ended & UINT32_MAX);
    if (theirs == PSM_ERR_PEER_CLOSED)
        return psm_fail(PSM_ERR_PEER_CLOSED, local->role ? "send" : "recv", local->rank, local->peer, 0,
                        "rank %d, the %s, freed the connection in operation %" PRIu64 ", stage %s", local->peer, role,
                        local->seq, stage_name(local->stage));
    return psm_because(psm_fail(PSM_ERR_PEER_CLOSED, local->role ? "send" : "recv", local->rank, local->peer, 0,
                                "rank %d, the %s, ended operation %" PRIu64 " with %s (CUDA %u): see its log",
                                local->peer, role, local->seq, psm_status_name(theirs), (unsigned)(ended >> 32)),
                       PSM_CAUSE_PEER_FAILED, local->peer);
}

static psm_status look(struct psmP2pLocalInfo *local, struct psmProxySubArgs *sub)
{
    uint64_t now = local->now_ns;
    if (now - local->looked_ns < LOOK_NS) return PSM_OK;
    local->looked_ns = now;
    const struct psm_host *host = local->host;
    if (host->ops->aborted(host->self))
        return psm_fail(PSM_ERR_ABORTED, local->role ? "send" : "recv", local->rank, local->peer, 0,
                        "aborted in operation %" PRIu64 ", stage %s", local->seq, stage_name(local->stage));
    uint64_t ended = psm_line_load(local->role ? &local->shared->recvEnded : &local->shared->sendEnded);
    bool own_copies = sub->transmitted > sub->done;
    if ((ended != 0 || !host->ops->peer_alive(host->self, local->peer)) && !own_copies) {
        /* Not at the first look: first find what the peer delivered just before it went. */
        if (++local->suspect >= SUSPECT_LOOKS) return peer_gone(local, ended);
    } else {
        local->suspect = 0;
    }
    uint64_t stall = (uint64_t)local->stall_ms * 1000000u;
    if (stall && now - local->moved_ns >= stall && now - local->stalled_ns >= stall) report_stall(local, sub, now);
    return PSM_OK;
}

/* ---- operations ---- */

/* A peer that receives the end may free its buffers: first finish what is on the stream. Do not wait long for a stream
 * that hangs. */
static void finish_copies(const struct psmP2pLocalInfo *local)
{
    uint64_t end = psm_clock_ns() + FINISH_NS;
    while ((int)local->cuda->cudaStreamQuery(local->stream) == PSM_CUDA_NOT_READY && psm_clock_ns() < end)
        psm_cpu_relax();
}

/* The reason goes to the peer through the control segment, to all ranks through async_error, to the caller through
 * sync. */
static void fail_operation(struct psmP2pLocalInfo *local, struct psmProxySubArgs *sub, psm_status status)
{
    const struct psm_error error = *psm_last_error();
    if (sub->transmitted > sub->done) finish_copies(local);
    psm_p2p_moved(local, sub, PSM_STEP_FAILED, sub->base + sub->transmitted);
    psm_msg_libpsm_p2p_failed(local->role ? "send" : "recv", local->rank, local->peer, (uint64_t)local->channel,
                              local->seq, sub->base + sub->transmitted, psm_status_name(status),
                              psm_cause_name(psm_error_cause(&error)), psm_error_names(&error), error.text);
    psm_line_store(local->role ? &local->shared->sendEnded : &local->shared->recvEnded,
                   (uint64_t)(-status) | (uint64_t)(uint32_t)error.cuda << 32);
    if (status != PSM_ERR_ABORTED) local->host->ops->async_error(local->host->self, status, error.text);
    local->active = NULL;
    local->stage = PSM_STAGE_IDLE;
    psm_fail_again(&error);
}

/* Prefetch the lines that an operation starts with: the other end wrote them last. Only once: later looks must not take
 * a line away from the end that is about to write it. */
static void fetch(const struct psmP2pLocalInfo *local)
{
    struct psm_p2p_control *shared = local->shared;
    psm_line_fetch_own(&shared->offer);
    if (local->role) {
        psm_line_fetch(&shared->offered);
        psm_line_fetch(&shared->recvTail);
    } else {
        psm_line_fetch_own(&shared->offered);
        psm_line_fetch_own(&shared->recvTail);
    }
}

static psm_status run(struct psmProxySubArgs *sub, psm_p2p_step *step, bool *moved, bool *ended)
{
    struct psmP2pLocalInfo *local = sub->connection->transportResources;
    if (!local || !local->connected)
        return psm_fail(PSM_ERR_INVALID, "progress", -1, sub->peer, 0, "an operation on a connection that is not %s",
                        local ? "connected" : "set up");
    bool begins = !local->active;
    local->now_ns = tick_ns();
    if (begins) {
        uint64_t over = psm_line_own(local->role ? &local->shared->sendEnded : &local->shared->recvEnded);
        if (over)
            return psm_fail(PSM_ERR_INVALID, "progress", local->rank, local->peer, 0,
                            "the connection to rank %d ended with %s; free it and make another", local->peer,
                            psm_status_name((psm_status) - (int)(over & UINT32_MAX)));
        fetch(local);
        local->active = sub;
        local->seq++;
        local->stage = PSM_STAGE_OFFER;
        local->suspect = 0;
        local->moved_ns = local->now_ns;
        sub->base = local->step;
        sub->chunkSize = local->chunk;
        sub->offset = sub->posted = sub->transmitted = sub->done = 0;
        sub->nsteps = psm_p2p_nsteps(sub->nbytes, local->chunk);
        if (local->role) /* usually the offer is already there, and is taken at once */
            psm_p2p_passed(local, sub, PSM_STEP_BEGIN, sub->base);
        else
            psm_p2p_moved(local, sub, PSM_STEP_BEGIN, sub->base);
    }
    if (local->active != sub) return PSM_OK; /* it starts when the other one has ended */
    psm_status status = step(local, sub, moved, ended);
    if (status == PSM_OK && !*moved && !*ended) {
        if (begins && local->role && local->recorder) record(local, sub, PSM_STEP_BEGIN, sub->base);
        status = look(local, sub);
    }
    if (status == PSM_OK && *moved) {
        local->moved_ns = tick_ns();
        local->suspect = 0;
    }
    if (status != PSM_OK) {
        fail_operation(local, sub, status);
        return status;
    }
    if (*ended) {
        local->stage = PSM_STAGE_ENDED;
        psm_p2p_moved(local, sub, PSM_STEP_ENDED, sub->base + sub->done);
        local->step = sub->base + sub->nsteps;
        local->active = NULL;
        local->stage = PSM_STAGE_IDLE;
    }
    return PSM_OK;
}

/* The proxy reads it the same way, and lets the next operation on the connection start. */
static bool has_ended(const struct psmProxySubArgs *sub)
{
    return sub->nsteps > 0 && sub->done >= sub->nsteps;
}

static void end_all(struct psmProxyArgs *args, psm_status status)
{
    for (int s = 0; s < args->nsubs; s++) {
        struct psmP2pLocalInfo *local = args->subs[s].connection->transportResources;
        if (local && local->active == &args->subs[s]) {
            /* Another part of the operation has failed: the peers of this part must not wait for it. */
            struct psm_line *ended = local->role ? &local->shared->sendEnded : &local->shared->recvEnded;
            if (psm_line_own(ended) == 0) psm_line_store(ended, (uint64_t)-status);
            if (args->subs[s].transmitted > args->subs[s].done) finish_copies(local);
            local->active = NULL;
            local->stage = PSM_STAGE_IDLE;
        }
    }
    args->state = psmProxyOpNone;
}

psm_status psm_p2p_progress(struct psmProxyArgs *args, psm_p2p_step *step)
{
    args->idle = 1;
    if (args->state == psmProxyOpNone) return PSM_OK;
    if (args->sync && !__atomic_load_n(&args->sync->proxyReadyEvent, __ATOMIC_ACQUIRE)) {
        struct psmP2pLocalInfo *local = args->subs[0].connection->transportResources;
        if (!local || !local->host->ops->aborted(local->host->self)) return PSM_OK;
        end_all(args, PSM_ERR_ABORTED);
        return psm_fail(PSM_ERR_ABORTED, "progress", local->rank, local->peer, 0,
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
            end_all(args, status);
            return status;
        }
        if (moved || ended) args->idle = 0;
        if (ended) args->done++;
    }
    if (args->done == args->nsubs) args->state = psmProxyOpNone;
    return PSM_OK;
}
