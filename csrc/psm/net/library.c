/* The network of the process: finds a plugin's table, initialises it, and calls it through one interface for all
 * versions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "net/net_conn.h"
#include "psm_abi_versions.h"
#include "psm_lib_messages.h"

PSM_FAULT_SITE(site_open, "net.open", "the first connection of a process opens its network");

enum { OLDEST = 8, NEWEST = 12 };
/* Any number works: in NCCL it identifies the communicator, and a plugin may keep it. */
#define COMMUNICATOR UINT64_C(0x50534d4e)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct psm_net current; /* while users > 0 */
static size_t users;
static int given_version; /* set by psmNetUse; 0: none */
static const void *given_table;
static const void *initialised; /* up to v10 a table is initialised once per process */

/* ---- differences between the versions ---- */

#define TABLE(net, version) ((const ncclNet_v##version##_t *)(net)->table)

static ncclResult_t initialise(struct psm_net *net, ncclDebugLogger_t logger)
{
    switch (net->version) {
    case 8:
        return TABLE(net, 8)->init(logger);
    case 9:
        return TABLE(net, 9)->init(logger);
    case 10:
        return TABLE(net, 10)->init(logger, NULL);
    case 11: {
        ncclNetCommConfig_v11_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
        return TABLE(net, 11)->init(&net->context, COMMUNICATOR, &config, logger, NULL);
    }
    default: {
        ncclNetCommConfig_v12_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
        return TABLE(net, 12)->init(&net->context, COMMUNICATOR, &config, logger, NULL);
    }
    }
}

static void finalise(struct psm_net *net)
{
    if (net->version == 11) TABLE(net, 11)->finalize(net->context);
    if (net->version == 12) TABLE(net, 12)->finalize(net->context);
}

/* Members that have the same type in every version. */
#define TAKE(v)                                                                                                        \
    case v: {                                                                                                          \
        const ncclNet_v##v##_t *t = table;                                                                             \
        *net = (struct psm_net){.version = (v),                                                                        \
                                .name = t->name,                                                                       \
                                .devices = t->devices,                                                                 \
                                .accept = t->accept,                                                                   \
                                .reg = t->regMr,                                                                       \
                                .dereg = t->deregMr,                                                                   \
                                .test = t->test,                                                                       \
                                .close_send = t->closeSend,                                                            \
                                .close_recv = t->closeRecv,                                                            \
                                .close_listen = t->closeListen,                                                        \
                                .table = t};                                                                           \
        return t->name && t->init && t->getProperties && t->listen && t->connect && t->isend && t->irecv;              \
    }
static bool take(struct psm_net *net, int version, const void *table)
{
    switch (version) {
        TAKE(8)
        TAKE(9)
        TAKE(10)
        TAKE(11)
        TAKE(12)
    default:
        return false;
    }
}

/* Before v9 a plugin does not report its largest message. */
#define PROPERTIES(v, largest)                                                                                         \
    case v: {                                                                                                          \
        ncclNetProperties_v##v##_t p = {0};                                                                            \
        ncclResult_t result = TABLE(net, v)->getProperties(dev, &p);                                                   \
        *device = (struct psm_net_device){                                                                             \
            .types = p.ptrSupport, .most = (largest), .unpacks = p.netDeviceType != NCCL_NET_DEVICE_HOST};             \
        snprintf(device->name, sizeof device->name, "%s", p.name ? p.name : "");                                       \
        return result;                                                                                                 \
    }
ncclResult_t psm_net_properties(const struct psm_net *net, int dev, struct psm_net_device *device)
{
    switch (net->version) {
        PROPERTIES(8, MAX_NET_SIZE)
        PROPERTIES(9, p.maxP2pBytes)
        PROPERTIES(10, p.maxP2pBytes)
        PROPERTIES(11, p.maxP2pBytes)
        PROPERTIES(12, p.maxP2pBytes)
    default:
        return ncclInternalError;
    }
}

ncclResult_t psm_net_listen(const struct psm_net *net, int dev, void *handle, void **listener)
{
    switch (net->version) {
    case 8:
        return TABLE(net, 8)->listen(dev, handle, listener);
    case 9:
        return TABLE(net, 9)->listen(dev, handle, listener);
    case 10:
        return TABLE(net, 10)->listen(dev, handle, listener);
    case 11:
        return TABLE(net, 11)->listen(net->context, dev, handle, listener);
    default:
        return TABLE(net, 12)->listen(net->context, dev, handle, listener);
    }
}

