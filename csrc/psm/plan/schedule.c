/* From tasks to plans: the common part of both schedulers, and the order in which kinds of tasks are taken. */
#include <string.h>

#include "plan/schedule.h"

/* ---- opening and closing ---- */

static bool power_of_two(uint64_t n)
{
    return n != 0 && (n & (n - 1)) == 0;
}

static psm_status check(struct psmPlanConfig *c)
{
#define WANT(condition, ...)                                                                                           \
    if (!(condition)) return psm_fail(PSM_ERR_INVALID, "plan", c->rank, -1, 0, __VA_ARGS__)
    WANT(c->nRanks >= 1 && c->rank >= 0 && c->rank < c->nRanks,
         "psmPlanCommCreate: rank %d of %d; expected a rank from 0 to nranks - 1", c->rank, c->nRanks);
    WANT(c->nRanks <= 1 << 20, "psmPlanCommCreate: %d ranks; expected at most 2^20", c->nRanks);
    if (c->nNodes == 0) c->nNodes = 1;
    WANT(c->nNodes >= 1 && c->nRanks % c->nNodes == 0,
         "psmPlanCommCreate: %d ranks on %d nodes; expected the same number of ranks on each node", c->nRanks,
         c->nNodes);
    WANT(c->scheduler == PSM_PLAN_LEGACY || c->scheduler == PSM_PLAN_PLANNER,
         "psmPlanCommCreate: scheduler %d; expected 0 (legacy) or 1 (planner)", c->scheduler);
    WANT(c->scheduler == PSM_PLAN_LEGACY || psm_plan_release(c->release),
         "psmPlanCommCreate: release %d; expected NCCL's version code, 22203 (2.22.3) or later", c->release);
    WANT(c->nChannels >= 1 && c->nChannels <= MAXCHANNELS, "psmPlanCommCreate: %d channels; expected 1 to %d",
         c->nChannels, MAXCHANNELS);
    WANT(c->p2pnChannels >= 1 && c->p2pnChannels <= MAXCHANNELS && power_of_two((uint64_t)c->p2pnChannels),
         "psmPlanCommCreate: %d p2p channels; expected a power of two up to %d", c->p2pnChannels, MAXCHANNELS);
    WANT(c->p2pnChannelsPerPeer >= 1 && c->p2pnChannelsPerPeer <= c->p2pnChannels &&
             power_of_two((uint64_t)c->p2pnChannelsPerPeer),
         "psmPlanCommCreate: %d p2p channels per peer of %d; expected a power of two that is not larger",
         c->p2pnChannelsPerPeer, c->p2pnChannels);
    if (c->workFifoDepth == 0) c->workFifoDepth = 65536;
    if (c->workFifoBytes == 0) c->workFifoBytes = 1 << 20;
    if (c->workArgsBytes == 0) c->workArgsBytes = 4096;
    if (c->p2pChunkSize == 0) c->p2pChunkSize = 131072;
    WANT(power_of_two(c->workFifoDepth) && c->workFifoDepth <= 1u << 30,
         "psmPlanCommCreate: a work FIFO of %u slots; expected a power of two up to 2^30", c->workFifoDepth);
    WANT(power_of_two(c->workFifoBytes) && c->workFifoBytes <= 1u << 30,
         "psmPlanCommCreate: a work FIFO of %u bytes; expected a power of two up to 2^30", c->workFifoBytes);
    WANT(c->workArgsBytes >= 64 && c->workArgsBytes <= 1u << 20,
         "psmPlanCommCreate: %u bytes of kernel arguments; expected 64 to 2^20", c->workArgsBytes);
    WANT(c->p2pChunkSize >= 8 && c->p2pChunkSize <= 1u << 30 && c->p2pChunkSize % 8 == 0,
         "psmPlanCommCreate: p2p chunks of %u bytes; expected a multiple of 8 up to 2^30", c->p2pChunkSize);
    WANT(c->compCap >= 0 && c->compCap < 1000, "psmPlanCommCreate: compute capability %d; expected 90 for 9.0",
         c->compCap);
    WANT(c->cgaClusterSize >= 0 && c->cgaClusterSize <= 8, "psmPlanCommCreate: clusters of %d blocks; expected 0 to 8",
         c->cgaClusterSize);
#undef WANT
    return PSM_OK;
}

