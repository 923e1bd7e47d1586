/* Tasks: what an application enqueues, until a plan takes it. */
#include "plan/plan.h"

uint64_t psm_plan_type_size(int datatype)
{
    /* ncclInt8, Uint8, Int32, Uint32, Int64, Uint64, Float16, Float32, Float64, Bfloat16, Float8e4m3, Float8e5m2 */
    static const uint8_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return datatype >= 0 && (size_t)datatype < sizeof sizes ? sizes[datatype] : 0;
}

static bool is_p2p(int func)
{
    return func == PSM_PLAN_SEND || func == PSM_PLAN_RECV;
}
static bool reduces(int func)
{
    return func == PSM_PLAN_REDUCE || func == PSM_PLAN_REDUCESCATTER || func == PSM_PLAN_ALLREDUCE;
}
static bool rooted(int func)
{
    return func == PSM_PLAN_BROADCAST || func == PSM_PLAN_REDUCE;
}
static bool per_rank(int func)
{
    return func == PSM_PLAN_ALLGATHER || func == PSM_PLAN_REDUCESCATTER;
}
static const char *func_name(int func)
{
    static const char *const names[] = {"Broadcast", "Reduce", "AllGather", "ReduceScatter",
                                        "AllReduce", NULL,     "Send",      "Recv"};
    return func >= 0 && (size_t)func < sizeof names / sizeof *names ? names[func] : NULL;
}

/* Of a collective: bytes of a rank's larger buffer. */
static uint64_t bytes_of(const psmPlanComm *comm, const struct psmPlanTask *task)
{
    uint64_t bytes = task->count * psm_plan_type_size(task->datatype);
    return per_rank(task->func) ? bytes * (uint64_t)comm->config.nRanks : bytes;
}

psm_status psm_plan_task_check(const psmPlanComm *comm, const struct psmPlanTask *task)
{
    int rank = comm->config.rank, nranks = comm->config.nRanks;
    const char *name = func_name(task->func);
    if (!name)
        return psm_fail(PSM_ERR_INVALID, "enqueue", rank, -1, 0,
                        "a task has func %d; expected 0 to 4 (collectives), 6 (send) or 7 (recv)", task->func);
    if ((is_p2p(task->func) || rooted(task->func)) && (task->peer < 0 || task->peer >= nranks))
        return psm_fail(PSM_ERR_INVALID, "enqueue", rank, task->peer, 0,
                        "%s has %s %d in a communicator of %d ranks; expected 0 to %d", name,
                        rooted(task->func) ? "root" : "peer", task->peer, nranks, nranks - 1);
    uint64_t size = psm_plan_type_size(task->datatype);
    if (size == 0)
        return psm_fail(PSM_ERR_INVALID, "enqueue", rank, -1, 0, "%s has datatype %d; expected one of NCCL's, 0 to 11",
                        name, task->datatype);
    if (reduces(task->func) && (task->redop < 0 || task->redop > 4))
        return psm_fail(PSM_ERR_INVALID, "enqueue", rank, -1, 0,
                        "%s has redop %d; expected 0 (sum), 1 (prod), 2 (max), 3 (min) or 4 (avg); user-defined "
                        "operations are not modelled",
                        name, task->redop);
    uint64_t most = (uint64_t)INT64_MAX / size / (uint64_t)nranks / 2;
    if (task->count > most)
        return psm_fail(
            PSM_ERR_INVALID, "enqueue", rank, -1, 0,
            "%s of %llu elements of %llu bytes among %d ranks does not fit in 63 bits: count may be at most %llu", name,
            (unsigned long long)task->count, (unsigned long long)size, nranks, (unsigned long long)most);
    return PSM_OK;
}

static void append(struct plan_task_queue *queue, struct plan_task *task)
{
    task->next = NULL;
    if (queue->tail)
        queue->tail->next = task;
    else
        queue->head = task;
    queue->tail = task;
}

psm_status psm_plan_task_add(psmPlanComm *comm, const struct psmPlanTask *task)
{
    PSM_TRY(psm_plan_task_check(comm, task));
    bool p2p = is_p2p(task->func);
    if (!p2p && task->count == 0 && comm->config.scheduler == PSM_PLAN_PLANNER) {
        comm->taskNumber++;
        return PSM_OK;
    }
    struct plan_task *added = psm_plan_pool_alloc(&comm->tasks);
    if (!added)
        return psm_fail(PSM_ERR_NO_MEMORY, "enqueue", comm->config.rank, -1, 0,
                        "no memory for a task after %llu others: end the group earlier",
                        (unsigned long long)(comm->ntasksColl + comm->ntasksP2p));
    added->task = *task;
    added->number = comm->taskNumber++;
    added->nbytes = bytes_of(comm, task);
    comm->counted.tasks++;
    if (p2p) {
        struct plan_peer *peer = &comm->peers[task->peer];
        append(task->func == PSM_PLAN_SEND ? &peer->send : &peer->recv, added);
        comm->ntasksP2p++;
        return PSM_OK;
    }
    /* As in NCCL: operations that only move bytes are counted in bytes, so that their types do not separate tasks. */
    if (task->func == PSM_PLAN_ALLGATHER || task->func == PSM_PLAN_BROADCAST) {
        added->task.count *= psm_plan_type_size(task->datatype);
        added->task.datatype = 0;
    }
    if (!reduces(task->func)) added->task.redop = 0;
    append(&comm->collQueue, added);
    comm->ntasksColl++;
    comm->collBytes += added->nbytes;
    return PSM_OK;
}

static void drop(psmPlanComm *comm, struct plan_task_queue *queue)
{
    for (struct plan_task *task = queue->head, *next; task; task = next) {
        next = task->next;
        psm_plan_pool_free(&comm->tasks, task);
    }
    *queue = (struct plan_task_queue){0};
}

void psm_plan_tasks_drop(psmPlanComm *comm)
{
    drop(comm, &comm->collQueue);
    for (int peer = 0; comm->ntasksP2p != 0 && peer < comm->config.nRanks; peer++) {
        drop(comm, &comm->peers[peer].send);
        drop(comm, &comm->peers[peer].recv);
    }
    comm->ntasksColl = comm->ntasksP2p = comm->collBytes = 0;
}