ncclResult_t psm_net_connect(const struct psm_net *net, int dev, void *handle, void **comm)
{
    ncclNetDeviceHandle_v12_t *device = NULL; /* for networks that unpack on the GPU, which are rejected */
    ncclNetCommConfig_v10_t config = {.trafficClass = NCCL_NET_TRAFFIC_CLASS_UNDEF};
    switch (net->version) {
    case 8:
        return TABLE(net, 8)->connect(dev, handle, comm, &device);
    case 9:
        return TABLE(net, 9)->connect(dev, handle, comm, &device);
    case 10:
        return TABLE(net, 10)->connect(dev, &config, handle, comm, &device);
    case 11:
        return TABLE(net, 11)->connect(net->context, dev, handle, comm, &device);
    default:
        return TABLE(net, 12)->connect(net->context, dev, handle, comm, &device);
    }
}

ncclResult_t psm_net_isend(const struct psm_net *net, void *comm, void *data, size_t size, int tag, void *registration,
                           void **request)
{
    *request = NULL;
    switch (net->version) {
    case 8:
        return TABLE(net, 8)->isend(comm, data, (int)size, tag, registration, request);
    case 9:
        return TABLE(net, 9)->isend(comm, data, size, tag, registration, request);
    case 10:
        return TABLE(net, 10)->isend(comm, data, size, tag, registration, NULL, request);
    case 11:
        return TABLE(net, 11)->isend(comm, data, size, tag, registration, NULL, request);
    default:
        return TABLE(net, 12)->isend(comm, data, size, tag, registration, NULL, request);
    }
}

ncclResult_t psm_net_irecv(const struct psm_net *net, void *comm, void *data, size_t size, int tag, void *registration,
                           void **request)
{
    int small = (int)size;
    void *profiles = NULL; /* of the only receive */
    *request = NULL;
    switch (net->version) {
    case 8:
        return TABLE(net, 8)->irecv(comm, 1, &data, &small, &tag, &registration, request);
    case 9:
        return TABLE(net, 9)->irecv(comm, 1, &data, &size, &tag, &registration, request);
    case 10:
        return TABLE(net, 10)->irecv(comm, 1, &data, &size, &tag, &registration, &profiles, request);
    case 11:
        return TABLE(net, 11)->irecv(comm, 1, &data, &size, &tag, &registration, &profiles, request);
    default:
        return TABLE(net, 12)->irecv(comm, 1, &data, &size, &tag, &registration, &profiles, request);
    }
}

/* ---- errors ---- */

psm_status psm_net_fail(const struct psm_net *net, ncclResult_t result, const char *call, const char *stage, int rank,
                        int peer)
{
    static const char *const names[] = {PSM_ABI_RESULT_NAMES};
    psm_status status = PSM_ERR_SYSTEM;
    const char *name = (unsigned)result < sizeof names / sizeof *names ? names[result] : "unknown result";
    const char *hint = "see its log";
    switch (result) {
    case ncclRemoteError:
        status = PSM_ERR_PEER_DEAD;
        hint = "the peer died or freed its end, or the network to it failed";
        break;
    case ncclInvalidUsage:
        status = PSM_ERR_PROTOCOL;
        break;
    case ncclTimeout:
        status = PSM_ERR_TIMEOUT;
        break;
    default:
        break;
    }
    if (peer < 0)
        return psm_fail(status, stage, rank, peer, 0, "%s of network %.40s (v%d) returned %s (%d): %s", call, net->name,
                        net->version, name, (int)result, hint);
    return psm_fail(status, stage, rank, peer, 0, "%s with rank %d over network %.40s (v%d) returned %s (%d): %s", call,
                    peer, net->name, net->version, name, (int)result, hint);
}

