/* Group launch. The application's stream waits in a host function until the proxy has moved the group's data; the proxy
 * starts when the stream reaches the group. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "conn/connector.h"
#include "p2p/p2p.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_launch, "launch.group", "a group of sends and recvs is launched");
PSM_FAULT_SITE(site_callback, "launch.callback", "the application's stream has reached the group");

/* Interval at which a wait checks for an abort, which wakes nobody. */
enum { LOOK_NS = 2000000 };
enum { CAPTURE_IMPLICIT = 906 /* cudaErrorStreamCaptureImplicit */ };

struct psmGroup {
    struct psmSyncCondition sync;
    psmProxyState *state;
    const struct psm_cuda *cuda;
    uint64_t id;
    int rank;
    uint32_t spin_us;
    uint32_t over; /* the host function is done; a futex */
    size_t nregistered;
    struct registered {
        psmP2pConnector *connector;
        uint64_t handle;
    } *registered; /* registered on the fly: deregistered with the group */
};

static void futex_wait(const volatile void *word, uint32_t seen)
{
    struct timespec slice = {.tv_nsec = LOOK_NS};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, &slice, NULL, 0);
}
static void futex_wake(const volatile void *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* Ops that were not passed to the proxy; the proxy counts the rest. */
static void count_off(struct psmSyncCondition *sync, int ops, psm_status status)
{
    if (!sync) return;
    if (status != PSM_OK) {
        uint32_t none = 0;
        __atomic_compare_exchange_n(&sync->failed, &none, (uint32_t)-status, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
    /* The group may be freed as soon as the count is 0: use only its address then, not its contents. */
    if (__atomic_sub_fetch(&sync->proxyOpCount, ops, __ATOMIC_ACQ_REL) <= 0) futex_wake(&sync->proxyOpCount);
}

/* Runs on a CUDA thread, which must not call CUDA. */
static void wait_for_ops(void *user)
{
    struct psmGroup *group = user;
    struct psm_fault fault;
    psm_status status =
        psm_fault_before(&site_callback, &(struct psm_fault_args){.rank = group->rank, .peer = -1}, "launch", &fault);
    if (status != PSM_OK) count_off(&group->sync, 0, status);
    psm_msg_libpsm_group_ready(group->id, group->rank);
    __atomic_store_n(&group->sync.proxyReadyEvent, 1, __ATOMIC_RELEASE);
    psmProxyWake(group->state);
    uint64_t spin = psm_clock_ns() + (uint64_t)group->spin_us * 1000u;
    int32_t left;
    while ((left = __atomic_load_n(&group->sync.proxyOpCount, __ATOMIC_ACQUIRE)) > 0) {
        if (psmProxyAborted(group->state)) {
            count_off(&group->sync, 0, PSM_ERR_ABORTED);
            break;
        }
        if (psm_clock_ns() < spin)
            sched_yield(); /* the progress thread may have to run here */
        else
            futex_wait(&group->sync.proxyOpCount, (uint32_t)left);
    }
    __atomic_store_n(&group->over, 1, __ATOMIC_RELEASE);
    futex_wake(&group->over);
}

static bool is_copy(const struct psmGroupOp *op)
{
    return !op->connector && op->connection == 0;
}

/* 1: send, 0: recv; -1: a copy, or a connector that was freed. */
static int role_of(const struct psmGroupOp *op)
{
    const struct psm_connector *c = (const struct psm_connector *)op->connector;
    if (c) return psm_connector_alive(c, NULL) ? c->role : -1;
    return op->connection ? op->send != 0 : -1;
}

static psm_status check(const struct psmGroupOp *op, size_t i, int *role)
{
    *role = role_of(op);
    if (op->connector && *role < 0)
        return psm_fail(PSM_ERR_INVALID, "launch", -1, op->peer, 0,
                        "op %zu: its connector was freed, or was never set up", i);
    const void *needed = *role == 1 ? op->sendbuff : *role == 0 ? op->recvbuff : op->sendbuff ? op->recvbuff : NULL;
    if (op->nbytes > 0 && !needed)
        return psm_fail(PSM_ERR_INVALID, "launch", -1, op->peer, 0, "op %zu: %" PRIu64 " bytes, but no buffer for them",
                        i, op->nbytes);
    if (op->connector && psm_connector_connection(op->connector, NULL) == 0)
        return psm_fail(PSM_ERR_INVALID, "launch", -1, op->peer, 0, "op %zu: its proxy connection was freed", i);
    return PSM_OK;
}

/* PSM_ZERO_COPY=always: memory that cannot be registered goes through the FIFO. */
static uint64_t register_now(struct psmGroup *group, const struct psmGroupOp *op, int role)
{
    uint64_t handle = 0;
    void *buffer = role ? (void *)(uintptr_t)op->sendbuff : op->recvbuff;
    if (op->nbytes == 0 || psmP2pRegister(op->connector, buffer, op->nbytes, &handle) != PSM_OK) return 0;
    group->registered[group->nregistered++] = (struct registered){op->connector, handle};
    return handle;
}

static psm_status save(struct psmGroup *group, const struct psmGroupOp *op, uint64_t handle, int role)
{
    struct psmProxyOp saved = {.connection =
                                   op->connector ? psm_connector_connection(op->connector, NULL) : op->connection,
                               .opCount = group->id,
                               .nbytes = op->nbytes,
                               .sendbuff = role ? op->sendbuff : NULL,
                               .recvbuff = role ? NULL : op->recvbuff,
                               .sendHandle = role ? handle : 0,
                               .recvHandle = role ? 0 : handle,
                               .peer = op->peer,
                               .channel = op->channel,
                               .reg = handle != 0,
                               .sync = &group->sync};
    return psmProxySaveOp(group->state, &saved);
}

/* From here on the host function runs: on a failure decrement the count, so that it returns. */
static psm_status post(struct psmGroup *group, const struct psmGroupOp *ops, const uint64_t *handles, size_t nops)
{
    psm_status status = PSM_OK;
    for (size_t i = 0; i < nops; i++) {
        if (is_copy(&ops[i])) continue;
        if (status == PSM_OK) status = save(group, &ops[i], handles[i], role_of(&ops[i]));
        if (status != PSM_OK) count_off(&group->sync, 1, status);
    }
    psm_status started = psmProxyStart(group->state);
    return status != PSM_OK ? status : started;
}

/* A graph would run the host function at each launch, but the operations are posted once. */
static psm_status refuse_capture(const struct psm_cuda *cuda, int rank, void *stream)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    int code = (int)cuda->cudaStreamIsCapturing((cudaStream_t)stream, &capture);
    if (code == CAPTURE_IMPLICIT) /* the legacy stream, while a blocking one captures */
        return psm_fail(PSM_ERR_UNSUPPORTED, "launch", rank, -1, 0,
                        "launch on the legacy stream while a stream of this device is being captured into a graph: end "
                        "the capture first, or launch on a non-blocking stream");
    if (code != 0) return psm_cuda_fail(code, "launch", rank, -1, "cudaStreamIsCapturing of stream %p", stream);
    if (capture == cudaStreamCaptureStatusNone) return PSM_OK;
    return psm_fail(PSM_ERR_UNSUPPORTED, "launch", rank, -1, 0,
                    "launch on stream %p, which is being captured into a graph%s: a group of sends and recvs runs "
                    "once, but a graph may be launched many times; call psmGroupLaunch before or after the capture",
                    stream, capture == cudaStreamCaptureStatusInvalidated ? " (and the capture has failed)" : "");
}

static psm_status begin(struct psmGroup *group, void *stream, const struct psmGroupOp *ops, uint64_t *handles,
                        size_t nops)
{
    const struct psm_settings *settings = psmProxySettings(group->state);
    int64_t count[3] = {0}; /* recvs, sends, copies */
    PSM_TRY(refuse_capture(group->cuda, group->rank, stream));
    for (size_t i = 0; i < nops; i++) {
        int role;
        PSM_TRY(check(&ops[i], i, &role));
        count[role < 0 ? 2 : role]++;
        handles[i] = ops[i].handle;
    }
    if (settings->zero_copy == 2)
        for (size_t i = 0; i < nops; i++)
            if (ops[i].connector && handles[i] == 0) handles[i] = register_now(group, &ops[i], role_of(&ops[i]));
    group->spin_us = settings->spin_us;
    group->sync.proxyOpCount = (int32_t)(count[0] + count[1]);
    for (size_t i = 0; i < nops; i++)
        if (is_copy(&ops[i]) && ops[i].nbytes > 0)
            PSM_CUDA(group->cuda, "launch", group->rank, group->rank,
                     cudaMemcpyAsync(ops[i].recvbuff, ops[i].sendbuff, ops[i].nbytes, cudaMemcpyDefault,
                                     (cudaStream_t)stream));
    psm_msg_libpsm_group_launched(group->id, group->rank, (uint64_t)count[1], (uint64_t)count[0], (uint64_t)count[2],
                                  (uint64_t)(uintptr_t)stream);
    PSM_CUDA(group->cuda, "launch", group->rank, -1, cudaLaunchHostFunc((cudaStream_t)stream, wait_for_ops, group));
    return PSM_OK;
}

static void give_up(struct psmGroup *group)
{
    while (group->nregistered > 0) {
        struct registered *last = &group->registered[--group->nregistered];
        psm_p2p_deregister_for_now(last->connector, last->handle);
    }
    free(group->registered);
    free(group);
}

psm_status psmGroupLaunch(psmProxyState *state, void *stream, const struct psmGroupOp *ops, size_t nops, psmGroup **out)
{
    if (!state || (nops > 0 && !ops) || !out)
        return psm_fail(PSM_ERR_INVALID, "launch", -1, -1, 0, "launch: an argument is NULL");
    int rank = psmProxyRank(state);
    struct psm_fault fault;
    PSM_TRY(psm_fault_before(&site_launch, &(struct psm_fault_args){.rank = rank, .peer = -1}, "launch", &fault));
    const struct psm_cuda *cuda = psm_cuda_get();
    if (!cuda) return psm_fail_at("launch", rank, -1, 0);
    struct psmGroup *group = aligned_alloc(64, (sizeof *group + 63) / 64 * 64);
    uint64_t *handles = calloc(nops + 1, sizeof *handles);
    struct registered *room = calloc(nops + 1, sizeof *room);
    if (!group || !handles || !room) {
        free(group);
        free(handles);
        free(room);
        return psm_fail(PSM_ERR_NO_MEMORY, "launch", rank, -1, 0, "no memory for a group of %zu ops", nops);
    }
    static _Atomic uint64_t groups;
    *group = (struct psmGroup){
        .state = state, .cuda = cuda, .rank = rank, .registered = room, .id = atomic_fetch_add(&groups, 1) + 1};
    psm_status status = begin(group, stream, ops, handles, nops);
    if (status != PSM_OK) {
        struct psm_error kept = *psm_last_error();
        free(handles);
        give_up(group);
        psm_fail_again(&kept);
        return psm_fail_at("launch", rank, -1, 0);
    }
    status = post(group, ops, handles, nops);
    free(handles);
    /* The group exists whatever post returned: its stream waits for it. A failure of post is the group's failure. */
    (void)status;
    *out = group;
    psm_fault_act_after(&fault);
    return PSM_OK;
}

/* After an abort the host function returns at once, so that the stream continues; the proxy may still have operations,
 * and decrements the count when it drops them. */
static bool is_over(const struct psmGroup *group)
{
    return __atomic_load_n(&group->over, __ATOMIC_ACQUIRE) &&
           __atomic_load_n(&group->sync.proxyOpCount, __ATOMIC_ACQUIRE) <= 0;
}

psm_status psmGroupQuery(psmGroup *group)
{
    if (!group) return psm_fail(PSM_ERR_INVALID, "launch", -1, -1, 0, "query: the group is NULL");
    if (!is_over(group)) return PSM_IN_PROGRESS;
    uint32_t failed = __atomic_load_n(&group->sync.failed, __ATOMIC_RELAXED);
    if (failed == 0) return PSM_OK;
    psm_status status = (psm_status) - (int)failed, known = psmProxyAsyncError(group->state);
    /* When one rank fails, it aborts the operations of the others: the original error is the reason. */
    if (known < 0 && (known == status || status == PSM_ERR_ABORTED)) return psm_fail_at("launch", group->rank, -1, 0);
    return psm_fail(status, "launch", group->rank, -1, 0,
                    "group %" PRIu64 " ended with %s: the log of this rank and psmProxyAsyncError have the reason",
                    group->id, psm_status_name(status));
}

static psm_status group_wait(psmGroup *group, uint64_t deadline_ns)
{
    psm_status status;
    while ((status = psmGroupQuery(group)) == PSM_IN_PROGRESS && psm_clock_ns() < deadline_ns) {
        int32_t left = __atomic_load_n(&group->sync.proxyOpCount, __ATOMIC_ACQUIRE);
        if (!__atomic_load_n(&group->over, __ATOMIC_ACQUIRE))
            futex_wait(&group->over, 0);
        else if (left > 0)
            futex_wait(&group->sync.proxyOpCount, (uint32_t)left);
    }
    return status;
}

psm_status psmGroupWait(psmGroup *group)
{
    return group_wait(group, UINT64_MAX);
}
psm_status psmGroupWaitFor(psmGroup *group, uint32_t timeoutMs)
{
    return group_wait(group, psm_clock_ns() + timeoutMs * UINT64_C(1000000));
}

psm_status psmGroupFree(psmGroup *group)
{
    if (!group) return PSM_OK;
    if (!is_over(group))
        return psm_fail(PSM_ERR_INVALID, "launch", group->rank, -1, 0,
                        "freeing group %" PRIu64 " while its stream waits for it: call psmGroupWait first", group->id);
    psm_msg_libpsm_group_ended(group->id, group->rank, psm_status_name((psm_status) - (int)group->sync.failed));
    give_up(group);
    return PSM_OK;
}
