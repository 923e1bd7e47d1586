/* NCCL, as far as a profiler sees it, in one program with the plugin: driver COMMAND [ARGUMENTS]. Lines on standard
 * output answer; what the driver knows of the plugin's inside is for the consumer that it plays. */
#define _GNU_SOURCE
#include "driver.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "psm_abi/profiler_net.h"

void *context;
int mask;

/* NCCL's own, found by the plugin. NCCL_IS unset: the version is unknown. */
__attribute__((visibility("default"))) ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetVersion(int *version)
{
    const char *text = getenv("NCCL_IS");
    if (!text) return ncclInternalError;
    *version = atoi(text);
    return ncclSuccess;
}

void begin_v6(void)
{
    if (ncclProfiler_v6.init(&context, 0xabcdef0123, &mask, "driver", 2, 4, 1, NULL) != ncclSuccess) exit(1);
}

struct prof_comm *comm_now(void)
{
    return prof_comm_of(context);
}

void *start_v6(uint64_t type, void *parent)
{
    ncclProfilerEventDescr_v6_t d;
    memset(&d, 0, sizeof d);
    d.type = type;
    d.parentObj = parent;
    d.rank = 1;
    if (type == ncclProfileProxyOp) d.proxyOp = (__typeof__(d.proxyOp)){getpid(), 1, 3, 4, 65536, 1};
    if (type == ncclProfileColl) d.coll.nChannels = 2;
    void *handle = NULL;
    ncclProfiler_v6.startEvent(context, &handle, &d);
    return handle;
}

void stop_v6(void *handle)
{
    ncclProfiler_v6.stopEvent(handle);
}

void say_counters(void)
{
    struct psm_prof_comm *s = comm_now()->shared;
    printf("{\"bad\": %" PRIu64 ", \"stale\": %" PRIu64 ", \"twice\": %" PRIu64 ", \"after\": %" PRIu64
           ", \"foreign_parents\": %" PRIu64 ", \"full\": %" PRIu64 ", \"memory\": %" PRIu64
           ", \"overwritten\": %" PRIu64 ", \"mask\": %d}\n",
           s->bad_handle, s->stale_handle, s->stopped_twice, s->state_after_stop, s->foreign_parents, s->dropped_full,
           s->dropped_memory, s->overwritten, mask);
    fflush(stdout);
}

void wait_for_end(void)
{
    char c;
    fflush(stdout);
    while (read(STDIN_FILENO, &c, 1) > 0) continue;
}

static void say_file(void)
{
    printf("%s\n", psm_record_path(comm_now()->record));
}

/* ---- a tree of each version ---- */

/* All kinds that a version has, each with members that can be told apart. Prints the handles by name. */
#define PLAY(V, COLL, P2P, REST)                                                                                       \
    static void play_v##V(void)                                                                                        \
    {                                                                                                                  \
        const ncclProfiler_v##V##_t *table = &ncclProfiler_v##V;                                                       \
        void *group = NULL, *coll = NULL, *p2p = NULL, *op = NULL, *step = NULL, *foreign = NULL, *ctrl = NULL;        \
        ncclProfilerEventDescr_v##V##_t d;                                                                             \
        START(group, ncclProfileGroup, NULL, (void)d);                                                                 \
        START(coll, ncclProfileColl, group, COLL);                                                                     \
        START(p2p, ncclProfileP2p, group, P2P);                                                                        \
        START(op, ncclProfileProxyOp, coll, OP(getpid(), 0));                                                          \
        START(foreign, ncclProfileProxyOp, (void *)0x7fff12345678, OP(getpid() + 1, 0));                               \
        START(step, ncclProfileProxyStep, op, d.proxyStep.step = 2);                                                   \
        START(ctrl, ncclProfileProxyCtrl, NULL, (void)d);                                                              \
        ncclProfilerEventStateArgs_v##V##_t a;                                                                         \
        memset(&a, 0, sizeof a);                                                                                       \
        a.proxyCtrl.appendedProxyOps = 3;                                                                              \
        table->recordEventState(ctrl, ncclProfilerProxyCtrlAppend, &a);                                                \
        table->recordEventState(op, ncclProfilerProxyOpInProgress_v4, NULL);                                           \
        table->recordEventState(step, ncclProfilerProxyStepSendGPUWait, NULL);                                         \
        REST table->stopEvent(ctrl);                                                                                   \
        table->recordEventState(step, ncclProfilerProxyStepSendWait, SIZED);                                           \
        table->stopEvent(step);                                                                                        \
        table->stopEvent(op);                                                                                          \
        table->stopEvent(foreign);                                                                                     \
        table->stopEvent(coll);                                                                                        \
        table->stopEvent(group);                                                                                       \
        printf("{\"group\": %zu, \"coll\": %zu, \"p2p\": %zu, \"op\": %zu, \"step\": %zu, \"foreign\": %zu, "          \
               "\"ctrl\": %zu}\n",                                                                                     \
               (size_t)group, (size_t)coll, (size_t)p2p, (size_t)op, (size_t)step, (size_t)foreign, (size_t)ctrl);     \
    }
