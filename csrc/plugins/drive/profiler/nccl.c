/* What NCCL does around its calls of a profiler: which events, in which order, with which parents, from which thread.
 *
 * In releases that came with v5 and later a group call has events of the API; the plan is launched within it. The
 * events of the operations are stopped before those of the proxy start, which happens in another thread. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "profiler_drive.h"
#include "psm_abi/profiler_net.h"

static void *garbage(void)
{
    /* Where NCCL has an uninitialised variable any address may be. */
    return foreign_parent(4000);
}

bool asked(uint64_t mask, int kind)
{
    return (event_known(d.version) >> kind & 1) && (mask & event_asked_by(d.version, kind));
}

static bool is_asked(uint64_t mask, uint64_t type)
{
    return asked(mask, event_kind(type));
}

static uint64_t mask_now(void)
{
    return (uint32_t)__atomic_load_n(&d.mask, __ATOMIC_RELAXED);
}

/* Starts an event, and plays the kinds below it that this file does not name. Nothing says what NCCL does with these
 * for another process (PXN). */
static void start(void *context, uint64_t mask, void **handle, const struct event *e)
{
    p_start(context, handle, e);
    if (*handle && context != foreign_context()) others_play(context, e->rank, mask, e->type, *handle);
}

static void stop(void **handle)
{
    if (*handle) p_stop(*handle);
    *handle = NULL;
}

static void name(char *to, const char *from)
{
    memset(to, 0, EVENT_WORD);
    for (size_t i = 0; i < EVENT_WORD - 1 && from[i]; i++) to[i] = from[i];
}

/* ---- the application's thread ---- */

void plan_begin(struct plan *p, struct comm *c)
{
    memset(p, 0, sizeof *p);
    p->comm = c;
    p->api = d.version >= 5;
    others_play(c->context, c->rank, mask_now(), 0, NULL);
}

/* The states of a group have no arguments; NCCL's adapter for v5 passes a struct anyway. */
static void group_state(void *group, int state)
{
    struct event_args args = {.bytes = 0};
    if (group) p_state(group, state, d.adapted ? &args : NULL);
}

/* The first operation of a group call starts the event of the group. */
static void open_group(struct plan *p, uint64_t mask)
{
    if (!p->api || p->group_api || !is_asked(mask, ncclProfileGroupApi)) return;
    struct event e = {.type = ncclProfileGroupApi, .depth = 1};
    start(p->comm->context, mask, &p->group_api, &e);
    group_state(p->group_api, ncclProfilerGroupStartApiStop);
}

static struct task *add(struct plan *p, uint64_t kind)
{
    if (p->n == (int)(sizeof p->tasks / sizeof *p->tasks)) abort();
    struct task *t = &p->tasks[p->n++];
    *t = (struct task){.comm = p->comm, .mask = mask_now(), .channels = 2};
    t->e.type = kind;
    t->e.rank = p->comm->rank;
    if (d.version >= 7) t->e.tag = 0x7461; /* of the application */
    name(t->e.datatype, "ncclFloat32");
    if (d.version <= 3 && !d.adapted) {
        t->e.hash = p->comm->hash;
        if (!p->comm->unnamed) name(t->e.name, p->comm->name);
    }
    open_group(p, t->mask);
    t->group_api = p->group_api;
    return t;
}

static void api_event(struct plan *p, struct task *t, uint64_t kind)
{
    if (!p->api || !is_asked(t->mask, kind)) return;
    struct event e = {.type = kind, .parent = p->group_api, .count = t->e.count, .tag = t->e.tag};
    memcpy(e.func, t->e.func, EVENT_WORD);
    memcpy(e.datatype, t->e.datatype, EVENT_WORD);
    /* 2.30 does not clear this variable after the previous operation's event. */
    if (kind == ncclProfileCollApi) t->api = garbage();
    start(p->comm->context, t->mask, &t->api, &e);
    /* Stopped now, but still the parent of later events. */
    if (t->api) p_stop(t->api);
}

