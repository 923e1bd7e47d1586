/* Launches of the CUDA engine: kernels, which are host functions here, and operations on the proxy. A kernel opens the
 * gate of its operations and waits for them; operations of PassSM wait for the sync condition of their plan. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>

#include "plan/engine.h"
#include "proxy/proxy.h"

enum { LOOK_NS = 2000000 /* interval at which a wait checks for an abort of the proxy, which wakes nobody */ };

static void signal_change(struct engine *engine)
{
    atomic_fetch_add(&engine->changes, 1);
    if (atomic_load(&engine->sleepers)) psm_futex_wake(&engine->changes);
}

/* Called in each round of a wait. Returns at once the first time after a change, which the caller may have missed. */
void psm_engine_pause(void *self, int why, psmPlan *plan)
{
    static _Thread_local struct {
        const struct engine *engine;
        uint32_t seen;
        uint64_t spin;
    } last;
    struct engine *engine = self;
    (void)why;
    psmPlanComm *comm = plan ? psmPlanCommOf(plan) : atomic_load(&engine->comm);
    if (comm && psmProxyAborted(engine->state) && !psmPlanAborted(comm)) {
        psmPlanAbort(comm);
        return;
    }
    uint32_t now = atomic_load(&engine->changes);
    if (last.engine != engine || last.seen != now) {
        last.engine = engine;
        last.seen = now;
        last.spin = psm_clock_ns() + (uint64_t)engine->spin_us * 1000u;
        return;
    }
    if (psm_clock_ns() < last.spin) {
        sched_yield(); /* the progress thread may need this processor */
        return;
    }
    atomic_fetch_add(&engine->sleepers, 1);
    psm_futex_wait((const volatile uint32_t *)&engine->changes, now, LOOK_NS);
    atomic_fetch_sub(&engine->sleepers, 1);
}

/* ---- runs ---- */

void psm_engine_run_drop(struct engine_run *run)
{
    struct engine *engine = run->engine;
    if (atomic_fetch_sub(&run->refs, 1) != 1) return;
    pthread_mutex_lock(&engine->lock);
    *run->at = run->after;
    if (run->after) run->after->at = run->at;
    pthread_mutex_unlock(&engine->lock);
    free(run);
}

/* Created by whoever needs it first: the launch, or the host stream's thread, which may be earlier. */
static psm_status run_of(struct engine *engine, psmPlan *plan, struct engine_run **out)
{
    psm_status status = PSM_OK;
    pthread_mutex_lock(&engine->lock);
    struct engine_run *run = plan->run;
    if (!run) {
        run = calloc(1, sizeof *run);
        if (run) {
            run->engine = engine;
            run->plan = plan;
            run->graph = plan->graph;
            run->at = &engine->runs;
            run->after = engine->runs;
            if (run->after) run->after->at = &run->after;
            engine->runs = run;
            atomic_init(&run->refs, 1); /* its kernel's */
            for (const struct plan_op *op = plan->ops; op; op = op->next) run->expected += !op->info.decrements;
        } else {
            status = psm_fail(PSM_ERR_NO_MEMORY, "plan", engine->rank, -1, 0, "no memory for a launch");
        }
        plan->run = run;
        struct engine_graph *graph = run && run->graph ? psm_engine_graph_find(engine, run->graph) : NULL;
        if (graph) {
            run->next = graph->runs;
            graph->runs = run;
        }
    }
    pthread_mutex_unlock(&engine->lock);
    *out = run;
    return status;
}

/* ---- kernels ---- */

