/* Regions and operations: what NCCL calls once the ranks are connected. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net_say.h"
#include "rma/faults.h"
#include "rma/rma_comm.h"

#define CAN_DROP (PSM_FAULT_CAN_CALL | PSM_FAULT_CAN(PSM_FAULT_DROP))
PSM_FAULT_SITE(site_reg, "net.register", "A region is registered, on all ranks.");
PSM_FAULT_SITE_OF(site_put, "net.put",
                  "A put begins, with its signal or without; drop: it is lost, and reported as done.", CAN_DROP);
PSM_FAULT_SITE_OF(site_signal, "net.signal", "A put has a signal; drop: the data arrives without it.", CAN_DROP);
PSM_FAULT_SITE_OF(site_get, "net.get", "A get begins; drop: nothing is fetched, and it is reported as done.", CAN_DROP);
PSM_FAULT_SITE(site_progress, "net.progress", "NCCL's thread for one-sided operations asks for progress.");

/* ---- contexts ---- */

ncclResult_t rma_context_make(void *comm, int count, void **out)
{
    struct rma_comm *c = rma_comm_of(comm);
    *out = NULL;
    if (!c) return net_misuse("createContext", "this is not an open comm of RMA");
    struct rma_context *x = calloc(1, sizeof *x);
    if (!x || !net_give(x, 1, 0, NET_GIVEN_RMA_CONTEXT)) {
        free(x);
        return net_no_memory("a context of RMA", sizeof *x);
    }
    *x = (struct rma_context){c, count};
    *out = x;
    return ncclSuccess;
}

ncclResult_t rma_context_forget(void *context)
{
    if (!context) return ncclSuccess;
    if (!net_is_given(context, NET_GIVEN_RMA_CONTEXT))
        return net_misuse("destroyContext", "this is not an open context of RMA");
    net_take_back(context, 1, 0, NET_GIVEN_RMA_CONTEXT);
    free(context);
    return ncclSuccess;
}

static struct rma_comm *comm_of_context(const char *call, void *context, int index)
{
    const struct rma_context *x = net_is_given(context, NET_GIVEN_RMA_CONTEXT) ? context : NULL;
    if (!x || !rma_comm_of(x->comm)) {
        net_misuse(call, "this is not an open context of RMA");
        return NULL;
    }
    if (index < 0 || (x->count > 0 && index >= x->count)) {
        net_misuse(call, "there is no context with this number");
        return NULL;
    }
    return x->comm;
}

/* ---- regions ---- */

/* The ranks that have not registered it, as a list. */
static int missing(const struct rma_comm *c, uint32_t id, char *text, size_t size)
{
    int n = 0, used = 0;
    *text = 0;
    for (int i = 0; i < c->ranks; i++) {
        if (i == c->rank || c->peer[i].regions >= id) continue;
        if (used >= 0 && (size_t)used < size)
            used += snprintf(text + used, size - (size_t)used, "%s%d%s", n ? ", " : "", i,
                             c->peer[i].gone ? " (gone)" : "");
        n++;
    }
    return n;
}

static bool lacks_one(const struct rma_comm *c, uint32_t id)
{
    for (int i = 0; i < c->ranks; i++)
        if (i != c->rank && c->peer[i].regions < id && c->peer[i].gone) return true;
    return false;
}

static ncclResult_t announce(struct rma_comm *c, const struct rma_region *g)
{
    for (int i = 0; i < c->ranks; i++) {
        if (i == c->rank || c->peer[i].gone) continue;
        struct rma_request *r = rma_request_new(c, &c->peer[i], RMA_REGION);
        if (!r) return net_no_memory("a request", sizeof *r);
        r->head = (struct rma_head){.region = g->id, .bytes = g->size};
        rma_post(r);
    }
    return ncclSuccess;
}

static ncclResult_t wait_for_all(struct rma_comm *c, uint32_t id)
{
    uint64_t until = psm_clock_ns() + net_settings.timeout_ms * 1000000u;
    char names[128];
    for (;;) {
        pthread_mutex_lock(&c->lock);
        ncclResult_t result = rma_move(c);
        int left = missing(c, id, names, sizeof names);
        bool never = left && lacks_one(c, id);
        pthread_mutex_unlock(&c->lock);
        if (result != ncclSuccess || !left) return result;
        if (never || psm_clock_ns() > until) {
            NET_SAY(PSM_NET_RMA_ALONE, psm_net_rma_alone, NCCL_NET, c->rank, id, names);
            return never ? ncclRemoteError : ncclSystemError;
        }
        sched_yield();
    }
}