void plan_coll(struct plan *p, const char *func, uint64_t count, int channels)
{
    struct task *t = add(p, ncclProfileColl);
    name(t->e.func, func);
    name(t->e.algo, "RING");
    name(t->e.proto, count > 65536 ? "SIMPLE" : "LL");
    t->e.count = count;
    t->e.send = t->e.recv = user_buffer();
    t->e.channels = (uint8_t)channels;
    t->e.warps = 16;
    t->channels = channels;
    api_event(p, t, ncclProfileCollApi);
}

void plan_p2p(struct plan *p, bool send, int peer, uint64_t count)
{
    struct task *t = add(p, ncclProfileP2p);
    name(t->e.func, send ? "Send" : "Recv");
    t->e.count = count;
    t->e.recv = user_buffer();
    t->e.peer = peer;
    t->e.channels = d.adapted && d.version == 4 ? 0xa5 : 1; /* the adapter drops it */
    t->channels = 1;
    t->e.is_send = send;
    api_event(p, t, ncclProfileP2pApi);
}

void plan_ce(struct plan *p, uint64_t count)
{
    struct task *t = add(p, ncclProfileCeColl);
    name(t->e.func, "AllGather");
    name(t->e.algo, "UC");
    t->e.count = count;
    t->ce = true;
    api_event(p, t, ncclProfileCollApi);
}

static void run_ce(struct plan *p, struct task *t)
{
    void *coll = NULL, *part = NULL;
    if (!is_asked(mask_now(), ncclProfileCeColl)) return;
    t->e.parent = t->api;
    t->e.seq = p->comm->seq++;
    start(p->comm->context, mask_now(), &coll, &t->e);
    if (coll && mask_now() & ncclProfileCeSync) {
        struct event e = {.type = ncclProfileCeSync, .parent = coll, .rank = p->comm->rank, .ops = p->comm->ranks};
        start(p->comm->context, mask_now(), &part, &e);
        stop(&part);
    }
    if (coll && mask_now() & ncclProfileCeBatch) {
        struct event e = {
            .type = ncclProfileCeBatch, .parent = coll, .rank = p->comm->rank, .ops = 8, .bytes = 1 << 20};
        start(p->comm->context, mask_now(), &part, &e);
        stop(&part);
    }
    stop(&coll);
}

/* Of one task: an operation per channel and direction, and one for the kernel's channel. */
static int post(struct plan *p, struct task *t, struct op *ops, int n, int most)
{
    struct op op = {.context = p->comm->context,
                    .parent = t->handle,
                    .mask = t->mask,
                    .rank = p->comm->rank,
                    .pid = getpid(),
                    .steps = 4};
    for (int c = 0; c < t->channels; c++) {
        op.channel = c;
        for (int send = 0; send < 2; send++) {
            if (t->e.type == ncclProfileP2p && send != t->e.is_send) continue;
            op.is_send = send;
            op.peer = t->e.type == ncclProfileP2p ? t->e.peer
                                                  : (p->comm->rank + (send ? 1 : p->comm->ranks - 1)) % p->comm->ranks;
            if (n < most) ops[n++] = op;
        }
        op.kernel = true;
        if (n < most) ops[n++] = op;
        op.kernel = false;
    }
    return n;
}

int plan_launch(struct plan *p, struct op *ops, int most)
{
    void *launch = NULL, *group = NULL;
    uint64_t mask = 0;
    int n = 0;
    for (int i = 0; i < p->n && !mask; i++)
        if (!p->tasks[i].ce) mask = p->tasks[i].mask;
    group_state(p->group_api, ncclProfilerGroupEndApiStart);
    for (int i = 0; i < p->n; i++)
        if (p->tasks[i].ce) run_ce(p, &p->tasks[i]);
    if (p->api && mask & ncclProfileKernelLaunch) {
        struct event e = {.type = ncclProfileKernelLaunch, .parent = p->group_api};
        start(p->comm->context, mask, &launch, &e);
    }
    if (is_asked(mask, ncclProfileGroup)) {
        struct event e = {.type = ncclProfileGroup};
        start(p->comm->context, mask, &group, &e);
    }
    for (int i = 0; i < p->n; i++) {
        struct task *t = &p->tasks[i];
        t->handle = NULL;
        /* Up to 2.27, which v4 came with, no task has an event if the group has none. */
        if (t->ce || !is_asked(t->mask, t->e.type) || (d.version <= 4 && !d.adapted && !group)) continue;
        t->e.parent = p->api ? t->api : group;
        t->e.group = p->api ? group : NULL;
        if (t->e.type == ncclProfileColl) t->e.seq = p->comm->seq++;
        start(p->comm->context, t->mask, &t->handle, &t->e);
    }
    for (int i = 0; i < p->n; i++)
        if (!p->tasks[i].ce) n = post(p, &p->tasks[i], ops, n, most);
    for (int i = 0; i < p->n; i++)
        if (p->tasks[i].handle) p_stop(p->tasks[i].handle);
    stop(&group);
    stop(&launch);
    return n;
}