#define START(handle, kind, parent, ...)                                                                               \
    do {                                                                                                               \
        memset(&d, 0xee, sizeof d);                                                                                    \
        d.type = (kind);                                                                                               \
        d.parentObj = (parent);                                                                                        \
        d.rank = 1;                                                                                                    \
        __VA_ARGS__;                                                                                                   \
        table->startEvent(context, &handle, &d);                                                                       \
    } while (0)
#define OP(process, sends)                                                                                             \
    d.proxyOp.pid = (process), d.proxyOp.channelId = 5, d.proxyOp.peer = 3, d.proxyOp.nSteps = 4,                      \
    d.proxyOp.chunkSize = 65536, d.proxyOp.isSend = (sends)
#define NUMBERS(c)                                                                                                     \
    c.seqNumber = 7, c.count = 1000, c.root = 2, c.nWarps = 16, c.sendBuff = (void *)0x5e2d, c.recvBuff = (void *)0x4ec5
#define NAMES(c) c.func = "AllReduce", c.datatype = "ncclFloat32", c.algo = "RING", c.proto = "SIMPLE"
#define OLD(c)   c.commHash = 0xfeed, c.name = "old"
#define SENDS(p) p.func = "Send", p.datatype = "Unknown", p.count = 77, p.peer = 3, p.buff = (void *)0xb0ff

#define SIZED NULL
PLAY(1,
     (NUMBERS(d.coll), OLD(d.coll), d.coll.func = 4, d.coll.datatype = 7, d.coll.algo = 1, d.coll.proto = 2,
      d.coll.nMaxChannels = 1),
     (OLD(d.p2p), d.p2p.func = 6, d.p2p.datatype = 1, d.p2p.count = 77, d.p2p.peer = 3, d.p2p.buff = (void *)0xb0ff), )
PLAY(2, (NUMBERS(d.coll), OLD(d.coll), NAMES(d.coll), d.coll.nMaxChannels = 1), (OLD(d.p2p), SENDS(d.p2p)), )
PLAY(3, (NUMBERS(d.coll), OLD(d.coll), NAMES(d.coll), d.coll.nMaxChannels = 1), (OLD(d.p2p), SENDS(d.p2p)), )
#undef SIZED
#define SIZED (a.proxyStep.transSize = 4096, &a)

