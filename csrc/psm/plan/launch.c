/* Launch: prepare, barrier, before, launch, after and finish of the plans of a group, and their host functions.
 *
 * Streams, as in NCCL: user streams except the first -> device stream -> launch stream (the first user stream); host
 * stream -> launch stream, if proxy ops are posted from there; after the launch the same waits in reverse. From 2.26 on
 * (the planner here) the other user streams and the launch stream wait for each other. Each wait is traced. */
#include <inttypes.h>
#include <stdlib.h>

#include "plan/launch.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_prepare, "plan.prepare", "the plans of a group are made, and no stream refers to them yet");
PSM_FAULT_SITE(site_launch, "plan.launch", "a plan is put on the launch stream");
PSM_FAULT_SITE(site_host_task, "plan.host_task", "the proxy ops of a plan are saved and posted");
PSM_FAULT_SITE(site_callback, "plan.callback", "the launch stream has reached the host function of a plan");

static psm_status fault(psmPlanComm *comm, struct psm_site *site, const char *stage)
{
    struct psm_fault found;
    struct psm_fault_args args = {
        .rank = comm->config.rank, .peer = -1, .abort_flag = (const volatile uint32_t *)&comm->aborted};
    return psm_fault_before(site, &args, stage, &found);
}

void psm_plan_work_over(psmPlanComm *comm)
{
    psm_plan_wake(comm);
    atomic_fetch_sub_explicit(&comm->openWork, 1, memory_order_release);
}

static bool is_aborted(const psmPlanComm *comm)
{
    return atomic_load_explicit(&comm->aborted, memory_order_acquire) != 0;
}

/* ---- CUDA calls of the main thread: uncaptured ones are traced ---- */

static void tell_call(psmPlanComm *comm, enum psm_plan_call call)
{
    if (!comm->graph) psm_plan_event(comm, PSM_PLAN_CUDA, NULL, call, 0, 0);
}
static psm_status acquire(psmPlanComm *comm, int which, void **stream)
{
    tell_call(comm, PSM_PLAN_CALL_ACQUIRE);
    return comm->engine.acquire(comm->engine.self, which, comm->graph, stream);
}
/* Streams by their place in the group; the host stream is that of this call. */
static psm_status wait_stream(psmPlanComm *comm, int waits, int on, void *host)
{
    void *stream[2];
    const int place[2] = {waits, on};
    for (int i = 0; i < 2; i++)
        stream[i] = place[i] == PSM_PLAN_ON_DEVICE ? comm->deviceStream
                    : place[i] == PSM_PLAN_ON_HOST ? host
                                                   : comm->streams.stream[place[i] - PSM_PLAN_ON_LAUNCH];
    tell_call(comm, PSM_PLAN_CALL_WAIT);
    psm_plan_event(comm, PSM_PLAN_ORDERED, NULL, waits, on, 0);
    return comm->engine.wait(comm->engine.self, stream[0], stream[1]);
}

/* ---- host functions ---- */

static void arm(psmPlan *plan)
{
    if (plan->syncCount < 0) return;
    if (atomic_load(&plan->syncFreed)) psm_plan_trace_touched(plan, PSM_PLAN_HOST);
    plan->sync->failed = 0;
    __atomic_store_n(&plan->sync->proxyReadyEvent, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&plan->sync->proxyOpCount, plan->syncCount, __ATOMIC_RELEASE);
    psm_plan_event(plan->comm, PSM_PLAN_ARMED, plan, plan->syncCount, (int64_t)plan->ndecrement, 0);
}

static void note_failure(psmPlan *plan, const char *where, psm_status status)
{
    uint32_t none = 0;
    if (plan->sync)
        __atomic_compare_exchange_n(&plan->sync->failed, &none, (uint32_t)-status, false, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED);
    if (!psm_plan_trace_quiet(plan->comm))
        psm_msg_libpsm_plan_failed(plan->id, plan->comm->config.rank, where, psm_last_error()->text);
}

/* uploadProxyOps: opCounts start at 0 in each plan; add the communicator's history. An op that cannot be saved ends at
 * once. */
