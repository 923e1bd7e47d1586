/* The backend that passes every call on to another net plugin: PSM_NET=chain:/path/to/other.so. Faults, the record, the
 * log and the profiler's events are the front's; the bytes, the devices and the memory are the other plugin's. */
#define _GNU_SOURCE
#include "chain/chain.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net_say.h"

struct chain_comm {
    struct net_comm net;
    void *inner; /* NULL: a fault has closed it */
};

struct chain_listener {
    struct net_listener net;
    void *inner;
    uint64_t id;
    uint32_t accepted;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool initialized; /* before v11 the other plugin has one init per process */

ncclResult_t chain_failed(const char *call, ncclResult_t result)
{
    NET_SAY(PSM_NET_CHAIN_FAILED, psm_net_chain_failed, NCCL_NET, call, chain.name, chain.version, (int)result);
    return result;
}

static ncclResult_t refused(const char *call, const char *what)
{
    NET_SAY(PSM_NET_MISUSE, psm_net_misuse, NCCL_NET, call, what);
    return ncclInvalidUsage;
}

/* ---- init ---- */

static const char *path(void)
{
    return net_settings.backend + strlen("chain:");
}

static ncclResult_t init(void)
{
    return chain_load(path());
}

static void fini(void)
{
    initialized = false;
    chain_unload();
}

static int devices(void)
{
    int n = 0;
    ncclResult_t result = chain.devices_v4(&n);
    if (result != ncclSuccess) chain_failed("devices", result);
    return result == ncclSuccess ? n : 0;
}

static void introduce(void)
{
    char text[600];
    int n = snprintf(text, sizeof text, "%s v%d of %s, %d devices:", chain.name, chain.version, path(), devices());
    for (int dev = 0; dev < devices() && n < (int)sizeof text; dev++) {
        ncclNetProperties_v12_t props = {0};
        bool known = chain_properties(dev, &props) == ncclSuccess && props.name;
        n += snprintf(text + n, sizeof text - (size_t)n, " [%d]%s", dev, known ? props.name : "?");
    }
    NET_SAY(PSM_NET_USING, psm_net_using, NCCL_INIT | NCCL_NET, "chain", text);
}

static ncclResult_t enter(struct net_context *context, ncclDebugLogger_t logger, ncclProfilerCallback_t profiler)
{
    ncclResult_t result = ncclSuccess;
    bool first = !initialized;
    if (chain.init_v11) {
        ncclNetCommConfig_v11_t config = {context->traffic_class};
        result = chain.init_v11(&context->inner, context->comm_id, &config, logger, profiler);
    } else if (first) {
        result = chain.init_v10 ? chain.init_v10(logger, profiler) : chain.init_v4(logger);
    }
    if (result != ncclSuccess) return chain_failed("init", result);
    if (first && (result = chain_filled(path())) != ncclSuccess) return result;
    initialized = true;
    if (first) introduce();
    return ncclSuccess;
}

static ncclResult_t leave(struct net_context *context)
{
    ncclResult_t result = chain.finalize_v11 ? chain.finalize_v11(context->inner) : ncclSuccess;
    return result == ncclSuccess ? result : chain_failed("finalize", result);
}

static void properties(int dev, ncclNetProperties_v12_t *props)
{
    if (chain_properties(dev, props) != ncclSuccess) return;
    int most = net_settings.max_recvs ? (int)net_settings.max_recvs : NET_RECVS;
    if (props->maxRecvs > most) props->maxRecvs = most;
    if (net_settings.speed) props->speed = (int)net_settings.speed;
}

static ncclResult_t make_device(int *dev, const ncclNetVDeviceProps_v12_t *props)
{
    ncclResult_t result;
    if (chain.makeVDevice_v12) {
        ncclNetVDeviceProps_v12_t wide = *props;
        result = chain.makeVDevice_v12(dev, &wide);
    } else if (chain.makeVDevice_v9) {
        ncclNetVDeviceProps_v9_t narrow = {.ndevs = props->ndevs};
        if (props->ndevs > NCCL_NET_MAX_DEVS_PER_NIC_V9)
            return refused("makeVDevice", "the chained plugin merges four devices at most");
        memcpy(narrow.devs, props->devs, sizeof narrow.devs);
        result = chain.makeVDevice_v9(dev, &narrow);
    } else {
        return ncclInProgress; /* it has none: use ours */
    }
    return result == ncclSuccess ? result : chain_failed("makeVDevice", result);
}

static ncclResult_t attributes(struct net_context *context, const ncclNetAttr_v12_t *given)
{
    ncclNetAttr_v11_t copy;
    if (!chain.setNetAttr_v11) return ncclSuccess;
    memcpy(&copy, given, sizeof copy);
    ncclResult_t result = chain.setNetAttr_v11(context->inner, &copy);
    return result == ncclSuccess ? result : chain_failed("setNetAttr", result);
}

/* ---- connections ---- */

/* Both ends have the handle, and nothing else in common: its first bytes identify the connection. */
static uint64_t name_of(const void *handle)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (const unsigned char *p = handle; p < (const unsigned char *)handle + NET_HANDLE; p++)
        hash = (hash ^ *p) * 0x100000001b3u;
    return hash;
}

