/* The plugin with the interface of its newest table, over the backend that PSM_NET names. */
#define _GNU_SOURCE
#include "front.h"

#include <stdlib.h>
#include <string.h>

#include "net_faults.h"
#include "net_say.h"

#define CAN_STALL (PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP))
/* Of a connection that is being established. */
#define CAN_BREAK (PSM_FAULT_CAN(PSM_FAULT_CLOSE) | PSM_FAULT_CAN(PSM_FAULT_STALL))
PSM_FAULT_SITE(site_listen, "net.listen", "The net plugin listens.");
PSM_FAULT_SITE_OF(site_connect, "net.connect", "A call of connect; drop: it is not established.", CAN_STALL);
PSM_FAULT_SITE_OF(site_accept, "net.accept", "A call of accept; drop: nobody connects.", CAN_STALL);
PSM_FAULT_SITE_OF(site_isend, "net.isend", "A message is posted; drop: it is lost, short: the peer gets less.",
                  PSM_FAULT_CAN_ALL | CAN_BREAK);
PSM_FAULT_SITE_OF(site_irecv, "net.irecv", "A receive is posted; drop: it never ends.", CAN_STALL | CAN_BREAK);
PSM_FAULT_SITE_OF(site_test, "net.test", "A call of test; drop: not done yet, and nothing moves.",
                  CAN_STALL | CAN_BREAK);
PSM_FAULT_SITE_OF(site_connection, "net.connection",
                  "Each isend and irecv; drop, close: the connection is lost, as if a network or the peer had died.",
                  PSM_FAULT_CAN(PSM_FAULT_DROP) | CAN_BREAK);

static const struct net_backend *const backends[] = {&net_socket, &net_shm, &net_chain};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const struct net_backend *backend; /* while there are contexts */
static unsigned contexts;
static struct net_context process_context = {.traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF};
static bool process_is_in;
static unsigned communicators; /* number of contexts so far */
static _Atomic(ncclProfilerCallback_t) profiler;

/* ---- init ---- */

static ncclResult_t choose(void)
{
    ncclResult_t result = net_settings_read();
    if (result != ncclSuccess) return result;
    psm_proc_refresh_rank();
    psm_fault_set_resolver(net_fault_number);
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++) {
        size_t n = strlen(backends[i]->name);
        /* The text after a colon belongs to the backend: chain:/path. */
        if (strncmp(net_settings.backend, backends[i]->name, n) != 0) continue;
        if (net_settings.backend[n] != (backends[i] == &net_chain ? ':' : 0)) continue;
        result = backends[i]->init();
        if (result == ncclSuccess) backend = backends[i];
        return result;
    }
    NET_SAY(PSM_NET_SETTING_WRONG, psm_net_setting_wrong, NCCL_NET, "PSM_NET", net_settings.backend,
            "expected socket, shm or chain:/path/to/a/net/plugin.so");
    return ncclInvalidUsage;
}

static void leave_backend(void)
{
    net_merged_forget();
    backend->fini();
    backend = NULL;
}

static ncclResult_t enter(struct net_context *context, ncclDebugLogger_t logger, ncclProfilerCallback_t callback)
{
    if (logger) net_say_set(logger);
    ncclResult_t result = contexts == 0 ? choose() : ncclSuccess;
    if (result != ncclSuccess) return result;
    if (backend->enter && (result = backend->enter(context, logger, callback)) != ncclSuccess) {
        if (contexts == 0) leave_backend();
        return result;
    }
    contexts++;
    if (callback) atomic_store(&profiler, callback);
    return ncclSuccess;
}