psm_status psm_plan_scheduler_open(psmPlanComm *comm)
{
    PSM_TRY(check(&comm->config));
    bool legacy = comm->config.scheduler == PSM_PLAN_LEGACY;
    comm->scheduler = legacy ? &psm_plan_legacy : &psm_plan_planner;
    comm->release = legacy ? NULL : psm_plan_release(comm->config.release);
    comm->fifo.depth = legacy ? comm->config.workFifoDepth : comm->config.workFifoBytes;
    struct {
        struct plan_pool *pool;
        size_t size;
    } pools[] = {{&comm->plans, sizeof(psmPlan)},
                 {&comm->ops, sizeof(struct plan_op)},
                 {&comm->tasks, sizeof(struct plan_task)},
                 {&comm->copies, sizeof(struct plan_copy)}};
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++)
        *pools[i].pool = (struct plan_pool){.stack = &comm->permanent, .size = pools[i].size};
    for (int i = 0; i < PLAN_TABLES; i++)
        comm->tables[i] = (struct plan_pool){.stack = &comm->permanent, .size = (size_t)1 << (PLAN_TABLE_MIN + i)};
    comm->nrounds = comm->scheduler->rounds(comm);
    size_t n = (size_t)comm->nrounds;
    comm->peers = psm_plan_stack_alloc(&comm->permanent, (size_t)comm->config.nRanks * sizeof *comm->peers);
    comm->sendOrder = psm_plan_stack_alloc(&comm->permanent, n * sizeof *comm->sendOrder);
    comm->recvOrder = psm_plan_stack_alloc(&comm->permanent, n * sizeof *comm->recvOrder);
    if (!comm->peers || !comm->sendOrder || !comm->recvOrder) {
        psm_plan_scheduler_close(comm);
        return psm_fail(PSM_ERR_NO_MEMORY, "plan", comm->config.rank, -1, 0,
                        "no memory for the p2p schedule of %d ranks", comm->config.nRanks);
    }
    comm->scheduler->order(comm);
    return PSM_OK;
}

void psm_plan_scheduler_close(psmPlanComm *comm)
{
    psm_plan_stack_free(&comm->scoped);
    psm_plan_stack_free(&comm->permanent);
    comm->peers = NULL;
    comm->sendOrder = comm->recvOrder = NULL;
}

/* ---- used by both ---- */

static psm_status no_memory(const psmPlanComm *comm, const char *what)
{
    return psm_fail(PSM_ERR_NO_MEMORY, "plan", comm->config.rank, -1, 0,
                    "no memory for %s of plan %llu: put fewer tasks into a group", what,
                    (unsigned long long)comm->planId);
}

uint32_t psm_plan_kind(const struct psmPlanTask *task)
{
    if (psm_plan_is_p2p(task->func)) return 1;
    /* NCCL's device operations: sum, prod, min and max, premultiplied (avg of floats), divided afterwards (of
     * integers). */
    static const uint8_t ops[] = {0, 1, 2, 2, 3};
    uint32_t op = ops[task->redop];
    if (op == 3 && task->datatype < 6) op = 4;
    return 2 + ((uint32_t)task->func * 5 + op) * 12 + (uint32_t)task->datatype;
}

void psm_plan_tune(uint64_t bytes, int nchannels, int *channels, int *warps)
{
    enum { THREADS = 512, BYTES_OF_THREAD = 64, WARP = 32 };
    uint64_t n = bytes / (THREADS * BYTES_OF_THREAD), threads = THREADS;
    *channels = n < 1 ? 1 : n < (uint64_t)nchannels ? (int)n : nchannels;
    while (*channels == 1 && bytes < threads * BYTES_OF_THREAD && threads % 128 == 0) threads /= 2;
    threads += WARP; /* one to synchronise */
    *warps = (int)(threads / WARP);
    if (*warps < 3) *warps = 3;
}

int psm_plan_mirror(const psmPlanComm *comm, int number)
{
    int n = comm->config.p2pnChannels, mirrored = 0;
    for (int bit = 1, mirror = n / 2; bit < n; bit *= 2, mirror /= 2)
        if (number & bit) mirrored |= mirror;
    return mirrored;
}

