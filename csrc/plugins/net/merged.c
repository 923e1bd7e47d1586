/* A virtual device: makeVDevice merges physical devices of the backend, and a connection of it has one rail on each.
 * Messages use the rails in turn, so both ends know which rail is next, whatever the size.
 *
 * Only one handle fits into NCCL's: that of the first rail. The others are sent over that rail. It leads only one way,
 * so its sender opens a connection back for the answer, which is closed when all rails are connected. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "front.h"
#include "net_say.h"

#define MERGED_MAGIC 0x31474d54454e5053u /* after the first rail's handle */

enum { RAILS = NCCL_NET_MAX_DEVS_PER_NIC_V12, DEVICES = 16, MARK = NCCL_NET_HANDLE_MAXSIZE - 16 };

struct merged_comm {
    struct net_comm net;
    int n;
    struct net_comm *rail[RAILS];
    uint64_t posted;
};

struct note {
    uint32_t n;
    char handle[RAILS][NCCL_NET_HANDLE_MAXSIZE];
};

/* The first message of a rail, or its answer. */
struct letter {
    struct net_request *request;
    struct net_registration *registration;
    bool done;
};

/* A connection that is being established, at either end. */
struct making {
    int n, dev[RAILS], dev_of_all;
    struct net_comm *rail[RAILS], *back;
    struct net_listener *listener; /* of the connection back */
    struct note sent, got;
    struct letter out, in;
};

struct mark {
    uint64_t magic;
    struct making *making; /* of the connecting end, which has its own handle */
};