#define KERNEL(V)                                                                                                      \
    void *kernel = NULL, *net = NULL, *other = NULL;                                                                   \
    ncclProfilerNetIbDescr_v1_t qp = {.type = ncclProfileQp, .qp = {1, 99, 2, 17, 555}};                               \
    START(kernel, ncclProfileKernelCh, coll, (d.kernelCh.channelId = 5, d.kernelCh.pTimer = 1000));                    \
    START(net, ncclProfileNetPlugin, step,                                                                             \
          (d.netPlugin.id = NCCL_PROFILER_NET_TYPE_IB | NCCL_PROFILER_NET_IB_VER, d.netPlugin.data = &qp));            \
    START(other, ncclProfileNetPlugin, step, (d.netPlugin.id = 0x7777 << 16 | 1, d.netPlugin.data = (void *)1));       \
    a.kernelCh.pTimer = 3000;                                                                                          \
    table->recordEventState(kernel, ncclProfilerKernelChStop, &a);                                                     \
    table->stopEvent(kernel);                                                                                          \
    a.netPlugin.data = &qp;                                                                                            \
    qp.qp.length = 556;                                                                                                \
    table->recordEventState(net, ncclProfilerNetPluginUpdate, &a);                                                     \
    a.netPlugin.data = (void *)1;                                                                                      \
    table->recordEventState(other, ncclProfilerNetPluginUpdate, &a);                                                   \
    table->stopEvent(net);                                                                                             \
    table->stopEvent(other);                                                                                           \
    table->recordEventState(step, ncclProfilerProxyStepSendPeerWait_v4, NULL);                                         \
    printf("{\"kernel\": %zu, \"net\": %zu, \"other\": %zu}\n", (size_t)kernel, (size_t)net, (size_t)other);

PLAY(4, (NUMBERS(d.coll), NAMES(d.coll), d.coll.nChannels = 1), (SENDS(d.p2p), d.p2p.nChannels = 1), KERNEL(4))

#define API(V)                                                                                                         \
    void *api = NULL, *call = NULL, *launch = NULL;                                                                    \
    START(api, ncclProfileGroupApi, NULL, (d.groupApi.graphCaptured = true, d.groupApi.groupDepth = 1));               \
    START(call, ncclProfileCollApi, api,                                                                               \
          (d.collApi.func = "Frobnicate", d.collApi.count = 9, d.collApi.datatype = NULL, d.collApi.root = 1,          \
           d.collApi.stream = (void *)0x51, d.collApi.graphCaptured = false));                                         \
    START(launch, ncclProfileKernelLaunch, api, d.kernelLaunch.stream = (void *)0x52);                                 \
    table->recordEventState(api, ncclProfilerGroupStartApiStop, NULL);                                                 \
    table->recordEventState(api, ncclProfilerGroupEndApiStart, NULL);                                                  \
    table->stopEvent(launch);                                                                                          \
    table->stopEvent(call);                                                                                            \
    table->stopEvent(api);                                                                                             \
    printf("{\"api\": %zu, \"call\": %zu, \"launch\": %zu}\n", (size_t)api, (size_t)call, (size_t)launch);
PLAY(5, (NUMBERS(d.coll), NAMES(d.coll), d.coll.nChannels = 1, d.coll.parentGroup = group),
     (SENDS(d.p2p), d.p2p.nChannels = 1, d.p2p.parentGroup = group), KERNEL(5) API(5))

#define CE(V)                                                                                                          \
    void *ce = NULL, *sync = NULL, *batch = NULL;                                                                      \
    START(ce, ncclProfileCeColl, call,                                                                                 \
          (d.ceColl.func = "AllGather", d.ceColl.datatype = "ncclBfloat16", d.ceColl.count = 12,                       \
           d.ceColl.seqNumber = 8, d.ceColl.root = 0, d.ceColl.numBatches = 3, d.ceColl.intraBatchSync = false));      \
    START(sync, ncclProfileCeSync, ce, (d.ceCollSync.isComplete = true, d.ceCollSync.nRanks = 4));                     \
    START(batch, ncclProfileCeBatch, ce,                                                                               \
          (d.ceCollBatch.numOps = 6, d.ceCollBatch.totalBytes = 4444, d.ceCollBatch.useIntraSync = true));             \
    table->recordEventState(ce, ncclProfilerCeCollStart, NULL);                                                        \
    table->recordEventState(ce, ncclProfilerCeCollComplete, NULL);                                                     \
    table->stopEvent(batch);                                                                                           \
    table->stopEvent(sync);                                                                                            \
    table->stopEvent(ce);                                                                                              \
    printf("{\"ce\": %zu, \"sync\": %zu, \"batch\": %zu}\n", (size_t)ce, (size_t)sync, (size_t)batch);