psm_status psm_plan_self_check(const psmPlanComm *comm, const struct plan_task *send, const struct plan_task *recv)
{
    int rank = comm->config.rank;
    const struct plan_task *alone = send ? send : recv;
    if (!send != !recv)
        return psm_fail(PSM_ERR_INVALID, "plan", rank, rank, 0,
                        "task %llu %s its own rank, but the group has no matching %s: put both into one group",
                        (unsigned long long)alone->number, send ? "sends to" : "receives from", send ? "recv" : "send");
    if (send->nbytes != recv->nbytes)
        return psm_fail(
            PSM_ERR_INVALID, "plan", rank, rank, 0,
            "task %llu sends %llu bytes to its own rank, task %llu receives %llu: use the same size for both",
            (unsigned long long)send->number, (unsigned long long)send->nbytes, (unsigned long long)recv->number,
            (unsigned long long)recv->nbytes);
    return PSM_OK;
}

static struct wip_work *append_work(psmPlanComm *comm, struct wip_channel *channel)
{
    enum { FEW = 2, MANY = 64 };
    struct wip_chunk *chunk = channel->last;
    if (!chunk || chunk->n == chunk->room) {
        uint32_t room = !chunk ? FEW : chunk->room < MANY ? chunk->room * 2 : MANY;
        chunk = psm_plan_stack_alloc_raw(&comm->scoped, sizeof *chunk + room * sizeof *chunk->works);
        if (!chunk) return NULL;
        *chunk = (struct wip_chunk){.room = room};
        if (channel->last)
            channel->last->next = chunk;
        else
            channel->first = chunk;
        channel->last = chunk;
    }
    return &chunk->works[chunk->n++];
}

psm_status psm_plan_part(psmPlanComm *comm, psmPlan *plan, const struct plan_task *task, const struct plan_part *part)
{
    (void)plan;
    struct wip *wip = comm->scheduling;
    struct wip_channel *channel = wip_channel(comm, part->channel);
    const struct psmPlanTask *t = &task->task;
    bool p2p = psm_plan_is_p2p(t->func);
    int peer = p2p || t->func == PSM_PLAN_BROADCAST || t->func == PSM_PLAN_REDUCE ? t->peer : -1;
    struct wip_work *work = append_work(comm, channel);
    if (!work) return no_memory(comm, "a work");
    *work = (struct wip_work){.info = {.channel = part->channel,
                                       .func = t->func,
                                       .peer = peer,
                                       .first = part->first,
                                       .kernel = !(p2p && comm->config.passSm),
                                       .datatype = t->datatype,
                                       .redop = t->redop,
                                       .offset = part->offset,
                                       .nbytes = part->nbytes,
                                       .task = task->number,
                                       .sendbuff = t->sendbuff,
                                       .recvbuff = t->recvbuff,
                                       .place = part->place,
                                       .roundTo = part->to,
                                       .roundFrom = part->from},
                              .opCount = part->opCount,
                              .op = part->op};
    wip->nworks++;
    wip->nops += part->op;
    if (wip->prescheduling) channel->load += part->nbytes;
    return PSM_OK;
}

psm_status psm_plan_self_copy(psmPlanComm *comm, psmPlan *plan, const struct plan_task *send,
                              const struct plan_task *recv)
{
    if (send->nbytes == 0 || psm_plan_in_place(send, recv)) return PSM_OK;
    struct plan_copy *copy = psm_plan_pool_alloc(&comm->copies), **end = &plan->selfCopies;
    if (!copy) return no_memory(comm, "a copy");
    copy->to = recv->task.recvbuff;
    copy->from = send->task.sendbuff;
    copy->nbytes = send->nbytes;
    while (*end) end = &(*end)->next;
    *end = copy;
    return PSM_OK;
}