struct merged_listener {
    struct net_listener net;
    int n;
    struct net_listener *rail[RAILS];
    struct note note;
    struct making *making;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct virtual_device {
    ncclNetVDeviceProps_v12_t props;
    char name[256];
} made[DEVICES];
static int nmade;

static ncclResult_t refuse(const char *what)
{
    NET_SAY(PSM_NET_MISUSE, psm_net_misuse, NCCL_NET | NCCL_INIT, "makeVDevice", what);
    return ncclInvalidUsage;
}

int net_merged_count(void)
{
    return nmade;
}

void net_merged_forget(void)
{
    nmade = 0;
}

static const struct net_backend *physical(void)
{
    return net_physical();
}

/* Not an error: NCCL tries what it considers possible, and continues with the devices as they are. */
static ncclResult_t leave_apart(const char *why)
{
    NET_SAY(PSM_NET_UNMERGED, psm_net_unmerged, NCCL_INIT | NCCL_NET, why);
    return ncclInvalidUsage;
}

/* NCCL 2.30 finds no path from a GPU to a virtual device of NICs on no bus, and its init fails. If merging is refused
 * it continues with the physical ones. */
static ncclResult_t on_a_bus(const ncclNetVDeviceProps_v12_t *props)
{
    if (net_settings.merge == NET_MERGE_NEVER) return leave_apart("PSM_NET_MERGE=0");
    for (int i = 0; i < props->ndevs && net_settings.merge == NET_MERGE_AUTO; i++) {
        ncclNetProperties_v12_t p = {.pciPath = NULL};
        physical()->properties(props->devs[i], &p);
        if (!p.pciPath || !*p.pciPath)
            return leave_apart(
                "one is on no bus, where a virtual one would not be found (PSM_NET_MERGE=1 merges anyway)");
    }
    return ncclSuccess;
}

ncclResult_t net_merged_make(int *dev, const ncclNetVDeviceProps_v12_t *props)
{
    int most = physical()->devices();
    if (props->ndevs < 1 || props->ndevs > RAILS) return refuse("ndevs is not in 1 to 8");
    for (int i = 0; i < props->ndevs; i++) {
        if (props->devs[i] < 0 || props->devs[i] >= most)
            return refuse("a device is not a physical one; virtual ones cannot be merged again");
        for (int k = 0; k < i; k++)
            if (props->devs[k] == props->devs[i]) return refuse("a device is listed twice");
    }
    ncclResult_t allowed = on_a_bus(props);
    if (allowed != ncclSuccess) return allowed;
    pthread_mutex_lock(&lock);
    struct virtual_device *v = nmade < DEVICES ? &made[nmade] : NULL;
    if (v) {
        size_t n = 0;
        v->props = *props;
        v->name[0] = 0;
        for (int i = 0; i < props->ndevs; i++) {
            ncclNetProperties_v12_t p = {.name = NULL};
            physical()->properties(props->devs[i], &p);
            if (n < sizeof v->name)
                n += (size_t)snprintf(v->name + n, sizeof v->name - n, "%s%s", i ? "+" : "", p.name ? p.name : "?");
        }
        *dev = most + nmade++;
    }
    pthread_mutex_unlock(&lock);
    if (!v) return refuse("the maximum number of virtual devices exists");
    NET_SAY(PSM_NET_MERGED, psm_net_merged, NCCL_INIT | NCCL_NET, *dev, v->name);
    return ncclSuccess;
}

static struct virtual_device *device_of(int dev)
{
    return &made[dev - physical()->devices()];
}

static void properties(int dev, ncclNetProperties_v12_t *props)
{
    struct virtual_device *v = device_of(dev);
    const ncclNetProperties_v12_t empty = *props;
    for (int i = 0; i < v->props.ndevs; i++) {
        ncclNetProperties_v12_t p = empty;
        physical()->properties(v->props.devs[i], &p);
        if (i == 0) {
            *props = p;
            continue;
        }
        props->speed += p.speed;
        if (p.latency > props->latency) props->latency = p.latency;
        if (p.maxComms < props->maxComms) props->maxComms = p.maxComms;
        if (p.maxP2pBytes < props->maxP2pBytes) props->maxP2pBytes = p.maxP2pBytes;
        if (p.maxCollBytes < props->maxCollBytes) props->maxCollBytes = p.maxCollBytes;
    }
    props->name = v->name;
    props->vProps = v->props;
    props->maxRecvs = 1; /* a group would use several rails */
    props->regIsGlobal = 0;
    props->ptrSupport = NCCL_PTR_HOST;
    props->netDeviceType = NCCL_NET_DEVICE_HOST;
    props->netDeviceVersion = NCCL_NET_DEVICE_INVALID_VERSION;
    props->railId = props->planeId = NCCL_NET_ID_UNDEF;
}

/* ---- messages of the setup ---- */

static ncclResult_t letter(struct net_comm *c, struct letter *l, struct note *note)
{
    const struct net_backend *backend = c->backend;
    ncclResult_t result = ncclSuccess;
    if (l->done) return ncclSuccess;
    if (!l->registration &&
        (result = net_registration_make(c, note, sizeof *note, NCCL_PTR_HOST, NULL, &l->registration)) != ncclSuccess)
        return result;
    if (!l->request) {
        bool taken = false;
        struct net_request *r = net_request_take(c);
        if (!r) return ncclSuccess;
        r->kind = c->sends ? NET_SEND : NET_RECV;
        r->n = 1;
        r->left = 1;
        r->part[0] = (struct net_part){
            .data = (char *)note, .room = sizeof *note, .size = sizeof *note, .registration = l->registration};
        result = backend->post(c, r, &taken);
        if (result != ncclSuccess || !taken) {
            net_request_untake(r);
            return result;
        }
        l->request = r;
    }
    if (l->request->left > 0) result = backend->progress(c, l->request);
    if (result == ncclSuccess) result = c->failed;
    if (l->request->left > 0) return result;
    net_request_give_back(l->request);
    net_registration_drop(l->registration);
    l->registration = NULL;
    l->request = NULL;
    l->done = true;
    return ncclSuccess;
}

static void drop(struct net_comm *c)
{
    if (c) c->backend->close(c);
}

static void making_free(struct making *m)
{
    if (!m) return;
    for (int i = 0; i < RAILS; i++) drop(m->rail[i]);
    drop(m->back);
    if (m->listener) physical()->close_listen(m->listener);
    free(m->out.registration);
    free(m->in.registration);
    free(m);
}

/* All rails are connected. */
static ncclResult_t finish(struct making *m, bool sends, struct net_comm **out)
{
    struct merged_comm *c = net_comm_new(sizeof *c, &net_merged, sends, m->dev_of_all, 1);
    if (!c) return net_no_memory("a connection", sizeof *c);
    const struct net_comm *first = m->rail[0];
    c->n = m->n;
    memcpy(c->rail, m->rail, sizeof c->rail);
    memset(m->rail, 0, sizeof m->rail);
    c->net.id = first->id;
    c->net.peer_rank = first->peer_rank;
    c->net.peer_dev = first->peer_dev;
    memcpy(c->net.address, first->address, sizeof c->net.address);
    making_free(m);
    NET_SAY(PSM_NET_CONNECTED, psm_net_connected, NCCL_NET, "merged", c->net.id, net_role(&c->net), c->net.rank,
            c->net.dev, c->net.peer_rank, c->net.address, (unsigned)c->n, "rails");
    *out = &c->net;
    return ncclSuccess;
}

/* ---- the end that connects ---- */

static ncclResult_t connect_step(const struct net_context *context, struct making *m, void *handle, bool *done)
{
    const struct net_backend *backend = physical();
    ncclResult_t result;
    if (!m->rail[0]) {
        result = backend->connect(context, m->dev[0], handle, &m->rail[0]);
        if (result != ncclSuccess || !m->rail[0]) return result;
    }
    if (!m->listener) {
        m->sent.n = (uint32_t)m->n;
        if ((result = backend->listen(context, m->dev[0], m->sent.handle[0], &m->listener)) != ncclSuccess)
            return result;
        m->listener->dev = m->dev[0];
    }
    if ((result = letter(m->rail[0], &m->out, &m->sent)) != ncclSuccess || !m->out.done) return result;
    if (!m->back) {
        result = backend->accept(m->listener, &m->back);
        if (result != ncclSuccess || !m->back) return result;
    }
    if ((result = letter(m->back, &m->in, &m->got)) != ncclSuccess || !m->in.done) return result;
    if (m->got.n < 1 || (int)m->got.n > m->n) return net_protocol(m->rail[0], "rails", m->got.n, (uint64_t)m->n);
    m->n = (int)m->got.n;
    for (int i = 1; i < m->n; i++)
        if (!m->rail[i]) {
            result = backend->connect(context, m->dev[i], m->got.handle[i], &m->rail[i]);
            if (result != ncclSuccess || !m->rail[i]) return result;
        }
    *done = true;
    return ncclSuccess;
}

bool net_merged_handle(const void *handle)
{
    struct mark mark;
    memcpy(&mark, (const char *)handle + MARK, sizeof mark);
    return mark.magic == MERGED_MAGIC;
}

static void set_mark(void *handle, struct making *making)
{
    struct mark mark = {MERGED_MAGIC, making};
    memcpy((char *)handle + MARK, &mark, sizeof mark);
}

void net_merged_unmark(void *handle)
{
    if (net_merged_handle(handle)) memset((char *)handle + MARK, 0, sizeof(struct mark));
}

/* dev may be a physical one whose peer is merged: then there is one rail. */
static ncclResult_t connect_merged(const struct net_context *context, int dev, void *handle, struct net_comm **out)
{
    struct net_context plain = *context;
    struct mark mark;
    bool done = false;
    plain.device = NULL;
    if (!net_merged_handle(handle)) return physical()->connect(&plain, device_of(dev)->props.devs[0], handle, out);
    memcpy(&mark, (char *)handle + MARK, sizeof mark);
    struct making *m = mark.making;
    if (!m) {
        if (!(m = calloc(1, sizeof *m))) return net_no_memory("a connection", sizeof *m);
        m->n = 1;
        m->dev[0] = m->dev_of_all = dev;
        if (dev >= physical()->devices()) {
            const ncclNetVDeviceProps_v12_t *props = &device_of(dev)->props;
            m->n = props->ndevs;
            memcpy(m->dev, props->devs, sizeof m->dev);
        }
        set_mark(handle, m);
    }
    ncclResult_t result = connect_step(&plain, m, handle, &done);
    if (result == ncclSuccess && done) result = finish(m, true, out);
    if (result != ncclSuccess) making_free(m);
    if (result != ncclSuccess || done) set_mark(handle, NULL);
    return result;
}

/* ---- the end that accepts ---- */

static void close_listen(struct net_listener *listener)
{
    struct merged_listener *l = (struct merged_listener *)listener;
    for (int i = 0; i < l->n; i++)
        if (l->rail[i]) physical()->close_listen(l->rail[i]);
    making_free(l->making);
    free(l);
}

static ncclResult_t listen_merged(const struct net_context *context, int dev, void *handle, struct net_listener **out)
{
    static const char none[sizeof(struct mark)];
    struct merged_listener *l = calloc(1, sizeof *l);
    if (!l) return net_no_memory("a listener", sizeof *l);
    const ncclNetVDeviceProps_v12_t *props = &device_of(dev)->props;
    ncclResult_t result = ncclSuccess;
    l->n = props->ndevs;
    for (int i = 0; i < l->n && result == ncclSuccess; i++) {
        result = physical()->listen(context, props->devs[i], l->note.handle[i], &l->rail[i]);
        if (result == ncclSuccess) l->rail[i]->dev = props->devs[i];
    }
    if (result == ncclSuccess && memcmp(l->note.handle[0] + MARK, none, sizeof none) != 0)
        result = refuse("the handle of the chained plugin has no room for a mark");
    if (result != ncclSuccess) {
        close_listen(&l->net);
        return result;
    }
    l->note.n = (uint32_t)l->n;
    memcpy(handle, l->note.handle[0], NCCL_NET_HANDLE_MAXSIZE);
    set_mark(handle, NULL);
    *out = &l->net;
    return ncclSuccess;
}

static ncclResult_t accept_step(struct merged_listener *l, struct making *m, bool *done)
{
    const struct net_backend *backend = physical();
    const struct net_context context = {.traffic_class = NCCL_NET_TRAFFIC_CLASS_UNDEF};
    ncclResult_t result;
    if (!m->rail[0]) {
        result = backend->accept(l->rail[0], &m->rail[0]);
        if (result != ncclSuccess || !m->rail[0]) return result;
    }
    if ((result = letter(m->rail[0], &m->in, &m->got)) != ncclSuccess || !m->in.done) return result;
    if (m->got.n < 1 || m->got.n > RAILS) return net_protocol(m->rail[0], "rails", m->got.n, RAILS);
    m->n = (int)m->got.n < l->n ? (int)m->got.n : l->n;
    if (!m->back) {
        result = backend->connect(&context, m->dev[0], m->got.handle[0], &m->back);
        if (result != ncclSuccess || !m->back) return result;
        m->sent = l->note;
        m->sent.n = (uint32_t)m->n;
    }
    if ((result = letter(m->back, &m->out, &m->sent)) != ncclSuccess || !m->out.done) return result;
    for (int i = 1; i < m->n; i++)
        if (!m->rail[i]) {
            result = backend->accept(l->rail[i], &m->rail[i]);
            if (result != ncclSuccess || !m->rail[i]) return result;
        }
    *done = true;
    return ncclSuccess;
}

static ncclResult_t accept_merged(struct net_listener *listener, struct net_comm **out)
{
    struct merged_listener *l = (struct merged_listener *)listener;
    bool done = false;
    if (!l->making) {
        if (!(l->making = calloc(1, sizeof *l->making))) return net_no_memory("a connection", sizeof *l->making);
        l->making->dev_of_all = listener->dev;
        memcpy(l->making->dev, device_of(listener->dev)->props.devs, sizeof l->making->dev);
    }
    struct making *m = l->making;
    ncclResult_t result = accept_step(l, m, &done);
    if (result == ncclSuccess && done) result = finish(m, false, out);
    if (result != ncclSuccess) making_free(m);
    if (result != ncclSuccess || done) l->making = NULL;
    return result;
}

/* ---- data ---- */

static ncclResult_t reg(struct net_comm *comm, struct net_registration *g, const struct net_dmabuf *dmabuf)
{
    struct merged_comm *c = (struct merged_comm *)comm;
    struct net_registration **rails = calloc(RAILS, sizeof *rails);
    ncclResult_t result = rails ? ncclSuccess : net_no_memory("a registration", RAILS * sizeof *rails);
    for (int i = 0; i < c->n && result == ncclSuccess; i++)
        result = net_registration_make(c->rail[i], g->data, g->size, g->type, dmabuf, &rails[i]);
    if (result == ncclSuccess) {
        g->inner = rails;
        return result;
    }
    for (int i = 0; i < c->n && rails; i++)
        if (rails[i]) net_registration_drop(rails[i]);
    free(rails);
    return result;
}

static ncclResult_t dereg(struct net_comm *comm, struct net_registration *g)
{
    struct merged_comm *c = (struct merged_comm *)comm;
    struct net_registration **rails = g->inner;
    ncclResult_t result = ncclSuccess, one;
    for (int i = 0; i < c->n; i++)
        if ((one = net_registration_drop(rails[i])) != ncclSuccess) result = one;
    free(rails);
    return result;
}

static ncclResult_t post(struct net_comm *comm, struct net_request *r, bool *taken)
{
    struct merged_comm *c = (struct merged_comm *)comm;
    int number = (int)(c->posted % (uint64_t)c->n);
    struct net_comm *rail = c->rail[number];
    struct net_request *inner = net_request_take(rail);
    if (!inner) return ncclSuccess;
    struct net_registration *const *of_rails = r->part[0].registration ? r->part[0].registration->inner : NULL;
    inner->kind = r->kind;
    inner->n = 1;
    inner->left = 1;
    inner->part[0] = r->part[0];
    inner->part[0].registration = of_rails ? of_rails[number] : NULL;
    ncclResult_t result = rail->backend->post(rail, inner, taken);
    if (result != ncclSuccess || !*taken) {
        net_request_untake(inner);
        return result;
    }
    r->inner = inner;
    c->posted++;
    return ncclSuccess;
}

static ncclResult_t progress(struct net_comm *comm, struct net_request *r)
{
    struct net_request *inner = r->inner;
    ncclResult_t result = ncclSuccess;
    if (!inner) return ncclSuccess; /* dropped by a fault */
    struct net_comm *rail = inner->comm;
    if (inner->left > 0) result = rail->backend->progress(rail, inner);
    if (inner->left == 0) {
        r->part[0].size = inner->part[0].size;
        r->left = 0;
        r->inner = NULL;
        net_request_give_back(inner);
        return ncclSuccess;
    }
    return rail->failed != ncclSuccess ? net_fail(comm, rail->failed) : result;
}

static void cut(struct net_comm *comm)
{
    struct merged_comm *c = (struct merged_comm *)comm;
    for (int i = 0; i < c->n; i++) c->rail[i]->backend->cut(c->rail[i]);
    net_fail(comm, ncclRemoteError);
}

static void close_merged(struct net_comm *comm)
{
    struct merged_comm *c = (struct merged_comm *)comm;
    for (struct net_registration *g = comm->registrations; g; g = g->next) {
        struct net_registration **rails = g->inner;
        for (int i = 0; i < c->n; i++) free(rails[i]);
        free(rails);
    }
    for (int i = 0; i < c->n; i++) drop(c->rail[i]);
    net_comm_free(comm);
}

const struct net_backend net_merged = {
    .name = "merged",
    .properties = properties,
    .listen = listen_merged,
    .close_listen = close_listen,
    .connect = connect_merged,
    .accept = accept_merged,
    .post = post,
    .progress = progress,
    .cut = cut,
    .close = close_merged,
    .reg = reg,
    .dereg = dereg,
};
