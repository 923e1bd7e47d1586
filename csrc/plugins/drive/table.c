/* Any version of a net table as one set of functions. Each call is marked, so that a watcher, and psmkit after this
 * process has died, can name it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "drive.h"

/* ---- the watcher ---- */

static struct slot *mine(void)
{
    return d.slots + d.rank;
}

static void begin(const char *call)
{
    strncpy(mine()->call, call, sizeof mine()->call - 1);
    atomic_fetch_add(&mine()->turn, 1);
}

static ncclResult_t end(ncclResult_t result)
{
    uint64_t turn = atomic_load(&mine()->turn);
    /* The watcher may have given up a moment ago: then it writes the report, and ends the process. */
    while (turn == TURN_EXPIRED || !atomic_compare_exchange_strong(&mine()->turn, &turn, turn + 1))
        if (turn == TURN_EXPIRED) pause();
    return result;
}

static void *watch(void *unused)
{
    (void)unused;
    uint64_t seen = 0;
    uint64_t since = now_ns();
    for (;;) {
        uint64_t part = d.timeout_ns / 16;
        nanosleep(&(struct timespec){(time_t)(part / 1000000000), (long)(part % 1000000000)}, NULL);
        uint64_t turn = atomic_load(&mine()->turn);
        if (turn != seen || turn % 2 == 0) {
            seen = turn;
            since = now_ns();
        } else if (now_ns() - since > d.timeout_ns &&
                   atomic_compare_exchange_strong(&mine()->turn, &turn, TURN_EXPIRED)) {
            failed("blocked", "%s did not return within %.3g s", mine()->call, (double)d.timeout_ns * 1e-9);
        }
    }
    return NULL;
}

void watch_begin(const char *call)
{
    begin(call);
}

ncclResult_t watch_end(ncclResult_t result)
{
    return end(result);
}

void watch_start(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, watch, NULL) != 0) failed("contract", "cannot start a thread");
    pthread_detach(thread);
}

/* ---- callbacks for the plugin ---- */

void logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...)
{
    static const char *const words[] = {"NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"};
    char text[1500];
    va_list arguments;
    (void)flags;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char *word = (unsigned)level < 6 ? words[level] : "?";
    fprintf(stderr, "%s %s:%d %s\n", word, file ? file : "?", line, text);
}

ncclProfilerCallback_t event_hook;
void *event_parents[MAX_PIECES];

/* NCCL's own returns success if no profiler is loaded, and does not write the handle. */
static ncclResult_t profiler(void **handle, int type, void *parent, int64_t plugin, void *descriptor)
{
    return event_hook ? event_hook(handle, type, parent, plugin, descriptor) : ncclSuccess;
}

/* ---- versions ---- */

#define CASE(v, expression)                                                                                            \
    case v: {                                                                                                          \
        const ncclNet_v##v##_t *t = d.table;                                                                           \
        return end(expression);                                                                                        \
    }
#define V5_6(e)   CASE(5, e) CASE(6, e)
#define V7_9(e)   CASE(7, e) CASE(8, e) CASE(9, e)
#define V11_12(e) CASE(11, e) CASE(12, e)
#define VALL(e)   CASE(4, e) V5_6(e) V7_9(e) CASE(10, e) V11_12(e)
#define CALL(name, cases)                                                                                              \
    begin(name);                                                                                                       \
    switch (d.version) {                                                                                               \
        cases default : return end(ncclInternalError);                                                                 \
    }

bool table_find(void)
{
    char symbol[32];
    snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", d.version);
    return (d.table = dlsym(d.library, symbol)) != NULL;
}

const char *table_name(void)
{
    return *(const char *const *)d.table;
}

#define NEED(slot)                                                                                                     \
    if (!t->slot) return #slot;
