/* Finds the other plugin's table and converts all versions to one interface. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "chain/chain.h"
#include "say.h"

struct chain_table chain;

/* Records of v9 to v12 differ only in names and in the room for devices. */
_Static_assert(sizeof(ncclNetCommConfig_v11_t) == sizeof(ncclNetCommConfig_v12_t), "one shape of init");
_Static_assert(sizeof(ncclNetAttr_v11_t) == sizeof(ncclNetAttr_v12_t), "one shape of setNetAttr");
_Static_assert(sizeof(ncclNetVDeviceProps_v9_t) == sizeof(ncclNetVDeviceProps_v11_t), "one shape of makeVDevice");

/* ---- slots ---- */

/* Slots with the same signature in all tables. */
#define SLOTS_V4                                                                                                       \
    chain.name = t->name;                                                                                              \
    chain.devices = t->devices;                                                                                        \
    chain.dereg = t->deregMr;                                                                                          \
    chain.test = t->test;                                                                                              \
    chain.close_send = t->closeSend;                                                                                   \
    chain.close_recv = t->closeRecv;                                                                                   \
    chain.close_listen = t->closeListen;
#define SLOTS_V7                                                                                                       \
    SLOTS_V4                                                                                                           \
    chain.accept_v7 = t->accept;                                                                                       \
    chain.iflush_v5 = t->iflush;                                                                                       \
    chain.reg_dmabuf = t->regMrDmaBuf;                                                                                 \
    chain.device_memory = t->getDeviceMr;                                                                              \
    chain.consumed = t->irecvConsumed;
#define SLOTS_V10                                                                                                      \
    SLOTS_V7                                                                                                           \
    chain.reg_v8 = t->regMr;                                                                                           \
    chain.isend_v10 = t->isend;                                                                                        \
    chain.irecv_v10 = t->irecv;
#define SLOTS_V11                                                                                                      \
    SLOTS_V10                                                                                                          \
    chain.finalize = t->finalize;                                                                                      \
    chain.listen_v11 = t->listen;                                                                                      \
    chain.connect_v11 = t->connect;
#define EARLY                                                                                                          \
    chain.init_v4 = t->init;                                                                                           \
    chain.listen_v4 = t->listen;

static void take_v4(const ncclNet_v4_t *t)
{
    SLOTS_V4
    EARLY
    chain.connect_v4 = t->connect;
    chain.accept_v4 = t->accept;
    chain.reg_v4 = t->regMr;
    chain.isend_v4 = t->isend;
    chain.irecv_v4 = t->irecv;
    chain.iflush_v4 = t->iflush;
}

static void take_v5(const ncclNet_v5_t *t)
{
    SLOTS_V4
    EARLY
    chain.connect_v4 = t->connect;
    chain.accept_v4 = t->accept;
    chain.reg_v4 = t->regMr;
    chain.isend_v5 = t->isend;
    chain.irecv_v5 = t->irecv;
    chain.iflush_v5 = t->iflush;
}

static void take_v6(const ncclNet_v6_t *t)
{
    SLOTS_V4
    EARLY
    chain.connect_v4 = t->connect;
    chain.accept_v4 = t->accept;
    chain.reg_v4 = t->regMr;
    chain.reg_dmabuf = t->regMrDmaBuf;
    chain.isend_v5 = t->isend;
    chain.irecv_v5 = t->irecv;
    chain.iflush_v5 = t->iflush;
}

static void take_v7(const ncclNet_v7_t *t)
{
    SLOTS_V7
    EARLY
    chain.connect_v7 = t->connect;
    chain.reg_v4 = t->regMr;
    chain.isend_v5 = t->isend;
    chain.irecv_v5 = t->irecv;
}

static void take_v8(const ncclNet_v8_t *t)
{
    SLOTS_V7
    EARLY
    chain.connect_v7 = t->connect;
    chain.reg_v8 = t->regMr;
    chain.isend_v5 = t->isend;
    chain.irecv_v5 = t->irecv;
}