void plan_end(struct plan *p)
{
    stop(&p->group_api);
}

/* ---- the proxy's thread ---- */

static void step_states(struct op *op, int from, int to)
{
    static const int sends[] = {ncclProfilerProxyStepSendGPUWait, ncclProfilerProxyStepSendPeerWait_v4,
                                ncclProfilerProxyStepSendPeerWait_v4, ncclProfilerProxyStepSendWait};
    static const int receives[] = {ncclProfilerProxyStepRecvWait, ncclProfilerProxyStepRecvFlushWait,
                                   ncclProfilerProxyStepRecvGPUWait};
    const int *states = op->is_send ? sends : receives;
    int n = op->is_send ? 4 : 3;
    struct event_args args = {.bytes = 1 << 19};
    for (int s = from; s < to; s++) {
        void *step = op->step[s % MAX_STEPS];
        if (!step || !op->handle) continue;
        for (int i = 0; i < n; i++) {
            if (d.version <= 3 && states[i] == ncclProfilerProxyStepSendPeerWait_v4) continue;
            /* 2.23 to 2.26, which v1 to v3 came with, pass no arguments with these. */
            p_state(step, states[i], d.version <= 3 && !d.adapted ? NULL : &args);
        }
    }
}

/* The net plugin: it calls back into NCCL, and stops events that may never have been started. */
static void net_event(const struct op *op, void *step)
{
    void *handle = NULL;
    int64_t id = NCCL_PROFILER_NET_TYPE_SOCK | NCCL_PROFILER_NET_SOCKET_VER;
    char descriptor[64] = {1};
    if (d.version < 3) return;
    if (op->mask & ncclProfileNetPlugin) {
        struct event e = {
            .type = ncclProfileNetPlugin, .parent = step, .rank = op->rank, .net_id = id, .data = descriptor};
        start(op->context, op->mask, &handle, &e);
    }
    if (handle && d.version >= 4) {
        struct event_args args = {.data = descriptor};
        p_state(handle, ncclProfilerNetPluginUpdate, &args);
    }
    if (handle) p_stop(handle);
}

static void kernel_phases(const struct op *op, void *kernel)
{
    static const char *const names[] = {"initial_sync", "compute", "final_sync"};
    for (int i = 0; i < 3; i++) {
        void *handle = NULL;
        struct event e = {.type = ncclProfileKernelPhase,
                          .parent = kernel,
                          .channel = (uint8_t)op->channel,
                          .step = i,
                          .ptimer = 1000 + (uint64_t)i * 300};
        struct event_args args = {.ptimer = e.ptimer + 300};
        name(e.algo, names[i]);
        start(op->context, op->mask, &handle, &e);
        if (!handle) continue;
        p_state(handle, ncclProfilerKernelPhaseStop, &args);
        p_stop(handle);
    }
}

static void kernel_channel(struct op *op)
{
    void *handle = NULL;
    if (d.version < 3 || !(op->mask & ncclProfileKernelCh)) return;
    struct event e = {
        .type = ncclProfileKernelCh, .parent = op->parent, .channel = (uint8_t)op->channel, .ptimer = 1000};
    start(op->context, op->mask, &handle, &e);
    if (!handle) return;
    if (d.version >= 7 && op->mask & ncclProfileKernelPhase) kernel_phases(op, handle);
    struct event_args args = {.ptimer = 2000};
    if (d.version >= 4) p_state(handle, ncclProfilerKernelChStop, &args);
    p_stop(handle);
}

