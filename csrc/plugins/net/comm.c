/* Common parts of the comms of all backends: requests, and how they end. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "front.h"
#include "libc.h"
#include "net_plugin.h"
#include "net_say.h"

void *net_comm_new(size_t size, const struct net_backend *backend, bool sends, int dev, int max_recvs)
{
    struct net_comm *c = calloc(1, size);
    if (!c) return NULL;
    uint32_t parts = sends ? 1 : (uint32_t)max_recvs;
    c->sends = sends;
    c->backend = backend;
    c->dev = dev;
    c->max_recvs = max_recvs;
    c->rank = psm_proc_self()->rank;
    c->peer_rank = c->peer_dev = -1;
    c->capacity = NET_REQUESTS * (sends ? (uint32_t)max_recvs : 1);
    c->mask = 1;
    while (c->mask + 1 < c->capacity) c->mask = c->mask * 2 + 1;
    c->request = calloc(c->capacity, sizeof *c->request);
    c->parts = calloc((size_t)c->capacity * parts, sizeof *c->parts);
    c->free = calloc(c->mask + 1, sizeof *c->free);
    if (!c->request || !c->parts || !c->free) {
        free(c->request);
        free(c->parts);
        free(c->free);
        free(c);
        return NULL;
    }
    for (uint32_t i = 0; i < c->capacity; i++) {
        c->request[i].comm = c;
        c->request[i].part = c->parts + i * parts;
        c->free[i] = &c->request[i];
    }
    c->nfree = c->capacity;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

void net_comm_free(struct net_comm *c)
{
    if (!c) return;
    while (c->registrations) {
        struct net_registration *next = c->registrations->next;
        net_take_back(c->registrations, 1, 0, NET_GIVEN_REGISTRATION);
        free(c->registrations);
        c->registrations = next;
    }
    for (uint32_t i = 0; i < c->capacity; i++) {
        free(c->request[i].copy);
        free(c->request[i].copy_registration);
    }
    pthread_mutex_destroy(&c->lock);
    free(c->request);
    free(c->parts);
    free(c->free);
    free(c);
}

static ncclResult_t fail(struct net_comm *c, const char *cause, ncclResult_t result)
{
    net_record_error(c, "", cause, result);
    if (c->failed == ncclSuccess) c->failed = result;
    return c->failed;
}

ncclResult_t net_fail(struct net_comm *c, ncclResult_t result)
{
    return fail(c, "system", result);
}

ncclResult_t net_peer_gone(struct net_comm *c, const char *what)
{
    if (!c->one_sided)
        NET_SAY(PSM_NET_PEER_GONE, psm_net_peer_gone, NCCL_NET, c->backend->name, c->id, net_role(c), c->rank, c->dev,
                c->peer_rank, c->address, what, c->open);
    return fail(c, "peer", ncclRemoteError);
}

ncclResult_t net_too_large(struct net_comm *c, size_t got, size_t posted, int tag)
{
    NET_SAY(PSM_NET_TOO_LARGE, psm_net_too_large, NCCL_NET, c->backend->name, c->id, net_role(c), c->rank, c->dev,
            c->peer_rank, c->address, got, tag, posted);
    return fail(c, "size", ncclInvalidUsage);
}

ncclResult_t net_protocol(struct net_comm *c, const char *what, uint64_t seen, uint64_t meant)
{
    NET_SAY(PSM_NET_PROTOCOL, psm_net_protocol, NCCL_NET, c->backend->name, c->id, net_role(c), c->rank, c->dev,
            c->peer_rank, c->address, what, seen, meant);
    return fail(c, "protocol", ncclInternalError);
}

ncclResult_t net_misuse(const char *call, const char *what)
{
    NET_SAY(PSM_NET_MISUSE, psm_net_misuse, NCCL_NET, call, what);
    return ncclInternalError;
}

ncclResult_t net_bad_handle(const char *what, uint64_t seen, uint64_t meant)
{
    NET_SAY(PSM_NET_HANDLE, psm_net_handle, NCCL_NET, what, seen, meant);
    return ncclInvalidArgument;
}

bool net_same_secret(const uint8_t *a, const uint8_t *b)
{
    uint8_t differ = 0;
    for (int i = 0; i < NET_SECRET; i++) differ |= a[i] ^ b[i];
    return differ == 0;
}

ncclResult_t net_system(const char *what, int number)
{
    const char *name = psm_errno_name(number), *text = psm_errno_text(number);
    NET_SAY(PSM_NET_SYSTEM, psm_net_system, NCCL_NET, what, text ? text : "unknown error", name ? name : "?");
    return ncclSystemError;
}

ncclResult_t net_no_memory(const char *what, size_t bytes)
{
    char text[128];
    snprintf(text, sizeof text, "%zu bytes for %s", bytes, what);
    return net_system(text, ENOMEM);
}

ncclResult_t net_random(void *to, size_t n)
{
    return getrandom(to, n, 0) == (ssize_t)n ? ncclSuccess : net_system("making a random number (getrandom)", errno);
}

void net_request_forget_copy(struct net_request *r)
{
    if (r->copy_registration) net_registration_drop(r->copy_registration);
    free(r->copy);
    r->copy_registration = NULL;
    r->copy = NULL;
}
