/* What sender and receiver do around their steps: one operation at a time per connection, copies and their events, dead
 * peers, stalls, errors that end the operation at both ends. Runs on the progress thread. As in p2p, but nothing is
 * shared: an end learns about the other only through the network. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "net/net.h"
#include "psm_lib_messages.h"
#include "shm/line.h"

PSM_FAULT_SITE(site_copy, "net.copy", "a copy and its event are enqueued on the stream");

enum { LOOK_NS = 1000000, SUSPECT_LOOKS = 2, FINISH_NS = 1000000000, FAREWELL_NS = 10000000 };

/* The time of the last tick, as in p2p. */
static uint64_t tick_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static const char *stage_name(enum psm_net_stage stage)
{
    static const char *const names[] = {"idle", "offer", "fifo", "", "ended"};
    return names[stage];
}

static const char *role_of(const struct psmNetLocalInfo *local)
{
    return local->role ? "send" : "recv";
}

/* Steps that may be filled, as far as this end knows. A sender's slot is free only when the network has also released
 * it. The receiver owes no more receives than the operation has steps. */
static uint64_t recv_tail(const struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub)
{
    uint64_t own = sub->base + sub->done + local->steps;
    if (local->role) return own < local->tail ? own : local->tail;
    return local->told && sub->posted == sub->nsteps ? own : local->tail;
}

static uint64_t send_head(const struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub)
{
    return sub->base + local->passed;
}

static bool can_send(const struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub)
{
    return local->stage == PSM_NET_FIFO && recv_tail(local, sub) > sub->base + sub->transmitted;
}

/* Finished copies. The sender counts a slot as done later, when the network has released it. */
static uint64_t copied(const struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub)
{
    return local->role ? local->passed : sub->done;
}

static void record(struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub, enum psm_step_what what,
                   uint64_t step)
{
    const struct psm_step_recorder *recorder = atomic_load_explicit(&psm_step_recorder, memory_order_acquire);
    if (!recorder) return;
    struct psm_step now = {.at_ns = local->now_ns,
                           .seq = local->seq,
                           .nbytes = sub->nbytes,
                           .base = sub->base,
                           .step = step,
                           .nsteps = sub->nsteps,
                           .sendHead = send_head(local, sub),
                           .recvTail = recv_tail(local, sub),
                           .posted = sub->posted,
                           .transmitted = sub->transmitted,
                           .done = copied(local, sub),
                           .stream = (uint64_t)(uintptr_t)local->stream,
                           .slot = (uint32_t)(step % local->steps),
                           .what = (uint8_t)what,
                           .stage = (uint8_t)local->stage};
    recorder->step(local->recorder, &now);
}

void psm_net_moved(struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub, enum psm_step_what what,
                   uint64_t step)
{
    static const char *const names[] = {"",        "begin",     "offered", "taken",   "declined",
                                        "copying", "published", "ended",   "stalled", "failed"};
    if (__builtin_expect(local->recorder != NULL, 1)) record(local, sub, what, step);
    if (__builtin_expect(psm_log_on(PSM_LEVEL_TRACE, PSM_SUB_NET | PSM_SUB_PROXY), 0))
        psm_msg_libpsm_net_step(role_of(local), local->rank, local->peer, (uint64_t)local->channel, names[what], step,
                                step % local->steps, recv_tail(local, sub), send_head(local, sub), sub->posted,
                                sub->transmitted, sub->done, can_send(local, sub) ? "YES" : "NO");
}

psm_status psm_net_copy(struct psmNetLocalInfo *local, void *to, const void *from, uint64_t bytes, uint64_t step)
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
    PSM_CUDA(cuda, "copy", local->rank, local->peer,
             cudaEventRecord(local->events[step % local->steps], local->stream));
    psm_fault_act_after(&fault);
    return PSM_OK;
}