#define NEED_ALL                                                                                                       \
    NEED(name)                                                                                                         \
    NEED(init)                                                                                                         \
    NEED(devices)                                                                                                      \
    NEED(getProperties)                                                                                                \
    NEED(listen)                                                                                                       \
    NEED(connect)                                                                                                      \
    NEED(accept)                                                                                                       \
    NEED(regMr)                                                                                                        \
    NEED(deregMr)                                                                                                      \
    NEED(isend)                                                                                                        \
    NEED(irecv)                                                                                                        \
    NEED(test)                                                                                                         \
    NEED(closeSend)                                                                                                    \
    NEED(closeRecv)                                                                                                    \
    NEED(closeListen)                                                                                                  \
    if (cuda) NEED(iflush)
#define NEED_V6 NEED_ALL if (dmabuf) NEED(regMrDmaBuf)
#define SLOTS(v, what)                                                                                                 \
    case v: {                                                                                                          \
        const ncclNet_v##v##_t *t = d.table;                                                                           \
        what return NULL;                                                                                              \
    }

const char *table_empty(bool cuda, bool dmabuf)
{
    switch (d.version) {
        SLOTS(4, NEED_ALL)
        SLOTS(5, NEED_ALL)
        SLOTS(6, NEED_V6)
        SLOTS(7, NEED_V6)
        SLOTS(8, NEED_V6)
        SLOTS(9, NEED_V6)
        SLOTS(10, NEED_V6)
        SLOTS(11, NEED_V6 NEED(finalize))
        SLOTS(12, NEED_V6 NEED(finalize))
    }
    return "table";
}

ncclResult_t t_init(int which, uint64_t comm_id)
{
    ncclNetCommConfig_v11_t c11 = {NCCL_NET_TRAFFIC_CLASS_UNDEF};
    ncclNetCommConfig_v12_t c12 = {NCCL_NET_TRAFFIC_CLASS_UNDEF};
    void **context = &d.context[which];
    CALL("init", CASE(4, t->init(logger)) V5_6(t->init(logger)) V7_9(t->init(logger))
                     CASE(10, t->init(logger, profiler)) CASE(11, t->init(context, comm_id, &c11, logger, profiler))
                         CASE(12, t->init(context, comm_id, &c12, logger, profiler)))
}

ncclResult_t t_finalize(int which){CALL("finalize", V11_12(t -> finalize(d.context[which])))}

ncclResult_t t_devices(int *n){CALL("devices", VALL(t->devices(n)))}

/* Members that a plugin does not write hold stack garbage: NCCL passes a record that it has not cleared. */
#define UNTOUCHED 0x5b
static bool untouched(const void *member, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((const uint8_t *)member)[i] != UNTOUCHED) return false;
    return true;
}

#define GET(member)                                                                                                    \
    if (untouched(&p.member, sizeof p.member)) {                                                                       \
        if (!*missing) *missing = #member;                                                                             \
    } else {                                                                                                           \
        out->member = p.member;                                                                                        \
    }
#define GET_V4 GET(name) GET(pciPath) GET(guid) GET(ptrSupport) GET(speed) GET(port) GET(maxComms)
#define GET_V5 GET_V4 GET(latency) GET(maxRecvs)
#define GET_V7 GET_V5 GET(netDeviceType) GET(netDeviceVersion)
#define GET_V8 GET_V7 GET(regIsGlobal)
#define GET_V9                                                                                                         \
    GET_V8 GET(forceFlush) GET(maxP2pBytes) GET(maxCollBytes)                                                          \
        GET(vProps.ndevs) for (int i = 0;                                                                              \
                               i < p.vProps.ndevs && i < (int)(sizeof p.vProps.devs / sizeof p.vProps.devs[0]); i++)   \
    {                                                                                                                  \
        GET(vProps.devs[i])                                                                                            \
    }
#define GET_V11 GET_V9 GET(maxMultiRequestSize)
#define GET_V12 GET_V11 GET(railId) GET(planeId)
#define RECORD(v, what)                                                                                                \
    case v: {                                                                                                          \
        ncclNetProperties_v##v##_t p;                                                                                  \
        const ncclNet_v##v##_t *t = d.table;                                                                           \
        memset(&p, UNTOUCHED, sizeof p);                                                                               \
        ncclResult_t result = end(t->getProperties(dev, &p));                                                          \
        if (result == ncclSuccess) {                                                                                   \
            what                                                                                                       \
        }                                                                                                              \
        return result;                                                                                                 \
    }