/* A plugin may keep its state in the handle while it connects: this is a copy of it before the first call. */
static struct attempt {
    struct attempt *next;
    const void *handle;
    uint64_t id, now; /* now: the handle after the last call */
} *attempts;

static struct attempt **attempt_of(const void *handle)
{
    struct attempt **at = &attempts;
    while (*at && (*at)->handle != handle) at = &(*at)->next;
    return at;
}

static uint64_t attempt_begin(const void *handle)
{
    uint64_t id = name_of(handle);
    pthread_mutex_lock(&lock);
    const struct attempt *a = *attempt_of(handle);
    if (a && a->now == id) id = a->id;
    pthread_mutex_unlock(&lock);
    return id;
}

static void attempt_end(const void *handle, uint64_t id, bool again)
{
    pthread_mutex_lock(&lock);
    struct attempt **at = attempt_of(handle), *a = *at;
    if (again) {
        if (!a && (a = calloc(1, sizeof *a))) {
            a->next = attempts;
            attempts = a;
        }
        if (a) a->handle = handle, a->id = id, a->now = name_of(handle);
    } else if (a) {
        *at = a->next;
        free(a);
    }
    pthread_mutex_unlock(&lock);
}

static ncclResult_t listen_chain(const struct net_context *context, int dev, void *handle, struct net_listener **out)
{
    struct chain_listener *l = calloc(1, sizeof *l);
    if (!l) return net_no_memory("a listener", sizeof *l);
    ncclResult_t result = chain.listen_v11 ? chain.listen_v11(context->inner, dev, handle, &l->inner)
                                           : chain.listen_v4(dev, handle, &l->inner);
    if (result != ncclSuccess) {
        free(l);
        return chain_failed("listen", result);
    }
    l->id = name_of(handle);
    *out = &l->net;
    return ncclSuccess;
}

static void close_listen(struct net_listener *listener)
{
    struct chain_listener *l = (struct chain_listener *)listener;
    ncclResult_t result = chain.closeListen_v4(l->inner);
    if (result != ncclSuccess) chain_failed("closeListen", result);
    free(l);
}

static ncclResult_t close_inner(bool sends, void *inner)
{
    ncclResult_t result = sends ? chain.closeSend_v4(inner) : chain.closeRecv_v4(inner);
    return result == ncclSuccess ? result : chain_failed(sends ? "closeSend" : "closeRecv", result);
}

static ncclResult_t connected(bool sends, int dev, void *inner, uint64_t id, struct net_comm **out)
{
    ncclNetProperties_v12_t props = {.maxRecvs = 1};
    properties(dev, &props);
    struct chain_comm *c = net_comm_new(sizeof *c, &net_chain, sends, dev, props.maxRecvs < 1 ? 1 : props.maxRecvs);
    if (!c) {
        close_inner(sends, inner);
        return net_no_memory("a connection", sizeof *c);
    }
    c->inner = inner;
    c->net.id = id;
    c->net.any_registration = props.regIsGlobal != 0;
    snprintf(c->net.address, sizeof c->net.address, "unknown");
    NET_SAY(PSM_NET_CONNECTED, psm_net_connected, NCCL_NET, "chain", id, sends ? "send" : "recv", c->net.rank, dev,
            c->net.peer_rank, c->net.address, 1, chain.name);
    *out = &c->net;
    return ncclSuccess;
}