/* The plugin's messages go to this process's log, with the same filter as its other lines. */
static void __attribute__((format(printf, 5, 6))) say(ncclDebugLogLevel level, unsigned long flags, const char *file,
                                                      int line, const char *format, ...)
{
    enum psm_level mine = level <= NCCL_LOG_WARN    ? PSM_LEVEL_WARN
                          : level == NCCL_LOG_TRACE ? PSM_LEVEL_TRACE
                                                    : PSM_LEVEL_INFO;
    char text[1024];
    (void)file;
    (void)line;
    if (level == NCCL_LOG_NONE || !psm_log_on(mine, flags == (unsigned long)NCCL_ALL ? PSM_SUB_ALL : (uint32_t)flags))
        return;
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (n > 0) psm_log_write(mine, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

/* ---- finding it ---- */

/* A path, or NCCL's name: `psm` is libnccl-net-psm.so, next to this library or on the linker's search path. */
static void *load(char *path, size_t size)
{
    const char *wanted = getenv("PSM_NET_PLUGIN");
    if (!wanted || !*wanted) wanted = "psm";
    void *library = NULL;
    char why[200] = "";
    if (strchr(wanted, '/')) {
        snprintf(path, size, "%s", wanted);
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    } else {
        Dl_info here = {0};
        bool known = dladdr((const void *)psm_net_put, &here) && here.dli_fname && strrchr(here.dli_fname, '/');
        int folder = known ? (int)(strrchr(here.dli_fname, '/') - here.dli_fname) : 0;
        if (known) snprintf(path, size, "%.*s/libnccl-net-%s.so", folder, here.dli_fname, wanted);
        if (known && access(path, F_OK) == 0) {
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        } else {
            snprintf(path, size, "libnccl-net-%s.so", wanted);
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        }
    }
    if (library) return library;
    snprintf(why, sizeof why, "%s", dlerror());
    psm_fail(PSM_ERR_NOT_FOUND, "net", -1, -1, 0,
             "no network: PSM_NET_PLUGIN is \"%.60s\"; expected a path or the NAME of a libnccl-net-NAME.so: %.120s",
             wanted, why);
    return NULL;
}

static psm_status find(int *version, const void **table)
{
    /* Never closed: a plugin may have threads. */
    static void *library;
    static char path[512];
    if (given_table) {
        *version = given_version;
        *table = given_table;
        return PSM_OK;
    }
    if (!library && !(library = load(path, sizeof path))) return PSM_ERR_NOT_FOUND;
    const char *only = getenv("PSM_NET_ABI");
    for (int v = NEWEST; v >= OLDEST; v--) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", v);
        if (only && *only && atoi(only) != v) continue;
        *version = v;
        if ((*table = dlsym(library, symbol))) return PSM_OK;
    }
    return psm_fail(PSM_ERR_UNSUPPORTED, "net", -1, -1, 0,
                    "%.120s has no table ncclNetPlugin_v%d to v%d%s%.20s: run `psmkit plugin check` to see what it has",
                    path, OLDEST, NEWEST, only && *only ? ", and PSM_NET_ABI selects v" : "", only ? only : "");
}

static psm_status open_it(struct psm_net *net)
{
    int version = 0, devices = 0;
    const void *table = NULL;
    struct psm_fault fault;
    PSM_TRY(psm_fault_before(&site_open, NULL, "net", &fault));
    PSM_TRY(find(&version, &table));
    if (!take(net, version, table))
        return psm_fail(
            PSM_ERR_UNSUPPORTED, "net", -1, -1, 0,
            "the net table v%d has no name, or a required function is NULL: run `psmkit plugin check` to see which",
            version);
    if (initialised != table || version > 10) {
        ncclResult_t result = initialise(net, say);
        if (result != ncclSuccess) return psm_net_fail(net, result, "init", "net", -1, -1);
        initialised = table;
    }
    ncclResult_t result = net->devices(&devices);
    if (result == ncclSuccess && devices > 0) {
        psm_msg_libpsm_net_opened(net->name, version, devices);
        psm_fault_act_after(&fault);
        return PSM_OK;
    }
    psm_status status = result != ncclSuccess
                            ? psm_net_fail(net, result, "devices", "net", -1, -1)
                            : psm_fail(PSM_ERR_UNSUPPORTED, "net", -1, -1, 0, "network %.40s has no device", net->name);
    finalise(net);
    return status;
}

psm_status psm_net_get(const struct psm_net **net)
{
    psm_status status = PSM_OK;
    pthread_mutex_lock(&lock);
    if (users == 0) status = open_it(&current);
    if (status == PSM_OK) {
        users++;
        *net = &current;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void psm_net_put(const struct psm_net *net)
{
    if (!net) return;
    pthread_mutex_lock(&lock);
    if (--users == 0) finalise(&current);
    pthread_mutex_unlock(&lock);
}

psm_status psmNetUse(int version, const void *table)
{
    struct psm_net seen;
    if (table && !take(&seen, version, table))
        return psm_fail(PSM_ERR_INVALID, "net", -1, -1, 0,
                        "psmNetUse: v%d is not in v%d to v%d, or the table has no name or lacks a function", version,
                        OLDEST, NEWEST);
    psm_status status = PSM_OK;
    pthread_mutex_lock(&lock);
    if (users > 0)
        status = psm_fail(PSM_ERR_INVALID, "net", -1, -1, 0,
                          "psmNetUse: %zu connections use network %.40s: free them first", users, current.name);
    if (status == PSM_OK) {
        given_version = version;
        given_table = table;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

psm_status psmNetName(char *name, size_t size, int *version)
{
    const struct psm_net *net;
    if (!name || size == 0 || !version)
        return psm_fail(PSM_ERR_INVALID, "net", -1, -1, 0, "psmNetName: an argument is NULL");
    PSM_TRY(psm_net_get(&net));
    snprintf(name, size, "%s", net->name);
    *version = net->version;
    psm_net_put(net);
    return PSM_OK;
}