void psm_plan_take(psmPlanComm *comm, psmPlan *plan, struct plan_task_queue *queue)
{
    struct plan_task *task = queue->head;
    queue->head = task->next;
    if (!queue->head) queue->tail = NULL;
    task->next = NULL;
    if (plan->tasks.tail)
        plan->tasks.tail->next = task;
    else
        plan->tasks.head = task;
    plan->tasks.tail = task;
    plan->ntasks++;
    if (psm_plan_is_p2p(task->task.func)) {
        comm->ntasksP2p--;
        plan->np2ps++;
    } else {
        comm->ntasksColl--;
        comm->collBytes -= task->nbytes;
        plan->ncolls++;
    }
}

/* ---- plans ---- */

static psmPlan *new_plan(psmPlanComm *comm, bool persistent)
{
    psmPlan *plan = psm_plan_pool_alloc(&comm->plans);
    if (!plan) return NULL;
    plan->comm = comm;
    plan->id = ++comm->planId;
    comm->counted.plans++;
    plan->persistent = persistent;
    plan->graph = persistent ? comm->graph : 0;
    plan->storage = persistent ? PSM_PLAN_PERSISTENT : PSM_PLAN_FIFO;
    plan->syncCount = -1;
    return plan;
}

void psm_plan_give_back(psmPlanComm *comm, psmPlan *plan)
{
    for (struct plan_op *op = plan->ops, *next; op; op = next) {
        next = op->next;
        psm_plan_pool_free(&comm->ops, op);
    }
    for (struct plan_task *task = plan->tasks.head, *next; task; task = next) {
        next = task->next;
        psm_plan_pool_free(&comm->tasks, task);
    }
    for (struct plan_copy *copy = plan->selfCopies, *next; copy; copy = next) {
        next = copy->next;
        psm_plan_pool_free(&comm->copies, copy);
    }
    if (plan->works) psm_plan_pool_free(&comm->tables[plan->works->order], plan->works);
    psm_plan_pool_free(&comm->plans, plan);
}

void psm_plan_plans_drop(psmPlanComm *comm)
{
    for (psmPlan *plan = comm->planHead, *next; plan; plan = next) {
        next = plan->next;
        psm_plan_give_back(comm, plan);
    }
    if (comm->prescheduled) psm_plan_give_back(comm, comm->prescheduled);
    comm->planHead = comm->planTail = comm->unlaunched = comm->prescheduled = NULL;
    comm->nplans = 0;
}

static void queue_plan(psmPlanComm *comm, psmPlan *plan)
{
    if (comm->planTail)
        comm->planTail->next = plan;
    else
        comm->planHead = comm->unlaunched = plan;
    comm->planTail = plan;
    comm->nplans++;
}

static struct plan_work_table *new_table(psmPlanComm *comm, uint64_t nworks, uint64_t nops)
{
    struct plan_work_table *table;
    size_t bytes = sizeof *table + nworks * sizeof *table->works + nops * sizeof *table->ops;
    int order = 0;
    while (order < PLAN_TABLES && comm->tables[order].size < bytes) order++;
    if (order == PLAN_TABLES || !(table = psm_plan_pool_alloc_raw(&comm->tables[order]))) return NULL;
    struct psmPlanWorkInfo *works = (struct psmPlanWorkInfo *)(table + 1);
    *table = (struct plan_work_table){
        .works = works, .ops = (struct psmPlanOpInfo *)(works + nworks), .nworks = nworks, .order = order};
    return table;
}

static psm_status add_op(psmPlanComm *comm, psmPlan *plan, const struct wip_work *work)
{
    const struct psmPlanWorkInfo *w = &work->info;
    struct plan_op *op = psm_plan_pool_alloc_raw(&comm->ops);
    if (!op) return no_memory(comm, "a proxy op");
    *op = (struct plan_op){.plan = plan,
                           .info = {.opCount = work->opCount,
                                    .channel = w->channel,
                                    .func = w->func,
                                    .peer = w->peer,
                                    .decrements = !w->kernel,
                                    .offset = w->offset,
                                    .nbytes = w->nbytes,
                                    .task = w->task,
                                    .sendbuff = w->sendbuff,
                                    .recvbuff = w->recvbuff,
                                    .datatype = w->datatype,
                                    .redop = w->redop}};
    if (plan->lastop)
        plan->lastop->next = op;
    else
        plan->ops = op;
    plan->lastop = op;
    plan->works->ops[plan->nops++] = op->info;
    plan->ndecrement += !w->kernel;
    comm->counted.ops++;
    return PSM_OK;
}

