/* Registrations: each belongs to a comm, which keeps a list of them. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "front.h"

static struct net_comm *comm_of(void *opaque)
{
    return net_is_given(opaque, NET_GIVEN_COMM) ? opaque : NULL;
}

ncclResult_t net_registration_make(struct net_comm *c, void *data, size_t size, int type,
                                   const struct net_dmabuf *dmabuf, struct net_registration **out)
{
    struct net_registration *g = calloc(1, sizeof *g);
    if (!g) return net_no_memory("a registration", sizeof *g);
    *g = (struct net_registration){.comm = c, .data = data, .size = size, .type = type};
    ncclResult_t result = c->backend->reg ? c->backend->reg(c, g, dmabuf) : ncclSuccess;
    if (result == ncclSuccess)
        *out = g;
    else
        free(g);
    return result;
}

ncclResult_t net_registration_drop(struct net_registration *g)
{
    struct net_comm *c = g->comm;
    ncclResult_t result = c->backend->dereg ? c->backend->dereg(c, g) : ncclSuccess;
    free(g);
    return result;
}

static ncclResult_t reg(void *comm, void *data, size_t size, int type, const struct net_dmabuf *dmabuf, void **out)
{
    const char *call = dmabuf ? "regMrDmaBuf" : "regMr";
    *out = NULL;
    struct net_comm *c = comm_of(comm);
    if (!c) return net_misuse(call, "this is not an open comm");
    if (type != NCCL_PTR_HOST && !c->backend->reg)
        return net_misuse(call, "memory of this type is not supported: ptrSupport is host");
    struct net_registration *g = NULL;
    ncclResult_t result = net_registration_make(c, data, size, type, dmabuf, &g);
    if (result != ncclSuccess) return result;
    if (!net_give(g, 1, 0, NET_GIVEN_REGISTRATION)) {
        net_registration_drop(g);
        return net_no_memory("a registration", sizeof *g);
    }
    pthread_mutex_lock(&c->lock);
    g->next = c->registrations;
    if (g->next) g->next->previous = g;
    c->registrations = g;
    pthread_mutex_unlock(&c->lock);
    *out = g;
    return ncclSuccess;
}

ncclResult_t net_reg(void *comm, void *data, size_t size, int type, void **out)
{
    return reg(comm, data, size, type, NULL, out);
}

ncclResult_t net_reg_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset, int fd, void **out)
{
    return reg(comm, data, size, type, &(struct net_dmabuf){offset, fd}, out);
}

ncclResult_t net_dereg(void *comm, void *registration)
{
    struct net_comm *c = comm_of(comm);
    struct net_registration *g = registration;
    if (!c) return net_misuse("deregMr", "this is not an open comm");
    if (!g) return ncclSuccess;
    pthread_mutex_lock(&c->lock);
    struct net_registration *at = c->registrations;
    while (at && at != g) at = at->next;
    if (at) {
        if (g->previous) g->previous->next = g->next;
        if (g->next) g->next->previous = g->previous;
        if (c->registrations == g) c->registrations = g->next;
    }
    pthread_mutex_unlock(&c->lock);
    if (!at) return net_misuse("deregMr", "this is not a registration of the comm, or it was already deregistered");
    net_take_back(g, 1, 0, NET_GIVEN_REGISTRATION);
    return net_registration_drop(g);
}

ncclResult_t net_device_memory(void *comm, void *registration, void **out)
{
    struct net_comm *c = comm_of(comm);
    if (!c) return net_misuse("getDeviceMr", "this is not an open comm");
    if (!c->backend->device_memory) return net_misuse("getDeviceMr", "netDeviceType is host: no GPU uses this network");
    if (!net_is_given(registration, NET_GIVEN_REGISTRATION))
        return net_misuse("getDeviceMr", "this is not an mhandle of an open comm");
    return c->backend->device_memory(c, registration, out);
}
