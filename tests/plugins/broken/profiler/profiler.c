/* A profiler that is right, and wrong in one way where BROKEN names it. It keeps the last events in a ring; a handle is
   a number that is given once. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PSM_ABI_CONST /* a table is changed when the library is loaded */
#include "psm_abi/profiler.h"
#include "psm_abi_versions.h"

static int broken(const char *way)
{
    const char *set = getenv("BROKEN");
    return set && strcmp(set, way) == 0;
}

struct event {
    uintptr_t id, parent;
    uint64_t type;
    int pid, children;
    void *context;
    const char *func;
    const void *descriptor;
    pthread_t thread;
};
enum { KEPT = 1 << 17, CONTEXT = 0x70726f66 };
static struct event events[KEPT];
static uintptr_t last;
static int open_events;
static void *volatile lost;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

struct context {
    int magic;
    int *mask;
};
static struct context *newest;
static int *the_mask;
static pthread_t helper;

static struct event *find(const void *handle)
{
    uintptr_t id = (uintptr_t)handle >> 4;
    struct event *e = &events[id % KEPT];
    return handle && e->id == id ? e : NULL;
}

/* Handles that go to the next event as soon as one is stopped. */
static char slots[1 << 12];

static void *take_slot(void)
{
    char *slot = memchr(slots, 0, sizeof slots);
    if (slot) *slot = 1;
    return slot;
}

static void free_slot(char *slot)
{
    if (slot) *slot = 0;
}

static void *run(void *unused)
{
    for (;;) usleep(1000);
    return unused;
}

static ncclResult_t init(void **context, int *mask, int known)
{
    if (broken("init-fails")) return ncclInternalError;
    if (broken("init-crashes")) abort();
    struct context *c = calloc(1, sizeof *c);
    if (!c) return ncclSystemError;
    c->magic = CONTEXT;
    c->mask = the_mask = mask;
    const char *asked = getenv("MASK");
    *mask = broken("mask-bits") ? -1 : asked ? atoi(asked) : known;
    newest = c;
    *context = broken("no-context") ? NULL : c;
    if (broken("leaks-descriptor") && open("/dev/null", O_RDONLY) < 0) abort();
    if (broken("leaks-thread") || (broken("thread-runs") && !helper)) {
        pthread_create(&helper, NULL, run, NULL);
        pthread_detach(helper);
    }
    return ncclSuccess;
}

static ncclResult_t finalize(void *context)
{
    struct context *c = context;
    while (broken("finalize-blocks") && last) usleep(100);
    while (broken("finalize-waits") && open_events) usleep(100);
    if (broken("one-context")) newest = NULL;
    if (c && !broken("leaks-context")) {
        c->magic = 0;
        free(c);
    }
    return broken("finalize-fails") ? ncclInternalError : ncclSuccess;
}

static void spin(long ns)
{
    struct timespec begun, now;
    clock_gettime(CLOCK_MONOTONIC, &begun);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - begun.tv_sec) * 1000000000L + now.tv_nsec - begun.tv_nsec < ns);
}

/* The parts of a descriptor that this profiler reads. */
struct told {
    uint64_t type;
    void *parent;
    int pid;
    const char *func;
    void *descriptor;
};

static void look(void *context, const struct told *t, struct event *parent)
{
    int foreign = t->type == ncclProfileProxyOp && t->pid != getpid();
    struct event *above = foreign ? NULL : parent;
    if (broken("pxn-parent") && t->parent && foreign) (void)*(volatile char *)t->parent;
    if (broken("pxn-context") && ((struct context *)context)->magic != CONTEXT) abort();
    if (broken("pxn-step-context") && !foreign && ((struct context *)context)->magic != CONTEXT) abort();
    if (broken("follows-parent") && t->type == ncclProfileProxyStep && parent->pid == 0) abort();
    if (broken("one-context") && !newest) abort();
    if (broken("asked-only") && !(*the_mask & (int)t->type) && *the_mask) abort();
    if (broken("own-thread") && above && !pthread_equal(above->thread, pthread_self())) abort();
    if (broken("newest-parent") && above && above->type == ncclProfileColl)
        for (uintptr_t id = above->id + 1; id <= last; id++)
            if (events[id % KEPT].type == ncclProfileColl) abort();
    if (broken("one-child") && above && above->type == ncclProfileCollApi && ++above->children > 1) abort();
    if (broken("reads-buffer") && t->func) (void)*(volatile char *)t->func;
}