static ncclResult_t leave(struct net_context *context)
{
    pthread_mutex_lock(&lock);
    ncclResult_t result = backend->leave ? backend->leave(context) : ncclSuccess;
    free(context);
    if (--contexts == 0) {
        leave_backend();
        /* NCCL may unload the profiler and itself from here on. */
        atomic_store(&profiler, NULL);
        net_say_set(NULL);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

ncclResult_t net_init(void **context, uint64_t comm_id, int traffic_class, ncclDebugLogger_t logger,
                      ncclProfilerCallback_t callback)
{
    struct net_context *made = malloc(sizeof *made);
    if (!made) return net_no_memory("a context", sizeof *made);
    *made = (struct net_context){.comm_id = comm_id, .traffic_class = traffic_class};
    pthread_mutex_lock(&lock);
    ncclResult_t result = enter(made, logger, callback);
    if (result == ncclSuccess) made->number = ++communicators;
    pthread_mutex_unlock(&lock);
    if (result == ncclSuccess && !net_give(made, 1, 0, NET_GIVEN_CONTEXT)) {
        leave(made);
        return net_no_memory("a context", sizeof *made);
    }
    if (result != ncclSuccess)
        free(made);
    else
        *context = made;
    return result;
}

/* Up to v10 finalize does not exist; another init changes nothing. */
ncclResult_t net_init_process(ncclDebugLogger_t logger, ncclProfilerCallback_t callback)
{
    pthread_mutex_lock(&lock);
    ncclResult_t result = process_is_in ? ncclSuccess : enter(&process_context, logger, callback);
    if (result == ncclSuccess) process_is_in = true;
    process_context.number = 1;
    pthread_mutex_unlock(&lock);
    return result;
}

ncclResult_t net_finalize(void *opaque)
{
    if (!net_is_given(opaque, NET_GIVEN_CONTEXT)) return net_misuse("finalize", "this is not a context of init");
    net_take_back(opaque, 1, 0, NET_GIVEN_CONTEXT);
    return leave(opaque);
}

ncclResult_t net_devices(int *ndev)
{
    if (!backend) return net_misuse("devices", "init was not called, or failed");
    *ndev = backend->devices() + net_merged_count();
    return ncclSuccess;
}

const struct net_backend *net_physical(void)
{
    return backend;
}

static const struct net_backend *backend_of(int dev)
{
    return net_merged_count() && dev >= backend->devices() ? &net_merged : backend;
}

int net_physical_devices(void)
{
    return backend ? backend->devices() : 0;
}

static ncclResult_t check_device(const char *call, int dev)
{
    if (!backend) return net_misuse(call, "init was not called, or failed");
    if (dev < 0 || dev >= backend->devices() + net_merged_count())
        return net_misuse(call, "there is no device with this number");
    return ncclSuccess;
}

ncclResult_t net_properties(int dev, ncclNetProperties_v12_t *props)
{
    ncclResult_t result = check_device("getProperties", dev);
    if (result != ncclSuccess) return result;
    /* Properties for host memory and every backend. */
    *props = (ncclNetProperties_v12_t){
        .guid = (uint64_t)dev,
        .ptrSupport = NCCL_PTR_HOST,
        .maxComms = 65536,
        .maxRecvs = 1,
        .netDeviceType = NCCL_NET_DEVICE_HOST,
        .netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION,
        .vProps = {1, {dev}},
        .maxP2pBytes = NCCL_MAX_NET_SIZE_BYTES,
        .maxCollBytes = NCCL_MAX_NET_SIZE_BYTES,
        .maxMultiRequestSize = 1,
        .railId = NCCL_NET_ID_UNDEF,
        .planeId = NCCL_NET_ID_UNDEF,
    };
    backend_of(dev)->properties(dev, props);
    return ncclSuccess;
}

/* A chained plugin that merges devices does it itself. */
ncclResult_t net_make_device(int *dev, const ncclNetVDeviceProps_v12_t *props)
{
    if (!backend) return net_misuse("makeVDevice", "init was not called, or failed");
    ncclResult_t result = backend->make_device ? backend->make_device(dev, props) : ncclInProgress;
    return result == ncclInProgress ? net_merged_make(dev, props) : result;
}

/* ---- connections ---- */

static const struct net_context *context_of(void *opaque)
{
    if (!opaque) return &process_context;
    return net_is_given(opaque, NET_GIVEN_CONTEXT) ? opaque : NULL;
}

ncclResult_t net_listen(void *opaque, int dev, void *handle, void **out)
{
    const struct net_context *context = context_of(opaque);
    ncclResult_t result = check_device("listen", dev);
    if (result != ncclSuccess) return result;
    if (!context) return net_misuse("listen", "the context is not from init");
    struct psm_fault fault;
    if ((result = net_fault_before(&site_listen, NULL, &fault)) != ncclSuccess) return result;
    memset(handle, 0, NET_HANDLE);
    struct net_listener *listener = NULL;
    /* Clear the remains of another handle in NCCL's memory. */
    if (net_merged_count()) net_merged_unmark(handle);
    result = backend_of(dev)->listen(context, dev, handle, &listener);
    if (result != ncclSuccess) return result;
    listener->backend = backend_of(dev);
    listener->dev = dev;
    listener->number = context->number;
    listener->one_sided = context->one_sided;
    if (!net_give(listener, 1, 0, NET_GIVEN_LISTENER)) {
        listener->backend->close_listen(listener);
        return net_no_memory("a listener", sizeof *listener);
    }
    *out = listener;
    net_fault_after(&fault);
    return ncclSuccess;
}

static ncclResult_t established(struct net_comm *c, uint32_t number, bool one_sided, void **out)
{
    c->number = number;
    c->one_sided = one_sided;
    bool given = net_give(c, 1, 0, NET_GIVEN_COMM);
    if (!given || !net_give(c->request, c->capacity, sizeof *c->request, NET_GIVEN_REQUEST)) {
        if (given) net_take_back(c, 1, 0, NET_GIVEN_COMM);
        c->backend->close(c);
        return net_no_memory("a connection", sizeof *c);
    }
    if (!one_sided) net_record_comm(c);
    *out = c;
    return ncclSuccess;
}

ncclResult_t net_connect(void *opaque, int dev, int traffic_class, void *handle, void **out, void **device)
{
    *out = NULL;
    const struct net_context *context = context_of(opaque);
    ncclResult_t result = check_device("connect", dev);
    if (result != ncclSuccess) return result;
    if (!context) return net_misuse("connect", "the context is not from init");
    struct psm_fault fault;
    if ((result = net_fault_before(&site_connect, NULL, &fault)) != ncclSuccess) return result;
    if (fault.action == PSM_FAULT_DROP) return ncclSuccess;
    /* Up to v10 the traffic class is passed with each connection. */
    struct net_context own = *context;
    if (traffic_class != NCCL_NET_TRAFFIC_CLASS_UNDEF) own.traffic_class = traffic_class;
    own.device = device;
    struct net_comm *c = NULL;
    /* Only tables with handles of that size have a device argument. */
    bool merged = backend_of(dev) == &net_merged || (device && net_merged_handle(handle));
    result = (merged ? &net_merged : backend)->connect(&own, dev, handle, &c);
    if (result != ncclSuccess || !c) return result;
    result = established(c, own.number, own.one_sided, out);
    net_fault_after(&fault);
    return result;
}

ncclResult_t net_accept(void *opaque, void **out, void **device)
{
    *out = NULL;
    struct net_listener *listener = opaque;
    if (!net_is_given(listener, NET_GIVEN_LISTENER)) return net_misuse("accept", "this is not an open listener");
    struct psm_fault fault;
    ncclResult_t result = net_fault_before(&site_accept, NULL, &fault);
    if (result != ncclSuccess || fault.action == PSM_FAULT_DROP) return result;
    struct net_comm *c = NULL;
    listener->device = device;
    result = listener->backend->accept(listener, &c);
    if (result != ncclSuccess || !c) return result;
    result = established(c, listener->number, listener->one_sided, out);
    net_fault_after(&fault);
    return result;
}

ncclResult_t net_close_listen(void *opaque)
{
    struct net_listener *listener = opaque;
    if (!listener) return ncclSuccess;
    if (!net_is_given(listener, NET_GIVEN_LISTENER)) return net_misuse("closeListen", "this is not an open listener");
    net_take_back(listener, 1, 0, NET_GIVEN_LISTENER);
    listener->backend->close_listen(listener);
    return ncclSuccess;
}

static ncclResult_t close_comm(void *opaque, bool sends, const char *call)
{
    struct net_comm *c = opaque;
    if (!c) return ncclSuccess;
    if (!net_is_comm(c, sends)) return net_misuse(call, "this is not an open comm of that kind");
    net_take_back(c->request, c->capacity, sizeof *c->request, NET_GIVEN_REQUEST);
    net_take_back(c, 1, 0, NET_GIVEN_COMM);
    if (!c->one_sided)
        NET_SAY(PSM_NET_CLOSED, psm_net_closed, NCCL_NET, c->backend->name, c->id, net_role(c), c->messages, c->bytes,
                c->open);
    net_record_comm_end(c);
    c->backend->close(c);
    return ncclSuccess;
}

ncclResult_t net_close_send(void *comm)
{
    return close_comm(comm, true, "closeSend");
}

ncclResult_t net_close_recv(void *comm)
{
    return close_comm(comm, false, "closeRecv");
}

/* Another network would write to other memory: a registration that does not contain the buffer is a bug of the caller.
 */
static bool holds(const struct net_registration *g, const struct net_comm *c, const char *data, size_t size)
{
    if (!g) return true;
    if (!net_is_given(g, NET_GIVEN_REGISTRATION)) return false;
    if (size == 0) return true;
    return (g->comm == c || c->any_registration) && data >= g->data && size <= g->size &&
           (size_t)(data - g->data) <= g->size - size;
}

/* ---- requests ---- */

static void tell_profiler(struct net_request *r, int i)
{
    void *phandle = r->part[i].phandle;
    ncclProfilerCallback_t callback = atomic_load_explicit(&profiler, memory_order_relaxed);
    r->event[i] = NULL;
    if (!callback || !phandle) return;
    struct net_comm *c = r->comm;
    struct net_profiler_event_v1 about = {c->sends, c->dev,    c->peer_rank,   r->part[i].tag,
                                          c->id,    r->number, r->part[i].room};
    callback(&r->event[i], ncclProfilerNetEventStart, phandle, NET_PROFILER_ID, &about);
    r->started = true;
}

static void end_events(struct net_request *r)
{
    ncclProfilerCallback_t callback = atomic_load_explicit(&profiler, memory_order_relaxed);
    for (int i = 0; callback && i < r->n; i++)
        if (r->event[i]) callback(&r->event[i], ncclProfilerNetEventStop, NULL, NET_PROFILER_ID, NULL);
}

static ncclResult_t post(struct net_request *r, void **request)
{
    struct net_comm *c = r->comm;
    bool taken = r->lost;
    r->left = r->lost && c->sends ? 0 : r->n;
    ncclResult_t result = taken ? ncclSuccess : c->backend->post(c, r, &taken);
    if (result != ncclSuccess || !taken) {
        net_request_untake(r);
        return result;
    }
    for (int i = 0; i < r->n; i++) tell_profiler(r, i);
    net_record_posted(r);
    *request = r;
    return ncclSuccess;
}

/* Corruption that a receiver can see and no TCP checksum detects: the bytes are changed before they are sent. */
static ncclResult_t corrupt(struct net_request *r)
{
    size_t size = r->part[0].size;
    const struct net_registration *g = r->part[0].registration;
    if (g && g->type != NCCL_PTR_HOST) return net_misuse("isend", "a fault cannot damage the memory of a GPU");
    if (size == 0) return ncclSuccess;
    r->copy = malloc(size);
    if (!r->copy) return net_no_memory("a damaged message", size);
    memcpy(r->copy, r->part[0].data, size);
    r->copy[size / 2] ^= 0x55;
    r->part[0].data = r->copy;
    struct net_comm *c = r->comm;
    if (!c->backend->reg || !g) return ncclSuccess;
    ncclResult_t result = net_registration_make(c, r->copy, size, NCCL_PTR_HOST, NULL, &r->copy_registration);
    r->part[0].registration = r->copy_registration;
    return result;
}

static inline ncclResult_t before_isend(struct net_comm *c, struct psm_fault *fault)
{
    if (__builtin_expect(!c->has_fault, 1)) return net_fault_before(&site_isend, c, fault);
    *fault = c->fault;
    c->has_fault = false;
    return ncclSuccess;
}

ncclResult_t net_isend(void *comm, void *data, size_t size, int tag, void *registration, void *phandle, void **request)
{
    *request = NULL;
    struct net_comm *c = comm;
    if (!net_is_comm(c, true)) return net_misuse("isend", "this is not an open send comm");
    if (!holds(registration, c, data, size))
        return net_misuse("isend", "the buffer is outside the memory of its mhandle");
    if (size > NCCL_MAX_NET_SIZE_BYTES) return net_misuse("isend", "the message is larger than maxP2pBytes");
    struct psm_fault fault;
    ncclResult_t result = net_fault_before(&site_connection, c, &fault);
    if (result == ncclSuccess && c->failed == ncclSuccess) result = before_isend(c, &fault);
    if (result != ncclSuccess || c->failed != ncclSuccess) return result != ncclSuccess ? result : c->failed;
    struct net_request *r = fault.action == PSM_FAULT_STALL ? NULL : net_request_take(c);
    if (!r) return ncclSuccess;
    if (fault.action == PSM_FAULT_SHORT && (uint64_t)fault.value < size) size = (size_t)fault.value;
    r->kind = NET_SEND;
    r->n = 1;
    r->part[0] = (struct net_part){
        .data = data, .room = size, .size = size, .tag = tag, .registration = registration, .phandle = phandle};
    r->lost = fault.action == PSM_FAULT_DROP;
    if (fault.action == PSM_FAULT_CORRUPT && (result = corrupt(r)) != ncclSuccess) {
        net_request_untake(r);
        return result;
    }
    result = post(r, request);
    if (__builtin_expect(c->says_later || !*request, 0) && result == ncclSuccess)
        net_record_later(c, !*request, size, tag);
    if (__builtin_expect(fault.action != PSM_FAULT_NONE, 0)) {
        c->has_fault = result == ncclSuccess && !*request;
        c->fault = fault;
    }
    net_fault_after(&fault);
    return result;
}

ncclResult_t net_irecv(void *comm, int n, void **data, size_t *sizes, int *tags, void **registrations, void **phandles,
                       void **request)
{
    bool optional = *request == (void *)NCCL_NET_OPTIONAL_RECV_COMPLETION;
    *request = NULL;
    struct net_comm *c = comm;
    if (!net_is_comm(c, false)) return net_misuse("irecv", "this is not an open recv comm");
    if (n < 1 || n > c->max_recvs) return net_misuse("irecv", "too many receives for a group: see maxRecvs");
    for (int i = 0; i < n; i++)
        if (registrations && !holds(registrations[i], c, data[i], sizes[i]))
            return net_misuse("irecv", "a buffer is outside the memory of its mhandle");
    struct psm_fault fault;
    ncclResult_t result = net_fault_before(&site_connection, c, &fault);
    if (result == ncclSuccess && c->failed == ncclSuccess) result = net_fault_before(&site_irecv, c, &fault);
    if (result != ncclSuccess || c->failed != ncclSuccess) return result != ncclSuccess ? result : c->failed;
    struct net_request *r = fault.action == PSM_FAULT_STALL ? NULL : net_request_take(c);
    if (!r) return ncclSuccess;
    r->kind = NET_RECV;
    r->n = (uint8_t)n;
    r->lost = fault.action == PSM_FAULT_DROP;
    for (int i = 0; i < n; i++)
        r->part[i] = (struct net_part){.data = data[i],
                                       .room = sizes[i],
                                       .tag = tags[i],
                                       .registration = registrations ? registrations[i] : NULL,
                                       .phandle = phandles ? phandles[i] : NULL};
    r->optional = optional;
    result = post(r, request);
    net_fault_after(&fault);
    return result;
}

/* Host memory: what test has reported as done is visible to everybody. */
ncclResult_t net_iflush(void *comm, int n, void **data, int *sizes, void **registrations, void **request)
{
    *request = NULL;
    struct net_comm *c = comm;
    if (!net_is_comm(c, false)) return net_misuse("iflush", "this is not an open recv comm");
    for (int i = 0; registrations && i < n; i++)
        if (!holds(registrations[i], c, NULL, 0)) return net_misuse("iflush", "this is not an mhandle of an open comm");
    struct net_request *r = net_request_take(c);
    if (!r) return ncclSuccess;
    r->kind = NET_FLUSH;
    r->n = 0;
    r->left = 0;
    if (c->backend->flush) {
        ncclResult_t result = c->backend->flush(c, r, n, data, sizes, (struct net_registration **)registrations);
        if (result != ncclSuccess || r->left == 0) {
            net_request_untake(r);
            return result;
        }
    }
    c->next--; /* a flush is not a message */
    *request = r;
    return ncclSuccess;
}

/* After test has reported it as done: the request is free, and nobody else has it yet, because the one that was freed
 * first is reused first. */
ncclResult_t net_consumed(void *comm, int n, void *request)
{
    struct net_comm *c = comm;
    if (!net_is_comm(c, false)) return net_misuse("irecvConsumed", "this is not an open recv comm");
    if (!c->backend->consumed) return ncclSuccess;
    struct net_request *r = request;
    if (!net_is_given(r, NET_GIVEN_REQUEST) || r->comm != c)
        return net_misuse("irecvConsumed", "this is not a request of the comm");
    return c->backend->consumed(c, n, r);
}

ncclResult_t net_attributes(void *opaque, const ncclNetAttr_v12_t *attributes)
{
    struct net_context *context = opaque;
    if (!net_is_given(context, NET_GIVEN_CONTEXT)) return net_misuse("setNetAttr", "this is not a context of init");
    return backend->attributes ? backend->attributes(context, attributes) : ncclSuccess;
}

ncclResult_t net_test(void *request, int *done, int *sizes)
{
    *done = 0;
    struct net_request *r = request;
    if (!r) return net_misuse("test", "the request is NULL");
    if (!net_is_given(r, NET_GIVEN_REQUEST)) return net_misuse("test", "this is not a request of an open comm");
    struct net_comm *c = r->comm;
    if (r->kind == NET_FREE) return net_misuse("test", "the request was already reported as done");
    struct psm_fault fault;
    ncclResult_t result = net_fault_before(&site_test, c, &fault);
    if (result == ncclSuccess && (fault.action == PSM_FAULT_DROP || fault.action == PSM_FAULT_STALL))
        return ncclSuccess;
    if (result == ncclSuccess && r->left > 0) {
        if (c->failed == ncclSuccess) result = c->backend->progress(c, r);
        /* Messages that had arrived completely before the failure are valid. */
        if (c->failed != ncclSuccess) result = r->left > 0 ? c->failed : ncclSuccess;
        if (result == ncclSuccess && r->left > 0) {
            net_record_idle(c);
            return ncclSuccess;
        }
    }
    if (result == ncclSuccess) {
        *done = 1;
        for (int i = 0; i < r->n; i++) {
            if (sizes) sizes[i] = (int)r->part[i].size;
            c->bytes += r->part[i].size;
        }
        c->messages += r->n;
    }
    if (r->started) end_events(r);
    r->started = false;
    if (r->n) net_record_done(r, result);
    if (result == ncclSuccess) net_request_give_back(r); /* a failed one stays until its comm is closed */
    net_fault_after(&fault);
    return result;
}