static ncclResult_t connect_chain(const struct net_context *context, int dev, void *handle, struct net_comm **out)
{
    void *inner = NULL;
    ncclNetDeviceHandle_v7_t *own = NULL, **device = &own;
    ncclNetCommConfig_v10_t config = {context->traffic_class};
    ncclResult_t result;
    uint64_t id = attempt_begin(handle);
    if (context->device) device = (ncclNetDeviceHandle_v7_t **)context->device;
    if (chain.connect_v11)
        result = chain.connect_v11(context->inner, dev, handle, &inner, device);
    else if (chain.connect_v10)
        result = chain.connect_v10(dev, &config, handle, &inner, device);
    else if (chain.connect_v7)
        result = chain.connect_v7(dev, handle, &inner, device);
    else
        result = chain.connect_v4(dev, handle, &inner);
    attempt_end(handle, id, result == ncclSuccess && !inner);
    if (result != ncclSuccess) return chain_failed("connect", result);
    return inner ? connected(true, dev, inner, id, out) : ncclSuccess;
}

static ncclResult_t accept_chain(struct net_listener *listener, struct net_comm **out)
{
    struct chain_listener *l = (struct chain_listener *)listener;
    void *inner = NULL;
    ncclNetDeviceHandle_v7_t *own = NULL, **device = &own;
    if (l->net.device) device = (ncclNetDeviceHandle_v7_t **)l->net.device;
    ncclResult_t result =
        chain.accept_v7 ? chain.accept_v7(l->inner, &inner, device) : chain.accept_v4(l->inner, &inner);
    if (result != ncclSuccess) return chain_failed("accept", result);
    if (!inner) return ncclSuccess;
    /* NCCL makes one connection per handle: further ones have numbers of this end only. */
    uint64_t id = l->id + l->accepted++ * 0x9e3779b97f4a7c15u;
    return connected(false, l->net.dev, inner, id, out);
}

static void close_chain(struct net_comm *comm)
{
    struct chain_comm *c = (struct chain_comm *)comm;
    if (c->inner) close_inner(comm->sends, c->inner);
    net_comm_free(comm);
}

/* This end is closed; the other learns of it as for any lost peer. */
static void cut(struct net_comm *comm)
{
    struct chain_comm *c = (struct chain_comm *)comm;
    if (c->inner) close_inner(comm->sends, c->inner);
    c->inner = NULL;
    net_peer_gone(comm, "was lost by a fault");
}

/* ---- memory ---- */

static ncclResult_t reg(struct net_comm *comm, struct net_registration *g, const struct net_dmabuf *dmabuf)
{
    void *inner = ((struct chain_comm *)comm)->inner;
    ncclResult_t result;
    if (!inner) return comm->failed;
    if (dmabuf) {
        if (!chain.regMrDmaBuf_v6) return refused("regMrDmaBuf", "the chained plugin has none");
        result = chain.regMrDmaBuf_v6(inner, g->data, g->size, g->type, dmabuf->offset, dmabuf->fd, &g->inner);
        return result == ncclSuccess ? result : chain_failed("regMrDmaBuf", result);
    }
    if (chain.regMr_v4 && g->size > INT_MAX)
        return refused("regMr", "the chained plugin has a table before v8, which registers less than 2 GiB");
    result = chain.regMr_v4 ? chain.regMr_v4(inner, g->data, (int)g->size, g->type, &g->inner)
                            : chain.regMr_v8(inner, g->data, g->size, g->type, &g->inner);
    return result == ncclSuccess ? result : chain_failed("regMr", result);
}

static ncclResult_t dereg(struct net_comm *comm, struct net_registration *g)
{
    void *inner = ((struct chain_comm *)comm)->inner;
    ncclResult_t result = inner ? chain.deregMr_v4(inner, g->inner) : ncclSuccess;
    return result == ncclSuccess ? result : chain_failed("deregMr", result);
}

static ncclResult_t device_memory(struct net_comm *comm, struct net_registration *g, void **out)
{
    void *inner = ((struct chain_comm *)comm)->inner;
    if (!chain.getDeviceMr_v7 || !inner) return refused("getDeviceMr", "the chained plugin has none");
    ncclResult_t result = chain.getDeviceMr_v7(inner, g ? g->inner : NULL, out);
    return result == ncclSuccess ? result : chain_failed("getDeviceMr", result);
}

/* ---- data ---- */

static void *memory_of(const struct net_part *p)
{
    return p->registration ? p->registration->inner : NULL;
}

static ncclResult_t send_one(void *inner, const struct net_part *p, void **request)
{
    if (chain.isend_v10) return chain.isend_v10(inner, p->data, p->size, p->tag, memory_of(p), p->phandle, request);
    if (chain.isend_v9) return chain.isend_v9(inner, p->data, p->size, p->tag, memory_of(p), request);
    if (p->size > INT_MAX)
        return refused("isend", "the chained plugin has a table before v9: less than 2 GiB per message");
    if (chain.isend_v5) return chain.isend_v5(inner, p->data, (int)p->size, p->tag, memory_of(p), request);
    return chain.isend_v4(inner, p->data, (int)p->size, memory_of(p), request);
}