static void run_kernel(void *arg)
{
    struct engine_run *run = arg;
    struct engine *engine = run->engine;
    psmPlan *plan = run->plan;
    const psmPlanComm *comm = psmPlanCommOf(plan);
    atomic_fetch_add(&engine->inside, 1);
    __atomic_store_n(&run->gate, 1, __ATOMIC_RELEASE);
    psmProxyWake(engine->state);
    bool ended;
    while (!(ended = atomic_load(&run->ended) >= run->expected) && !psmPlanAborted(comm))
        psm_engine_pause(engine, 0, plan);
    if (run->graph && ended) { /* for the next launch of the graph */
        __atomic_store_n(&run->gate, 0, __ATOMIC_RELAXED);
        atomic_fetch_sub(&run->ended, run->expected);
    }
    bool once = !run->graph;
    psmPlanKernelDone(plan);
    /* From here on a graph's run may be freed and a plan reclaimed. After an abort operations may still be about to
     * end: the run is freed with the engine. */
    if (once && ended) psm_engine_run_drop(run);
    atomic_fetch_sub(&engine->inside, 1);
}

/* Transfers of the rank to itself: the k-th send and the k-th recv of a channel match. A collective of one rank is a
 * copy, too. */
static psm_status copy_to_self(struct engine *engine, cudaStream_t stream, const struct plan_work_table *table)
{
    uint64_t to = 0;
    for (uint64_t i = 0; i < table->nworks; i++) {
        const struct psmPlanWorkInfo *send = &table->works[i], *recv = send;
        bool alone = engine->nranks == 1 && send->func < PSM_PLAN_SEND;
        if (!alone && (!send->kernel || send->func != PSM_PLAN_SEND || send->peer != engine->rank)) continue;
        for (; !alone && to < table->nworks; to++) {
            recv = &table->works[to];
            if (recv->kernel && recv->func == PSM_PLAN_RECV && recv->peer == engine->rank &&
                recv->channel >= send->channel)
                break;
        }
        if (!alone && (to++ >= table->nworks || recv->channel != send->channel || recv->nbytes != send->nbytes))
            return psm_fail(PSM_ERR_MISMATCH, "plan", engine->rank, engine->rank, 0,
                            "a send of %" PRIu64
                            " bytes to the rank itself on channel %d has no matching recv of the same size",
                            send->nbytes, send->channel);
        char *into = (char *)recv->recvbuff + recv->offset;
        const char *from = (const char *)send->sendbuff + send->offset;
        if (send->nbytes > 0 && into != from)
            PSM_CUDA(engine->cuda, "plan", engine->rank, engine->rank,
                     cudaMemcpyAsync(into, from, send->nbytes, cudaMemcpyDefault, stream));
    }
    return PSM_OK;
}

psm_status psm_engine_kernel(void *self, void *stream, psmPlan *plan)
{
    struct engine *engine = self;
    struct engine_run *run;
    atomic_store(&engine->comm, psmPlanCommOf(plan));
    PSM_TRY(run_of(engine, plan, &run));
    psm_status status = copy_to_self(engine, (cudaStream_t)stream, plan->works);
    if (status == PSM_OK) {
        int code = (int)engine->cuda->cudaLaunchHostFunc((cudaStream_t)stream, run_kernel, run);
        if (code == 0) return PSM_OK;
        status = psm_cuda_fail(code, "plan", engine->rank, -1, "cudaLaunchHostFunc of a plan's kernel");
    }
    /* Release the operations that the host stream has posted: no kernel will open their gate. */
    __atomic_store_n(&run->gate, 1, __ATOMIC_RELEASE);
    return status;
}

/* ---- operations ---- */

uint64_t psm_engine_connection(struct engine *engine, int channel, int peer, int send, int connIndex)
{
    const struct psmPlanConnectors *c = &engine->connectors;
    psmP2pConnector *connector = c->find(c->context, channel, peer, send, connIndex);
    uint64_t connection = connector ? psmP2pConnection(connector) : 0;
    if (!connection)
        psm_fail(PSM_ERR_NOT_FOUND, "plan", engine->rank, peer, 0,
                 "channel %d has no %s to rank %d for %s: connect it before the group", channel,
                 send ? "send connector" : "recv connector", peer, connIndex ? "p2p" : "collectives");
    return connection;
}

