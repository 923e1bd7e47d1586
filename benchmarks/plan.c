/* What plans cost: tasks of a group are enqueued, cut into plans, launched over an engine that does nothing, and
 * reclaimed. Lines: NAME VALUE...
 *
 *   plan SCHEDULER PASSSM WHAT TASKS GROUPS     WHAT: coll, wide, p2p or mixed
 *     enqueue NS, group NS, reclaim NS          a task, the least of all groups
 *     plans N, works N, ops N                   of a group
 *     pools PLANS OPS TASKS SCOPED PERMANENT    objects and bytes that the communicator holds at the end
 *   plan SCHEDULER PASSSM history PLANS 0       one task a plan; ten times as many lines
 *     history PLANS NS PLANS OPS TASKS SCOPED PERMANENT RSS   after so many plans: the least ns of a thousand, and
 * pools
 *
 * PSM_PLAN_CHECK=0 leaves the rules out. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "psm/psm_plan.h"

enum { RANKS = 8, CHANNELS = 16, WINDOW = 1000 };

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void must(psm_status status)
{
    if (status >= 0) return;
    fprintf(stderr, "%s: %s\n", psm_status_name(status), psm_last_error()->text);
    exit(1);
}

/* ---- an engine that has done everything at once ---- */

static uint64_t nplans, nworks, nops;

static psm_status capturing(void *self, void *stream, uint64_t *graph)
{
    (void)self, (void)stream;
    *graph = 0;
    return PSM_OK;
}
static psm_status acquire(void *self, int which, uint64_t graph, void **stream)
{
    (void)which, (void)graph;
    *stream = self;
    return PSM_OK;
}
static psm_status release(void *self, int which, uint64_t graph)
{
    (void)self, (void)which, (void)graph;
    return PSM_OK;
}
static psm_status wait_stream(void *self, void *stream, void *on)
{
    (void)self, (void)stream, (void)on;
    return PSM_OK;
}
/* The host function of a plan waits for its ops, which are posted behind the launch: it runs when they have ended. */
static void (*waiting)(void *), *waiting_arg;
static psm_status host_func(void *self, void *stream, void (*fn)(void *), void *arg)
{
    (void)self, (void)stream;
    waiting = fn;
    waiting_arg = arg;
    return PSM_OK;
}
static psm_status copy(void *self, void *stream, void *to, const void *from, uint64_t nbytes)
{
    (void)self, (void)stream, (void)to, (void)from, (void)nbytes;
    return PSM_OK;
}
static psm_status kernel(void *self, void *stream, psmPlan *plan)
{
    (void)self, (void)stream;
    psmPlanKernelDone(plan);
    return PSM_OK;
}
static psm_status on_destroy(void *self, uint64_t graph, void (*fn)(void *), void *arg)
{
    (void)self, (void)graph, (void)fn, (void)arg;
    return PSM_ERR_UNSUPPORTED;
}
static psm_status alloc(void *self, uint64_t graph, uint64_t nbytes, void **memory)
{
    (void)self, (void)graph, (void)nbytes, (void)memory;
    return PSM_ERR_UNSUPPORTED;
}
static psm_status give(void *self, void *memory)
{
    (void)self, (void)memory;
    return PSM_OK;
}
static psm_status save(void *self, psmPlan *plan, const struct psmPlanOpInfo *op, struct psmSyncCondition *sync,
                       void *cookie)
{
    (void)self, (void)op, (void)sync;
    static uint64_t last;
    struct psmPlanInfo info;
    psmPlanInfoOf(plan, &info);
    if (info.id != last) {
        last = info.id;
        nplans++;
        nworks += info.nworks;
        nops += info.nops;
    }
    psmPlanOpDone(cookie, PSM_OK);
    return PSM_OK;
}
static psm_status start(void *self)
{
    (void)self;
    void (*fn)(void *) = waiting;
    waiting = NULL;
    if (fn) fn(waiting_arg);
    return PSM_OK;
}

static psmPlanComm *open_comm(const char *scheduler, int pass_sm)
{
    static int self;
    struct psmPlanConfig config = {.size = sizeof config,
                                   .nRanks = RANKS,
                                   .nNodes = 1,
                                   .scheduler = strcmp(scheduler, "planner") ? PSM_PLAN_LEGACY : PSM_PLAN_PLANNER,
                                   .nChannels = CHANNELS,
                                   .p2pnChannels = CHANNELS,
                                   .p2pnChannelsPerPeer = 2,
                                   .passSm = pass_sm};
    struct psmPlanEngine engine = {.size = sizeof engine,
                                   .self = &self,
                                   .capturing = capturing,
                                   .acquire = acquire,
                                   .release = release,
                                   .wait = wait_stream,
                                   .host_func = host_func,
                                   .copy = copy,
                                   .kernel = kernel,
                                   .on_destroy = on_destroy,
                                   .alloc = alloc,
                                   .free = give,
                                   .save = save,
                                   .start = start};
    psmPlanComm *comm;
    must(psmPlanCommCreate(&config, &engine, &comm));
    return comm;
}