static void region_forget(struct rma_region *g)
{
    struct rma_region **at = &g->comm->first_region;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    net_take_back(g, 1, 0, NET_GIVEN_RMA_REGION);
    free(g);
}

static ncclResult_t region_make(struct rma_comm *c, void *data, size_t size, bool gpu, struct rma_region **out)
{
    struct rma_region *g = calloc(1, sizeof *g);
    ncclResult_t result = gpu ? rma_device_open(c) : ncclSuccess;
    if (result == ncclSuccess && (!g || !net_give(g, 1, 0, NET_GIVEN_RMA_REGION)))
        result = net_no_memory("a region", sizeof *g);
    if (result != ncclSuccess) {
        free(g);
        return result;
    }
    *g = (struct rma_region){c->first_region, c, ++c->regions, data, size, gpu};
    c->first_region = g;
    *out = g;
    return announce(c, g);
}

ncclResult_t rma_reg(void *comm, void *data, size_t size, int type, uint64_t flags, void **mhandle)
{
    struct rma_comm *c = rma_comm_of(comm);
    struct rma_region *g = NULL;
    struct psm_fault fault;
    *mhandle = NULL;
    if (!c) return net_misuse("regMrSym", "this is not an open comm of RMA");
    if (type != NCCL_PTR_HOST && type != NCCL_PTR_CUDA)
        return net_misuse("regMrSym", "memory of this type is not supported");
    ncclResult_t result = rma_fault_before(&site_reg, c, PSM_FAULT_UNKNOWN, &fault);
    if (result != ncclSuccess) return result;
    pthread_mutex_lock(&c->lock);
    result = region_make(c, data, size, type == NCCL_PTR_CUDA, &g);
    int device = rma_device_now(c);
    pthread_mutex_unlock(&c->lock);
    if (result == ncclSuccess) result = wait_for_all(c, g->id);
    rma_device_again(c, device);
    if (result == ncclSuccess) {
        bool ordered = flags & NCCL_NET_MR_FLAG_FORCE_SO;
        NET_SAY(PSM_NET_RMA_REGION, psm_net_rma_region, NCCL_INIT | NCCL_NET, c->rank, c->ranks, c->id, g->id, size,
                g->gpu ? "GPU" : "host", (uintptr_t)data, ordered ? "strict" : "any");
        *mhandle = g;
    }
    net_fault_after(&fault);
    return result;
}

ncclResult_t rma_dereg(void *comm, void *mhandle)
{
    struct rma_comm *c = rma_comm_of(comm);
    struct rma_region *g = mhandle;
    if (!c) return net_misuse("deregMrSym", "this is not an open comm of RMA");
    if (!g) return ncclSuccess;
    if (!net_is_given(g, NET_GIVEN_RMA_REGION) || g->comm != c)
        return net_misuse("deregMrSym", "this is not a region of the comm, or it was already deregistered");
    pthread_mutex_lock(&c->lock);
    region_forget(g);
    pthread_mutex_unlock(&c->lock);
    return ncclSuccess;
}

/* ---- operations ---- */

/* A region of this communicator with that part; NULL is one for nothing. */
static bool is_part(const struct rma_comm *c, const struct rma_region *g, uint64_t at, uint64_t size)
{
    if (!g) return size == 0;
    if (!net_is_given(g, NET_GIVEN_RMA_REGION) || g->comm != c) return false;
    return size <= g->size && at <= g->size - size;
}

/* The same part of the peer's memory. */
static ncclResult_t check_peer(struct rma_comm *c, const char *call, const struct rma_region *g, int peer, uint64_t at,
                               uint64_t size)
{
    if (!g && size == 0) return ncclSuccess;
    if (!net_is_given(g, NET_GIVEN_RMA_REGION) || g->comm != c)
        return net_misuse(call, "this is not a region of the comm");
    const struct rma_peer *p = &c->peer[peer];
    uint64_t all = peer == c->rank ? g->size : g->id <= p->regions ? p->sizes[g->id] : 0;
    if (size <= all && at <= all - size) return ncclSuccess;
    return rma_outside(c, call, peer, g->id, at, size, all);
}

