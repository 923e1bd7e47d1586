/* profiler_calls LIBRARY CASE THREADS ROUNDS RUNS: calls of a profiler plugin as NCCL makes them, in ns a call.
 *
 * CASE: group, coll (start and stop of a group, of a collective), step (of a proxy step below an operation), state
 * (recordEventState of a step), clock (clock_gettime). Each thread is pinned to a CPU of its own. The least of RUNS
 * runs of ROUNDS calls counts: others use the machine. The newest table that both know is taken. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "calls.h"
#include "psm_abi/profiler.h"

enum { MOST_THREADS = 64 };

static int version;
static ncclResult_t (*start)(void *, void **, ncclProfilerEventDescr_v5_t *);
static ncclResult_t (*stop)(void *);
static ncclResult_t (*state)(void *, ncclProfilerEventState_t, ncclProfilerEventStateArgs_v4_t *);
static void *context;
static const char *what;
static unsigned long rounds, runs;
static pthread_barrier_t barrier;
static double least[MOST_THREADS];
static unsigned long refused[MOST_THREADS];

/* v4 has the kind in one byte; what follows lies at the same place. */
static void begin(void **handle, ncclProfilerEventDescr_v5_t *d)
{
    start(context, handle, d);
}

static ncclProfilerEventDescr_v5_t descriptor(uint64_t type, void *parent)
{
    ncclProfilerEventDescr_v5_t d;
    memset(&d, 0, sizeof d);
    d.type = type;
    d.parentObj = parent;
    if (type == ncclProfileColl) {
        d.coll.func = "AllReduce";
        d.coll.datatype = "ncclFloat32";
        d.coll.algo = "RING";
        d.coll.proto = "SIMPLE";
        d.coll.count = 1 << 20;
        d.coll.nChannels = 2;
    }
    return d;
}

static void one_run(int me)
{
    void *parent[5] = {NULL}, *handle = NULL;
    int parents = 0;
    ncclProfilerEventDescr_v5_t d, each = descriptor(ncclProfileGroup, NULL);
    if (strcmp(what, "group") != 0) {
        /* From v5 on a collective is below its call, and knows its group; up to v4 the group is its parent. */
        if (version >= 5) {
            d = descriptor(ncclProfileGroupApi, NULL);
            begin(&parent[parents++], &d);
            d = descriptor(ncclProfileCollApi, parent[parents - 1]);
            d.collApi.func = "AllReduce";
            d.collApi.datatype = "ncclFloat32";
            begin(&parent[parents], &d);
            parents++;
        }
        void *above = parents ? parent[parents - 1] : NULL;
        d = descriptor(ncclProfileGroup, NULL);
        begin(&parent[parents], &d);
        each = descriptor(ncclProfileColl, version >= 5 ? above : parent[parents]);
        if (version >= 5) each.coll.parentGroup = parent[parents];
        parents++;
    }
    if (strcmp(what, "step") == 0 || strcmp(what, "state") == 0) {
        begin(&parent[parents++], &each);
        d = descriptor(ncclProfileProxyOp, parent[parents - 1]);
        d.proxyOp.pid = getpid();
        d.proxyOp.nSteps = 8;
        d.proxyOp.isSend = 1;
        begin(&parent[parents++], &d);
        each = descriptor(ncclProfileProxyStep, parent[parents - 1]);
    }
    if (strcmp(what, "state") == 0) begin(&handle, &each);
    ncclProfilerEventStateArgs_v4_t args = {.proxyStep = {4096}};
    unsigned long none = 0; /* its own: an array of all threads would be one cache line */
    pthread_barrier_wait(&barrier);
    double from = now();
    if (strcmp(what, "state") == 0)
        for (unsigned long i = 0; i < rounds; i++)
            state(handle, i & 1 ? ncclProfilerProxyStepSendWait : ncclProfilerProxyStepSendGPUWait, &args);
    else if (strcmp(what, "clock") == 0)
        for (unsigned long i = 0; i < rounds; i++) now();
    else
        for (unsigned long i = 0; i < rounds; i++) {
            begin(&handle, &each);
            none += !handle;
            stop(handle);
        }
    double took = (now() - from) / (double)rounds;
    if (took < least[me]) least[me] = took;
    refused[me] += none;
    if (strcmp(what, "state") == 0) stop(handle);
    while (parents)
        if (parent[--parents]) stop(parent[parents]);
}

static void *work(void *argument)
{
    int me = (int)(long)argument;
    cpu_set_t cpus, mine;
    sched_getaffinity(0, sizeof cpus, &cpus);
    CPU_ZERO(&mine);
    for (int cpu = 0, n = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &cpus) && n++ == me % CPU_COUNT(&cpus)) CPU_SET(cpu, &mine);
    pthread_setaffinity_np(pthread_self(), sizeof mine, &mine);
    least[me] = 1e30;
    for (unsigned long run = 0; run < runs; run++) {
        pthread_barrier_wait(&barrier);
        one_run(me);
    }
    return NULL;
}

int main(int count, char **argument)
{
    if (count != 6) return 2;
    what = argument[2];
    int threads = atoi(argument[3]), mask = 0;
    rounds = strtoul(argument[4], NULL, 10);
    runs = strtoul(argument[5], NULL, 10);
    if (threads < 1 || threads > MOST_THREADS || !rounds || !runs) return 2;
    void *library = dlopen(argument[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    const ncclProfiler_v5_t *v5 = dlsym(library, "ncclProfiler_v5");
    const ncclProfiler_v4_t *v4 = dlsym(library, "ncclProfiler_v4");
    if (!v5 && !v4) {
        fprintf(stderr, "%s has neither ncclProfiler_v5 nor ncclProfiler_v4\n", argument[1]);
        return 1;
    }
    version = v5 ? 5 : 4;
    ncclResult_t result;
    if (v5) {
        result = v5->init(&context, 0x1234, &mask, "benchmark", 1, 2, 0, quiet);
        start = v5->startEvent;
        stop = v5->stopEvent;
        state =
            (ncclResult_t (*)(void *, ncclProfilerEventState_t, ncclProfilerEventStateArgs_v4_t *))v5->recordEventState;
    } else {
        result = v4->init(&context, &mask, "benchmark", 0x1234, 1, 2, 0, quiet);
        start = (ncclResult_t (*)(void *, void **, ncclProfilerEventDescr_v5_t *))(void *)v4->startEvent;
        stop = v4->stopEvent;
        state = v4->recordEventState;
    }
    if (result != ncclSuccess) {
        fprintf(stderr, "init answers %d\n", result);
        return 1;
    }
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    pthread_t thread[MOST_THREADS];
    for (long i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, (void *)i);
    double worst = 0;
    unsigned long none = 0;
    for (int i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        if (least[i] > worst) worst = least[i];
        none += refused[i];
    }
    printf("{\"library\": \"%s\", \"version\": %d, \"case\": \"%s\", \"threads\": %d, \"ns\": %.1f, \"null_handles\": "
           "%lu}\n",
           argument[1], version, what, threads, worst, none);
    return v5 ? v5->finalize(context) : v4->finalize(context);
}