static struct psmPlanTask task_of(const char *what, int i)
{
    bool p2p = !strcmp(what, "p2p") || (!strcmp(what, "mixed") && i % 2);
    struct psmPlanTask task = {.func = PSM_PLAN_ALLREDUCE, .datatype = 7, .count = 1024};
    if (p2p) {
        task.func = i / 2 % 2 ? PSM_PLAN_SEND : PSM_PLAN_RECV;
        task.peer = 1 + i / 4 % (RANKS - 1);
        task.count = 4096;
    }
    if (!strcmp(what, "wide")) task.count = 64 << 20; /* all channels */
    return task;
}

static void pools(const psmPlanComm *comm)
{
    struct psmPlanCounters c = {.size = sizeof c};
    must(psmPlanCount(comm, &c));
    printf(" %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, c.plansPool, c.opsPool, c.tasksPool,
           c.scopedBytes, c.permanentBytes);
    if (c.plansLive || c.opsLive || c.tasksLive) {
        fprintf(stderr, "something was not given back\n");
        exit(1);
    }
}

static void finish(psmPlanComm *comm)
{
    struct psmPlanBreach breach;
    size_t n = psmPlanBreaches(comm, &breach, 1);
    if (n) {
        fprintf(stderr, "%zu rules are broken, first %s: %s\n", n, breach.rule, breach.text);
        exit(1);
    }
    must(psmPlanCommDestroy(comm));
}

static void groups(psmPlanComm *comm, const char *what, int ntasks, int ngroups)
{
    uint64_t best[3] = {UINT64_MAX, UINT64_MAX, UINT64_MAX};
    for (int g = 0; g < ngroups; g++) {
        nplans = nworks = nops = 0;
        uint64_t at[4] = {now()};
        for (int i = 0; i < ntasks; i++) {
            struct psmPlanTask task = task_of(what, i);
            must(psmPlanEnqueue(comm, &task, &best));
        }
        at[1] = now();
        must(psmPlanGroupEnd(&comm, 1));
        at[2] = now();
        must(psmPlanPoll(comm, 0, NULL));
        at[3] = now();
        for (int k = 0; k < 3; k++)
            if (at[k + 1] - at[k] < best[k]) best[k] = at[k + 1] - at[k];
    }
    const char *names[] = {"enqueue", "group", "reclaim"};
    for (int k = 0; k < 3; k++) printf("%s %.1f\n", names[k], (double)best[k] / ntasks);
    printf("plans %" PRIu64 "\nworks %" PRIu64 "\nops %" PRIu64 "\npools", nplans, nworks, nops);
    pools(comm);
    printf("\n");
}

static uint64_t resident(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*u %llu", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void history(psmPlanComm *comm, uint64_t upto)
{
    uint64_t done = 0, best = UINT64_MAX, told = 0;
    while (done < upto) {
        uint64_t begin = now();
        for (int i = 0; i < WINDOW; i++, done++) {
            struct psmPlanTask task = task_of(done % 2 ? "coll" : "p2p", (int)(done % 1024));
            must(psmPlanEnqueue(comm, &task, &begin));
            must(psmPlanGroupEnd(&comm, 1));
        }
        must(psmPlanPoll(comm, 0, NULL));
        uint64_t ns = (now() - begin) / WINDOW;
        if (ns < best) best = ns;
        if (done - told < upto / 10) continue;
        told = done;
        printf("history %" PRIu64 " %" PRIu64, done, best);
        pools(comm);
        printf(" %" PRIu64 "\n", resident());
        best = UINT64_MAX;
    }
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: plan legacy|planner PASSSM coll|wide|p2p|mixed|history TASKS GROUPS\n");
        return 2;
    }
    psmPlanComm *comm = open_comm(argv[1], atoi(argv[2]));
    if (!strcmp(argv[3], "history"))
        history(comm, strtoull(argv[4], NULL, 10));
    else
        groups(comm, argv[3], atoi(argv[4]), atoi(argv[5]));
    finish(comm);
    return 0;
}
