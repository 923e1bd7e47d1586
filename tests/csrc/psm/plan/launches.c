/* One rank's communicator over an engine in which the n-th call fails, for every n: what failed leaves nothing behind,
 * and the next group goes well. Under sanitizers.
 *
 *   launches SCHEDULER PASSSM BLOCKING CAPTURED COMMS [once]
 *
 * What is on a stream runs when run() is called, in order. Ops end when their plan's host function runs, or at once. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "answers.h"
#include "plan/plan.h"

enum { ITEMS = 256, MOST = 3 };

static void check(bool good, const char *what)
{
    if (good) return;
    fprintf(stderr, "%s; last error: %s\n", what, psm_last_error()->text);
    exit(1);
}

struct item {
    void (*fn)(void *);
    void *arg;
    psmPlan *kernel;
};
struct op {
    void *cookie;
    const struct psmSyncCondition *sync;
};
static struct engine {
    struct item items[2][ITEMS]; /* of the streams together, in the order of the calls; of the graph */
    size_t n[2];
    struct op saved[ITEMS], posted[ITEMS];
    size_t nsaved, nposted;
    void (*destructors[ITEMS])(void *);
    void *args[ITEMS];
    size_t ndestructors;
    bool captured;
    psmPlanComm *comm;
} engines[MOST];
static size_t ncomms;
static int64_t calls, fails; /* the fails-th call fails; 0: none */

static psm_status call(const char *name)
{
    if (++calls != fails) return PSM_OK;
    return psm_fail(PSM_ERR_CUDA, "plan", 0, -1, 0, "%s failed because the test says so", name);
}

static psm_status capturing(void *self, void *stream, uint64_t *graph)
{
    (void)stream;
    *graph = ((struct engine *)self)->captured ? 1 : 0;
    return PSM_OK;
}
static psm_status acquire(void *self, int which, uint64_t graph, void **stream)
{
    (void)graph;
    PSM_TRY(call("acquire"));
    *stream = (char *)self + 1 + which;
    return PSM_OK;
}
static psm_status wait_for(void *self, void *stream, void *on)
{
    (void)self, (void)stream;
    (void)on;
    return call("wait");
}
static void push(struct engine *e, struct item item)
{
    e->items[e->captured][e->n[e->captured]++] = item;
}
static psm_status host_func(void *self, void *stream, void (*fn)(void *), void *arg)
{
    (void)stream;
    PSM_TRY(call("host_func"));
    push(self, (struct item){.fn = fn, .arg = arg});
    return PSM_OK;
}
static psm_status copy(void *self, void *stream, void *to, const void *from, uint64_t nbytes)
{
    (void)self, (void)stream, (void)to, (void)from, (void)nbytes;
    return call("copy");
}
static psm_status kernel(void *self, void *stream, psmPlan *plan)
{
    (void)stream;
    PSM_TRY(call("kernel"));
    push(self, (struct item){.kernel = plan});
    return PSM_OK;
}
static psm_status on_destroy(void *self, uint64_t graph, void (*fn)(void *), void *arg)
{
    struct engine *e = self;
    (void)graph;
    PSM_TRY(call("on_destroy"));
    e->destructors[e->ndestructors] = fn;
    e->args[e->ndestructors++] = arg;
    return PSM_OK;
}
static psm_status alloc(void *self, uint64_t graph, uint64_t nbytes, void **memory)
{
    (void)self, (void)graph;
    PSM_TRY(call("alloc"));
    *memory = malloc(nbytes + 1);
    return PSM_OK;
}
static psm_status save(void *self, psmPlan *plan, const struct psmPlanOpInfo *op, struct psmSyncCondition *sync,
                       void *cookie)
{
    struct engine *e = self;
    (void)plan;
    check(!sync == !op->decrements, "a sync condition goes with the ops that count it off");
    PSM_TRY(call("save"));
    e->saved[e->nsaved++] = (struct op){cookie, sync};
    return PSM_OK;
}
static psm_status start(void *self)
{
    struct engine *e = self;
    for (size_t i = 0; i < e->nsaved; i++) e->posted[e->nposted++] = e->saved[i];
    e->nsaved = 0; /* it may be asked to stop, but what it has stays */
    return call("start");
}