PLAY(6, (NUMBERS(d.coll), NAMES(d.coll), d.coll.nChannels = 1, d.coll.parentGroup = group),
     (SENDS(d.p2p), d.p2p.nChannels = 1, d.p2p.parentGroup = group), KERNEL(6) API(6) CE(6))

/* NCCL reports the phases of a kernel after its end. */
#define PHASE                                                                                                          \
    void *phase = NULL, *unknown = NULL;                                                                               \
    START(phase, ncclProfileKernelPhase, kernel,                                                                       \
          (d.kernelPhase.channelId = 5, d.kernelPhase.phaseId = 2, d.kernelPhase.phaseName = "final_sync",             \
           d.kernelPhase.pTimer = 1500));                                                                              \
    a.kernelCh.pTimer = 2500;                                                                                          \
    table->recordEventState(phase, ncclProfilerKernelPhaseStop, &a);                                                   \
    table->stopEvent(phase);                                                                                           \
    START(unknown, ncclProfileKernelPhase, kernel,                                                                     \
          (d.kernelPhase.channelId = 5, d.kernelPhase.phaseId = 7, d.kernelPhase.phaseName = NULL,                     \
           d.kernelPhase.pTimer = 0));                                                                                 \
    table->stopEvent(unknown);                                                                                         \
    printf("{\"phase\": %zu, \"unknown\": %zu}\n", (size_t)phase, (size_t)unknown);
/* Later versions have at least these kinds. */
#define NEWEST(V)                                                                                                      \
    PLAY(V, (NUMBERS(d.coll), NAMES(d.coll), d.coll.nChannels = 1, d.coll.parentGroup = group, d.coll.userTag = 5),    \
         (SENDS(d.p2p), d.p2p.nChannels = 1, d.p2p.parentGroup = group, d.p2p.userTag = UINT64_C(1) << 63 | 9),        \
         KERNEL(V) API(V) CE(V) PHASE)
PSM_ABI_PROFILER_SINCE_V7(NEWEST)

static int tree(int version)
{
    ncclResult_t result = ncclInternalError;
    void (*play)(void) = NULL;
    switch (version) {
#define TREE(V, ...)                                                                                                   \
    case V:                                                                                                            \
        result = ncclProfiler_v##V.init(__VA_ARGS__);                                                                  \
        play = play_v##V;                                                                                              \
        break;
#define NAMELESS(V) TREE(V, &context, &mask)
#define NAMED(V)    TREE(V, &context, &mask, "driver", 0xfeed, 2, 4, 1, NULL)
#define HASHED(V)   TREE(V, &context, 0xfeed, &mask, "driver", 2, 4, 1, NULL)
        PSM_ABI_PROFILER_init_V1(NAMELESS) PSM_ABI_PROFILER_init_V4(NAMED) PSM_ABI_PROFILER_init_V5(HASHED) default
            : break;
    }
    if (result != ncclSuccess) return 1;
    if (version >= 7 && !(mask & ncclProfileKernelPhase)) return 2;
    say_file();
    play();
    say_counters();
    wait_for_end();
    return ncclProfiler_v6.finalize(context);
}

/* ---- callers that break the contract ---- */

