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

#include "base.h"
#include "drive.h"
#include "psm_abi_versions.h"

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
    uint64_t since = psm_clock_ns();
    for (;;) {
        uint64_t part = d.timeout_ns / 16;
        nanosleep(&(struct timespec){(time_t)(part / 1000000000), (long)(part % 1000000000)}, NULL);
        uint64_t turn = atomic_load(&mine()->turn);
        if (turn != seen || turn % 2 == 0) {
            seen = turn;
            since = psm_clock_ns();
        } else if (psm_clock_ns() - since > d.timeout_ns &&
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

#define CASE(v, ...)                                                                                                   \
    case v: {                                                                                                          \
        const ncclNet_v##v##_t *t = d.table;                                                                           \
        return end(__VA_ARGS__);                                                                                       \
    }
/* The calls of one signature: since the version that it came with. */
#define SINCE(slot, v, ...) PSM_ABI_NET_##slot##_V##v(CASE, t->slot(__VA_ARGS__))
#define CALL(name, ...)                                                                                                \
    begin(name);                                                                                                       \
    switch (d.version) {                                                                                               \
        __VA_ARGS__                                                                                                    \
    default:                                                                                                           \
        return end(ncclInternalError);                                                                                 \
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
#define INIT_OF(v)                                                                                                     \
    case v:                                                                                                            \
        return ((const ncclNet_v##v##_t *)d.table)->init != NULL;

bool table_has_init(void)
{
    switch (d.version) {
        PSM_ABI_NET_VERSIONS(INIT_OF)
    }
    return false;
}

#define NEED_ALL(v)                                                                                                    \
    case v: {                                                                                                          \
        const ncclNet_v##v##_t *t = d.table;                                                                           \
        PSM_ABI_NET_REQUIRED_V##v(NEED) if (cuda) NEED(iflush) break;                                                  \
    }
#define NEED_DMABUF(v)                                                                                                 \
    case v: {                                                                                                          \
        const ncclNet_v##v##_t *t = d.table;                                                                           \
        if (dmabuf) NEED(regMrDmaBuf)                                                                                  \
        break;                                                                                                         \
    }

const char *table_empty(bool cuda, bool dmabuf)
{
    switch (d.version) {
        PSM_ABI_NET_VERSIONS(NEED_ALL)
    default:
        return "table";
    }
    switch (d.version) {
        PSM_ABI_NET_regMrDmaBuf_V6(NEED_DMABUF)
    }
    return NULL;
}

/* Records of each version: their names differ, their members do not. */
#define INIT(v)                                                                                                        \
    case v: {                                                                                                          \
        const ncclNet_v##v##_t *t = d.table;                                                                           \
        ncclNetCommConfig_v##v##_t config = {NCCL_NET_TRAFFIC_CLASS_UNDEF};                                            \
        return end(t->init(context, comm_id, &config, logger, profiler));                                              \
    }
ncclResult_t t_init(int which, uint64_t comm_id)
{
    void **context = &d.context[which];
    CALL("init", SINCE(init, 4, logger) SINCE(init, 10, logger, profiler) PSM_ABI_NET_init_V11(INIT))
}

ncclResult_t t_finalize(int which){CALL("finalize", SINCE(finalize, 11, d.context[which]))}

ncclResult_t t_devices(int *n){CALL("devices", SINCE(devices, 4, n))}

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
#define GET_DEVICES(member)                                                                                            \
    GET(member.ndevs)                                                                                                  \
    for (int i = 0; i < p.member.ndevs && i < (int)(sizeof p.member.devs / sizeof p.member.devs[0]); i++) {            \
        GET(member.devs[i])                                                                                            \
    }
#define RECORD(v)                                                                                                      \
    case v: {                                                                                                          \
        ncclNetProperties_v##v##_t p;                                                                                  \
        const ncclNet_v##v##_t *t = d.table;                                                                           \
        memset(&p, UNTOUCHED, sizeof p);                                                                               \
        ncclResult_t result = end(t->getProperties(dev, &p));                                                          \
        if (result == ncclSuccess) {                                                                                   \
            PSM_ABI_NET_PROPERTIES_V##v(GET, GET_DEVICES)                                                              \
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
        PSM_ABI_NET_VERSIONS(RECORD)
    }
    return end(ncclInternalError);
}

ncclResult_t t_listen(int which, int dev, void *handle, void **comm){
    CALL("listen", SINCE(listen, 4, dev, handle, comm) SINCE(listen, 11, d.context[which], dev, handle, comm))}

ncclResult_t t_connect(int which, int dev, void *handle, void **comm)
{
    ncclNetCommConfig_v10_t config = {NCCL_NET_TRAFFIC_CLASS_UNDEF};
    ncclNetDeviceHandle_v12_t *device = NULL;
    CALL("connect", SINCE(connect, 4, dev, handle, comm) SINCE(connect, 7, dev, handle, comm, &device)
                        SINCE(connect, 10, dev, &config, handle, comm, &device)
                            SINCE(connect, 11, d.context[which], dev, handle, comm, &device))
}

ncclResult_t t_accept(void *listener, void **comm)
{
    ncclNetDeviceHandle_v12_t *device = NULL;
    CALL("accept", SINCE(accept, 4, listener, comm) SINCE(accept, 7, listener, comm, &device))
}

ncclResult_t t_reg(void *comm, void *data, size_t size, int type,
                   void **mhandle){CALL("regMr", SINCE(regMr, 4, comm, data, (int)size, type, mhandle)
                                                     SINCE(regMr, 8, comm, data, size, type, mhandle))}

ncclResult_t t_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **mhandle){
    CALL("regMrDmaBuf", SINCE(regMrDmaBuf, 6, comm, data, size, type, offset, fd, mhandle))}

ncclResult_t t_dereg(void *comm, void *mhandle){CALL("deregMr", SINCE(deregMr, 4, comm, mhandle))}

ncclResult_t t_isend(void *comm, void *data, size_t size, int tag, void *mhandle, void **request){
    CALL("isend", SINCE(isend, 4, comm, data, (int)size, mhandle, request)
                      SINCE(isend, 5, comm, data, (int)size, tag, mhandle, request)
                          SINCE(isend, 9, comm, data, size, tag, mhandle, request)
                              SINCE(isend, 10, comm, data, size, tag, mhandle, event_parents[0], request))}

ncclResult_t t_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **mhandles, void **request)
{
    int narrow[MAX_PIECES];
    for (int i = 0; i < n; i++) narrow[i] = (int)sizes[i];
    CALL("irecv", SINCE(irecv, 4, comm, data[0], narrow[0], mhandles[0], request)
                      SINCE(irecv, 5, comm, n, data, narrow, tags, mhandles, request)
                          SINCE(irecv, 9, comm, n, data, sizes, tags, mhandles, request)
                              SINCE(irecv, 10, comm, n, data, sizes, tags, mhandles, event_parents, request))
}

ncclResult_t t_iflush(void *comm, void *data, int size, void *mhandle,
                      void **request){CALL("iflush", SINCE(iflush, 4, comm, data, size, mhandle, request)
                                                         SINCE(iflush, 5, comm, 1, &data, &size, &mhandle, request))}

ncclResult_t t_test(void *request, int *done, int *sizes){CALL("test", SINCE(test, 4, request, done, sizes))}

ncclResult_t t_close_send(void *comm){CALL("closeSend", SINCE(closeSend, 4, comm))}

ncclResult_t t_close_recv(void *comm){CALL("closeRecv", SINCE(closeRecv, 4, comm))}

ncclResult_t t_close_listen(void *comm){CALL("closeListen", SINCE(closeListen, 4, comm))}

#define SET_ATTR(v)                                                                                                    \
    case v: {                                                                                                          \
        const ncclNet_v##v##_t *t = d.table;                                                                           \
        ncclNetAttr_v##v##_t attributes = {{none, none, none, none}, {none, none, none, none}, 0, 0, 0};               \
        return end(t->setNetAttr(d.context[0], &attributes));                                                          \
    }
ncclResult_t t_set_net_attr(void)
{
    int32_t none = NCCL_NET_ATTR_UNDEF;
    CALL("setNetAttr", PSM_ABI_NET_setNetAttr_V11(SET_ATTR))
}

#define HAS(v, slot)                                                                                                   \
    case v:                                                                                                            \
        return ((const ncclNet_v##v##_t *)d.table)->slot != NULL;
#define HAS_SLOT(function, cases)                                                                                      \
    bool function(void)                                                                                                \
    {                                                                                                                  \
        switch (d.version) {                                                                                           \
            cases                                                                                                      \
        }                                                                                                              \
        return false;                                                                                                  \
    }
HAS_SLOT(t_has_net_attr, PSM_ABI_NET_setNetAttr_V11(HAS, setNetAttr))
HAS_SLOT(t_has_consumed, PSM_ABI_NET_irecvConsumed_V7(HAS, irecvConsumed))
HAS_SLOT(t_has_device_memory, PSM_ABI_NET_getDeviceMr_V7(HAS, getDeviceMr))
HAS_SLOT(t_has_make_device, PSM_ABI_NET_makeVDevice_V9(HAS, makeVDevice) PSM_ABI_NET_makeVDevice_V12(HAS, makeVDevice))

ncclResult_t t_consumed(void *comm, int n,
                        void *request){CALL("irecvConsumed", SINCE(irecvConsumed, 7, comm, n, request))}

ncclResult_t t_make_device(int *dev, const ncclNetVDeviceProps_v12_t *props)
{
    /* As in NCCL 2.30: its own record, which is longer than that of older tables. */
    ncclNetVDeviceProps_v12_t own = *props;
    void *any = &own;
    CALL("makeVDevice", SINCE(makeVDevice, 9, dev, any) SINCE(makeVDevice, 12, dev, any))
}