static bool progress(struct engine *e)
{
    for (size_t i = 0; i < e->nposted; i++) {
        struct op op = e->posted[i];
        if (op.sync && !op.sync->proxyReadyEvent && !psmPlanAborted(e->comm)) continue;
        e->posted[i] = e->posted[--e->nposted];
        psmPlanOpDone(op.cookie, psmPlanAborted(e->comm) ? PSM_ERR_ABORTED : PSM_OK);
        return true;
    }
    return false;
}
static void run_item(struct item item)
{
    if (item.kernel)
        psmPlanKernelDone(item.kernel);
    else
        item.fn(item.arg);
}
static void run(struct engine *e)
{
    for (size_t i = 0; i < e->n[0]; i++) run_item(e->items[0][i]);
    e->n[0] = 0;
    while (progress(e)) continue;
}
static void pause_here(void *self, int why, psmPlan *plan)
{
    struct engine *e = self;
    (void)plan;
    if (progress(e)) return;
    check(why != PSM_PLAN_WAIT_COUNT, "a host function waits for ops that do not come");
    check(e->n[0] > 0, "the main thread waits, and nothing is there to run");
    run(e);
}

static const struct psmPlanEngine functions = {TEST_ENGINE, .pause = pause_here};

static void tasks(struct engine *e)
{
    static char streams[2];
    static const int funcs[] = {PSM_PLAN_ALLREDUCE, PSM_PLAN_SEND,      PSM_PLAN_RECV, PSM_PLAN_SEND,
                                PSM_PLAN_RECV,      PSM_PLAN_ALLREDUCE, PSM_PLAN_SEND, PSM_PLAN_RECV};
    for (size_t i = 0; i < sizeof funcs / sizeof *funcs; i++) {
        struct psmPlanTask task = {.func = funcs[i],
                                   .peer = i >= 6 ? 0 : 1,
                                   .datatype = 7,
                                   .count = 1000u << 2 * (i / 2),
                                   .sendbuff = (void *)0x10000,
                                   .recvbuff = (void *)(0x20000 + i)};
        check(psmPlanEnqueue(e->comm, &task, &streams[i == 4]) == PSM_OK, "a task is enqueued");
    }
}

static psm_status group(void)
{
    psmPlanComm *comms[MOST];
    for (size_t i = 0; i < ncomms; i++) {
        tasks(&engines[i]);
        comms[i] = engines[i].comm;
    }
    return psmPlanGroupEnd(comms, ncomms);
}

/* The graph of a group that failed is not launched, but it goes. */
static void end_graph(struct engine *e, int launches)
{
    e->captured = false;
    for (int i = 0; i < launches; i++) {
        for (size_t k = 0; k < e->n[1]; k++) run_item(e->items[1][k]);
        while (progress(e)) continue;
    }
    for (size_t i = 0; i < e->ndestructors; i++) e->destructors[i](e->args[i]);
    e->n[1] = e->ndestructors = 0;
}

static void empty(const psmPlanComm *comm, const char *what)
{
    struct psmPlanCounters c = {.size = sizeof c};
    check(psmPlanCount(comm, &c) == PSM_OK, "counters");
    if (c.plansLive || c.opsLive || c.tasksLive || c.persistentRefs)
        fprintf(stderr, "%" PRIu64 " plans, %" PRIu64 " ops, %" PRIu64 " tasks, refs %" PRId64 "\n", c.plansLive,
                c.opsLive, c.tasksLive, c.persistentRefs);
    check(!c.plansLive && !c.opsLive && !c.tasksLive && !c.persistentRefs, what);
}