int psm_net_copied(struct psmNetLocalInfo *local, uint64_t step, psm_status *status)
{
    int slot = (int)(step % local->steps), code = (int)local->cuda->cudaEventQuery(local->events[slot]);
    if (code == 0) return 1;
    if (code == PSM_CUDA_NOT_READY) return 0;
    *status = psm_cuda_fail(code, "copy", local->rank, local->peer, "cudaEventQuery of slot %d", slot);
    return -1;
}

psm_status psm_net_failed(const struct psmNetLocalInfo *local, ncclResult_t result, const char *call)
{
    char what[96];
    snprintf(what, sizeof what, "%s in operation %" PRIu64 ", stage %s,", call, local->seq, stage_name(local->stage));
    return psm_net_fail(local->net, result, what, role_of(local), local->rank, local->peer);
}

int psm_net_tested(struct psmNetLocalInfo *local, void *request, const char *call, int *size, psm_status *status)
{
    int done = 0, sizes[8] = {0}; /* for one receive; a plugin with groups may write several */
    ncclResult_t result = local->net->test(request, &done, sizes);
    if (result != ncclSuccess) {
        *status = psm_net_failed(local, result, call);
        return -1;
    }
    *size = sizes[0];
    return done != 0;
}

/* ---- waiting ---- */

static void describe_wait(const struct psmNetLocalInfo *local, const struct psmProxySubArgs *sub, char *text, size_t n)
{
    uint64_t copies = sub->transmitted - copied(local, sub), sent = local->passed - sub->done;
    if (copies > 0)
        snprintf(text, n, "this side: %" PRIu64 " copies on its stream are not done", copies);
    else if (local->role && local->stage == PSM_NET_OFFER)
        snprintf(text, n, "rank %d, the receiver, to post its recv", local->peer);
    else if (local->role && sent > 0)
        snprintf(text, n,
                 "the network: %" PRIu64 " messages to rank %d, the receiver, were posted and are not sent yet", sent,
                 local->peer);
    else if (local->role)
        snprintf(text, n, "rank %d, the receiver, to post a receive for step %" PRIu64, local->peer,
                 sub->base + sub->transmitted);
    else if (sub->posted == 0)
        snprintf(text, n, "the network, which accepts no receive");
    else
        snprintf(text, n, "the message from rank %d, the sender, with step %" PRIu64, local->peer,
                 sub->base + local->passed);
}

static void report_stall(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub, uint64_t now)
{
    char side[256];
    local->stalled_ns = now;
    describe_wait(local, sub, side, sizeof side);
    psm_msg_libpsm_net_stalled(role_of(local), local->rank, local->peer, (uint64_t)local->channel,
                               (now - local->moved_ns) / 1000000u, stage_name(local->stage),
                               sub->base + sub->transmitted, recv_tail(local, sub), send_head(local, sub),
                               sub->transmitted, sub->done, sub->nsteps, can_send(local, sub) ? "YES" : "NO", side);
    if (local->recorder) record(local, sub, PSM_STEP_STALLED, sub->base + sub->transmitted);
}

/* The peer has ended or is dead. Earlier looks have found what it had delivered. */
static psm_status peer_gone(const struct psmNetLocalInfo *local)
{
    const char *role = local->role ? "receiver" : "sender", *stage = role_of(local);
    if (local->theirs != PSM_OK)
        return psm_because(psm_fail(PSM_ERR_PEER_CLOSED, stage, local->rank, local->peer, 0,
                                    "rank %d, the %s, ended operation %" PRIu64 " with %s (CUDA %u): see its log",
                                    local->peer, role, local->seq, psm_status_name(local->theirs), local->theirs_cuda),
                           PSM_CAUSE_PEER_FAILED, local->peer);
    if (local->broken.status != PSM_OK) return psm_fail_again(&local->broken);
    return psm_fail(PSM_ERR_PEER_DEAD, stage, local->rank, local->peer, 0,
                    "rank %d, the %s, died or closed its connections in operation %" PRIu64 ", stage %s", local->peer,
                    role, local->seq, stage_name(local->stage));
}

