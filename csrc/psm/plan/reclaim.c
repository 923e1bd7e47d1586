/* Reclaim: who may enqueue a plan's reclaimer, when the main thread runs it, and what it releases. Callbacks run in the
 * order of enqueueing: one whose plan has not ended delays those after it. */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>

#include "plan/launch.h"
#include "psm_lib_messages.h"

/* Sync conditions of broken variants, kept after the sync condition in its own allocation. */
struct grave {
    struct psmSyncCondition sync;
    struct grave *next;
};
_Static_assert(sizeof(struct grave) <= 192, "launch.c leaves room for it");

/* ---- enqueueing ---- */

void psm_plan_enqueue_reclaimer(psmPlan *plan, struct plan_callback *callback, enum psm_plan_enqueuer by)
{
    psmPlanComm *comm = plan->comm;
    atomic_fetch_add(&plan->enqueued, 1);
    /* With the trace locked: reclaimers are traced in queue order. */
    psm_plan_trace_lock(comm);
    psm_plan_event_locked(comm, PSM_PLAN_RECLAIMER, plan, by, 0, 0);
    psm_plan_mpsc_push(&comm->callbacks, callback);
    psm_plan_trace_unlock(comm);
    psm_plan_wake(comm);
}

/* Runs on a thread of the engine, which must not call the engine. */
void psm_plan_destructor(void *arg)
{
    psmPlan *plan = arg;
    psmPlanComm *comm = plan->comm;
    uint64_t plans = 0;
    atomic_fetch_add(&comm->openWork, 1);
    for (const psmPlan *p = plan; p; p = p->next) plans++;
    psm_plan_event(comm, PSM_PLAN_DESTRUCTOR, NULL, (int64_t)plan->graph, (int64_t)plans, 0);
    for (psmPlan *next; plan; plan = next) {
        next = plan->next; /* the plan may be freed as soon as it is enqueued */
        psm_plan_meet(comm, PSM_PLAN_POINT_DESTRUCTOR);
        psm_plan_enqueue_reclaimer(plan, &plan->reclaimer, PSM_PLAN_BY_DESTRUCTOR);
    }
    psm_plan_work_over(comm);
}

void psm_plan_cancel(psmPlan *plan)
{
    psmPlanComm *comm = plan->comm;
    atomic_store(&plan->cancelled, 1);
    psm_plan_event(comm, PSM_PLAN_CANCELLED, plan, 0, 0, 0);
    if (plan->persistent) { /* held by its graph; the launches that it was made for do not happen */
        if (!plan->committed) psm_plan_enqueue_reclaimer(plan, &plan->reclaimer, PSM_PLAN_BY_CANCEL);
        return;
    }
    /* Does what its kernel and its host function would have done at their end. */
    uint64_t never = 0;
    if (plan->kernel && !(plan->onStream & 1)) {
        psm_plan_fifo_done(plan);
        never += atomic_exchange(&plan->kernelRuns, 0);
    }
    if (!(plan->onStream & 2)) never += atomic_exchange(&plan->callbacks, 0);
    atomic_fetch_sub(&plan->open, (int64_t)never);
    /* Ops may already be posted, and wait for the host function. */
    if (plan->sync) __atomic_store_n(&plan->sync->proxyReadyEvent, 1, __ATOMIC_RELEASE);
    if (!plan->hostCbEnq) psm_plan_enqueue_reclaimer(plan, &plan->reclaimer, PSM_PLAN_BY_CANCEL);
    psm_plan_wake(comm);
    for (; never > 0; never--) psm_plan_work_over(comm);
}

/* ---- release ---- */

void psm_plan_keep_sync(psmPlan *plan)
{
    struct grave *grave = (struct grave *)plan->sync;
    grave->next = plan->comm->graveyard;
    plan->comm->graveyard = grave;
}

void psm_plan_free_sync(psmPlan *plan)
{
    if (plan->comm->quarantine) {
        atomic_store(&plan->syncFreed, plan->sync != NULL);
        return;
    }
    free(plan->sync);
    plan->sync = NULL;
}

void psm_plan_graveyard_free(psmPlanComm *comm)
{
    while (comm->graveyard) {
        struct grave *grave = comm->graveyard;
        comm->graveyard = grave->next;
        free(grave);
    }
}

/* As psm_plan_give_back, but nothing is reused: a later access is detected and does no harm. */
static void bury(psmPlanComm *comm, psmPlan *plan)
{
    bool lose = comm->variant->lose_ops;
    for (struct plan_op *op = plan->ops; op && !lose; op = op->next) comm->ops.live--;
    for (struct plan_task *task = plan->tasks.head; task; task = task->next) comm->tasks.live--;
    for (struct plan_copy *copy = plan->selfCopies; copy; copy = copy->next) comm->copies.live--;
    if (plan->works) comm->tables[plan->works->order].live--;
    comm->plans.live--;
}

psm_status psmPlanHold(psmPlan *plan, int what, psm_status (*fn)(void *arg), void *arg)
{
    if (!plan || !fn || what < PSM_PLAN_HOLDS_IPC || what > PSM_PLAN_HOLDS_COLLNET)
        return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "hold: no plan, no function, or no such registration (%d)",
                        what);
    psmPlanComm *comm = plan->comm;
    struct plan_hold *hold = psm_plan_pool_alloc(&comm->holds), **end = &plan->holds[what];
    if (!hold)
        return psm_fail(PSM_ERR_NO_MEMORY, "plan", comm->config.rank, -1, 0,
                        "no memory for a registration of plan %" PRIu64, plan->id);
    *hold = (struct plan_hold){.fn = fn, .arg = arg};
    while (*end) end = &(*end)->next;
    *end = hold;
    psm_plan_event(comm, PSM_PLAN_REGISTERED, plan, what, ++plan->nholds, 0);
    return PSM_OK;
}

