/* Communicators of plans: creation, tasks, abort, destruction. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "plan/launch.h"

static void yield(void *self, int why, psmPlan *plan)
{
    (void)self;
    (void)why;
    (void)plan;
    sched_yield();
}

static psm_status check_engine(const struct psmPlanEngine *engine, int rank)
{
    const struct {
        bool there;
        const char *name;
    } needed[] = {{engine->capturing, "capturing"}, {engine->acquire, "acquire"},
                  {engine->release, "release"},     {engine->wait, "wait"},
                  {engine->host_func, "host_func"}, {engine->copy, "copy"},
                  {engine->kernel, "kernel"},       {engine->on_destroy, "on_destroy"},
                  {engine->alloc, "alloc"},         {engine->free, "free"},
                  {engine->save, "save"},           {engine->start, "start"}};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!needed[i].there)
            return psm_fail(
                PSM_ERR_INVALID, "plan", rank, -1, 0,
                "psmPlanCommCreate: the engine has no %s: only barrier, pause, wake and meet may be missing",
                needed[i].name);
    return PSM_OK;
}

static psm_status fill(psmPlanComm *comm, const struct psmPlanConfig *config, const struct psmPlanEngine *engine,
                       const struct plan_watch *watch)
{
    memcpy(&comm->config, config, config->size < sizeof *config ? config->size : sizeof *config);
    memcpy(&comm->engine, engine, engine->size < sizeof *engine ? engine->size : sizeof *engine);
    int rank = comm->config.rank;
    PSM_TRY(check_engine(&comm->engine, rank));
    if (!comm->engine.pause) comm->engine.pause = yield;
    comm->variant = psm_plan_find_variant(comm->config.variant);
    if (!comm->variant)
        return psm_fail(PSM_ERR_NOT_FOUND, "plan", rank, -1, 0,
                        "there is no plan variant %s: psmPlanVariants lists them", comm->config.variant);
    comm->config.variant = comm->variant->name.name;
    if (!(comm->variant->name.schedulers & (1 << comm->config.scheduler)) && comm->config.scheduler >= 0 &&
        comm->config.scheduler <= PSM_PLAN_PLANNER)
        return psm_fail(PSM_ERR_INVALID, "plan", rank, -1, 0, "variant %s does not support this scheduler",
                        comm->variant->name.name);
    comm->quarantine = comm->variant->name.wrong;
    PSM_TRY(psm_plan_scheduler_open(comm));
    comm->holds = (struct plan_pool){.stack = &comm->permanent, .size = sizeof(struct plan_hold)};
    return psm_plan_trace_open(comm, watch);
}

psm_status psm_plan_comm_create(const struct psmPlanConfig *config, const struct psmPlanEngine *engine,
                                const struct plan_watch *watch, psmPlanComm **out)
{
    psmPlanComm *comm = aligned_alloc(64, (sizeof *comm + 63) / 64 * 64);
    if (!comm) return psm_fail(PSM_ERR_NO_MEMORY, "plan", config->rank, -1, 0, "no memory for a communicator");
    memset(comm, 0, sizeof *comm);
    psm_status status = fill(comm, config, engine, watch);
    if (status < 0) {
        psm_plan_comm_free(comm);
        return status;
    }
    psm_alive_add(&comm->alive, PSM_ALIVE_PLANS);
    *out = comm;
    return PSM_OK;
}

psm_status psmPlanCommCreate(const struct psmPlanConfig *config, const struct psmPlanEngine *engine, psmPlanComm **out)
{
    if (!config || !engine || !out)
        return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "psmPlanCommCreate: an argument is NULL");
    return psm_plan_comm_create(config, engine, NULL, out);
}

void psm_plan_comm_close(psmPlanComm *comm)
{
    psm_plan_tasks_drop(comm); /* of a group that was not ended */
    while (true) {
        uint64_t ran = 0;
        psm_plan_poll(comm, false, &ran);
        if (atomic_load_explicit(&comm->openWork, memory_order_acquire) == 0 && atomic_load(&comm->openPlans) == 0 &&
            !comm->waiting && !atomic_load(&comm->callbacks.head))
            break;
        if (ran == 0) psm_plan_pause(comm, PSM_PLAN_WAIT_RECLAIM, psm_plan_waiting(comm));
    }
    psm_plan_event(comm, PSM_PLAN_DESTROY, NULL, (int64_t)comm->plans.live, (int64_t)comm->ops.live,
                   (int64_t)comm->tasks.live);
    psm_plan_trace_end(comm);
}

