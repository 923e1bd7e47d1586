/* Connects all ranks with each other. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "net_say.h"
#include "rma/rma_comm.h"

struct rma_listener {
    int dev;
    uint32_t number;
    uint64_t id;
    void *context, *inner;
};

/* Who has connected, and has not yet said which rank it is. */
struct guest {
    void *comm, *registration, *request;
    struct rma_head hello;
};

ncclResult_t rma_listen(void *context, int dev, void *handle, void **out)
{
    *out = NULL;
    struct rma_listener *l = calloc(1, sizeof *l);
    if (!l) return net_no_memory("a listener", sizeof *l);
    *l = (struct rma_listener){.dev = dev, .context = context};
    ncclResult_t result = net_listen(context, dev, handle, &l->inner);
    if (result == ncclSuccess && !net_give(l, 1, 0, NET_GIVEN_RMA_LISTENER)) {
        net_close_listen(l->inner);
        result = net_no_memory("a listener", sizeof *l);
    }
    if (result == ncclSuccess) {
        l->number = ((const struct net_listener *)l->inner)->number;
        l->id = ((const struct net_context *)context)->comm_id;
        *out = l;
    } else {
        free(l);
    }
    return result;
}

ncclResult_t rma_close_listen(void *listener)
{
    struct rma_listener *l = listener;
    if (!l) return ncclSuccess;
    if (!net_is_given(l, NET_GIVEN_RMA_LISTENER))
        return net_misuse("closeListen", "this is not an open listener of RMA");
    net_take_back(l, 1, 0, NET_GIVEN_RMA_LISTENER);
    ncclResult_t result = net_close_listen(l->inner);
    free(l);
    return result;
}

/* ---- the end ---- */

static void give_up(struct rma_comm *c)
{
    if (c->peer) rma_record_end(c);
    /* Open requests end with their connection, and their memory after that. */
    for (int i = 0; c->peer && i < c->ranks; i++) {
        struct rma_peer *p = &c->peer[i];
        if (p->send) net_close_send(p->send);
        if (p->recv) net_close_recv(p->recv);
        free(p->out.memory);
        free(p->in.memory);
        free(p->sizes);
    }
    while (c->first_region) {
        struct rma_region *next = c->first_region->next;
        net_take_back(c->first_region, 1, 0, NET_GIVEN_RMA_REGION);
        free(c->first_region);
        c->first_region = next;
    }
    while (c->blocks) {
        struct rma_block *next = c->blocks->next;
        net_take_back(c->blocks->request, sizeof c->blocks->request / sizeof *c->blocks->request,
                      sizeof *c->blocks->request, NET_GIVEN_RMA_REQUEST);
        free(c->blocks);
        c->blocks = next;
    }
    rma_device_close(c);
    pthread_mutex_destroy(&c->lock);
    free(c->scratch);
    free(c->peer);
    free(c);
}

/* Peers wait for the news that their puts have arrived. */
static bool owes(const struct rma_comm *c)
{
    for (int i = 0; i < c->ranks; i++) {
        const struct rma_peer *p = &c->peer[i];
        if (i != c->rank && !p->gone && (p->out.n || p->told != p->arrived)) return true;
    }
    return false;
}

ncclResult_t rma_close(void *comm)
{
    struct rma_comm *c = rma_comm_of(comm);
    if (!c) return comm ? net_misuse("closeColl", "this is not an open comm of RMA") : ncclSuccess;
    uint64_t until = psm_clock_ns() + net_settings.timeout_ms * 1000000u;
    int device = rma_device_now(c);
    pthread_mutex_lock(&c->lock);
    while (c->failed == ncclSuccess && owes(c) && psm_clock_ns() < until && rma_move(c) == ncclSuccess) sched_yield();
    pthread_mutex_unlock(&c->lock);
    rma_device_again(c, device);
    net_take_back(c, 1, 0, NET_GIVEN_RMA_COMM);
    give_up(c);
    return ncclSuccess;
}

/* ---- the beginning ---- */

static ncclResult_t say_hello(struct rma_comm *c, struct rma_peer *p)
{
    struct rma_head *h = (struct rma_head *)(void *)p->out.memory;
    *h = (struct rma_head){.magic = RMA_MAGIC,
                           .version = RMA_VERSION,
                           .kind = RMA_HELLO,
                           .rank = (uint32_t)c->rank,
                           .ranks = (uint32_t)c->ranks};
    p->out.size[0] = sizeof *h;
    p->out.request[0] = NULL;
    p->out.first = 0;
    p->out.n = 1;
    return net_isend(p->send, p->out.memory, sizeof *h, 0, p->out.registration, NULL, &p->out.request[0]);
}

static ncclResult_t connect_to(struct rma_comm *c, const struct rma_listener *l, struct rma_peer *p, void *handle)
{
    ncclResult_t result = ncclSuccess;
    if (!p->send) {
        result = net_connect(l->context, l->dev, NCCL_NET_TRAFFIC_CLASS_UNDEF, handle, &p->send, NULL);
        if (result != ncclSuccess || !p->send) return result;
        result = rma_slots_make(&p->out, p->send);
    }
    if (result == ncclSuccess && !p->out.request[0]) result = say_hello(c, p);
    return result;
}

