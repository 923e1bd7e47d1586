/* NCCL as far as a profiler sees it, right or wrong in one way: caller LIB VERSION WAY. The logger's lines go to
   standard output; with "threads" many threads call at the same time. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "event.h"

static int version, mask;
static const char *way;

/* The slots of all versions are alike to a caller but for the types of records, and init. */
static struct table {
    const char *name;
    void *init;
    ncclResult_t (*start)(void *context, void **handle, void *descriptor);
    ncclResult_t (*stop)(void *handle);
    ncclResult_t (*state)(void *handle, int state, void *args);
    ncclResult_t (*finalize)(void *context);
} table;

static int is(const char *name)
{
    return strcmp(way, name) == 0;
}

__attribute__((format(printf, 5, 6))) static void logger(ncclDebugLogLevel level, unsigned long flags, const char *file,
                                                         int line, const char *format, ...)
{
    char text[2000];
    va_list arguments;
    (void)flags, (void)file, (void)line;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("%s %s\n", level == NCCL_LOG_WARN ? "WARN" : "INFO", text);
    fflush(stdout);
}

static void *init(uint64_t hash, int rank)
{
    void *context = NULL;
    ncclResult_t result;
    if (version <= 3)
        result = ((ncclResult_t (*)(void **, int *))table.init)(&context, &mask);
    else if (version == 4)
        result = ((ncclResult_t (*)(void **, int *, const char *, uint64_t, int, int, int,
                                    ncclDebugLogger_t))table.init)(&context, &mask, "four", hash, 1, 8, rank, logger);
    else
        result = ((ncclResult_t (*)(void **, uint64_t, int *, const char *, int, int, int,
                                    ncclDebugLogger_t))table.init)(&context, hash, &mask, NULL, 1, 8, rank, logger);
    if (result) {
        printf("init %d\n", (int)result);
        exit(0);
    }
    return context;
}

static void *start(void *context, struct event e)
{
    union event_record record;
    event_words words;
    void *handle = NULL;
    event_write(version, &e, &record, words);
    if (is("kind") && e.type == ncclProfileProxyCtrl) {
        record.v4.type = 0x81;
        if (version >= 5) record.v6.type = 1 << 20;
    }
    table.start(context, &handle, &record);
    memset(&record, 0x5a, sizeof record);
    return handle;
}

static void state(void *handle, int number)
{
    struct event_args args = {.bytes = 4096};
    union event_args_record record;
    event_args_write(version, number, &args, &record);
    table.state(handle, number, &record);
}

static void *coll_of(void *context, void *group, void *api, uint64_t seq)
{
    struct event e = {.type = ncclProfileColl,
                      .func = "AllReduce",
                      .datatype = "ncclInt8",
                      .algo = "RING",
                      .proto = "LL",
                      .seq = seq,
                      .rank = 3,
                      .channels = 2};
    e.parent = version >= 5 ? api : group;
    e.group = version >= 5 ? group : NULL;
    return start(context, e);
}

static struct event op_of(void *parent)
{
    return (struct event){.type = ncclProfileProxyOp,
                          .parent = parent,
                          .pid = getpid(),
                          .channel = 2,
                          .peer = 5,
                          .steps = 4,
                          .is_send = true,
                          .rank = 3};
}

/* What NCCL sends for a collective by copy engine: the flags of the ranks, the copies, the flags again. */
static void copies(void *context, void *api)
{
    struct event e = {.type = ncclProfileCeColl, .parent = api, .func = "AllGather", .datatype = "ncclInt8", .rank = 3};
    void *coll = start(context, e), *above = is("copies-astray") ? api : coll;
    enum { N = 3 };
    const uint64_t kinds[N] = {ncclProfileCeSync, ncclProfileCeBatch, ncclProfileCeSync};
    for (int i = 0; i < N; i++) {
        void *part = start(context, (struct event){.type = kinds[i], .parent = above, .ops = 2, .rank = 3});
        if (part) table.stop(part);
    }
    if (coll) table.stop(coll);
}