static psm_status save_ops(psmPlan *plan)
{
    psmPlanComm *comm = plan->comm;
    uint64_t colls = comm->collOpCount, bump[MAXCHANNELS] = {0};
    psm_status status = PSM_OK;
    comm->collOpCount += plan->collOpCount;
    for (struct plan_op *op = plan->ops; op; op = op->next) {
        int c = op->info.channel;
        struct psmPlanOpInfo info = op->info;
        if (info.opCount & 1) {
            bump[c] = (info.opCount >> 1) + 1;
            info.opCount += comm->p2pOpCount[c] << 1;
        } else
            info.opCount += colls << 1;
        op->posted = info.opCount;
        atomic_fetch_add(&op->open, 1);
        atomic_fetch_add(&plan->open, 1);
        atomic_fetch_add(&comm->openWork, 1);
        psm_plan_event(comm, PSM_PLAN_OP_POSTED, plan, (int64_t)op->posted, c, info.decrements);
        psm_status one = status;
        if (one >= 0) one = comm->engine.save(comm->engine.self, plan, &info, info.decrements ? plan->sync : NULL, op);
        if (one < 0) psmPlanOpDone(op, one);
        if (status >= 0) status = one;
    }
    for (int c = 0; c < plan->channelUbound && !comm->variant->keep_opcount; c++) comm->p2pOpCount[c] += bump[c];
    return status;
}

static psm_status host_task(psmPlan *plan, bool host_stream)
{
    psmPlanComm *comm = plan->comm;
    psm_status status = PSM_OK;
    psm_plan_meet(comm, PSM_PLAN_POINT_HOST_TASK);
    if (atomic_load(&plan->reclaimed)) psm_plan_trace_touched(plan, PSM_PLAN_HOST);
    psm_plan_event(comm, PSM_PLAN_HOST_TASK, plan, host_stream, 0, 0);
    if (!atomic_load(&plan->cancelled) && !is_aborted(comm)) {
        /* Arm before any op is posted. Without a host stream the launch stream may be here earlier: then prepare arms
         * it. */
        if (host_stream) arm(plan);
        status = fault(comm, &site_host_task, "plan");
        if (status >= 0 && plan->ops) {
            psm_plan_history_lock(comm);
            status = save_ops(plan);
            psm_plan_history_unlock(comm);
            psm_status started = comm->engine.start(comm->engine.self);
            if (status >= 0) status = started;
        } else if (status < 0 && plan->sync) /* nobody will decrement the count for it */
            __atomic_store_n(&plan->sync->proxyOpCount, 0, __ATOMIC_RELEASE);
        if (status < 0) note_failure(plan, "host-task", status);
    }
    psm_plan_meet(comm, PSM_PLAN_POINT_POSTED);
    if (!plan->persistent) {
        if (comm->variant->lose_reclaimer)
            atomic_fetch_sub(&comm->openPlans, 1); /* so that its communicator can be destroyed */
        else if (!comm->variant->after_enqueues || !plan->hasProxyOps || atomic_load(&plan->cancelled))
            psm_plan_enqueue_reclaimer(plan, &plan->reclaimer, PSM_PLAN_BY_HOST_TASK);
    }
    return status;
}

/* Of the host stream: a plan. */
static void host_task_callback(void *arg)
{
    psmPlan *plan = arg;
    psmPlanComm *comm = plan->comm;
    bool persistent = plan->persistent;
    if (persistent) atomic_fetch_add(&comm->openWork, 1);
    host_task(plan, true);
    if (!persistent) atomic_fetch_sub(&comm->hostTasks, 1);
    psm_plan_work_over(comm);
}

