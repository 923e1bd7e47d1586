/* The schedulers of plans, without launch and reclaim: obeys lines of its input, and answers each that has an answer
 * with a line of JSON.
 *
 *   comm RANK NRANKS NNODES SCHEDULER NCHANNELS P2PN PERPEER PASSSM ORDER COUNTALL DEPTH FIFOBYTES ARGSBYTES CHUNK
 *   task FUNC PEER DATATYPE REDOP COUNT SENDBUFF RECVBUFF
 *   schedule PERSISTENT     all tasks into plans: {"plans": [...], "prescheduled": ...} or {"error": ..., "status":
 * ...} upload                  the oldest plan that is not: {"plan": ...} done                    the oldest uploaded
 * plan's kernel has run, and the plan is given back drop                    gives all plans of the last schedule back
 *   fifo SENT               the FIFO's counters are as if so much had gone through it
 *   abort
 *   count                   {"plans": [live, total], ...}
 *   order                   {"send": [...], "recv": [...]}
 *   fail N                  the N-th block of memory from now on is refused, and no other
 */
#undef malloc /* in the other sources, it is limited_malloc */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan/plan.h"

static int blocks_left;
void *limited_malloc(size_t size)
{
    return blocks_left > 0 && --blocks_left == 0 ? NULL : malloc(size);
}

static psmPlanComm comm;
static struct plan_variant variant;
static psmPlan *uploaded[4096];
static int nuploaded, npauses;

static void failed(psm_status status)
{
    printf("{\"status\": \"%s\", \"error\": \"", psm_status_name(status));
    for (const char *c = psm_last_error()->text; *c; c++) {
        if (*c == '"' || *c == '\\') putchar('\\');
        putchar(*c);
    }
    printf("\"}\n");
}

static void show(const psmPlan *plan)
{
    struct psmPlanInfo i;
    psmPlanInfoOf(plan, &i);
    printf("{\"id\": %llu, \"mask\": %llu, \"ubound\": %d, \"count\": %d, \"proxy\": %d, \"persistent\": %d, "
           "\"kernel\": %d, \"ncolls\": %d, \"np2ps\": %d, \"sync\": %d, \"storage\": %d, \"batches\": %u, "
           "\"work_bytes\": %llu, \"ntasks\": %llu, \"works\": [",
           (unsigned long long)i.id, (unsigned long long)i.channelMask, i.channelUbound, i.channelCount, i.hasProxyOps,
           i.persistent, i.kernel, i.ncolls, i.np2ps, i.syncCount, i.storage, i.nbatches,
           (unsigned long long)i.workBytes, (unsigned long long)i.ntasks);
    for (uint64_t k = 0; k < i.nworks; k++) {
        const struct psmPlanWorkInfo *w = &i.works[k];
        printf("%s{\"channel\": %d, \"func\": %d, \"peer\": %d, \"first\": %d, \"last\": %d, \"kernel\": %d, "
               "\"offset\": %llu, \"nbytes\": %llu, \"task\": %llu, \"place\": %u}",
               k ? ", " : "", w->channel, w->func, w->peer, w->first, w->last, w->kernel, (unsigned long long)w->offset,
               (unsigned long long)w->nbytes, (unsigned long long)w->task, w->place);
    }
    printf("], \"ops\": [");
    for (uint64_t k = 0; k < i.nops; k++) {
        const struct psmPlanOpInfo *o = &i.ops[k];
        printf("%s{\"channel\": %d, \"func\": %d, \"peer\": %d, \"count\": %llu, \"decrements\": %d, \"offset\": %llu, "
               "\"nbytes\": %llu, \"task\": %llu}",
               k ? ", " : "", o->channel, o->func, o->peer, (unsigned long long)o->opCount, o->decrements,
               (unsigned long long)o->offset, (unsigned long long)o->nbytes, (unsigned long long)o->task);
    }
    printf("], \"copies\": [");
    for (const struct plan_copy *copy = plan->selfCopies; copy; copy = copy->next)
        printf("%s[%llu, %llu, %llu]", copy == plan->selfCopies ? "" : ", ", (unsigned long long)(uintptr_t)copy->from,
               (unsigned long long)(uintptr_t)copy->to, (unsigned long long)copy->nbytes);
    printf("], \"acks\": {");
    const char *comma = "";
    for (int c = 0; c < MAXCHANNELS; c++) {
        if (plan->fifoMask >> c & 1) {
            printf("%s\"%d\": %u", comma, c, plan->acks[c]);
            comma = ", ";
        }
    }
    printf("}, \"pauses\": %d}", npauses);
}

static void end_oldest(void)
{
    psmPlan *plan = uploaded[0];
    if (nuploaded == 0) {
        fprintf(stderr, "no plan is uploaded\n");
        exit(1);
    }
    memmove(uploaded, uploaded + 1, sizeof *uploaded * (size_t)--nuploaded);
    psm_plan_fifo_done(plan);
    free(plan->persistentWork);
    psm_plan_give_back(&comm, plan);
}

static void pause_(void *self, int why, psmPlan *plan)
{
    (void)self, (void)plan;
    if (why != PSM_PLAN_WAIT_FIFO) abort();
    npauses++;
    end_oldest();
}
static psm_status alloc(void *self, uint64_t graph, uint64_t nbytes, void **memory)
{
    (void)self, (void)graph;
    return (*memory = calloc(1, nbytes)) ? PSM_OK : PSM_ERR_NO_MEMORY;
}