static int odd(void)
{
    ncclProfilerEventDescr_v6_t d = {.type = ncclProfileGroup};
    void *handle = (void *)1, *elsewhere = NULL;
    begin_v6();
    ncclProfiler_v6.startEvent(NULL, &handle, &d);
    printf("%d ", handle == NULL);
    ncclProfiler_v6.startEvent(context, NULL, &d);
    ncclProfiler_v6.startEvent(context, &handle, NULL);
    printf("%d ", handle == NULL);
    d.type = 1 << 20;
    ncclProfiler_v6.startEvent(context, &handle, &d);
    printf("%d ", handle == NULL);
    d.type = 3;
    ncclProfiler_v6.startEvent(context, &handle, &d);
    printf("%d ", handle == NULL);
    d.type = ncclProfileColl; /* all its names are NULL */
    ncclProfiler_v6.startEvent(context, &handle, &d);
    printf("%d\n", handle != NULL);
    ncclProfiler_v6.stopEvent(NULL);
    ncclProfiler_v6.recordEventState(NULL, ncclProfilerProxyCtrlIdle, NULL);
    ncclProfiler_v6.recordEventState(handle, (ncclProfilerEventState_t)-1, NULL);
    ncclProfiler_v6.recordEventState(handle, (ncclProfilerEventState_t)1000, NULL);
    say_counters();
    stop_v6(handle);
    stop_v6(handle);                                                               /* twice */
    ncclProfiler_v6.recordEventState(handle, ncclProfilerProxyStepSendWait, NULL); /* after the stop */
    stop_v6((void *)0x7ffe12345678);                                               /* a pointer of whoever */
    stop_v6((void *)((uintptr_t)handle ^ 1));                                      /* another cycle */
    ncclProfiler_v6.startEvent((void *)0x55d012345678, &elsewhere, &d);            /* a context of whoever */
    say_counters();
    void *old = handle, *dead = context;
    ncclProfiler_v6.finalize(context);
    ncclProfiler_v6.finalize(dead); /* again */
    ncclProfiler_v6.finalize(NULL);
    begin_v6();
    stop_v6(old);
    ncclProfiler_v6.startEvent(dead, &handle, &d);
    printf("%d\n", handle == NULL);
    say_counters();
    return ncclProfiler_v6.finalize(context);
}

/* handles: numbers of 8 bytes come in; each is stopped and given a state. An empty answer for each 0. */
static int handles(void)
{
    begin_v6();
    void *real = start_v6(ncclProfileGroup, NULL);
    printf("%zu\n", (size_t)real);
    fflush(stdout);
    uint64_t n;
    while (fread(&n, sizeof n, 1, stdin) == 1) {
        if (!n) {
            printf("\n");
            fflush(stdout);
        }
        ncclProfiler_v6.recordEventState((void *)n, (ncclProfilerEventState_t)(n % 40), NULL);
        stop_v6((void *)n);
        stop_v6(start_v6(ncclProfileProxyStep, (void *)n));
    }
    say_counters();
    return ncclProfiler_v6.finalize(context);
}

/* ---- processes ---- */

static int forked(void)
{
    begin_v6();
    say_file();
    void *group = start_v6(ncclProfileGroup, NULL), *before = context;
    fflush(stdout);
    if (fork() == 0) {
        stop_v6(group);
        printf("%d\n", start_v6(ncclProfileGroup, NULL) == NULL);
        begin_v6();
        printf("%d\n", context != before);
        say_file();
        stop_v6(start_v6(ncclProfileGroup, NULL));
        fflush(stdout);
        raise(SIGKILL);
    }
    wait(NULL);
    say_counters();
    wait_for_end();
    stop_v6(group);
    return ncclProfiler_v6.finalize(context);
}

/* Only starts, stops and waits: N events, then says how it is, and dies or ends. */
static int events(char **argument)
{
    begin_v6();
    say_file();
    for (int i = 0, n = atoi(argument[0]); i < n; i++) stop_v6(start_v6(ncclProfileGroup, NULL));
    say_counters();
    wait_for_end();
    if (argument[1]) raise(SIGKILL);
    return ncclProfiler_v6.finalize(context);
}