static void take_v9(const ncclNet_v9_t *t)
{
    SLOTS_V7
    EARLY
    chain.connect_v7 = t->connect;
    chain.reg_v8 = t->regMr;
    chain.isend_v9 = t->isend;
    chain.irecv_v9 = t->irecv;
    chain.make_device_v9 = t->makeVDevice;
}

static void take_v10(const ncclNet_v10_t *t)
{
    SLOTS_V10
    chain.init_v10 = t->init;
    chain.listen_v4 = t->listen;
    chain.connect_v10 = t->connect;
    chain.make_device_v9 = (ncclResult_t (*)(int *, ncclNetVDeviceProps_v9_t *))t->makeVDevice;
}

static void take_v11(const ncclNet_v11_t *t)
{
    SLOTS_V11
    chain.init_v11 = t->init;
    chain.make_device_v9 = (ncclResult_t (*)(int *, ncclNetVDeviceProps_v9_t *))t->makeVDevice;
    chain.attributes = t->setNetAttr;
}

static void take_v12(const ncclNet_v12_t *t)
{
    SLOTS_V11
    chain.init_v11 = (ncclResult_t (*)(void **, uint64_t, ncclNetCommConfig_v11_t *, ncclDebugLogger_t,
                                       ncclProfilerCallback_t))t->init;
    chain.make_device_v12 = t->makeVDevice;
    chain.attributes = (ncclResult_t (*)(void *, ncclNetAttr_v11_t *))t->setNetAttr;
}

/* The first slot that NCCL calls without a check and that is empty, or NULL. */
static const char *empty_slot(void)
{
    const struct {
        const char *name;
        bool there;
    } slots[] = {
        {"name", chain.name != NULL},
        {"init", chain.init_v4 || chain.init_v10 || chain.init_v11},
        {"devices", chain.devices != NULL},
        {"getProperties", ((void *const *)chain.table)[3] != NULL}, /* after name, init, devices in every version */
        {"listen", chain.listen_v4 || chain.listen_v11},
        {"connect", chain.connect_v4 || chain.connect_v7 || chain.connect_v10 || chain.connect_v11},
        {"accept", chain.accept_v4 || chain.accept_v7},
        {"regMr", chain.reg_v4 || chain.reg_v8},
        {"deregMr", chain.dereg != NULL},
        {"isend", chain.isend_v4 || chain.isend_v5 || chain.isend_v9 || chain.isend_v10},
        {"irecv", chain.irecv_v4 || chain.irecv_v5 || chain.irecv_v9 || chain.irecv_v10},
        {"test", chain.test != NULL},
        {"closeSend", chain.close_send != NULL},
        {"closeRecv", chain.close_recv != NULL},
        {"closeListen", chain.close_listen != NULL},
        {"finalize", chain.version < 11 || chain.finalize},
    };
    for (size_t i = 0; i < sizeof slots / sizeof *slots; i++)
        if (!slots[i].there) return slots[i].name;
    return NULL;
}

/* ---- the library ---- */

static ncclResult_t unusable(const char *path, const char *why)
{
    NET_SAY(PSM_NET_CHAIN_UNUSABLE, psm_net_chain_unusable, NCCL_INIT | NCCL_NET, path, why);
    chain_unload();
    return ncclInvalidUsage;
}