ncclResult_t t_properties(int dev, ncclNetProperties_v12_t *out, const char **missing)
{
    *out = (ncclNetProperties_v12_t){.maxRecvs = 1, .maxP2pBytes = MAX_NET_SIZE, .maxCollBytes = MAX_COLLNET_SIZE};
    *missing = NULL;
    out->vProps.ndevs = d.version < 9;
    begin("getProperties");
    switch (d.version) {
        RECORD(4, GET_V4)
        RECORD(5, GET_V5)
        RECORD(6, GET_V5)
        RECORD(7, GET_V7)
        RECORD(8, GET_V8)
        RECORD(9, GET_V9)
        RECORD(10, GET_V9)
        RECORD(11, GET_V11)
        RECORD(12, GET_V12)
    }
    return end(ncclInternalError);
}

ncclResult_t t_listen(int which, int dev, void *handle, void **comm)
{
    void *context = d.context[which];
    CALL("listen",
         CASE(4, t->listen(dev, handle, comm)) V5_6(t->listen(dev, handle, comm)) V7_9(t->listen(dev, handle, comm))
             CASE(10, t->listen(dev, handle, comm)) V11_12(t->listen(context, dev, handle, comm)))
}

ncclResult_t t_connect(int which, int dev, void *handle, void **comm)
{
    void *context = d.context[which];
    ncclNetCommConfig_v10_t config = {NCCL_NET_TRAFFIC_CLASS_UNDEF};
    ncclNetDeviceHandle_v12_t *device = NULL;
    CALL("connect",
         CASE(4, t->connect(dev, handle, comm)) V5_6(t->connect(dev, handle, comm))
             V7_9(t->connect(dev, handle, comm, &device)) CASE(10, t->connect(dev, &config, handle, comm, &device))
                 V11_12(t->connect(context, dev, handle, comm, &device)))
}

ncclResult_t t_accept(void *listener, void **comm)
{
    ncclNetDeviceHandle_v12_t *device = NULL;
    CALL("accept",
         CASE(4, t->accept(listener, comm)) V5_6(t->accept(listener, comm)) V7_9(t->accept(listener, comm, &device))
             CASE(10, t->accept(listener, comm, &device)) V11_12(t->accept(listener, comm, &device)))
}

ncclResult_t t_reg(void *comm, void *data, size_t size, int type,
                   void **mhandle){CALL("regMr", VALL(t -> regMr(comm, data, size, type, mhandle)))}

ncclResult_t t_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle){
    CALL("regMrDmaBuf", CASE(6, t->regMrDmaBuf(comm, data, size, type, offset, fd, mhandle))
                            V7_9(t->regMrDmaBuf(comm, data, size, type, offset, fd, mhandle))
                                CASE(10, t->regMrDmaBuf(comm, data, size, type, offset, fd, mhandle))
                                    V11_12(t->regMrDmaBuf(comm, data, size, type, offset, fd, mhandle)))}

ncclResult_t t_dereg(void *comm, void *mhandle){CALL("deregMr", VALL(t->deregMr(comm, mhandle)))}

ncclResult_t t_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void **request){
    CALL("isend", CASE(4, t->isend(comm, data, (int)size, mhandle, request))
                      V5_6(t->isend(comm, data, (int)size, tag, mhandle, request))
                          V7_9(t->isend(comm, data, size, tag, mhandle, request))
                              CASE(10, t->isend(comm, data, size, tag, mhandle, event_parents[0], request))
                                  V11_12(t->isend(comm, data, size, tag, mhandle, event_parents[0], request)))}