/* A consumer that never takes anything. */
static int unread(char **argument)
{
    begin_v6();
    say_file();
    for (int i = 0, n = atoi(argument[0]); i < n; i++) {
        atomic_store(&comm_now()->shared->heartbeat_ns, psm_clock_ns());
        stop_v6(start_v6(ncclProfileGroup, NULL));
    }
    say_counters();
    return ncclProfiler_v6.finalize(context);
}

/* The windows are full when the second of two operations gets its proxy op. */
static int crowded(void)
{
    begin_v6();
    say_file();
    void *first = start_v6(ncclProfileColl, NULL), *second = start_v6(ncclProfileColl, NULL);
    void *op = start_v6(ncclProfileProxyOp, first), *lost = NULL;
    for (int i = 0; i < 1000; i++) {
        atomic_store(&comm_now()->shared->heartbeat_ns, psm_clock_ns());
        stop_v6(start_v6(ncclProfileGroup, NULL));
    }
    for (int i = 0; i < 1000 && (lost = start_v6(ncclProfileProxyOp, second)); i++) stop_v6(lost);
    start_v6(ncclProfileProxyStep, op);
    stop_v6(op);
    stop_v6(first);
    stop_v6(second);
    printf("{\"first\": %zu, \"second\": %zu, \"lost\": %d}\n", (size_t)first, (size_t)second, lost == NULL);
    say_counters();
    return ncclProfiler_v6.finalize(context);
}

/* A mask that another process wants; calls until NCCL has it. */
static int wanted(char **argument)
{
    begin_v6();
    int want = atoi(argument[0]);
    printf("%d\n", mask);
    atomic_store(&comm_now()->shared->mask_wanted, (uint32_t)want);
    for (uint64_t until = psm_clock_ns() + 60000000000; __atomic_load_n(&mask, __ATOMIC_RELAXED) == atoi(argument[1]);)
        if (psm_clock_ns() > until)
            return 1;
        else
            stop_v6(start_v6(ncclProfileGroup, NULL));
    printf("%d %d\n", mask, start_v6(ncclProfileCollApi, NULL) == NULL);
    return ncclProfiler_v6.finalize(context);
}

/* clocks: how far the plugin's clock is from the system's, in ns, over some time. */
static int clocks(void)
{
    begin_v6();
    struct prof_thread *thread = prof_thread();
    uint64_t worst = 0, until = psm_clock_ns() + 300000000;
    do {
        uint64_t least = UINT64_MAX;
        /* Of some tries the one that nothing came between. */
        for (int i = 0; i < 20; i++) {
            uint64_t before = psm_clock_ns(), now = prof_now(&thread->clock, &thread->tick), after = psm_clock_ns();
            uint64_t off = now < before ? before - now : now > after ? now - after : 0;
            if (off < least) least = off;
        }
        if (least > worst) worst = least;
    } while (psm_clock_ns() < until);
    printf("%d %" PRIu64 "\n", atomic_load(&prof_clock_kind), worst);
    return ncclProfiler_v6.finalize(context);
}

int main(int count, char **argument)
{
    const char *command = count > 1 ? argument[1] : "";
    char **rest = argument + 2;
    if (strcmp(command, "tree") == 0) return tree(atoi(rest[0]));
    if (strcmp(command, "odd") == 0) return odd();
    if (strcmp(command, "handles") == 0) return handles();
    if (strcmp(command, "forked") == 0) return forked();
    if (strcmp(command, "events") == 0) return events(rest);
    if (strcmp(command, "unread") == 0) return unread(rest);
    if (strcmp(command, "crowded") == 0) return crowded();
    if (strcmp(command, "wanted") == 0) return wanted(rest);
    if (strcmp(command, "clocks") == 0) return clocks();
    if (strcmp(command, "stress") == 0) return stress(rest);
    fprintf(stderr, "driver: no command %s\n", command);
    return 2;
}