static ncclResult_t start(void *context, void **handle, const struct told *t)
{
    static char everyone;
    if (broken("leaves-handle") && t->type == ncclProfileProxyCtrl) return ncclSuccess;
    *handle = NULL;
    if (broken("start-fails")) return ncclInternalError;
    if (broken("start-blocks")) pause();
    if (broken("start-exits")) exit(0);
    if (broken("slow")) spin(60000);
    if (broken("writes-descriptor")) ((char *)t->descriptor)[sizeof(uint64_t) + sizeof(void *)] ^= 1;
    if (broken("same-handle")) {
        *handle = &everyone;
        return ncclSuccess;
    }
    if (broken("leaks-events")) lost = malloc(40);
    pthread_mutex_lock(&lock);
    look(context, t, t->type == ncclProfileProxyOp && t->pid != getpid() ? NULL : find(t->parent));
    if (broken("full-crashes") && open_events > 20000) abort();
    struct event *e = &events[++last % KEPT];
    *e = (struct event){.id = last,
                        .parent = (uintptr_t)t->parent,
                        .type = t->type,
                        .pid = t->pid,
                        .context = context,
                        .func = t->func,
                        .descriptor = broken("keeps-arguments") ? NULL : t->descriptor,
                        .thread = pthread_self()};
    open_events++;
    *handle = (void *)(e->id << 4);
    pthread_mutex_unlock(&lock);
    if (broken("reuses-handle")) *handle = take_slot();
    if (broken("fails-with-handle")) return ncclSystemError;
    return ncclSuccess;
}

static ncclResult_t stop(void *handle)
{
    if (broken("stop-follows-null")) (void)*(volatile char *)handle;
    if (broken("stop-follows-wild")) (void)*(volatile char *)(uintptr_t)0x1234567890abcdef;
    if (broken("reuses-handle")) {
        free_slot(handle);
        return ncclSuccess;
    }
    pthread_mutex_lock(&lock);
    struct event *e = find(handle);
    if (e && broken("keeps-string") && e->func) (void)*(volatile const char *)e->func;
    if (e && e->descriptor && (broken("keeps-descriptor") || broken("keeps-arguments")))
        (void)*(volatile const char *)e->descriptor;
    if (e && broken("stop-once")) {
        if (e->children < 0) abort();
        e->children = -1;
    }
    if (e) open_events--;
    pthread_mutex_unlock(&lock);
    return broken("stop-fails") ? ncclInternalError : ncclSuccess;
}

static ncclResult_t state(void *handle, int number, const void *args)
{
    if (broken("state-follows-null") && !handle) (void)*(volatile char *)handle;
    if (broken("state-follows-arguments")) (void)*(volatile const char *)args;
    (void)number;
    if (broken("keeps-arguments") && find(handle)) find(handle)->descriptor = args;
    return broken("state-fails") ? ncclInternalError : ncclSuccess;
}

#define TOLD(d)                                                                                                        \
    struct told t = {.type = (d)->type, .parent = (d)->parentObj, .descriptor = (d)};                                  \
    if (t.type == ncclProfileProxyOp) t.pid = (d)->proxyOp.pid
#define VERSION(v)                                                                                                     \
    static ncclResult_t start_v##v(void *context, void **handle, ncclProfilerEventDescr_v##v##_t *d)                   \
    {                                                                                                                  \
        TOLD(d);                                                                                                       \
        if (t.type == ncclProfileColl) t.func = broken("reads-buffer") ? (const char *)d->coll.sendBuff : FUNC(d);     \
        if (t.type == ncclProfileColl && broken("needs-name")) (void)*(volatile const char *)NAME(d);                  \
        return start(context, handle, &t);                                                                             \
    }                                                                                                                  \
    static ncclResult_t state_v##v(void *handle, ncclProfilerEventState_v##v##_t number,                               \
                                   ncclProfilerEventStateArgs_v##v##_t *args)                                          \
    {                                                                                                                  \
        return state(handle, (int)number, args);                                                                       \
    }