static ncclResult_t receive(void *inner, const struct net_request *r, void **request)
{
    void *data[NET_RECVS], *mhandles[NET_RECVS], *phandles[NET_RECVS];
    size_t sizes[NET_RECVS];
    int narrow[NET_RECVS], tags[NET_RECVS];
    for (int i = 0; i < r->n; i++) {
        const struct net_part *p = &r->part[i];
        data[i] = p->data, sizes[i] = p->room, tags[i] = p->tag, mhandles[i] = memory_of(p), phandles[i] = p->phandle;
        narrow[i] = p->room > INT_MAX ? INT_MAX : (int)p->room;
    }
    if (r->optional && chain.version >= 9) *request = (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION;
    if (chain.irecv_v10) return chain.irecv_v10(inner, r->n, data, sizes, tags, mhandles, phandles, request);
    if (chain.irecv_v9) return chain.irecv_v9(inner, r->n, data, sizes, tags, mhandles, request);
    if (chain.irecv_v5) return chain.irecv_v5(inner, r->n, data, narrow, tags, mhandles, request);
    return chain.irecv_v4(inner, data[0], narrow[0], mhandles[0], request);
}

static ncclResult_t post(struct net_comm *comm, struct net_request *r, bool *taken)
{
    struct chain_comm *c = (struct chain_comm *)comm;
    void *request = NULL;
    ncclResult_t result = comm->sends ? send_one(c->inner, &r->part[0], &request) : receive(c->inner, r, &request);
    if (result != ncclSuccess) return chain_failed(comm->sends ? "isend" : "irecv", result);
    r->inner = request;
    *taken = request != NULL;
    return ncclSuccess;
}

static ncclResult_t progress(struct net_comm *comm, struct net_request *r)
{
    int sizes[NET_RECVS], done = 0;
    if (!r->inner) return ncclSuccess; /* dropped by a fault */
    for (int i = 0; i < r->n; i++) sizes[i] = (int)r->part[i].room;
    ncclResult_t result = chain.test_v4(r->inner, &done, sizes);
    if (result != ncclSuccess) return chain_failed("test", result);
    if (!done) return ncclSuccess;
    r->left = 0;
    if (!comm->sends)
        for (int i = 0; i < r->n; i++) r->part[i].size = (size_t)sizes[i];
    return ncclSuccess;
}

static ncclResult_t flush(struct net_comm *comm, struct net_request *r, int n, void **data, int *sizes,
                          struct net_registration **registrations)
{
    struct chain_comm *c = (struct chain_comm *)comm;
    void *mhandles[NET_RECVS], *request = NULL;
    if (!c->inner) return comm->failed;
    if (n < 1 || n > NET_RECVS) return refused("iflush", "too many buffers for one receive: see maxRecvs");
    for (int i = 0; i < n; i++) mhandles[i] = registrations && registrations[i] ? registrations[i]->inner : NULL;
    ncclResult_t result = ncclSuccess;
    if (chain.iflush_v5)
        result = chain.iflush_v5(c->inner, n, data, sizes, mhandles, &request);
    else if (chain.iflush_v4)
        result = chain.iflush_v4(c->inner, data[0], sizes[0], mhandles[0], &request);
    if (result != ncclSuccess) return chain_failed("iflush", result);
    r->inner = request;
    r->left = request != NULL;
    return ncclSuccess;
}

static ncclResult_t consumed(struct net_comm *comm, int n, struct net_request *r)
{
    struct chain_comm *c = (struct chain_comm *)comm;
    if (!chain.irecvConsumed_v7 || !c->inner) return ncclSuccess;
    ncclResult_t result = chain.irecvConsumed_v7(c->inner, n, r->inner);
    return result == ncclSuccess ? result : chain_failed("irecvConsumed", result);
}

const struct net_backend net_chain = {
    .name = "chain",
    .init = init,
    .fini = fini,
    .devices = devices,
    .properties = properties,
    .listen = listen_chain,
    .close_listen = close_listen,
    .connect = connect_chain,
    .accept = accept_chain,
    .post = post,
    .progress = progress,
    .cut = cut,
    .close = close_chain,
    .enter = enter,
    .leave = leave,
    .make_device = make_device,
    .reg = reg,
    .dereg = dereg,
    .flush = flush,
    .device_memory = device_memory,
    .consumed = consumed,
    .attributes = attributes,
};