static void sequence(void *context, void *other)
{
    void *group_api = NULL, *api = NULL;
    if (version >= 5) {
        group_api = start(context, (struct event){.type = ncclProfileGroupApi});
        if (group_api) table.state(group_api, ncclProfilerGroupStartApiStop, NULL);
        api = start(context, (struct event){.type = ncclProfileCollApi, .parent = group_api, .func = "AllReduce"});
        if (version >= 6 && (is("copies") || is("copies-astray"))) copies(context, api);
        if (api) table.stop(api);
    }
    void *group = start(context, (struct event){.type = ncclProfileGroup});
    void *coll = coll_of(is("context") ? &mask : context, group, is("parent-kind") ? group : api, 7);
    if (is("parent-kind") && version <= 4) start(context, op_of(group));
    if (coll) table.stop(coll);
    if (is("stop-twice") && coll) table.stop(coll);
    struct event told = op_of(is("unknown-parent") ? &mask : coll);
    if (is("pxn") || is("pxn-refused")) {
        told.pid++;
        told.parent = &mask;
    }
    void *op = start(is("parent-context") ? other : is("pxn") || is("pxn-refused") ? &mask : context, told);
    if (is("pxn-refused")) { /* as if the profiler had no room */
        table.stop(op);
        op = NULL;
    }
    if (version >= 4 && op) state(op, ncclProfilerProxyOpInProgress_v4);
    struct event e = {.type = ncclProfileProxyStep, .parent = op, .step = 3, .rank = 3};
    void *step = start(is("pxn") || is("pxn-refused") ? &mask : is("parent-context") ? other : context, e);
    if (step) {
        if (is("state-order")) state(step, ncclProfilerProxyStepSendWait);
        state(step, ncclProfilerProxyStepSendGPUWait);
        if (version >= 4) state(step, ncclProfilerProxyStepSendPeerWait_v4);
        if (version >= 4) state(step, ncclProfilerProxyStepSendPeerWait_v4);
        if (is("state-side")) state(step, ncclProfilerProxyStepRecvWait);
        if (is("state-kind")) state(step, ncclProfilerProxyCtrlIdle);
        if (is("arguments") || version <= 3)
            table.state(step, ncclProfilerProxyStepSendWait, NULL);
        else if (!is("state-order"))
            state(step, ncclProfilerProxyStepSendWait);
        if (!is("never-stopped")) table.stop(step);
        if (is("state-after-stop")) state(step, ncclProfilerProxyStepSendWait);
    }
    if (op) table.stop(op);
    if (is("unknown-handle")) table.stop(&mask);
    if (is("null-handle")) table.stop(NULL);
    if (is("kind")) start(context, (struct event){.type = ncclProfileProxyCtrl});
    if (group) table.stop(group);
    if (version >= 5 && group_api) {
        table.state(group_api, ncclProfilerGroupEndApiStart, NULL);
        table.stop(group_api);
    }
}

static void *many(void *context)
{
    for (int i = 0; i < 300; i++) sequence(context, NULL);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 4) return 2;
    version = atoi(argv[2]);
    way = argv[3];
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    char symbol[32];
    if (version == 0) { /* as NCCL chooses */
        for (version = PROFILER_VERSIONS; version >= 1; version--) {
            snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
            if (dlsym(library, symbol)) break;
        }
        printf("newest %d\n", version);
    }
    snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
    const void *found = dlsym(library, symbol);
    if (!found) {
        printf("no %s\n", symbol);
        return 0;
    }
    memcpy(&table, found, sizeof table);
    void *context = init(0x9f3c11d2a0b47e65, 3), *other = init(0x77, 0);
    if (is("threads")) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, many, i % 2 ? context : other);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    } else {
        sequence(context, other);
        if (is("again")) sequence(context, other);
    }
    table.finalize(context);
    table.finalize(other);
    if (is("finalize")) table.finalize(other);
    printf("end\n");
    return 0;
}