ncclResult_t chain_load(const char *path)
{
    char text[512];
    chain = (struct chain_table){0};
    if (!*path) return unusable(path, "no path: expected PSM_NET=chain:/path/to/libnccl-net-other.so");
    chain.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!chain.library) {
        const char *error = dlerror();
        snprintf(text, sizeof text, "%s", error ? error : "dlopen failed");
        return unusable(path, text);
    }
    for (int version = 12; version >= 4 && !chain.table; version--) {
        char symbol[32];
        snprintf(symbol, sizeof symbol, "ncclNetPlugin_v%d", version);
        chain.table = dlsym(chain.library, symbol);
        chain.version = version;
    }
    if (!chain.table) return unusable(path, "it has no table of a net plugin, ncclNetPlugin_v4 to v12");
    if (chain.table == (const void *)&ncclNetPlugin_v12)
        return unusable(path, "it is this library, which would call itself for ever");
    switch (chain.version) {
    case 12:
        take_v12(chain.table);
        break;
    case 11:
        take_v11(chain.table);
        break;
    case 10:
        take_v10(chain.table);
        break;
    case 9:
        take_v9(chain.table);
        break;
    case 8:
        take_v8(chain.table);
        break;
    case 7:
        take_v7(chain.table);
        break;
    case 6:
        take_v6(chain.table);
        break;
    case 5:
        take_v5(chain.table);
        break;
    default:
        take_v4(chain.table);
    }
    const char *empty = empty_slot();
    if (!empty) return ncclSuccess;
    snprintf(text, sizeof text, "%s is NULL in its ncclNetPlugin_v%d", empty, chain.version);
    return unusable(path, text);
}

void chain_unload(void)
{
    if (chain.library) dlclose(chain.library);
    chain = (struct chain_table){0};
}

/* ---- properties ---- */

#define COMMON_V4                                                                                                      \
    out->name = p.name;                                                                                                \
    out->pciPath = p.pciPath;                                                                                          \
    out->guid = p.guid;                                                                                                \
    out->ptrSupport = p.ptrSupport;                                                                                    \
    out->speed = p.speed;                                                                                              \
    out->port = p.port;                                                                                                \
    out->maxComms = p.maxComms;
#define COMMON_V5                                                                                                      \
    COMMON_V4                                                                                                          \
    out->latency = p.latency;                                                                                          \
    out->maxRecvs = p.maxRecvs;
#define COMMON_V7                                                                                                      \
    COMMON_V5                                                                                                          \
    out->netDeviceType = p.netDeviceType;                                                                              \
    out->netDeviceVersion = p.netDeviceVersion;
#define COMMON_V8                                                                                                      \
    COMMON_V7                                                                                                          \
    out->regIsGlobal = p.regIsGlobal;
#define COMMON_V9                                                                                                      \
    COMMON_V8                                                                                                          \
    out->forceFlush = p.forceFlush;                                                                                    \
    out->vProps.ndevs = p.vProps.ndevs;                                                                                \
    memcpy(out->vProps.devs, p.vProps.devs, sizeof p.vProps.devs);                                                     \
    out->maxP2pBytes = p.maxP2pBytes;                                                                                  \
    out->maxCollBytes = p.maxCollBytes;
#define COMMON_V11                                                                                                     \
    COMMON_V9                                                                                                          \
    out->maxMultiRequestSize = p.maxMultiRequestSize;
#define RECORD(v, members)                                                                                             \
    case v: {                                                                                                          \
        ncclNetProperties_v##v##_t p = {0};                                                                            \
        result = ((const ncclNet_v##v##_t *)chain.table)->getProperties(dev, &p);                                      \
        if (result == ncclSuccess) {                                                                                   \
            members                                                                                                    \
        }                                                                                                              \
        break;                                                                                                         \
    }

ncclResult_t chain_properties(int dev, ncclNetProperties_v12_t *out)
{
    ncclResult_t result = ncclInternalError;
    if (chain.version < 9) {
        /* Sizes are ints there, and NCCL's adapters limit them to these. */
        out->maxP2pBytes = MAX_NET_SIZE;
        out->maxCollBytes = MAX_COLLNET_SIZE;
    }
    switch (chain.version) {
        RECORD(4, COMMON_V4)
        RECORD(5, COMMON_V5)
        RECORD(6, COMMON_V5)
        RECORD(7, COMMON_V7)
        RECORD(8, COMMON_V8)
        RECORD(9, COMMON_V9)
        RECORD(10, COMMON_V9)
        RECORD(11, COMMON_V11)
        RECORD(12, COMMON_V11 out->railId = p.railId; out->planeId = p.planeId;)
    }
    return result == ncclSuccess ? result : chain_failed("getProperties", result);
}