static psm_status look(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub)
{
    uint64_t now = local->now_ns;
    if (now - local->looked_ns < LOOK_NS) return PSM_OK;
    local->looked_ns = now;
    const struct psm_host *host = local->host;
    if (host->ops->aborted(host->self))
        return psm_fail(PSM_ERR_ABORTED, role_of(local), local->rank, local->peer, 0,
                        "aborted in operation %" PRIu64 ", stage %s", local->seq, stage_name(local->stage));
    bool own_copies = sub->transmitted > copied(local, sub);
    bool gone =
        local->theirs != PSM_OK || local->broken.status != PSM_OK || !host->ops->peer_alive(host->self, local->peer);
    /* A sender that has sent everything and frees its end closes the way back before the last bytes arrive: the data
     * comm tells when no more will arrive. It sends no step that it got no credit for. */
    bool owed = local->told && sub->base + local->passed < local->tail;
    bool open =
        local->role ? local->passed == sub->nsteps : owed && local->passed < sub->posted && local->theirs == PSM_OK;
    if (gone && !open && !own_copies) {
        /* Not at the first look: first find what the peer delivered just before it went. */
        if (++local->suspect >= SUSPECT_LOOKS) return peer_gone(local);
    } else {
        local->suspect = 0;
    }
    uint64_t stall = (uint64_t)local->stall_ms * 1000000u;
    if (stall && now - local->moved_ns >= stall && now - local->stalled_ns >= stall) report_stall(local, sub, now);
    return PSM_OK;
}

/* ---- the end ---- */

void psm_net_say_end(struct psmNetLocalInfo *local, psm_status status, int cuda)
{
    uint8_t *at = psm_net_farewell(local);
    uint64_t end = psm_clock_ns() + FAREWELL_NS;
    size_t size = sizeof(struct psm_net_credit);
    if (local->theirs != PSM_OK || local->broken.status != PSM_OK) return; /* nobody is there to receive it */
    if (local->role)
        *(struct psm_net_head *)at = (struct psm_net_head){.magic = PSM_NET_MAGIC,
                                                           .version = PSM_WIRE_VERSION,
                                                           .kind = PSM_NET_ENDED,
                                                           .seq = local->seq,
                                                           .status = (uint32_t)-status,
                                                           .cuda = (uint32_t)cuda};
    else
        *(struct psm_net_credit *)at = (struct psm_net_credit){.magic = PSM_NET_MAGIC,
                                                               .version = PSM_WIRE_VERSION,
                                                               .kind = PSM_NET_ENDED,
                                                               .seq = local->seq,
                                                               .status = (uint32_t)-status,
                                                               .cuda = (uint32_t)cuda};
    void *request = NULL;
    int done = 0;
    if (psm_net_isend(local->net, local->to, at, size, 0, local->to_registration, &request) != ncclSuccess) return;
    while (request && !done && psm_clock_ns() < end)
        if (local->net->test(request, &done, NULL) != ncclSuccess) return;
}

void psm_net_proxy_abort(psmProxyConnection *connection, psmProxyState *state)
{
    (void)state;
    struct psmNetLocalInfo *local = connection->transportResources;
    if (!local || !local->connected || local->over) return;
    psm_net_say_end(local, PSM_ERR_ABORTED, 0);
    local->over = true;
}

/* A peer that receives the end may free its buffers: first finish what is on the stream. Do not wait long for a stream
 * that hangs. */
static void finish_copies(const struct psmNetLocalInfo *local)
{
    uint64_t end = psm_clock_ns() + FINISH_NS;
    while ((int)local->cuda->cudaStreamQuery(local->stream) == PSM_CUDA_NOT_READY && psm_clock_ns() < end)
        psm_cpu_relax();
}

static void leave(struct psmNetLocalInfo *local)
{
    local->over = true;
    local->active = NULL;
    local->stage = PSM_NET_IDLE;
}