/* Up to v3 the communicator's name; v1 has a number for the function. */
#define NAME(d)                                                                                                        \
    _Generic((d),                                                                                                      \
        ncclProfilerEventDescr_v1_t *: ((const ncclProfilerEventDescr_v1_t *)(void *)(d))->coll.name,                  \
        ncclProfilerEventDescr_v2_t *: ((const ncclProfilerEventDescr_v2_t *)(void *)(d))->coll.name,                  \
        ncclProfilerEventDescr_v3_t *: ((const ncclProfilerEventDescr_v3_t *)(void *)(d))->coll.name,                  \
        default: "")
#define FUNC(d)                                                                                                        \
    _Generic((d)->coll.func, const char *: (const char *)(uintptr_t)(d)->coll.func, default: (const char *)NULL)
PSM_ABI_PROFILER_VERSIONS(VERSION)

/* The bits of all kinds that a version has. */
static int known(int version)
{
    int bits = 0;
#define KIND(word, bit, since, above, by_default) bits |= version >= (since) ? (int)(bit) : 0;
    PSM_ABI_PROFILER_EACH_KIND(KIND)
    return bits;
}

#define INIT_OLD(v)                                                                                                    \
    static ncclResult_t init_v##v(void **context, int *mask)                                                           \
    {                                                                                                                  \
        return init(context, mask, known(v));                                                                          \
    }
PSM_ABI_PROFILER_init_V1(INIT_OLD)

    static ncclResult_t init_v4(void **context, int *mask, const char *name, uint64_t hash, int nodes, int ranks,
                                int rank, ncclDebugLogger_t logger)
{
    (void)name, (void)hash, (void)nodes, (void)ranks, (void)rank;
    if (broken("init-fails"))
        logger(NCCL_LOG_WARN, NCCL_INIT, __func__, __LINE__, "PROFILER/Broken : there is no %s", "pool");
    return init(context, mask, known(4));
}

static ncclResult_t init_new(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks, int rank,
                             ncclDebugLogger_t logger, int version)
{
    (void)id, (void)name, (void)nodes, (void)ranks, (void)rank;
    if (broken("init-fails"))
        logger(NCCL_LOG_WARN, NCCL_INIT, __func__, __LINE__, "PROFILER/Broken : there is no %s", "pool");
    return init(context, mask, known(version));
}

#define INIT_NEW(v)                                                                                                    \
    static ncclResult_t init_v##v(void **context, uint64_t id, int *mask, const char *name, int nodes, int ranks,      \
                                  int rank, ncclDebugLogger_t logger)                                                  \
    {                                                                                                                  \
        return init_new(context, id, mask, name, nodes, ranks, rank, logger, v);                                       \
    }
PSM_ABI_PROFILER_init_V5(INIT_NEW)

#define TABLE(v)                                                                                                       \
    ncclProfiler_v##v##_t ncclProfiler_v##v = {.name = "Broken",                                                       \
                                               .init = init_v##v,                                                      \
                                               .startEvent = start_v##v,                                               \
                                               .stopEvent = stop,                                                      \
                                               .recordEventState = state_v##v,                                         \
                                               .finalize = finalize};
    PSM_ABI_PROFILER_VERSIONS(TABLE)

#define NAMED(v)   ncclProfiler_v##v
#define LAST_OF(v) NAMED(v)
#define LAST       LAST_OF(PSM_ABI_PROFILER_LAST)

        __attribute__((constructor)) static void loaded(void)
{
    if (broken("null-slot")) LAST.recordEventState = NULL;
    if (broken("no-name")) LAST.name = NULL;
    (void)init_v4;
}