/* hostProxySyncCallback: the launch stream waits here until the ops have ended. */
/* Of the launch stream: a plan. */
static void sync_callback(void *arg)
{
    psmPlan *plan = arg;
    psmPlanComm *comm = plan->comm;
    const struct plan_variant *variant = comm->variant;
    int32_t left = 0;
    if (plan->persistent) {
        atomic_fetch_add(&comm->openWork, 1);
        atomic_fetch_add(&plan->callbacks, 1);
        atomic_fetch_add(&plan->open, 1);
    }
    psm_plan_meet(comm, PSM_PLAN_POINT_CALLBACK);
    if (atomic_load(&plan->reclaimed) || atomic_load(&plan->syncFreed)) psm_plan_trace_touched(plan, PSM_PLAN_HOST);
    psm_status status = fault(comm, &site_callback, "plan");
    if (status < 0) note_failure(plan, "callback", status);
    struct psmSyncCondition *sync = plan->sync;
    psm_plan_event(comm, PSM_PLAN_CALLBACK, plan, __atomic_load_n(&sync->proxyOpCount, __ATOMIC_ACQUIRE), 0, 0);
    __atomic_store_n(&sync->proxyReadyEvent, 1, __ATOMIC_RELEASE);
    psm_plan_wake(comm);
    while ((left = __atomic_load_n(&sync->proxyOpCount, __ATOMIC_ACQUIRE)) > 0 && !is_aborted(comm) &&
           !variant->leave_early)
        psm_plan_pause(comm, PSM_PLAN_WAIT_COUNT, plan);
    psm_plan_meet(comm, PSM_PLAN_POINT_OVER);
    psm_plan_event(comm, PSM_PLAN_CALLBACK_OVER, plan, left > 0 && is_aborted(comm), left > 0 ? left : 0,
                   variant->free_in_callback);
    if (variant->free_in_callback) psm_plan_free_sync(plan);
    atomic_fetch_sub(&plan->callbacks, 1);
    atomic_fetch_sub_explicit(&plan->open, 1, memory_order_release);
    psm_plan_work_over(comm);
}

/* ---- ends ---- */

void psmPlanKernelDone(psmPlan *plan)
{
    psmPlanComm *comm = plan->comm;
    if (atomic_load(&plan->reclaimed)) psm_plan_trace_touched(plan, PSM_PLAN_KERNEL);
    psm_plan_event(comm, PSM_PLAN_KERNEL_DONE, plan, 0, 0, 0);
    if (plan->persistent) { /* its graph holds it until no launch is left */
        psm_plan_wake(comm);
        return;
    }
    psm_plan_fifo_done(plan);
    atomic_fetch_sub(&plan->kernelRuns, 1);
    atomic_fetch_sub_explicit(&plan->open, 1, memory_order_release);
    psm_plan_work_over(comm);
}