static psm_status give_holds_back(psmPlan *plan)
{
    psmPlanComm *comm = plan->comm;
    psm_status status = PSM_OK;
    for (int what = PSM_PLAN_HOLDS_IPC; what <= PSM_PLAN_HOLDS_COLLNET && !comm->variant->keep_holds; what++)
        while (plan->holds[what]) {
            struct plan_hold *hold = plan->holds[what];
            plan->holds[what] = hold->next;
            psm_status one = hold->fn(hold->arg);
            if (status >= 0) status = one;
            psm_plan_pool_free(&comm->holds, hold);
            psm_plan_event(comm, PSM_PLAN_DEREGISTERED, plan, what, --plan->nholds, 0);
        }
    return status;
}

static int64_t open_ops(const psmPlan *plan)
{
    int64_t n = 0;
    for (const struct plan_op *op = plan->ops; op; op = op->next)
        n += atomic_load_explicit(&op->open, memory_order_relaxed);
    return n;
}

psm_status psm_plan_reclaim(psmPlanComm *comm, struct plan_callback *callback)
{
    psmPlan *plan = (psmPlan *)callback;
    psm_plan_meet(comm, PSM_PLAN_POINT_RECLAIM);
    psm_status status = give_holds_back(plan);
    bool ended = atomic_load_explicit(&plan->open, memory_order_acquire) == 0;
    psm_plan_event(comm, PSM_PLAN_RECLAIM, plan, ended ? 0 : open_ops(plan), atomic_load(&plan->kernelRuns),
                   atomic_load(&plan->callbacks));
    if (atomic_exchange(&plan->reclaimed, 1)) return PSM_OK; /* only if nothing is reused */
    if (plan->persistent) {
        if (!comm->variant->unbalanced_refs) {
            comm->persistentRefs--;
            psm_plan_event(comm, PSM_PLAN_REFS, NULL, comm->persistentRefs, -1, 0);
        }
        if (plan->persistentWork) {
            psm_status freed = comm->engine.free(comm->engine.self, plan->persistentWork);
            if (status >= 0) status = freed;
        }
        plan->persistentWork = NULL;
    }
    psm_plan_free_sync(plan);
    uint64_t left = atomic_fetch_sub(&comm->openPlans, 1) - 1;
    if (!psm_plan_trace_quiet(comm)) psm_msg_libpsm_plan_reclaimed(plan->id, comm->config.rank, left);
    if (comm->quarantine)
        bury(comm, plan);
    else
        psm_plan_give_back(comm, plan);
    return status;
}

/* NULL: it is not a reclaimer. */
static psmPlan *plan_of(struct plan_callback *callback)
{
    if (callback && callback->fn == psm_plan_reclaim) return (psmPlan *)callback;
    if (callback && callback->fn == psm_plan_reclaim_second)
        return (psmPlan *)((char *)callback - offsetof(psmPlan, second));
    return NULL;
}

psm_status psm_plan_reclaim_second(psmPlanComm *comm, struct plan_callback *callback)
{
    return psm_plan_reclaim(comm, &plan_of(callback)->reclaimer);
}

/* ---- polling ---- */

static void take(psmPlanComm *comm)
{
    struct plan_callback *callback = psm_plan_mpsc_take(&comm->callbacks);
    while (callback) {
        struct plan_callback *next = callback->next;
        callback->next = NULL;
        if (comm->variant->newest_first) {
            callback->next = comm->waiting;
            comm->waiting = callback;
        } else if (comm->waiting)
            comm->waitingTail->next = callback;
        else
            comm->waiting = callback;
        if (!callback->next) comm->waitingTail = callback;
        callback = next;
    }
}

static bool may_run(const psmPlanComm *comm, struct plan_callback *callback)
{
    psmPlan *plan = plan_of(callback);
    if (!plan || comm->variant->reclaim_early) return true;
    return atomic_load_explicit(&plan->open, memory_order_acquire) == 0;
}

psmPlan *psm_plan_waiting(psmPlanComm *comm)
{
    return plan_of(comm->waiting);
}

psm_status psm_plan_poll(psmPlanComm *comm, bool wait, uint64_t *ran)
{
    psm_status status = PSM_OK;
    uint64_t n = 0;
    while (true) {
        psm_plan_meet(comm, PSM_PLAN_POINT_POLL);
        take(comm);
        while (comm->waiting && may_run(comm, comm->waiting)) {
            struct plan_callback *callback = comm->waiting;
            comm->waiting = callback->next;
            psm_status one = callback->fn(comm, callback); /* its memory may be freed */
            if (status == PSM_OK) status = one;
            n++;
        }
        if (n > 0 || !wait || atomic_load(&comm->aborted) || atomic_load(&comm->openPlans) == 0) break;
        psm_plan_pause(comm, PSM_PLAN_WAIT_RECLAIM, psm_plan_waiting(comm));
    }
    if (ran) *ran = n;
    return status;
}