ncclResult_t t_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request)
{
    int narrow[MAX_PIECES];
    void **parents = event_parents;
    for (int i = 0; i < n; i++) narrow[i] = (int)sizes[i];
    CALL("irecv", CASE(4, t->irecv(comm, data[0], narrow[0], mhandles[0], request))
                      V5_6(t->irecv(comm, n, data, narrow, tags, mhandles, request))
                          CASE(7, t->irecv(comm, n, data, narrow, tags, mhandles, request))
                              CASE(8, t->irecv(comm, n, data, narrow, tags, mhandles, request))
                                  CASE(9, t->irecv(comm, n, data, sizes, tags, mhandles, request))
                                      CASE(10, t->irecv(comm, n, data, sizes, tags, mhandles, parents, request))
                                          V11_12(t->irecv(comm, n, data, sizes, tags, mhandles, parents, request)))
}

ncclResult_t t_iflush(void *comm, void *data, int size, void *mhandle, void **request){
    CALL("iflush", CASE(4, t -> iflush(comm, data, size, mhandle, request))
                       V5_6(t->iflush(comm, 1, &data, &size, &mhandle, request))
                           V7_9(t->iflush(comm, 1, &data, &size, &mhandle, request))
                               CASE(10, t->iflush(comm, 1, &data, &size, &mhandle, request))
                                   V11_12(t->iflush(comm, 1, &data, &size, &mhandle, request)))}

ncclResult_t t_test(void *request, int *done, int *sizes){CALL("test", VALL(t->test(request, done, sizes)))}

ncclResult_t t_close_send(void *comm){CALL("closeSend", VALL(t->closeSend(comm)))}

ncclResult_t t_close_recv(void *comm){CALL("closeRecv", VALL(t->closeRecv(comm)))}

ncclResult_t t_close_listen(void *comm)
{
    CALL("closeListen", VALL(t->closeListen(comm)))
}

bool t_has_net_attr(void)
{
    return (d.version == 11 && ((const ncclNet_v11_t *)d.table)->setNetAttr) ||
           (d.version == 12 && ((const ncclNet_v12_t *)d.table)->setNetAttr);
}

ncclResult_t t_set_net_attr(void)
{
    int32_t none = NCCL_NET_ATTR_UNDEF;
    ncclNetAttr_v11_t a11 = {{none, none, none, none}, {none, none, none, none}, 0, 0, 0};
    ncclNetAttr_v12_t a12 = {{none, none, none, none}, {none, none, none, none}, 0, 0, 0};
    CALL("setNetAttr", CASE(11, t->setNetAttr(d.context[0], &a11)) CASE(12, t->setNetAttr(d.context[0], &a12)))
}

#define HAS(v, slot)                                                                                                   \
    case v:                                                                                                            \
        return ((const ncclNet_v##v##_t *)d.table)->slot != NULL;
#define HAS_V9(slot) HAS(9, slot) HAS(10, slot) HAS(11, slot) HAS(12, slot)

bool t_has_consumed(void)
{
    switch (d.version) {
        HAS(7, irecvConsumed)
        HAS(8, irecvConsumed)
        HAS_V9(irecvConsumed)
    }
    return false;
}

bool t_has_device_memory(void)
{
    switch (d.version) {
        HAS(7, getDeviceMr)
        HAS(8, getDeviceMr)
        HAS_V9(getDeviceMr)
    }
    return false;
}

bool t_has_make_device(void)
{
    switch (d.version) {
        HAS_V9(makeVDevice)
    }
    return false;
}

ncclResult_t t_consumed(void *comm, int n, void *request){
    CALL("irecvConsumed", V7_9(t -> irecvConsumed(comm, n, request)) CASE(10, t->irecvConsumed(comm, n, request))
                              V11_12(t->irecvConsumed(comm, n, request)))}

ncclResult_t t_make_device(int *dev, const ncclNetVDeviceProps_v12_t *props)
{
    /* As in NCCL 2.30: its own record, which is longer than that of older tables. */
    ncclNetVDeviceProps_v12_t own = *props;
    void *any = &own;
    CALL("makeVDevice", CASE(9, t->makeVDevice(dev, any)) CASE(10, t->makeVDevice(dev, any))
                            CASE(11, t->makeVDevice(dev, any)) CASE(12, t->makeVDevice(dev, any)))
}