static void count_off(psmPlan *plan, psm_status status)
{
    struct psmSyncCondition *sync = plan->sync;
    uint32_t none = 0;
    if (status < 0)
        __atomic_compare_exchange_n(&sync->failed, &none, (uint32_t)-status, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    int32_t left = __atomic_sub_fetch(&sync->proxyOpCount, 1, __ATOMIC_ACQ_REL);
    psm_plan_event_locked(plan->comm, PSM_PLAN_COUNTED_OFF, plan, left, 0, 0);
}

void psmPlanOpDone(void *cookie, psm_status status)
{
    struct plan_op *op = cookie;
    psmPlan *plan = op->plan;
    psmPlanComm *comm = plan->comm;
    bool counts = op->info.decrements && plan->sync;
    psm_plan_meet(comm, PSM_PLAN_POINT_OP_DONE);
    bool freed = atomic_load(&plan->reclaimed) || (counts && atomic_load(&plan->syncFreed));
    /* With the trace locked: the host function that sees the count at 0 is traced after it. */
    psm_plan_trace_lock(comm);
    if (freed) psm_plan_event_locked(comm, PSM_PLAN_TOUCHED, plan, PSM_PLAN_PROXY, 0, 0);
    psm_plan_event_locked(comm, PSM_PLAN_OP_DONE, plan, (int64_t)op->posted, op->info.channel, op->info.decrements);
    if (counts) count_off(plan, status);
    if (counts && comm->variant->count_twice) count_off(plan, status);
    psm_plan_trace_unlock(comm);
    atomic_fetch_sub(&op->open, 1);
    atomic_fetch_sub_explicit(&plan->open, 1, memory_order_release);
    psm_plan_work_over(comm);
}

/* ---- prepare ---- */

static psm_status make_sync(psmPlan *plan)
{
    size_t size = (sizeof(struct psmSyncCondition) + 64 + 63) / 64 * 64; /* and its place among kept ones */
    plan->hostFunc = plan->syncCount >= 0;
    if (!plan->hostFunc) return PSM_OK;
    plan->sync = aligned_alloc(64, size);
    if (!plan->sync)
        return psm_fail(PSM_ERR_NO_MEMORY, "plan", plan->comm->config.rank, -1, 0,
                        "no memory for the sync condition of plan %" PRIu64, plan->id);
    *plan->sync = (struct psmSyncCondition){0};
    if (plan->comm->quarantine) psm_plan_keep_sync(plan);
    return PSM_OK;
}

static psm_status enter_streams(psmPlanComm *comm)
{
    const struct plan_variant *variant = comm->variant;
    int through = comm->scheduler->direct ? PSM_PLAN_ON_LAUNCH : PSM_PLAN_ON_DEVICE;
    PSM_TRY(acquire(comm, PSM_PLAN_DEVICE_STREAM, &comm->deviceStream));
    comm->acquired = true;
    for (int i = 1; i < (int)comm->streams.n && !variant->no_user_wait; i++)
        PSM_TRY(wait_stream(comm, through, PSM_PLAN_ON_LAUNCH + i, NULL));
    return variant->no_device_wait ? PSM_OK : wait_stream(comm, PSM_PLAN_ON_LAUNCH, PSM_PLAN_ON_DEVICE, NULL);
}

static void tell_made(psmPlanComm *comm, psmPlan *plan)
{
    plan->reclaimer.fn = psm_plan_reclaim;
    plan->second.fn = psm_plan_reclaim_second;
    if (!plan->persistent) {
        /* Count it before others can see the plan, so that it cannot be reclaimed before its launch. */
        uint32_t callbacks = plan->hostFunc && !comm->variant->lose_callback;
        atomic_store(&plan->kernelRuns, plan->kernel);
        atomic_store(&plan->callbacks, callbacks);
        atomic_store(&plan->open, plan->kernel + (int64_t)callbacks);
        atomic_fetch_add(&comm->openWork, plan->kernel + callbacks);
    }
    atomic_fetch_add(&comm->openPlans, 1);
    plan->made = true;
    psm_plan_trace_made(plan);
}

/* From here on a failure cancels the plans: others refer to them. */
static psm_status commit(psmPlanComm *comm)
{
    bool persistent = comm->graph != 0;
    for (psmPlan *plan = comm->planHead; plan; plan = plan->next) tell_made(comm, plan);
    psm_plan_meet(comm, PSM_PLAN_POINT_COMMIT);
    if (persistent) {
        comm->persistentRefs += (int64_t)comm->nplans;
        psm_plan_event(comm, PSM_PLAN_REFS, NULL, comm->persistentRefs, (int64_t)comm->nplans, 0);
        PSM_TRY(comm->engine.on_destroy(comm->engine.self, comm->graph, psm_plan_destructor, comm->planHead));
        for (psmPlan *plan = comm->planHead; plan; plan = plan->next) plan->committed = true;
    }
    if (!comm->hostPath) {
        for (psmPlan *plan = comm->planHead; plan; plan = plan->next) arm(plan);
        return PSM_OK;
    }
    void *host = NULL;
    for (psmPlan *plan = comm->planHead; plan; plan = plan->next) {
        if (!plan->hasProxyOps) continue;
        if (!host) PSM_TRY(acquire(comm, PSM_PLAN_HOST_STREAM, &host));
        tell_call(comm, PSM_PLAN_CALL_HOST_FUNC);
        plan->hostCbEnq = true;
        if (!persistent) {
            atomic_fetch_add(&comm->hostTasks, 1);
            atomic_fetch_add(&comm->openWork, 1);
        }
        psm_status status = comm->engine.host_func(comm->engine.self, host, host_task_callback, plan);
        if (status >= 0) continue;
        plan->hostCbEnq = false;
        if (!persistent) {
            atomic_fetch_sub(&comm->hostTasks, 1);
            psm_plan_work_over(comm);
        }
        comm->engine.release(comm->engine.self, PSM_PLAN_HOST_STREAM, comm->graph);
        return status;
    }
    if (!host) return PSM_OK;
    psm_status status =
        comm->variant->no_host_wait ? PSM_OK : wait_stream(comm, PSM_PLAN_ON_LAUNCH, PSM_PLAN_ON_HOST, host);
    psm_status released = comm->engine.release(comm->engine.self, PSM_PLAN_HOST_STREAM, comm->graph);
    return status < 0 ? status : released;
}

/* A capture that starts or ends within a group: kernels would be launched with a graph that does not hold their plans.
 */
static psm_status check_capture(psmPlanComm *comm)
{
    for (uint32_t i = 0; i < comm->streams.n; i++) {
        uint64_t graph = 0;
        PSM_TRY(comm->engine.capturing(comm->engine.self, comm->streams.stream[i], &graph));
        if (graph != comm->graph)
            return psm_fail(PSM_ERR_INVALID, "plan", comm->config.rank, -1, 0,
                            "the group was enqueued while stream %p was %scaptured, but ends while it is %s: start and "
                            "end captures outside of groups",
                            comm->streams.stream[i], comm->graph ? "" : "not ",
                            !graph        ? "not"
                            : comm->graph ? "captured into another graph"
                                          : "captured");
    }
    return PSM_OK;
}

static psm_status cut(psmPlanComm *comm)
{
    PSM_TRY(check_capture(comm));
    PSM_TRY(psm_plan_schedule(comm, comm->graph != 0));
    comm->unlaunched = comm->planHead;
    if (comm->prescheduled) { /* the old p2p plan: it is in no queue, and nobody will take it */
        comm->prescheduled->made = true;
        psm_plan_trace_made(comm->prescheduled);
        comm->prescheduled = NULL;
    }
    PSM_TRY(fault(comm, &site_prepare, "plan"));
    for (psmPlan *plan = comm->planHead; plan; plan = plan->next) PSM_TRY(make_sync(plan));
    if (!comm->planHead) return PSM_OK;
    comm->hostPath = comm->graph || comm->persistentRefs != 0 || comm->config.launchBlocking ||
                     atomic_load(&comm->hostTasks) != 0; /* those that have not run yet come first */
    PSM_TRY(enter_streams(comm));
    return commit(comm);
}

static void leave_scope(psmPlanComm *comm)
{
    if (comm->prepared && !comm->variant->keep_scope) psm_plan_stack_pop(&comm->scoped);
    comm->prepared = false;
}

static void drop_group(psmPlanComm *comm)
{
    psm_plan_tasks_drop(comm);
    comm->streams.n = 0;
    comm->graph = 0;
    comm->hostPath = comm->acquired = false;
    comm->planHead = comm->planTail = comm->unlaunched = NULL;
    comm->nplans = 0;
}

/* Nothing of the group was launched. */
static void unprepare(psmPlanComm *comm, psm_status status)
{
    struct psm_error kept = *psm_last_error();
    if (comm->planHead && comm->planHead->made)
        for (psmPlan *plan = comm->planHead, *next; plan; plan = next) {
            next = plan->next;
            psm_plan_cancel(plan);
        }
    else {
        for (psmPlan *plan = comm->planHead; plan; plan = plan->next) psm_plan_free_sync(plan);
        psm_plan_plans_drop(comm);
    }
    if (comm->acquired) comm->engine.release(comm->engine.self, PSM_PLAN_DEVICE_STREAM, comm->graph);
    if (comm->prepared) psm_plan_stack_pop(&comm->scoped);
    comm->prepared = false;
    drop_group(comm);
    psm_plan_event(comm, PSM_PLAN_PREPARE_FAILED, NULL, comm->scoped.depth, status, 0);
    psm_plan_poll(comm, false, NULL);
    psm_fail_again(&kept);
}

static psm_status prepare(psmPlanComm *comm)
{
    if (is_aborted(comm)) {
        drop_group(comm);
        return psm_fail(PSM_ERR_ABORTED, "plan", comm->config.rank, -1, 0,
                        "the group was not launched: its communicator was aborted; destroy it");
    }
    psm_status status = psm_plan_poll(comm, false, NULL);
    psm_plan_event(comm, PSM_PLAN_PREPARE, NULL, comm->scoped.depth, (int64_t)(comm->ntasksColl + comm->ntasksP2p),
                   (int64_t)comm->graph);
    if (status >= 0) status = psm_plan_stack_push(&comm->scoped);
    comm->prepared = status >= 0;
    if (status >= 0 && comm->ntasksColl + comm->ntasksP2p != 0) status = cut(comm);
    if (status < 0)
        unprepare(comm, status);
    else
        psm_plan_event(comm, PSM_PLAN_PREPARED, NULL, comm->scoped.depth, (int64_t)comm->nplans,
                       comm->acquired ? comm->streams.n : 0);
    return status;
}

/* ---- launch ---- */

/* Follows the headers of each channel as its block of the kernel does. */
static void tell_headers(psmPlanComm *comm, const psmPlan *plan)
{
    const struct plan_work_table *table = plan->works;
    const struct psmPlanWorkInfo *head = NULL; /* the first slot of the kernel */
    for (uint64_t i = 0; plan->kernel && i < table->nworks;) {
        int channel = table->works[i].channel;
        int64_t slots = 0, found = 0;
        const struct psmPlanWorkInfo *at = NULL;
        for (; i < table->nworks && table->works[i].channel == channel; i++) {
            const struct psmPlanWorkInfo *work = &table->works[i];
            if (!work->kernel || !work->first) continue;
            if (!head) head = work;
            slots++;
            if (at && (at->isLast || (int32_t)work->place - (int32_t)head->place != at->workNext)) continue;
            at = work;
            found++;
        }
        if (!at) continue;
        int64_t bits = (at->isLast ? PSM_PLAN_HEADER_LAST : 0) | (at->inFifo ? PSM_PLAN_HEADER_IN_FIFO : 0) |
                       (at->doneAcks == plan->acks[channel] ? PSM_PLAN_HEADER_ACKS : 0) |
                       (plan->persistent ? 0 : PSM_PLAN_HEADER_STORED);
        psm_plan_event(comm, PSM_PLAN_UPLOADED, plan, channel, slots, bits | found << PSM_PLAN_HEADER_SLOTS);
    }
}

/* As NCCL: clusters of blocks on 9.0 and later, spread over the GPU, of one block if their size does not divide the
 * grid; and the remote domain of memory synchronisation, so that the kernel's fences do not wait for other kernels. */
static int64_t attributes(const psmPlanComm *comm, const psmPlan *plan)
{
    int64_t capability = comm->config.compCap, grid = __builtin_popcountll(plan->kernelMask), cluster = 0;
    int until = comm->scheduler->clusters_until;
    if (!plan->kernel || !capability) return 0;
    if (capability >= 90 && (!until || capability <= until)) cluster = comm->config.cgaClusterSize;
    if (cluster && grid % cluster && !comm->variant->odd_cluster) cluster = 1;
    return cluster | (cluster ? PSM_PLAN_ATTR_SPREAD : 0) | (capability >= 90 ? PSM_PLAN_ATTR_REMOTE : 0) |
           grid << PSM_PLAN_ATTR_GRID | capability << PSM_PLAN_ATTR_CAPABILITY;
}

static psm_status launch(psmPlanComm *comm, psmPlan *plan)
{
    const struct psmPlanEngine *engine = &comm->engine;
    void *stream = comm->streams.stream[0];
    PSM_TRY(fault(comm, &site_launch, "plan"));
    int what = (plan->kernel ? 1 : 0) | (plan->hostFunc ? 2 : 0);
    static const char *const names[] = {"nothing", "kernel", "function", "both"};
    if (!psm_plan_trace_quiet(comm))
        psm_msg_libpsm_plan_launched(plan->id, comm->config.rank, names[what], (uint64_t)(uintptr_t)stream);
    /* Trace it first: what was launched may end before the next line. */
    atomic_fetch_add(&plan->launches, 1);
    psm_plan_event(comm, PSM_PLAN_LAUNCHED, plan, what, comm->graph != 0, attributes(comm, plan));
    for (const struct plan_copy *copy = plan->selfCopies; copy; copy = copy->next)
        PSM_TRY(engine->copy(engine->self, stream, copy->to, copy->from, copy->nbytes));
    if (plan->kernel) {
        PSM_TRY(engine->kernel(engine->self, stream, plan));
        plan->onStream |= 1;
    }
    if (plan->hostFunc && !comm->variant->lose_callback) {
        PSM_TRY(engine->host_func(engine->self, stream, sync_callback, plan));
        plan->onStream |= 2;
    }
    psm_plan_meet(comm, PSM_PLAN_POINT_LAUNCH);
    return PSM_OK;
}

static psm_status after(psmPlanComm *comm, psmPlan *plan)
{
    const struct plan_variant *variant = comm->variant;
    bool twice = variant->reclaim_twice && !plan->persistent, ops = plan->hasProxyOps;
    bool takes = !plan->persistent && variant->after_enqueues && ops;
    psm_status status = PSM_OK;
    /* Once its reclaimer is queued the plan may be freed: not here, because only the main thread takes it. */
    if (!comm->hostPath)
        status = host_task(plan, false);
    else if (!plan->persistent && !ops)
        psm_plan_enqueue_reclaimer(plan, &plan->reclaimer, PSM_PLAN_BY_LAUNCH_AFTER);
    if (takes) psm_plan_enqueue_reclaimer(plan, &plan->reclaimer, PSM_PLAN_BY_LAUNCH_AFTER);
    if (twice) psm_plan_enqueue_reclaimer(plan, &plan->second, PSM_PLAN_BY_LAUNCH_AFTER);
    return status;
}

static psm_status launch_next(psmPlanComm *comm)
{
    psmPlan *plan = comm->unlaunched;
    if (comm->variant->cuda_in_barrier) {
        void *device;
        PSM_TRY(acquire(comm, PSM_PLAN_DEVICE_STREAM, &device));
    }
    /* No uncaptured CUDA call before the launch: it might wait for a kernel that waits for this launch. */
    PSM_TRY(comm->scheduler->upload(comm, plan));
    if (comm->scheduler->headers) tell_headers(comm, plan);
    PSM_TRY(launch(comm, plan));
    comm->unlaunched = plan->next;
    return after(comm, plan);
}

static psm_status leave_streams(psmPlanComm *comm)
{
    int through = comm->scheduler->direct ? PSM_PLAN_ON_LAUNCH : PSM_PLAN_ON_DEVICE;
    uint32_t n = comm->variant->no_wait_after ? 0 : comm->streams.n;
    psm_status status = n ? wait_stream(comm, PSM_PLAN_ON_DEVICE, PSM_PLAN_ON_LAUNCH, NULL) : PSM_OK;
    for (int i = 1; i < (int)n && status >= 0; i++) status = wait_stream(comm, PSM_PLAN_ON_LAUNCH + i, through, NULL);
    psm_status released = comm->engine.release(comm->engine.self, PSM_PLAN_DEVICE_STREAM, comm->graph);
    return status < 0 ? status : released;
}

static psm_status finish(psmPlanComm *comm, psm_status status)
{
    struct psm_error kept = *psm_last_error();
    for (psmPlan *plan = comm->unlaunched, *next; plan; plan = next) {
        next = plan->next;
        psm_plan_cancel(plan);
    }
    psm_plan_fifo_group(comm);
    leave_scope(comm);
    psm_status left = comm->acquired ? leave_streams(comm) : PSM_OK;
    drop_group(comm);
    psm_plan_event(comm, PSM_PLAN_FINISH, NULL, comm->scoped.depth, status < 0 || left < 0, 0);
    if (status < 0) psm_fail_again(&kept);
    return status < 0 ? status : left;
}

static psm_status launch_all(psmPlanComm *const *comms, size_t ncomms)
{
    for (bool more = true; more;) {
        more = false;
        for (size_t i = 0; i < ncomms; i++) {
            psmPlanComm *comm = comms[i];
            if (!comm->unlaunched) continue;
            if (comm->engine.barrier) PSM_TRY(comm->engine.barrier(comm->engine.self));
            psm_plan_event(comm, PSM_PLAN_BARRIER, NULL, 0, 0, 0);
        }
        for (size_t i = 0; i < ncomms; i++) {
            if (!comms[i]->unlaunched) continue;
            PSM_TRY(launch_next(comms[i]));
            more |= comms[i]->unlaunched != NULL;
        }
    }
    return PSM_OK;
}

psm_status psmPlanGroupEnd(psmPlanComm *const *comms, size_t ncomms)
{
    if (ncomms > 0 && !comms) return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "group end: no communicators");
    psm_status status = PSM_OK;
    size_t prepared = 0;
    for (size_t i = 0; i < ncomms; i++)
        if (!comms[i]) return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "group end: communicator %zu is NULL", i);
    while (prepared < ncomms && (status = prepare(comms[prepared])) >= 0) prepared++;
    if (prepared < ncomms) {
        for (size_t i = 0; i < prepared; i++) unprepare(comms[i], status);
        struct psm_error kept = *psm_last_error();
        for (size_t i = prepared + 1; i < ncomms; i++) drop_group(comms[i]);
        return psm_fail_again(&kept);
    }
    status = launch_all(comms, ncomms);
    for (size_t i = 0; i < ncomms; i++) {
        psm_status one = finish(comms[i], status);
        if (status >= 0) status = one;
    }
    return status;
}