static void settle(int launches)
{
    for (size_t i = 0; i < ncomms; i++) {
        end_graph(&engines[i], launches);
        run(&engines[i]);
        run(&engines[i]);
        check(psmPlanPoll(engines[i].comm, 0, NULL) == PSM_OK, "a poll");
        empty(engines[i].comm, "a group that has ended leaves nothing");
    }
}

/* false: the group went well, there was no such call. */
static bool round_of(struct psmPlanConfig *config, bool captured, bool aborts)
{
    for (size_t i = 0; i < ncomms; i++) {
        struct psmPlanEngine engine = functions;
        engine.self = &engines[i];
        engines[i] = (struct engine){0};
        check(psmPlanCommCreate(config, &engine, &engines[i].comm) == PSM_OK, "a communicator");
        engines[i].captured = captured;
    }
    calls = 0;
    psm_status status = group();
    bool failed = status < 0;
    if (failed) check(status == PSM_ERR_CUDA && strstr(psm_last_error()->text, "test says so"), "the engine's error");
    fails = 0;
    if (aborts)
        for (size_t i = 0; i < ncomms; i++) psmPlanAbort(engines[i].comm);
    settle(failed || aborts ? 0 : 2);
    if (aborts)
        check(group() == PSM_ERR_ABORTED, "a group behind an abort");
    else
        check(group() == PSM_OK, "the group behind one that failed");
    settle(0);
    for (size_t i = 0; i < ncomms; i++) {
        struct psmPlanBreach breach;
        if (psmPlanBreaches(engines[i].comm, &breach, 1)) {
            fprintf(stderr, "call %" PRId64 ": %s: %s\n", calls, breach.rule, breach.text);
            exit(1);
        }
        struct psmPlanEvent events[1024];
        size_t n = psmPlanTrace(engines[i].comm, events, 1024);
        check(n > 0 && psmPlanCheckTrace(events, n, config->scheduler, 0, &breach, 1) == 0, "the trace, checked again");
        check(psmPlanCommDestroy(engines[i].comm) == PSM_OK, "destruction");
    }
    return failed;
}

/* What a group ends with under the settings of the environment; a second one goes well. And whether rules are checked.
 */
static int one_group(struct psmPlanConfig *config)
{
    struct psmPlanEngine engine = functions;
    ncomms = 1;
    engine.self = &engines[0];
    check(psmPlanCommCreate(config, &engine, &engines[0].comm) == PSM_OK, "a communicator");
    printf("%s\n", psm_status_name(group()));
    settle(0);
    check(group() == PSM_OK, "the second group");
    settle(0);
    check(psmPlanBreaches(engines[0].comm, NULL, 0) == 0, "no rule is broken");
    check(psmPlanCommDestroy(engines[0].comm) == PSM_OK, "destruction");
    config->variant = "keep-scope";
    check(psmPlanCommCreate(config, &engine, &engines[0].comm) == PSM_OK, "a communicator of another variant");
    check(group() == PSM_OK, "its group");
    settle(0);
    printf("checked: %s\n", psmPlanBreaches(engines[0].comm, NULL, 0) ? "yes" : "no");
    check(psmPlanCommDestroy(engines[0].comm) == PSM_OK, "destruction");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 6) return 2;
    struct psmPlanConfig config = {.size = sizeof config,
                                   .nRanks = 2,
                                   .nNodes = 1,
                                   .scheduler = atoi(argv[1]),
                                   .nChannels = 2,
                                   .p2pnChannels = 2,
                                   .p2pnChannelsPerPeer = 1,
                                   .passSm = atoi(argv[2]),
                                   .launchBlocking = atoi(argv[3])};
    if (argc > 6) return one_group(&config);
    bool captured = atoi(argv[4]) != 0;
    ncomms = (size_t)atoi(argv[5]);
    int64_t n = 0;
    for (int aborts = 0; aborts < 2; aborts++)
        for (int64_t nth = 1;; nth++) {
            fails = nth;
            if (!round_of(&config, captured, aborts != 0)) break;
            n++;
        }
    printf("%" PRId64 " failures\n", n);
    return 0;
}