static void op_begin(struct op *op)
{
    if (op->kernel) {
        kernel_channel(op);
        return;
    }
    if (is_asked(op->mask, ncclProfileProxyOp)) {
        struct event e = {.type = ncclProfileProxyOp,
                          .parent = op->parent,
                          .rank = op->rank,
                          .pid = op->pid,
                          .channel = (uint8_t)op->channel,
                          .peer = op->peer,
                          .steps = op->steps,
                          .chunk = 1 << 19,
                          .is_send = op->is_send};
        start(op->context, op->mask, &op->handle, &e);
    }
    struct event_args args = {.bytes = 0};
    if (op->handle && d.version >= 4) p_state(op->handle, ncclProfilerProxyOpInProgress_v4, &args);
}

static void op_step(struct op *op, int s)
{
    void **step = &op->step[s % MAX_STEPS];
    /* Up to 2.27 no step has an event if its operation has none. */
    if (is_asked(op->mask, ncclProfileProxyStep) && (op->handle || d.version >= 5 || d.adapted)) {
        struct event e = {.type = ncclProfileProxyStep, .parent = op->handle, .rank = op->rank, .step = s};
        start(op->context, op->mask, step, &e);
    }
    net_event(op, *step);
    step_states(op, s, s + 1);
    /* States of the operation itself ended with 2.26. */
    if (op->handle && d.version <= 3 && !d.adapted) {
        const int first = op->is_send ? ncclProfilerProxyOpSendPosted : ncclProfilerProxyOpRecvPosted;
        for (int i = 0; i < 4; i++) {
            struct event_args args = {.bytes = 1 << 19, .steps = s + 1};
            p_state(op->handle, first + i, &args);
        }
    }
}

void op_run(struct op *op)
{
    ops_run(op, 1);
}

void ops_run(struct op *ops, int n)
{
    for (int i = 0; i < n; i++) op_begin(&ops[i]);
    int most = 0;
    for (int i = 0; i < n; i++)
        if (ops[i].steps > most) most = ops[i].steps;
    /* Steps of one operation overlap, and those of several interleave. */
    for (int s = 0; s < most + MAX_STEPS / 2; s++)
        for (int i = 0; i < n; i++) {
            struct op *op = &ops[i];
            int done = s - MAX_STEPS / 2;
            if (op->kernel) continue;
            if (done >= 0 && done < op->steps) stop(&op->step[done % MAX_STEPS]);
            if (s < op->steps) op_step(op, s);
        }
    for (int i = 0; i < n; i++)
        if (!ops[i].kernel) stop(&ops[i].handle);
}

void control(struct comm *c, bool sleeps, int appended)
{
    /* This variable is uninitialised in all releases. */
    void *handle = garbage();
    if (!(mask_now() & ncclProfileProxyCtrl)) return;
    struct event e = {.type = ncclProfileProxyCtrl};
    struct event_args args = {.appended = 0};
    start(c->context, mask_now(), &handle, &e);
    if (handle) {
        p_state(handle, sleeps ? ncclProfilerProxyCtrlSleep : ncclProfilerProxyCtrlAppend, &args);
        args.appended = appended;
        p_state(handle, sleeps ? ncclProfilerProxyCtrlWakeup : ncclProfilerProxyCtrlAppendEnd, &args);
        p_stop(handle);
    }
    handle = garbage();
    start(c->context, mask_now(), &handle, &e);
    args.appended = 0;
    if (handle) {
        p_state(handle, sleeps ? ncclProfilerProxyCtrlIdle : ncclProfilerProxyCtrlActive, &args);
        p_stop(handle);
    }
}

/* ---- threads ---- */

struct job {
    work *w;
    void *argument;
};
static pthread_t running[MAX_THREADS];
static int nrunning;

static void *run_job(void *argument)
{
    struct job job = *(struct job *)argument;
    free(argument);
    job.w(job.argument);
    return NULL;
}

void in_thread(work *w, void *argument)
{
    struct job *job = malloc(sizeof *job);
    if (!job || nrunning == MAX_THREADS) abort();
    *job = (struct job){w, argument};
    if (pthread_create(&running[nrunning++], NULL, run_job, job) != 0) abort();
}

void join_all(void)
{
    while (nrunning) pthread_join(running[--nrunning], NULL);
}