static int open_comm(const char *rest)
{
    struct psmPlanConfig c = {.size = sizeof c};
    int order, count_all;
    if (sscanf(rest, "%d %d %d %d %d %d %d %d %d %d %u %u %u %u", &c.rank, &c.nRanks, &c.nNodes, &c.scheduler,
               &c.nChannels, &c.p2pnChannels, &c.p2pnChannelsPerPeer, &c.passSm, &order, &count_all, &c.workFifoDepth,
               &c.workFifoBytes, &c.workArgsBytes, &c.p2pChunkSize) != 14)
        return -1;
    variant = (struct plan_variant){.order = (enum plan_order)order, .count_all_ops = count_all};
    comm.config = c;
    comm.variant = &variant;
    comm.engine = (struct psmPlanEngine){.size = sizeof comm.engine, .alloc = alloc, .pause = pause_};
    psm_status status = psm_plan_scheduler_open(&comm);
    if (status < 0) failed(status);
    return 0;
}

static int add_task(const char *rest)
{
    struct psmPlanTask t = {0};
    unsigned long long count, send, recv;
    if (sscanf(rest, "%d %d %d %d %llu %llu %llu", &t.func, &t.peer, &t.datatype, &t.redop, &count, &send, &recv) != 7)
        return -1;
    t.count = count;
    t.sendbuff = (const void *)(uintptr_t)send;
    t.recvbuff = (void *)(uintptr_t)recv;
    psm_status status = psm_plan_task_add(&comm, &t);
    if (status < 0) failed(status);
    return 0;
}

static void schedule(bool persistent)
{
    comm.graph = persistent ? 7 : 0;
    comm.planHead = comm.planTail = comm.unlaunched = NULL;
    psm_status status = psm_plan_stack_push(&comm.scoped);
    if (status < 0)
        psm_plan_tasks_drop(&comm);
    else {
        status = psm_plan_schedule(&comm, persistent);
        psm_plan_stack_pop(&comm.scoped);
    }
    if (status < 0) {
        failed(status);
        return;
    }
    printf("{\"prescheduled\": ");
    if (comm.prescheduled)
        show(comm.prescheduled);
    else
        printf("null");
    printf(", \"plans\": [");
    for (psmPlan *plan = comm.planHead; plan; plan = plan->next) {
        show(plan);
        if (plan->next) printf(", ");
    }
    printf("]}\n");
}

static void upload(void)
{
    psmPlan *plan = comm.unlaunched;
    if (!plan) {
        fprintf(stderr, "no plan is left\n");
        exit(1);
    }
    psm_status status = comm.scheduler->upload(&comm, plan);
    if (status < 0) {
        failed(status);
        return;
    }
    comm.unlaunched = plan->next;
    uploaded[nuploaded++] = plan;
    show(plan);
    printf("\n");
}

static void pool(const char *name, const struct plan_pool *of)
{
    printf("\"%s\": [%llu, %llu], ", name, (unsigned long long)of->live, (unsigned long long)of->total);
}

static void count(void)
{
    printf("{");
    pool("plans", &comm.plans);
    pool("ops", &comm.ops);
    pool("tasks", &comm.tasks);
    pool("copies", &comm.copies);
    struct plan_pool tables = {0};
    for (int i = 0; i < PLAN_TABLES; i++) {
        tables.live += comm.tables[i].live;
        tables.total += comm.tables[i].total;
    }
    pool("tables", &tables);
    printf("\"scoped\": %llu, \"permanent\": %llu, \"depth\": %d}\n", (unsigned long long)comm.scoped.bytes,
           (unsigned long long)comm.permanent.bytes, comm.scoped.depth);
}

static int obey(const char *verb, const char *rest)
{
    if (!strcmp(verb, "comm")) return open_comm(rest);
    if (!strcmp(verb, "task")) return add_task(rest);
    if (!strcmp(verb, "schedule"))
        schedule(atoi(rest));
    else if (!strcmp(verb, "upload"))
        upload();
    else if (!strcmp(verb, "done"))
        end_oldest();
    else if (!strcmp(verb, "drop"))
        psm_plan_plans_drop(&comm);
    else if (!strcmp(verb, "abort"))
        atomic_store(&comm.aborted, 1);
    else if (!strcmp(verb, "count"))
        count();
    else if (!strcmp(verb, "fail"))
        blocks_left = atoi(rest);
    else if (!strcmp(verb, "fifo")) {
        comm.fifo.sent = comm.fifo.acked = (uint32_t)strtoul(rest, NULL, 0);
        for (int c = 0; c < MAXCHANNELS; c++) {
            comm.fifo.channelSent[c] = comm.fifo.sent;
            atomic_store(&comm.fifo.done[c], comm.fifo.sent);
        }
    } else if (!strcmp(verb, "order")) {
        for (int k = 0; k < 2; k++) {
            printf(k ? "], \"recv\": [" : "{\"send\": [");
            for (int i = 0; i < comm.nrounds; i++)
                printf("%s%d", i ? ", " : "", (k ? comm.recvOrder : comm.sendOrder)[i]);
        }
        printf("]}\n");
    } else
        return -1;
    return 0;
}

int main(void)
{
    char line[512], verb[32];
    int at;
    while (fgets(line, sizeof line, stdin)) {
        if (sscanf(line, "%31s %n", verb, &at) < 1) continue;
        if (obey(verb, line + at) < 0) {
            fprintf(stderr, "not understood: %s", line);
            return 2;
        }
        fflush(stdout);
    }
    psm_plan_tasks_drop(&comm);
    psm_plan_scheduler_close(&comm);
    return 0;
}