/* The reason goes to the peer through the network, to all ranks through async_error, to the caller through sync. */
static void fail_operation(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub, psm_status status)
{
    const struct psm_error error = *psm_last_error();
    if (sub->transmitted > copied(local, sub)) finish_copies(local);
    psm_net_moved(local, sub, PSM_STEP_FAILED, sub->base + sub->transmitted);
    psm_msg_libpsm_net_failed(role_of(local), local->rank, local->peer, (uint64_t)local->channel, local->seq,
                              sub->base + sub->transmitted, psm_status_name(status),
                              psm_cause_name(psm_error_cause(&error)), psm_error_names(&error), error.text);
    psm_net_say_end(local, status, error.cuda);
    if (status != PSM_ERR_ABORTED) local->host->ops->async_error(local->host->self, status, error.text);
    leave(local);
    psm_fail_again(&error);
}

/* ---- operations ---- */

static psm_status begin(struct psmNetLocalInfo *local, struct psmProxySubArgs *sub)
{
    if (local->over)
        return psm_fail(PSM_ERR_INVALID, "progress", local->rank, local->peer, 0,
                        "the connection to rank %d ended with an error; free it and make another", local->peer);
    local->active = sub;
    local->seq++;
    local->stage = PSM_NET_OFFER;
    local->suspect = 0;
    local->moved_ns = local->now_ns;
    local->passed = 0;
    local->told = false;
    sub->base = local->step;
    sub->chunkSize = local->chunk;
    sub->offset = sub->posted = sub->transmitted = sub->done = 0;
    sub->nsteps = psm_net_nsteps(sub->nbytes, local->chunk);
    local->credits_end += 1 + sub->nsteps - psm_net_first(local, sub);
    psm_net_moved(local, sub, PSM_STEP_BEGIN, sub->base);
    return PSM_OK;
}

static psm_status run(struct psmProxySubArgs *sub, psm_net_step *step, bool *moved, bool *ended)
{
    struct psmNetLocalInfo *local = sub->connection->transportResources;
    if (!local || !local->connected)
        return psm_fail(PSM_ERR_INVALID, "progress", -1, sub->peer, 0, "an operation on a connection that is not %s",
                        local ? "connected" : "set up");
    local->now_ns = tick_ns();
    if (!local->active) PSM_TRY(begin(local, sub));
    if (local->active != sub) return PSM_OK; /* it starts when the other one has ended */
    psm_status status = step(local, sub, moved, ended);
    if (status == PSM_OK && !*moved && !*ended) status = look(local, sub);
    if (status == PSM_OK && *moved) {
        local->moved_ns = tick_ns();
        local->suspect = 0;
    }
    if (status != PSM_OK) {
        fail_operation(local, sub, status);
        return status;
    }
    if (*ended) {
        local->stage = PSM_NET_OVER;
        psm_net_moved(local, sub, PSM_STEP_ENDED, sub->base + sub->done);
        local->step = sub->base + sub->nsteps;
        local->active = NULL;
        local->stage = PSM_NET_IDLE;
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
        struct psmProxySubArgs *sub = &args->subs[s];
        struct psmNetLocalInfo *local = sub->connection->transportResources;
        if (!local || local->active != sub) continue;
        /* Another part of the operation has failed: the peers of this part must not wait for it. */
        if (sub->transmitted > copied(local, sub)) finish_copies(local);
        psm_net_say_end(local, status, 0);
        leave(local);
    }
    args->state = psmProxyOpNone;
}

psm_status psm_net_progress(struct psmProxyArgs *args, psm_net_step *step)
{
    args->idle = 1;
    if (args->state == psmProxyOpNone) return PSM_OK;
    if (args->sync && !__atomic_load_n(&args->sync->proxyReadyEvent, __ATOMIC_ACQUIRE)) {
        struct psmNetLocalInfo *local = args->subs[0].connection->transportResources;
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