/* True: it has said who it is. */
static ncclResult_t meet(struct rma_comm *c, struct guest *g, bool *known)
{
    int done = 0, size = 0, tag = 0;
    void *data = &g->hello;
    size_t room = sizeof g->hello;
    ncclResult_t result = ncclSuccess;
    if (!g->registration) result = net_reg(g->comm, data, room, NCCL_PTR_HOST, &g->registration);
    if (result == ncclSuccess && !g->request)
        result = net_irecv(g->comm, 1, &data, &room, &tag, &g->registration, NULL, &g->request);
    if (result == ncclSuccess && g->request) result = net_test(g->request, &done, &size);
    if (result != ncclSuccess || !done) return result;
    const struct rma_head *h = &g->hello;
    if (h->magic != RMA_MAGIC) return net_protocol(g->comm, "magic of a message", h->magic, RMA_MAGIC);
    if (h->version != RMA_VERSION) return net_protocol(g->comm, "version of a message", h->version, RMA_VERSION);
    if (h->kind != RMA_HELLO) return net_protocol(g->comm, "kind of a message", h->kind, RMA_HELLO);
    if (h->ranks != (uint32_t)c->ranks) return net_protocol(g->comm, "number of ranks", h->ranks, (uint64_t)c->ranks);
    if (h->rank >= h->ranks || (int)h->rank == c->rank || c->peer[h->rank].recv)
        return net_protocol(g->comm, "rank of a message", h->rank, (uint64_t)c->ranks - 1);
    struct rma_peer *p = &c->peer[h->rank];
    net_dereg(g->comm, g->registration);
    p->recv = g->comm;
    *g = (struct guest){0};
    *known = true;
    return rma_slots_make(&p->in, p->recv);
}

static bool complete(const struct rma_comm *c)
{
    for (int i = 0; i < c->ranks; i++)
        if (i != c->rank && (!c->peer[i].send || !c->peer[i].recv || !c->peer[i].out.request[0])) return false;
    return true;
}

/* All guests at once: one that says nothing must not keep out the others. */
static ncclResult_t accept_all(struct rma_comm *c, const struct rma_listener *l, struct guest *guest)
{
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < c->ranks && result == ncclSuccess; i++) {
        bool known = false;
        if (!guest[i].comm) result = net_accept(l->inner, &guest[i].comm, NULL);
        if (result == ncclSuccess && guest[i].comm) result = meet(c, &guest[i], &known);
    }
    return result;
}

static void say_who_is_missing(const struct rma_comm *c)
{
    for (int i = 0; i < c->ranks; i++)
        if (i != c->rank && !c->peer[i].recv) NET_SAY(PSM_NET_RMA_ABSENT, psm_net_rma_absent, NCCL_NET, c->rank, i);
}

static ncclResult_t join(struct rma_comm *c, const struct rma_listener *l, void **handles, struct guest *guest)
{
    uint64_t until = psm_clock_ns() + net_settings.timeout_ms * 1000000u;
    ncclResult_t result = ncclSuccess;
    while (!complete(c)) {
        for (int i = 0; i < c->ranks && result == ncclSuccess; i++)
            if (i != c->rank) result = connect_to(c, l, &c->peer[i], handles[i]);
        if (result == ncclSuccess) result = accept_all(c, l, guest);
        if (result != ncclSuccess) return result;
        if (psm_clock_ns() > until) {
            say_who_is_missing(c);
            return net_system("joining the ranks of an RMA communicator (PSM_TIMEOUT)", ETIMEDOUT);
        }
        sched_yield();
    }
    return ncclSuccess;
}

ncclResult_t rma_connect(void *context, void **handles, int nranks, int rank, void *listener, void **out)
{
    (void)context;
    const struct rma_listener *l = listener;
    *out = NULL;
    if (!net_is_given(l, NET_GIVEN_RMA_LISTENER)) return net_misuse("connect", "this is not an open listener of RMA");
    if (nranks < 1 || rank < 0 || rank >= nranks) return net_misuse("connect", "there is no such rank");
    struct rma_comm *c = calloc(1, sizeof *c);
    struct guest *guest = calloc((size_t)nranks, sizeof *guest);
    if (!c || !guest) {
        free(c);
        free(guest);
        return net_no_memory("a comm of RMA", sizeof *c);
    }
    *c = (struct rma_comm){.ranks = nranks, .rank = rank, .number = l->number, .id = l->id};
    pthread_mutex_init(&c->lock, NULL);
    c->peer = calloc((size_t)nranks, sizeof *c->peer);
    c->scratch = malloc(RMA_CHUNK);
    ncclResult_t result =
        c->peer && c->scratch ? ncclSuccess : net_no_memory("peers", (size_t)nranks * sizeof *c->peer);
    for (int i = 0; result == ncclSuccess && i < nranks; i++) c->peer[i].rank = i;
    if (result == ncclSuccess) result = join(c, l, handles, guest);
    if (result == ncclSuccess && !net_give(c, 1, 0, NET_GIVEN_RMA_COMM)) result = net_no_memory("a comm", sizeof *c);
    for (int i = 0; i < nranks; i++)
        if (guest[i].comm) net_close_recv(guest[i].comm);
    free(guest);
    if (result != ncclSuccess) {
        give_up(c);
        return result;
    }
    NET_SAY(PSM_NET_RMA_JOINED, psm_net_rma_joined, NCCL_INIT | NCCL_NET, rank, nranks, l->id, l->dev);
    rma_record(c);
    *out = c;
    return ncclSuccess;
}