struct cursor {
    const struct wip_chunk *chunk;
    uint32_t i;
};
/* The next work that has an op; NULL: none is left. */
static const struct wip_work *next_op(struct cursor *at)
{
    while (at->chunk) {
        while (at->i < at->chunk->n) {
            const struct wip_work *work = &at->chunk->works[at->i++];
            if (work->op) return work;
        }
        *at = (struct cursor){.chunk = at->chunk->next};
    }
    return NULL;
}

static psm_status ops_by_channel(psmPlanComm *comm, psmPlan *plan)
{
    struct wip *wip = comm->scheduling;
    for (uint64_t mask = plan->channelMask; mask; mask &= mask - 1) {
        struct cursor at = {.chunk = wip->channels[__builtin_ctzll(mask)].first};
        for (const struct wip_work *work; (work = next_op(&at));) PSM_TRY(add_op(comm, plan, work));
    }
    return PSM_OK;
}

/* Collectives before p2p, each by opCount, channels of one opCount in their order. */
static psm_status ops_merged(psmPlanComm *comm, psmPlan *plan)
{
    struct wip *wip = comm->scheduling;
    struct cursor cursors[MAXCHANNELS];
    const struct wip_work *heads[MAXCHANNELS];
    uint64_t ids[MAXCHANNELS];
    int n = 0;
#define ID(work) ((work)->opCount >> 1 | (work)->opCount << 63)
    for (uint64_t mask = plan->channelMask; mask; mask &= mask - 1) {
        cursors[n] = (struct cursor){.chunk = wip->channels[__builtin_ctzll(mask)].first};
        heads[n] = next_op(&cursors[n]);
        if (!heads[n]) continue;
        ids[n] = ID(heads[n]);
        n++;
    }
    while (n != 0) {
        int first = 0;
        for (int i = 1; i < n; i++)
            if (ids[i] < ids[first]) first = i;
        PSM_TRY(add_op(comm, plan, heads[first]));
        heads[first] = next_op(&cursors[first]);
        if (heads[first]) {
            ids[first] = ID(heads[first]);
            continue;
        }
        n--;
        for (int i = first; i < n; i++) {
            cursors[i] = cursors[i + 1];
            heads[i] = heads[i + 1];
            ids[i] = ids[i + 1];
        }
    }
#undef ID
    return PSM_OK;
}

static psm_status finish(psmPlanComm *comm, psmPlan *plan)
{
    struct wip *wip = comm->scheduling;
    comm->scheduler->finish(comm, plan);
    struct plan_work_table *table = plan->works = new_table(comm, wip->nworks, wip->nops);
    if (!table) return no_memory(comm, "the table");
    struct psmPlanWorkInfo *work = table->works;
    for (uint64_t mask = wip->used; mask; mask &= mask - 1) {
        int c = __builtin_ctzll(mask);
        if (!wip->channels[c].first) continue;
        plan->channelMask |= 1ull << c;
        plan->channelUbound = c + 1;
        plan->channelCount++;
        for (const struct wip_chunk *chunk = wip->channels[c].first; chunk; chunk = chunk->next)
            for (uint32_t i = 0; i < chunk->n; i++) {
                *work = chunk->works[i].info;
                if (work->kernel) {
                    plan->kernelMask |= 1ull << c;
                    plan->kernelBatches += work->first != 0;
                }
                work++;
            }
        work[-1].last = 1;
    }
    PSM_TRY(comm->scheduler->merges ? ops_merged(comm, plan) : ops_by_channel(comm, plan));
    plan->hasProxyOps = plan->nops != 0;
    plan->kernel = plan->kernelMask != 0;
    if (plan->ndecrement != 0)
        plan->syncCount = (int32_t)(comm->variant && comm->variant->count_all_ops ? plan->nops : plan->ndecrement);
    for (uint64_t mask = plan->channelMask; mask; mask &= mask - 1) {
        struct wip_channel *channel = &wip->channels[__builtin_ctzll(mask)];
        channel->first = channel->last = NULL;
    }
    wip->nworks = wip->nops = 0;
    return PSM_OK;
}

