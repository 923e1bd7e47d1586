/* A rank as a profiler sees it: threads that run operations with proxy ops and steps, as NCCL would tell of them.
 *   rank LIBRARY THREADS OPERATIONS STEPS LEFT_OPEN
 * LEFT_OPEN operations of each thread are open at any time, and end in turn. Prints what was told; with "wait" behind,
 * waits for a line on its input before finalize. PSM_RANK_RATE: at most so many events a second, of all threads
 * together. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "psm_abi/profiler.h"

static const ncclProfiler_v4_t *profiler;
static void *context;
static int steps, left_open, operations;
static double operation_ns; /* that an operation of a thread may take; 0: as little as it does */
static _Atomic uint64_t started, refused, sent_bytes, sent_steps, colls;

enum { CHANNELS = 2, MOST_OPEN = 64 };
struct operation {
    void *coll, *op[CHANNELS];
};

static void say(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...)
{
    (void)level, (void)flags, (void)file, (void)line, (void)format;
}

static void *start(ncclProfilerEventDescr_v4_t *event)
{
    void *handle = NULL;
    if (profiler->startEvent(context, &handle, event) != ncclSuccess) abort();
    atomic_fetch_add(&started, 1);
    if (!handle) atomic_fetch_add(&refused, 1);
    return handle;
}

static void stop(void *handle)
{
    if (handle && profiler->stopEvent(handle) != ncclSuccess) abort();
}

static void begin(struct operation *o, int number)
{
    ncclProfilerEventDescr_v4_t coll = {.type = ncclProfileColl, .rank = 0};
    coll.coll.seqNumber = (uint64_t)number;
    coll.coll.func = "AllReduce";
    coll.coll.count = 1024;
    coll.coll.datatype = "ncclFloat32";
    coll.coll.nChannels = CHANNELS;
    coll.coll.algo = "RING";
    coll.coll.proto = "SIMPLE";
    o->coll = start(&coll);
    stop(o->coll);
    if (o->coll) atomic_fetch_add(&colls, 1);
    for (int c = 0; c < CHANNELS; c++) {
        ncclProfilerEventDescr_v4_t op = {.type = ncclProfileProxyOp, .parentObj = o->coll, .rank = 0};
        op.proxyOp.pid = getpid();
        op.proxyOp.channelId = (uint8_t)c;
        op.proxyOp.peer = 1;
        op.proxyOp.nSteps = steps;
        op.proxyOp.isSend = 1;
        o->op[c] = start(&op);
    }
}

static void end(struct operation *o)
{
    for (int c = 0; c < CHANNELS; c++) {
        for (int s = 0; o->op[c] && s < steps; s++) {
            ncclProfilerEventDescr_v4_t step = {.type = ncclProfileProxyStep, .parentObj = o->op[c], .rank = 0};
            step.proxyStep.step = s;
            void *handle = start(&step);
            ncclProfilerEventStateArgs_v4_t args = {.proxyStep = {.transSize = (size_t)1000 + (size_t)s}};
            if (!handle) continue;
            profiler->recordEventState(handle, ncclProfilerProxyStepSendGPUWait, NULL);
            profiler->recordEventState(handle, ncclProfilerProxyStepSendWait, &args);
            stop(handle);
            atomic_fetch_add(&sent_bytes, args.proxyStep.transSize);
            atomic_fetch_add(&sent_steps, 1);
        }
        stop(o->op[c]);
    }
}

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *run(void *unused)
{
    double begun = now_ns();
    struct operation open[MOST_OPEN];
    int n = 0;
    for (int i = 0; i < operations; i++) {
        if (n == left_open) {
            end(&open[0]);
            memmove(open, open + 1, (size_t)--n * sizeof *open);
        }
        while (operation_ns > 0 && now_ns() < begun + i * operation_ns) usleep(50);
        begin(&open[n++], i);
        if (left_open == 1) end(&open[--n]);
    }
    while (n > 0) end(&open[--n]);
    return unused;
}

int main(int argc, char **argv)
{
    if (argc < 6) return 2;
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
    profiler = dlsym(library, "ncclProfiler_v4");
    int threads = atoi(argv[2]), mask = 0;
    operations = atoi(argv[3]);
    steps = atoi(argv[4]);
    left_open = atoi(argv[5]);
    const char *rate = getenv("PSM_RANK_RATE");
    if (rate && atof(rate) > 0) operation_ns = 1e9 * (1 + CHANNELS * (1 + steps)) * threads / atof(rate);
    if (!profiler || threads < 1 || threads > 32 || left_open < 1 || left_open > MOST_OPEN) return 2;
    if (profiler->init(&context, &mask, "world", 0xabcdef, 1, 2, 0, say) != ncclSuccess) return 1;
    printf("ready %d\n", mask);
    fflush(stdout);
    char line[16];
    if (!fgets(line, sizeof line, stdin)) return 1;
    pthread_t thread[32];
    for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, run, NULL);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    printf("%llu %llu %llu %llu %llu\n", (unsigned long long)started, (unsigned long long)refused,
           (unsigned long long)colls, (unsigned long long)sent_steps, (unsigned long long)sent_bytes);
    fflush(stdout);
    if (argc > 6 && !fgets(line, sizeof line, stdin)) return 1;
    return profiler->finalize(context) == ncclSuccess ? 0 : 1;
}