static ncclResult_t on_this_rank(struct rma_comm *c, const struct rma_region *from, uint64_t from_at,
                                 const struct rma_region *to, uint64_t to_at, size_t size)
{
    ncclResult_t result = ncclSuccess;
    for (size_t at = 0; at < size && result == ncclSuccess; at += RMA_CHUNK) {
        size_t part = size - at < RMA_CHUNK ? size - at : RMA_CHUNK;
        result = rma_read(c, from, from_at + at, c->scratch, part);
        if (result == ncclSuccess) result = rma_write(c, to, to_at + at, c->scratch, part);
    }
    return result;
}

static ncclResult_t put(struct rma_comm *c, struct rma_request *r, struct rma_region *to, uint64_t to_at,
                        const struct rma_signal *signal)
{
    struct rma_region *counter = signal ? signal->mhandle : NULL;
    if (r->peer->rank == c->rank) {
        ncclResult_t result = on_this_rank(c, r->mine, r->mine_at, to, to_at, r->size);
        if (result == ncclSuccess && signal) result = rma_add(c, counter, signal->offset, signal->value);
        r->done = true;
        return result;
    }
    r->head = (struct rma_head){.region = to ? to->id : 0, .offset = to_at};
    if (signal) {
        r->head.signal_op = signal->op;
        r->head.signal_region = counter->id;
        r->head.signal_offset = signal->offset;
        r->head.signal_value = signal->value;
    }
    rma_post(r);
    return rma_move(c);
}

static ncclResult_t gone(struct rma_comm *c, int rank)
{
    NET_SAY(PSM_NET_RMA_LOST, psm_net_rma_lost, NCCL_NET, c->rank, rank, 1);
    return c->failed = ncclRemoteError;
}

ncclResult_t rma_put(void *context, int index, uint64_t from, void *from_mhandle, size_t size, uint64_t to,
                     void *to_mhandle, uint32_t rank, const struct rma_signal *given, void **request)
{
    const char *call = given ? "iputSignal" : "iput";
    struct rma_comm *c = comm_of_context(call, context, index);
    struct psm_fault fault, signal_fault = {.action = PSM_FAULT_NONE};
    struct rma_signal own;
    const struct rma_signal *signal = given;
    *request = NULL;
    if (!c) return ncclInternalError;
    if (rank >= (uint32_t)c->ranks) return net_misuse(call, "there is no such rank");
    if (!is_part(c, from_mhandle, from, size)) return net_misuse(call, "the data is outside its region");
    if (given && given->op != NCCL_NET_SIGNAL_OP_INC && given->op != NCCL_NET_SIGNAL_OP_ADD)
        return net_misuse(call, "there is no such operation for a signal");
    ncclResult_t result = check_peer(c, call, to_mhandle, (int)rank, to, size);
    if (result == ncclSuccess && given)
        result = check_peer(c, call, given->mhandle, (int)rank, given->offset, sizeof(uint64_t));
    if (result == ncclSuccess) result = rma_fault_before(&site_put, c, (int)rank, &fault);
    if (result == ncclSuccess && given && fault.action != PSM_FAULT_DROP)
        result = rma_fault_before(&site_signal, c, (int)rank, &signal_fault);
    if (result != ncclSuccess) return result;
    if (given) {
        own = *given;
        if (own.op == NCCL_NET_SIGNAL_OP_INC) own.value = 1;
        signal = signal_fault.action == PSM_FAULT_DROP ? NULL : &own;
    }
    pthread_mutex_lock(&c->lock);
    struct rma_request *r = rma_request_new(c, &c->peer[rank], RMA_PUT);
    if (!r) {
        result = net_no_memory("a request", sizeof *r);
    } else {
        r->mine = from_mhandle;
        r->mine_at = from;
        r->size = size;
        if (fault.action == PSM_FAULT_DROP)
            r->done = true;
        else
            result = c->peer[rank].gone ? gone(c, (int)rank) : put(c, r, to_mhandle, to, signal);
    }
    pthread_mutex_unlock(&c->lock);
    if (result == ncclSuccess) *request = r;
    net_fault_after(&fault);
    net_fault_after(&signal_fault);
    return result;
}