/* A failed operation fails the communicator: its other operations end with the proxy, and waits return. */
static void tell(psmPlan *plan, void *cookie, psm_status status)
{
    if (status < 0) psmPlanAbort(psmPlanCommOf(plan));
    psmPlanOpDone(cookie, status);
}

void psm_engine_run_ended(struct engine_run *run, void *cookie, psm_status status)
{
    struct engine *engine = run->engine;
    tell(run->plan, cookie, status);
    /* After it: the end of the kernel allows the next launch of a graph. */
    atomic_fetch_add(&run->ended, 1);
    signal_change(engine);
    psm_engine_run_drop(run);
}

static void sync_ended(void *cookie, psm_status status)
{
    tell(((struct plan_op *)cookie)->plan, cookie, status);
}

struct gated {
    struct engine_run *run;
    void *cookie;
};

static void gated_ended(void *arg, psm_status status)
{
    struct gated *gated = arg;
    struct engine *engine = gated->run->engine;
    atomic_fetch_add(&engine->inside, 1);
    psm_engine_run_ended(gated->run, gated->cookie, status);
    free(gated);
    atomic_fetch_sub(&engine->inside, 1);
}

static psm_status save_p2p(struct engine *engine, const struct psmPlanOpInfo *op, const volatile uint32_t *ready,
                           void (*ended)(void *, psm_status), void *cookie)
{
    int sends = op->func == PSM_PLAN_SEND;
    struct psmProxyOp saved = {.opCount = op->opCount,
                               .nbytes = op->nbytes,
                               .sendbuff = sends ? (const char *)op->sendbuff + op->offset : NULL,
                               .recvbuff = sends ? NULL : (char *)op->recvbuff + op->offset,
                               .peer = op->peer,
                               .channel = op->channel,
                               .ready = ready,
                               .ended = ended,
                               .cookie = cookie};
    saved.connection = psm_engine_connection(engine, op->channel, op->peer, sends, 1);
    if (!saved.connection) return psm_fail_at("plan", engine->rank, op->peer, 0);
    return psmProxySaveOp(engine->state, &saved);
}

static psm_status save(struct engine *engine, psmPlan *plan, const struct psmPlanOpInfo *op,
                       struct psmSyncCondition *sync, void *cookie)
{
    struct engine_run *run;
    if (op->decrements) return save_p2p(engine, op, sync ? &sync->proxyReadyEvent : NULL, sync_ended, cookie);
    PSM_TRY(run_of(engine, plan, &run));
    if (op->func < PSM_PLAN_SEND) return psm_ring_save(run, op, cookie);
    struct gated *gated = malloc(sizeof *gated);
    if (!gated) return psm_fail(PSM_ERR_NO_MEMORY, "plan", engine->rank, op->peer, 0, "no memory for an operation");
    *gated = (struct gated){run, cookie};
    atomic_fetch_add(&run->refs, 1);
    psm_status status = save_p2p(engine, op, &run->gate, gated_ended, gated);
    if (status == PSM_OK) return PSM_OK;
    psm_engine_run_drop(run);
    free(gated);
    return status;
}

/* Otherwise a kernel that lacks some of its operations would wait for ever, and so would other ranks. */
psm_status psm_engine_save(void *self, psmPlan *plan, const struct psmPlanOpInfo *op, struct psmSyncCondition *sync,
                           void *cookie)
{
    struct engine *engine = self;
    atomic_store(&engine->comm, psmPlanCommOf(plan));
    psm_status status = save(engine, plan, op, sync, cookie);
    if (status == PSM_OK) return PSM_OK;
    psmProxyFail(engine->state, status, NULL);
    psmPlanAbort(psmPlanCommOf(plan));
    return status;
}

psm_status psm_engine_start(void *self)
{
    return psmProxyStart(psm_engine_of(self)->state);
}