static void reset(struct wip *wip)
{
    for (uint64_t mask = wip->used; mask; mask &= mask - 1)
        wip->channels[__builtin_ctzll(mask)] = (struct wip_channel){0};
    wip->used = wip->nworks = wip->nops = 0;
}

/* Collectives first, and p2p only when none is left: every rank has the same collectives, but not the same p2p, and a
 * plan is split where its budget ends. */
static psm_status fill(psmPlanComm *comm, psmPlan *plan, enum plan_order order)
{
    const struct plan_scheduler *scheduler = comm->scheduler;
    struct plan_budget budget;
    scheduler->budget(comm, plan, &budget);
    if (order == PLAN_P2P_FIRST) {
        if (comm->ntasksP2p) PSM_TRY(scheduler->p2ps(comm, plan, &budget));
        if (comm->ntasksP2p == 0 && comm->ntasksColl) PSM_TRY(scheduler->colls(comm, plan, &budget));
        return PSM_OK;
    }
    if (comm->ntasksColl) PSM_TRY(scheduler->colls(comm, plan, &budget));
    if (comm->ntasksColl == 0 && comm->ntasksP2p) PSM_TRY(scheduler->p2ps(comm, plan, &budget));
    return PSM_OK;
}

/* The old order: all p2p goes into a plan before the first, without a budget, because no kernel runs it. Its load on
 * the channels influences which channels the first plan picks for its collectives; and if there are collectives, it is
 * in no queue, so nobody launches it. */
static psm_status preschedule(psmPlanComm *comm, bool persistent)
{
    struct wip *wip = comm->scheduling;
    psmPlan *plan = new_plan(comm, persistent);
    if (!plan) return no_memory(comm, "the record");
    struct plan_budget budget = {.slots = INT32_MAX, .args_bytes = 0, .out_bytes = 1 << 30};
    budget.args_bytes = INT32_MAX;
    wip->prescheduling = true;
    psm_status status = comm->scheduler->p2ps(comm, plan, &budget);
    wip->prescheduling = false;
    if (status >= 0) status = finish(comm, plan);
    if (status < 0) {
        psm_plan_give_back(comm, plan);
        return status;
    }
    if (comm->ntasksColl)
        comm->prescheduled = plan;
    else
        queue_plan(comm, plan);
    return PSM_OK;
}

static psm_status cut(psmPlanComm *comm, bool persistent)
{
    struct wip *wip = psm_plan_stack_alloc(&comm->scoped, sizeof *wip);
    if (!wip) return no_memory(comm, "the channels");
    comm->scheduling = wip;
    comm->p2pRound = 0;
    comm->p2pEpoch = 0;
    enum plan_order order = comm->variant ? comm->variant->order : PLAN_COLL_FIRST;
    PSM_TRY(comm->scheduler->prepare(comm));
    bool keep = order == PLAN_P2P_PRESCHEDULED && comm->config.passSm && comm->ntasksP2p;
    if (keep) PSM_TRY(preschedule(comm, persistent));
    for (; comm->ntasksColl + comm->ntasksP2p != 0; keep = false) {
        if (!keep) reset(wip);
        psmPlan *plan = new_plan(comm, persistent);
        if (!plan) return no_memory(comm, "the record");
        psm_status status = fill(comm, plan, order);
        bool used = wip->nworks != 0;
        if (status >= 0 && !used && plan->ntasks == 0) status = comm->scheduler->nothing(comm, plan);
        if (status >= 0 && used) status = finish(comm, plan);
        if (status >= 0 && used) {
            queue_plan(comm, plan);
            continue;
        }
        /* A failure, or all it took are in-place sends to the own rank. */
        psm_plan_give_back(comm, plan);
        comm->planId--;
        comm->counted.plans--;
        PSM_TRY(status);
    }
    return PSM_OK;
}

psm_status psm_plan_schedule(psmPlanComm *comm, bool persistent)
{
    psm_status status = cut(comm, persistent);
    comm->scheduling = NULL;
    if (status < 0) {
        psm_plan_plans_drop(comm);
        psm_plan_tasks_drop(comm);
    }
    return status;
}