void psm_plan_comm_free(psmPlanComm *comm)
{
    psm_alive_remove(&comm->alive);
    psm_plan_graveyard_free(comm);
    psm_plan_scheduler_close(comm);
    psm_plan_trace_close(comm);
    free(comm->streams.stream);
    free(comm);
}

psm_status psmPlanCommDestroy(psmPlanComm *comm)
{
    if (!comm) return PSM_OK;
    if (!comm->finished) psm_plan_comm_close(comm);
    psm_plan_comm_free(comm);
    return PSM_OK;
}

psm_status psmPlanCommFinish(psmPlanComm *comm)
{
    if (!comm) return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "finish: the communicator is NULL");
    if (!comm->finished) psm_plan_comm_close(comm);
    comm->finished = true;
    return PSM_OK;
}

/* ---- tasks ---- */

static psm_status add_stream(psmPlanComm *comm, void *stream)
{
    struct plan_streams *streams = &comm->streams;
    for (uint32_t i = 0; i < streams->n; i++)
        if (streams->stream[i] == stream) return PSM_OK;
    if (streams->n == streams->room) {
        uint32_t room = streams->room ? streams->room * 2 : 4;
        void **wide = realloc(streams->stream, room * sizeof *wide);
        if (!wide)
            return psm_fail(PSM_ERR_NO_MEMORY, "enqueue", comm->config.rank, -1, 0,
                            "no memory for another stream of a task");
        streams->stream = wide;
        streams->room = room;
    }
    streams->stream[streams->n++] = stream;
    return PSM_OK;
}

psm_status psmPlanEnqueue(psmPlanComm *comm, const struct psmPlanTask *task, void *stream)
{
    if (!comm || !task) return psm_fail(PSM_ERR_INVALID, "enqueue", -1, -1, 0, "enqueue: an argument is NULL");
    uint64_t graph = 0;
    PSM_TRY(comm->engine.capturing(comm->engine.self, stream, &graph));
    if (comm->streams.n > 0 && graph != comm->graph)
        return psm_fail(
            PSM_ERR_INVALID, "enqueue", comm->config.rank, -1, 0,
            "a task on stream %p, which is %s, in a group %s: capture all streams of a group into one graph", stream,
            graph ? "captured" : "not captured",
            comm->graph ? "that is captured" : "that is not captured, or into another graph");
    PSM_TRY(psm_plan_task_check(comm, task));
    PSM_TRY(add_stream(comm, stream));
    comm->graph = graph;
    uint64_t number = comm->taskNumber;
    PSM_TRY(psm_plan_task_add(comm, task));
    psm_plan_event(comm, PSM_PLAN_TASK, NULL, task->func, (int64_t)number, 0);
    return PSM_OK;
}

void psmPlanGroupDrop(psmPlanComm *comm)
{
    if (!comm) return;
    psm_plan_tasks_drop(comm);
    comm->streams.n = 0;
    comm->graph = 0;
}

/* ---- any thread ---- */

psm_status psmPlanPoll(psmPlanComm *comm, int wait, uint64_t *ran)
{
    if (!comm) return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0, "poll: the communicator is NULL");
    return psm_plan_poll(comm, wait != 0, ran);
}

void psmPlanAbort(psmPlanComm *comm)
{
    if (!comm || atomic_exchange(&comm->aborted, 1)) return;
    psm_plan_event(comm, PSM_PLAN_ABORT, NULL, 0, 0, 0);
    psm_plan_wake(comm);
}

int psmPlanAborted(const psmPlanComm *comm)
{
    return comm && atomic_load_explicit(&comm->aborted, memory_order_acquire) != 0;
}

psm_status psmPlanCount(const psmPlanComm *comm, struct psmPlanCounters *counters)
{
    if (!comm || !counters || counters->size < sizeof counters->size)
        return psm_fail(PSM_ERR_INVALID, "plan", -1, -1, 0,
                        "psmPlanCount: an argument is NULL, or its size is not set");
    struct psmPlanCounters now = {.size = counters->size,
                                  .plans = comm->counted.plans,
                                  .ops = comm->counted.ops,
                                  .tasks = comm->counted.tasks,
                                  .plansLive = comm->plans.live,
                                  .opsLive = comm->ops.live,
                                  .tasksLive = comm->tasks.live,
                                  .plansPool = comm->plans.total,
                                  .opsPool = comm->ops.total,
                                  .tasksPool = comm->tasks.total,
                                  .scopedBytes = comm->scoped.bytes,
                                  .permanentBytes = comm->permanent.bytes,
                                  .persistentRefs = comm->persistentRefs,
                                  .callbacksQueued = atomic_load(&comm->callbacks.enqueued)};
    memcpy(counters, &now, now.size < sizeof now ? now.size : sizeof now);
    return PSM_OK;
}