ncclResult_t rma_get(void *context, int index, uint64_t from, void *from_mhandle, size_t size, uint64_t to,
                     void *to_mhandle, uint32_t rank, void **request)
{
    struct rma_comm *c = comm_of_context("iget", context, index);
    struct psm_fault fault;
    *request = NULL;
    if (!c) return ncclInternalError;
    if (rank >= (uint32_t)c->ranks) return net_misuse("iget", "there is no such rank");
    if (!is_part(c, to_mhandle, to, size)) return net_misuse("iget", "the buffer is outside its region");
    ncclResult_t result = check_peer(c, "iget", from_mhandle, (int)rank, from, size);
    if (result == ncclSuccess) result = rma_fault_before(&site_get, c, (int)rank, &fault);
    if (result != ncclSuccess) return result;
    const struct rma_region *theirs = from_mhandle;
    pthread_mutex_lock(&c->lock);
    struct rma_request *r = rma_request_new(c, &c->peer[rank], RMA_GET);
    if (!r) {
        result = net_no_memory("a request", sizeof *r);
    } else if (fault.action == PSM_FAULT_DROP || size == 0) {
        r->done = true;
    } else if ((int)rank == c->rank) {
        result = on_this_rank(c, theirs, from, to_mhandle, to, size);
        r->done = true;
    } else if (c->peer[rank].gone) {
        result = gone(c, (int)rank);
    } else {
        r->mine = to_mhandle;
        r->mine_at = to;
        r->size = size;
        r->head = (struct rma_head){.region = theirs->id, .offset = from, .bytes = size};
        rma_post(r);
        result = rma_move(c);
    }
    pthread_mutex_unlock(&c->lock);
    if (result == ncclSuccess) *request = r;
    net_fault_after(&fault);
    return result;
}

/* Every copy is complete before its operation is done. */
ncclResult_t rma_flush(void *context, int index, void *mhandle, uint32_t rank, void **request)
{
    struct rma_comm *c = comm_of_context("iflush", context, index);
    *request = NULL;
    if (!c) return ncclInternalError;
    if (rank >= (uint32_t)c->ranks) return net_misuse("iflush", "there is no such rank");
    if (mhandle && !is_part(c, mhandle, 0, 0)) return net_misuse("iflush", "this is not a region of the comm");
    pthread_mutex_lock(&c->lock);
    struct rma_request *r = rma_request_new(c, &c->peer[rank], RMA_GET);
    if (r) r->done = true;
    pthread_mutex_unlock(&c->lock);
    *request = r;
    return r ? ncclSuccess : net_no_memory("a request", sizeof *r);
}

ncclResult_t rma_test(void *comm, void *request, int *done)
{
    struct rma_comm *c = rma_comm_of(comm);
    struct rma_request *r = request;
    *done = 0;
    if (!c) return net_misuse("test", "this is not an open comm of RMA");
    if (!net_is_given(r, NET_GIVEN_RMA_REQUEST) || r->comm != c || !r->used)
        return net_misuse("test", "this is not a request of the comm, or it was already reported as done");
    pthread_mutex_lock(&c->lock);
    ncclResult_t result = r->done ? ncclSuccess : rma_move(c);
    if (r->done) {
        *done = 1;
        result = ncclSuccess;
        rma_request_forget(r);
    }
    pthread_mutex_unlock(&c->lock);
    return result;
}

ncclResult_t rma_progress(void *context)
{
    struct rma_comm *c = comm_of_context("rmaProgress", context, 0);
    struct psm_fault fault;
    if (!c) return ncclInternalError;
    ncclResult_t result = rma_fault_before(&site_progress, c, PSM_FAULT_UNKNOWN, &fault);
    if (result != ncclSuccess) return result;
    pthread_mutex_lock(&c->lock);
    result = rma_move(c);
    pthread_mutex_unlock(&c->lock);
    net_fault_after(&fault);
    return result;
}

ncclResult_t rma_last_error(void *context, bool *failed)
{
    const struct rma_comm *c = comm_of_context("queryLastError", context, 0);
    if (!c) return ncclInternalError;
    *failed = c->failed != ncclSuccess;
    return ncclSuccess;
}
